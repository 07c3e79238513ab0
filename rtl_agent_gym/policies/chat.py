"""A model behind an OpenAI-style chat service: hosted, or your own vLLM or SGLang server. Needs the extra ``chat``."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from ..errors import ModelError, UsageError
from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer, ToolCall
from ..renderers.protocol import TOOL, reply_texts
from .chat_errors import Failure, read_failure
from .model_options import ModelOptions
from .protocol import Completion

MAX_WAIT = 60.0
"""Maximum seconds between two attempts of a request, unless the service requests more."""
MAX_REQUESTED_WAIT = 300.0
"""Maximum seconds to wait when the service requests a time."""
PROBE_TOKENS = 16
"""``max_tokens`` of a request that tests whether a prompt fits at all; some services refuse fewer."""
QUIET = 5.0
"""Minimum seconds between two warnings about retries."""

_OPTIONAL = ("seed", "top_p")  # parameters that a request can do without

_log = logging.getLogger(__name__)
_backoff = wait_random_exponential(multiplier=0.5, max=MAX_WAIT)


class _Failed(Exception):
    """A request was not answered."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.words)
        self.failure = failure


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, _Failed) and error.failure.kind == "busy"


def _litellm() -> Any:
    """litellm, imported on first use, which takes seconds. By default it would also download a price list."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise UsageError('chat policies need litellm: pip install "rtl-agent-gym[chat]"') from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_aiohttp_transport = True
    return litellm


class ChatPolicy:
    """Requests each turn from a chat service.

    Args:
        model: litellm's name of the model (``anthropic/…``, ``openai/…``); with a `ModelOptions.base_url`, the name
            that the server at that address uses.
        options: Sampling and connection.
    """

    def __init__(self, model: str, options: ModelOptions | None = None) -> None:
        self.options = options or ModelOptions()
        self.name = f"chat:{model}"
        self._library = _litellm()
        self.model = self._full_name(model)
        self._has_answered = False
        self._left_out: set[str] = set()  # parameters that the service does not accept
        self._last_warning, self._unreported = -QUIET, 0

    @property
    def native_tools(self) -> bool:
        """Whether the shell is declared to the service as a tool, so that the prompt need not teach a dialect."""
        return self.options.tools

    def _full_name(self, model: str) -> str:
        provider, _, rest = model.partition("/")
        known = {getattr(name, "value", name) for name in self._library.provider_list}
        if self.options.base_url:
            # Servers name these models openai/gpt-oss-…, and OpenAI has no model of that name.
            if provider not in known or (provider == "openai" and rest.startswith("gpt-oss")):
                return f"openai/{model}"
            return model
        try:
            self._library.get_llm_provider(model)
        except self._library.BadRequestError as error:
            raise UsageError(
                f"chat:{model} does not name a provider: give --base-url, or a provider: chat:openai/{model}"
            ) from error
        return model

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ChatPlayer:
        return ChatPlayer(self, renderer, seed)

    async def close(self) -> None:
        """Close litellm's connections."""
        await self._library.close_litellm_async_clients()
        self._library.in_memory_llm_clients_cache.flush_cache()  # otherwise the closed ones are reused

    async def request(self, messages: Sequence[dict[str, Any]], seed: int | None) -> Any | None:
        """Send one request, with retries while the service is busy or unreachable; None if the context is full.

        Retries are logged as warnings, at most one per `QUIET` seconds for all conversations together.

        Raises:
            ModelError: The service stays busy or unreachable, or refuses this conversation.
            UsageError: The service will never answer: wrong key, unknown model, or it refuses the first request.
        """
        attempts, max_tokens = self.options.attempts, self.options.max_tokens
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_busy),
            stop=stop_after_attempt(attempts),
            wait=_wait,
            before_sleep=self._warn,
            reraise=True,
        )
        try:
            response: Any = await retrying(self._send, messages, seed, max_tokens)
        except _Failed as error:
            if error.failure.kind != "overflow":
                raise self._translated(error.failure, attempts) from error
            if not self._has_answered:
                await self._check_max_tokens(messages, seed, error.failure.words)
            return None
        self._has_answered = True
        return response

    async def _send(self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int) -> Any:
        import openai  # installed with litellm, whose exceptions are subclasses of openai's

        request = self._parameters(messages, seed, max_tokens)
        try:
            # drop_params: litellm leaves out parameters that it knows a provider refuses (seed, top_p).
            response = await self._library.acompletion(**request, drop_params=True)
        except openai.OpenAIError as error:
            failure = read_failure(self._library, error)
            named = {name for name in _OPTIONAL if name in request and re.search(rf"\b{name}\b", failure.words)}
            if failure.kind == "refused" and named:
                _log.warning(
                    "%s: sending requests without %s: %s", self.name, " and ".join(sorted(named)), failure.words
                )
                self._left_out |= named
                return await self._send(messages, seed, max_tokens)
            raise _Failed(failure) from error
        if not getattr(response, "choices", None):
            raise _Failed(Failure("busy", "the response has no choices"))
        return response

    def _translated(self, failure: Failure, attempts: int) -> ModelError | UsageError:
        if failure.kind == "busy":
            tries = f" in {attempts} tries" if attempts > 1 else ""
            return ModelError(f"{self.name} did not answer{tries}: {failure.words}", retries=attempts - 1)
        message = f"{self.name} refused the request: {failure.words}"
        # If nothing was answered before, the request itself is wrong; later, only this conversation.
        wrong = failure.kind == "never" or (failure.kind == "refused" and not self._has_answered)
        return UsageError(message) if wrong else ModelError(message)

    async def _check_max_tokens(self, messages: Sequence[dict[str, Any]], seed: int | None, words: str) -> None:
        """Raise `UsageError` if the prompt fits, but not together with ``max_tokens`` of answer."""
        max_tokens = self.options.max_tokens
        if max_tokens <= PROBE_TOKENS:
            return
        try:
            await self._send(messages, seed, PROBE_TOKENS)
        except _Failed as error:
            if error.failure.kind == "overflow":
                return
            raise self._translated(error.failure, attempts=1) from error
        raise UsageError(
            f"{self.name}: the prompt and an answer of --max-tokens {max_tokens} do not both fit into the model's "
            f"context; choose a smaller value ({words})"
        )

    def _warn(self, state: RetryCallState) -> None:
        """Log a retry. Conversations that wait at the same time share one warning."""
        now = time.monotonic()
        if now - self._last_warning < QUIET:
            self._unreported += 1
            return
        others = f"; {self._unreported} more since the last such line" if self._unreported else ""
        self._last_warning, self._unreported = now, 0
        error = state.outcome.exception() if state.outcome is not None else None
        _log.warning(
            "%s does not answer (%s); try %d of %d in %.0f s%s",
            self.name, error, state.attempt_number + 1, self.options.attempts, state.upcoming_sleep, others,
        )  # fmt: skip

    def _parameters(self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int) -> dict[str, Any]:
        options = self.options
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": options.temperature,
            "max_tokens": max_tokens,
            "timeout": options.request_timeout,
            "num_retries": 0,
            "max_retries": 0,  # `request` retries
        }
        if options.top_p != 1.0:
            request["top_p"] = options.top_p
        if seed is not None:
            request["seed"] = seed
        for name in self._left_out:
            request.pop(name, None)
        if options.tools:
            request |= {"tools": [TOOL], "tool_choice": "auto"}
            if importlib.util.find_spec("mcp") is None:
                # litellm searches the tools for MCP tools, and fails without the package mcp.
                request["_skip_mcp_handler"] = True
        if options.base_url:
            request["api_base"] = options.base_url
        if options.api_key or options.base_url:
            request["api_key"] = options.api_key or os.environ.get("OPENAI_API_KEY") or "none"
        return request


