"""A model behind an OpenAI-style chat service: hosted, or your own vLLM or SGLang server. Needs the extra ``chat``."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from ..errors import ModelError, UsageError
from ..problems import Problem
from ..renderers import Action, Renderer
from ..renderers.protocol import Message, with_notes
from .chat_calls import DECLARATION, ToolCall, answers, in_dialect
from .model_options import ModelOptions
from .protocol import Completion

LONGEST_WAIT = 60.0
"""Seconds between two tries of a request, at most, unless the service asks for more."""
LONGEST_ASKED_WAIT = 300.0
"""Seconds to wait at most when the service says how long."""

_backoff = wait_random_exponential(multiplier=0.5, max=LONGEST_WAIT)


def _litellm() -> Any:
    """The library, imported at first use: it takes seconds, and would fetch a price list unless told not to."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise UsageError('chat policies need litellm: pip install "rtl-agent-gym[chat]"') from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.drop_params = True  # a service that knows no seed or no top_p is asked without
    litellm.disable_aiohttp_transport = True
    return litellm


class ChatPolicy:
    """Asks a chat service for each turn.

    Args:
        model: The model as litellm names it (``anthropic/…``, ``openai/…``), or with a `ModelOptions.base_url` just as
            the server at that address names it.
        options: Sampling and connection.
    """

    def __init__(self, model: str, options: ModelOptions | None = None) -> None:
        self.options = options or ModelOptions()
        self.name = f"chat:{model}"
        self._library = _litellm()
        self.model = self._full_name(model)
        self._has_answered = False

    @property
    def native_tools(self) -> bool:
        """Whether the service is told of the shell by itself, so that the prompt need not teach a dialect."""
        return self.options.tools

    def _full_name(self, model: str) -> str:
        providers = {getattr(provider, "value", provider) for provider in self._library.provider_list}
        if self.options.base_url and model.partition("/")[0] not in providers:
            return f"openai/{model}"
        return model

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ChatPlayer:
        """A player for one episode."""
        return ChatPlayer(self, renderer, seed)

    async def close(self) -> None:
        """Close litellm's connections."""
        await self._library.close_litellm_async_clients()

    async def ask(self, messages: Sequence[dict[str, Any]], seed: int | None) -> Any | None:
        """One request, made again while the service is busy or away; None when the context is full.

        Raises:
            ModelError: It stayed so.
            UsageError: It will never answer this: wrong key, unknown model, a request that it refuses.
        """
        library, options = self._library, self.options
        again = (
            library.RateLimitError,
            library.Timeout,
            library.APIConnectionError,
            library.InternalServerError,
            library.ServiceUnavailableError,
        )
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(again),
            stop=stop_after_attempt(options.attempts),
            wait=_pause,
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    response = await library.acompletion(**self._request(messages, seed))
                    if not response.choices:
                        raise ModelError(f"{self.name} answered without a choice")
                    self._has_answered = True
                    return response
        except library.ContextWindowExceededError:
            return None
        except again as error:
            raise ModelError(
                f"{self.name} did not answer in {options.attempts} tries: {_first_line(error)}",
                retries=options.attempts - 1,
            ) from error
        except library.BadRequestError as error:
            # Before anything was answered, the request itself is wrong; later it is this one conversation.
            kind = ModelError if self._has_answered else UsageError
            raise kind(f"{self.name} refused the request: {_first_line(error)}") from error
        except (library.AuthenticationError, library.NotFoundError, library.PermissionDeniedError) as error:
            raise UsageError(f"{self.name} refused the request: {_first_line(error)}") from error
        except library.APIError as error:
            raise ModelError(f"{self.name} failed: {_first_line(error)}") from error
        raise AssertionError("unreachable")

    def _request(self, messages: Sequence[dict[str, Any]], seed: int | None) -> dict[str, Any]:
        options = self.options
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "timeout": options.request_timeout,
            "num_retries": 0,
            "max_retries": 0,  # retries are made here, where they are counted and spread
        }
        if options.top_p != 1.0:
            request["top_p"] = options.top_p
        if seed is not None:
            request["seed"] = seed
        if options.tools:
            request |= {"tools": [DECLARATION], "tool_choice": "auto"}
            if importlib.util.find_spec("mcp") is None:
                # litellm looks among tools for some of a protocol that is not used here, and fails without its package.
                request["_skip_mcp_handler"] = True
        if options.base_url:
            request["api_base"] = options.base_url
        if options.api_key or options.base_url:
            request["api_key"] = options.api_key or os.environ.get("OPENAI_API_KEY") or "none"
        return request


class ChatPlayer:
    """One conversation. With tools it keeps the service's own form of it; without, the episode's messages are used."""

    def __init__(self, policy: ChatPolicy, renderer: Renderer, seed: int | None) -> None:
        self._policy, self._renderer, self._seed = policy, renderer, seed
        self._history: list[dict[str, Any]] = []
        self._calls: list[ToolCall] = []

    def opened(self, system: str, user: str) -> None:
        """The episode begins."""
        self._history = [{"role": "system", "content": system}] if system else []
        self._history.append({"role": "user", "content": user})

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """What goes back for the last completion."""
        shown = list(outputs) if action.kind == "command" else with_notes([action.correction or ""], action.notes)
        if self._calls:
            self._history += answers(self._calls, shown)
        else:
            self._history.append({"role": "user", "content": "\n".join(shown)})

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """Ask for the next turn."""
        native = self._policy.options.tools
        response = await self._policy.ask(self._history if native else messages, self._seed)
        if response is None:
            return None
        choice = response.choices[0]
        message = choice.message
        content, thinking = message.content or "", getattr(message, "reasoning_content", None) or ""
        self._calls = [
            ToolCall(call.id or f"call_{number}", call.function.name or "", call.function.arguments or "")
            for number, call in enumerate(message.tool_calls or [])
        ]
        said: dict[str, Any] = {"role": "assistant", "content": content}
        if self._calls:
            said["tool_calls"] = [call.for_history() for call in self._calls]
        self._history.append(said)
        usage = getattr(response, "usage", None)
        return Completion(
            in_dialect(self._renderer, content, thinking, self._calls),
            cut_off=choice.finish_reason == "length",
            prompt_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )


def _pause(state: RetryCallState) -> float:
    """Seconds to wait: what the service asks for, or ever longer."""
    error = state.outcome.exception() if state.outcome is not None else None
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    asked = str(headers.get("retry-after") or "")
    if asked.replace(".", "", 1).isdigit():
        return min(float(asked), LONGEST_ASKED_WAIT)
    return _backoff(state)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
