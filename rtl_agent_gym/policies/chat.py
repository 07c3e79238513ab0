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

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from ..errors import ModelError, UsageError
from ..problems import Problem
from ..renderers import Action, Message, ModelTurn, Renderer, ToolCall, with_notes
from ..renderers.protocol import TOOL
from .chat_errors import Failure, read_failure
from .model_options import ModelOptions
from .protocol import Completion

LONGEST_WAIT = 60.0
"""Seconds between two tries of a request, at most, unless the service asks for more."""
LONGEST_ASKED_WAIT = 300.0
"""Seconds to wait at most when the service says how long."""
PROBE_TOKENS = 16
"""Tokens that are asked for to find out whether a prompt fits at all; some services refuse fewer."""
QUIET = 5.0
"""Seconds between two lines that say that requests are made again."""

_OPTIONAL = ("seed", "top_p")  # without which a request still asks for the same

_log = logging.getLogger(__name__)
_backoff = wait_random_exponential(multiplier=0.5, max=LONGEST_WAIT)


class _Busy(Exception):
    """The service may answer another time."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.words)
        self.failure = failure


class _Overflow(Exception):
    """The conversation does not fit into the model's context."""


def _litellm() -> Any:
    """The library, imported at first use: it takes seconds, and would fetch a price list unless told not to."""
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
        self._left_out: set[str] = set()  # parameters that the service does not take
        self._last_notice, self._unsaid = -QUIET, 0

    @property
    def native_tools(self) -> bool:
        """Whether the service is told of the shell by itself, so that the prompt need not teach a dialect."""
        return self.options.tools

    def _full_name(self, model: str) -> str:
        provider, _, rest = model.partition("/")
        known = {getattr(name, "value", name) for name in self._library.provider_list}
        if self.options.base_url:
            # openai/gpt-oss-… is what servers call these models, and no model of that name is at OpenAI.
            if provider not in known or (provider == "openai" and rest.startswith("gpt-oss")):
                return f"openai/{model}"
            return model
        try:
            self._library.get_llm_provider(model)
        except self._library.BadRequestError as error:
            raise UsageError(
                f"chat:{model} does not say whose model this is: give --base-url, or a provider: chat:openai/{model}"
            ) from error
        return model

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ChatPlayer:
        """A player for one episode."""
        return ChatPlayer(self, renderer, seed)

    async def close(self) -> None:
        """Close litellm's connections."""
        await self._library.close_litellm_async_clients()
        self._library.in_memory_llm_clients_cache.flush_cache()  # else the closed ones are used again

    async def ask(self, messages: Sequence[dict[str, Any]], seed: int | None) -> Any | None:
        """One request, made again while the service is busy or away; None when the context is full.

        Each time it is made again, a warning says so (at most one in `QUIET` seconds, of all conversations together).

        Raises:
            ModelError: The service stays busy or away, or does not accept this conversation.
            UsageError: It will never answer this: wrong key, unknown model, or a first request that it refuses.
        """
        attempts = self.options.attempts
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Busy),
            stop=stop_after_attempt(attempts),
            wait=_pause,
            before_sleep=self._tell,
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    response = await self._ask_once(messages, seed, self.options.max_tokens)
                    self._has_answered = True
                    return response
        except _Overflow as error:
            if not self._has_answered:
                await self._blame_max_tokens(messages, seed, str(error))
            return None
        except _Busy as error:
            raise ModelError(
                f"{self.name} did not answer in {attempts} tries: {error.failure.words}", retries=attempts - 1
            ) from error
        raise AssertionError("unreachable")

    async def _ask_once(self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int) -> Any:
        import openai  # comes with litellm, whose exceptions are all of its kinds

        request = self._request(messages, seed, max_tokens)
        try:
            # What litellm knows a provider not to take (a seed, top_p) is left out.
            response = await self._library.acompletion(**request, drop_params=True)
        except openai.OpenAIError as error:
            failure = read_failure(self._library, error)
            named = {name for name in _OPTIONAL if name in request and re.search(rf"\b{name}\b", failure.words)}
            if failure.kind == "refused" and named:
                _log.warning("%s is asked without %s: %s", self.name, " and ".join(sorted(named)), failure.words)
                self._left_out |= named
                return await self._ask_once(messages, seed, max_tokens)
            raise self._translated(failure) from error
        if not getattr(response, "choices", None):
            raise _Busy(Failure("busy", "an answer without a choice"))
        return response

    def _translated(self, failure: Failure) -> Exception:
        if failure.kind == "busy":
            return _Busy(failure)
        if failure.kind == "overflow":
            return _Overflow(failure.words)
        message = f"{self.name} refused the request: {failure.words}"
        if failure.kind == "never":
            return UsageError(message)
        # Before anything was answered, the request itself is wrong; later it is this one conversation.
        first = failure.kind == "refused" and not self._has_answered
        return UsageError(message) if first else ModelError(message)

    async def _blame_max_tokens(self, messages: Sequence[dict[str, Any]], seed: int | None, words: str) -> None:
        """Raise when a prompt fits, and only not with as long an answer as was asked for."""
        asked = self.options.max_tokens
        if asked <= PROBE_TOKENS:
            return
        try:
            await self._ask_once(messages, seed, PROBE_TOKENS)
        except _Overflow:
            return
        except _Busy as error:
            raise ModelError(f"{self.name} did not answer: {error.failure.words}") from error
        raise UsageError(
            f"{self.name}: the prompt and an answer of --max-tokens {asked} do not both fit into the model's context; "
            f"ask for less ({words})"
        )

    def _tell(self, state: RetryCallState) -> None:
        """Say that a request is made again. Of many conversations that wait at once, one line speaks for all."""
        now = time.monotonic()
        if now - self._last_notice < QUIET:
            self._unsaid += 1
            return
        others = f"; {self._unsaid} more since the last such line" if self._unsaid else ""
        self._last_notice, self._unsaid = now, 0
        error = state.outcome.exception() if state.outcome is not None else None
        pause = state.next_action.sleep if state.next_action is not None else 0.0
        _log.warning(
            "%s does not answer (%s); try %d of %d in %.0f s%s",
            self.name, error, state.attempt_number + 1, self.options.attempts, pause, others,
        )  # fmt: skip

    def _request(self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int) -> dict[str, Any]:
        options = self.options
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": options.temperature,
            "max_tokens": max_tokens,
            "timeout": options.request_timeout,
            "num_retries": 0,
            "max_retries": 0,  # retries are made here, where they are counted and spread
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
        self._calls: tuple[ToolCall, ...] = ()

    def opened(self, system: str, user: str) -> None:
        """The episode begins."""
        self._history = [{"role": "system", "content": system}] if system else []
        self._history.append({"role": "user", "content": user})

    def answered(self, action: Action, outputs: Sequence[str]) -> None:
        """What goes back for the last completion."""
        shown = list(outputs) if action.kind == "command" else with_notes([action.correction or ""], action.notes)
        if self._calls:
            self._history += _answers(self._calls, shown)
        else:
            self._history.append({"role": "user", "content": "\n".join(shown)})

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        """Ask for the next turn."""
        native = self._policy.options.tools
        response = await self._policy.ask(self._history if native else messages, self._seed)
        if response is None:
            return None
        choice = response.choices[0]
        turn = _turn_of(choice.message)
        self._calls = turn.calls
        said: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.calls:
            said["tool_calls"] = [_for_history(call) for call in turn.calls]
        self._history.append(said)
        usage = getattr(response, "usage", None)
        return Completion(
            turn.text if native else self._renderer.turn_text(turn),
            native=turn if native else None,
            cut_off=choice.finish_reason == "length",
            prompt_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
        )