class ChatPlayer:
    """One conversation. With tools it keeps its own history; without, it sends the episode's messages."""

    def __init__(self, policy: ChatPolicy, renderer: Renderer, seed: int | None) -> None:
        self._policy, self._renderer, self._seed = policy, renderer, seed
        self._history: list[dict[str, Any]] = []
        self._calls: tuple[ToolCall, ...] = ()

    def opened(self, system: str, user: str) -> None:
        self._history = [{"role": "system", "content": system}] if system else []
        self._history.append({"role": "user", "content": user})

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        replies = reply_texts(action, outputs, len(self._calls))
        if self._calls:
            self._history += [
                {"role": "tool", "tool_call_id": call.id, "content": text}
                for call, text in zip(self._calls, replies, strict=True)
            ]
        else:
            self._history.append({"role": "user", "content": replies[0]})

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        native = self._policy.options.tools
        response = await self._policy.request(self._history if native else messages, self._seed)
        if response is None:
            return None
        choice = response.choices[0]
        turn = _turn_of(choice.message)
        self._calls = turn.calls
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.calls:
            message["tool_calls"] = [_for_history(call) for call in turn.calls]
        self._history.append(message)
        usage = getattr(response, "usage", None)
        return Completion(
            turn.text if native else self._renderer.turn_text(turn),
            native=turn if native else None,
            cut_off=choice.finish_reason == "length",
            prompt_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )


def _turn_of(message: Any) -> ModelTurn:
    """The turn that a service reported."""
    calls = tuple(
        ToolCall(call.function.name or "", call.function.arguments or "", call.id or f"call_{number}")
        for number, call in enumerate(message.tool_calls or [])
    )
    return ModelTurn(getattr(message, "reasoning_content", None) or "", message.content or "", calls)


def _for_history(call: ToolCall) -> dict[str, Any]:
    """A call in the history of later requests. Services refuse broken JSON there, so it is replaced by ``{}``."""
    try:
        arguments = call.arguments if isinstance(json.loads(call.arguments), dict) else "{}"
    except json.JSONDecodeError:
        arguments = "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _wait(state: RetryCallState) -> float:
    """Seconds to wait: what the service requests, otherwise exponential backoff."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _Failed) and error.failure.retry_after is not None:
        return min(error.failure.retry_after, MAX_REQUESTED_WAIT)
    return _backoff(state)