def _turn_of(message: Any) -> ModelTurn:
    """What a service reported of a turn."""
    calls = tuple(
        ToolCall(call.function.name or "", call.function.arguments or "", call.id or f"call_{number}")
        for number, call in enumerate(message.tool_calls or [])
    )
    return ModelTurn(getattr(message, "reasoning_content", None) or "", message.content or "", calls)


def _for_history(call: ToolCall) -> dict[str, Any]:
    """A call in the history of later requests. Services refuse broken JSON there, so it is left out."""
    try:
        arguments = call.arguments if isinstance(json.loads(call.arguments), dict) else "{}"
    except json.JSONDecodeError:
        arguments = "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _answers(calls: Sequence[ToolCall], outputs: Sequence[str]) -> list[dict[str, Any]]:
    """One ``tool`` message a call, as services demand: its own output where each has one, else all with the first."""
    texts = list(outputs)
    if len(texts) != len(calls):
        texts = ["\n".join(outputs), *["[answered with the first call of this turn]"] * (len(calls) - 1)]
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)]


def _pause(state: RetryCallState) -> float:
    """Seconds to wait: what the service asks for, or ever longer."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _Busy) and error.failure.retry_after is not None:
        return min(error.failure.retry_after, LONGEST_ASKED_WAIT)
    return _backoff(state)
