"""A model behind an OpenAI-style chat service: hosted, or your own vLLM or SGLang server. Needs the extra ``chat``.

Calls that the service reports go into the episode unchanged, and the output of each call goes back as a ``tool``
message with the call's id: no dialect is written or read. `chat_answers` reads what the service sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from tenacity import RetryCallState, stop_after_attempt

from ..errors import ModelError, RequestRefused, UsageError, importing
from ..problems import Problem
from ..renderers import Action, Message, Renderer, ToolCall
from ..renderers.actions import read_call
from ..renderers.chat import call_message
from ..renderers.protocol import TOOL, reply_texts
from ..renderers.vocabularies import printable
from ..retries import CHAT
from .chat_answers import ChatAnswer, Failure, Received, collect, read_answer, read_failure
from .protocol import Charge, Completion, ModelOptions, Priced, Usage

PROBE_TOKENS = 16
"""``max_tokens`` of a request that tests whether a prompt fits at all; some services refuse fewer."""
QUIET = 5.0
"""Minimum seconds between two warnings about retries."""
MAX_REQUESTED_WAIT = 300.0
"""Maximum seconds to wait when the service requests a time."""
MAX_SPREAD = 1.0
"""Maximum seconds added at random to a requested time."""

_THINKING = ("reasoning_content", "reasoning")  # names of a turn's thinking in the history; Ollama reads the second
_OPTIONAL = ("seed", "top_p", "stream_options", *_THINKING)  # parts of a request or message that can be left out
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"

_log = logging.getLogger(__name__)
_connected: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[ChatPolicy]] = WeakKeyDictionary()
"""For each event loop, the policies that have sent a request and are not closed: they share litellm's connections."""


def wait_before(attempt: int, requested: float | None) -> float:
    """Seconds to wait after attempt `attempt`, from 1: what the service requests or, if longer, exponential backoff.

    Both have random jitter, so that conversations refused at the same time do not retry at the same time.
    """
    asked = min(requested or 0.0, MAX_REQUESTED_WAIT)
    return max(asked + random.uniform(0, min(MAX_SPREAD, asked / 10)), CHAT.pause(attempt))


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    return wait_before(state.attempt_number, error.retry_after if isinstance(error, Failure) else None)


def _litellm() -> Any:
    """litellm, imported on first use, which takes seconds. By default it would also download a price list."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with importing('chat policies need litellm: pip install "rtl-agent-gym[chat]"'):
        import litellm
        from litellm.litellm_core_utils import core_helpers
        from litellm.litellm_core_utils.llm_response_utils import convert_dict_to_response as conversion
        from litellm.llms.custom_httpx.http_handler import get_async_httpx_client
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_aiohttp_transport = True
    # A model may repeat itself, which is not a fault of its service.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize  # type: ignore[attr-defined]
    # litellm would report a turn that Anthropic cut off at the end of the context as complete.
    core_helpers._FINISH_REASON_MAP.setdefault("model_context_window_exceeded", "length")
    # litellm would rewrite calls of `multi_tool_use.parallel`, and fail at a number with too many digits in any call.
    conversion.handle_invalid_parallel_tool_calls = lambda tool_calls: tool_calls
    litellm.module_level_aclient = _ClientOfLoop(litellm, get_async_httpx_client)  # type: ignore[assignment]
    return litellm


@dataclass(frozen=True)
class _ClientOfLoop:
    """Stands for litellm's client of the running event loop.

    litellm streams Gemini's answers through one client in the whole process, whose connections fail with "Event loop is
    closed" after the event loop that opened them has ended.
    """

    library: Any
    get: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.get("module_level_client", {"timeout": self.library.request_timeout}), name)


@dataclass(frozen=True)
class ListedPrices:
    """Prices from litellm's list, which includes tiers by length and the price of writing to a cache."""

    library: Any
    model: str
    provider: str

    def cost(self, usage: Usage) -> float:
        """The cost in US dollars."""
        reported = usage.reported
        if reported is not None and not isinstance(reported, self.library.Usage):  # the service's, of a cut stream
            reported = self.library.Usage(**reported.model_dump())
        read, written = self.library.cost_per_token(
            model=self.model,
            custom_llm_provider=self.provider,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.output_tokens,
            usage_object=reported,
        )
        return float(read + written)


def _prices(library: Any, model: str, options: ModelOptions) -> Priced | None:
    """The caller's prices, otherwise litellm's, which do not apply to the caller's own server."""
    if options.prices is not None or options.base_url is not None:
        return options.prices
    name, provider, *_ = library.get_llm_provider(model)
    for key in (model, name, f"{provider}/{name}"):
        if {"input_cost_per_token", "output_cost_per_token"} <= library.model_cost.get(key, {}).keys():
            for known in (name, key):  # the list has longer names for some models than their providers
                prices = ListedPrices(library, known, provider)
                with contextlib.suppress(Exception):
                    prices.cost(Usage(1, 1))
                    return prices
    return None


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
        self.prices = _prices(self._library, self.model, self.options)
        """Prices of tokens; None if unknown."""
        self._left_out: set[str] = set()  # those of `_OPTIONAL` that the service does not accept
        self._limit = _LIMIT  # the service's name for the token limit of an answer
        self._has_answered = False
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
        """Close litellm's connections on this event loop, if no other policy uses them."""
        loop = asyncio.get_running_loop()
        users = _connected.get(loop, WeakSet())
        if self not in users:
            return
        users.remove(self)
        if users:
            return
        for client in self._take_clients():  # otherwise litellm would reuse a closed client
            if iscoroutinefunction(close := getattr(client, "close", None)):
                await close()

    def _take_clients(self) -> list[Any]:
        """Remove litellm's clients of the running event loop from its cache and return them."""
        cache = self._library.in_memory_llm_clients_cache
        end = cache.update_cache_key_with_event_loop("")
        taken = {key: client for key, client in cache.cache_dict.items() if key.endswith(end)}
        for key in taken:
            cache.delete_cache(key)
        return list(taken.values())

    async def request(
        self,
        messages: Sequence[dict[str, Any]],
        seed: int | None,
        max_tokens: int | None = None,
        failed: list[Charge] | None = None,
        *,
        trusted: bool = True,
    ) -> ChatAnswer | None:
        """Send one request, with retries while the service is busy or unreachable; None if the context is full.

        A content filter's refusal is an answer. Retries are logged as warnings, at most one per `QUIET` seconds for all
        conversations together.

        Args:
            messages: The conversation.
            seed: Seed of the answer; None for no seed.
            max_tokens: Replaces the option of that name.
            failed: Receives the reported usage of each attempt without an answer, however this call ends.
            trusted: Whether a refusal of the first request is due to the options, not to the content of the messages.

        Raises:
            ModelError: The service stays busy or unreachable, or refuses this conversation.
            UsageError: The service will never answer: wrong key, unknown model, or it refuses the first request.
        """
        attempts = self.options.attempts
        charges: list[Charge] = [] if failed is None else failed
        retrying = CHAT.retrying(
            lambda error: isinstance(error, Failure) and error.kind == "busy",
            stop=stop_after_attempt(attempts),
            wait=_wait,
            before_sleep=self._warn,
        )
        try:
            answer: ChatAnswer = await retrying(
                self._send, messages, seed, max_tokens or self.options.max_tokens, charges
            )
        except Failure as error:
            full = error.kind == "overflow" or (error.kind == "oversized" and self._has_answered)
            if not full:
                raise self._translated(error, attempts, trusted=trusted) from error
            if not self._has_answered and max_tokens is None:
                await self._check_max_tokens(messages, seed, error, charges)
            return None
        self._has_answered = True
        return answer

    async def _send(
        self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int, charges: list[Charge]
    ) -> ChatAnswer:
        """One attempt, repeated only to leave out or rename a parameter that the service does not accept."""
        while True:
            request, received = self._write(messages, seed, max_tokens), Received()
            try:
                return await self._attempt(request, received)
            except BaseException as error:  # a cancelled request is charged, too
                self._charge(received.usage, charges)
                refused = isinstance(error, Failure) and error.kind == "refused"
                if not refused or not self._adapt(request, str(error)):
                    raise

    async def _attempt(self, request: dict[str, Any], received: Received) -> ChatAnswer:
        import openai  # installed with litellm, whose exceptions are subclasses of openai's

        loop = asyncio.get_running_loop()
        if loop not in _connected:
            self._take_clients()  # older litellm identifies loops by id(), so these may belong to a loop that has ended
        _connected.setdefault(loop, WeakSet()).add(self)
        try:
            # litellm limits only how long the connection is silent: a slow trickle of bytes would never time out.
            async with asyncio.timeout(self.options.request_timeout):
                # drop_params: litellm leaves out parameters that it knows a provider refuses (seed, top_p).
                response = await self._library.acompletion(**request, drop_params=True)
                return await collect(response, received) if request.get("stream") else read_answer(response, received)
        except TimeoutError as error:
            raise Failure("busy", "no answer in time") from error
        except openai.OpenAIError as error:
            failure = read_failure(self._library, error, in_stream=received.error)
            if failure.kind == "filtered":
                return received.withheld(str(failure))
            if failure.kind == "malformed":
                if self.options.tools:
                    return received.malformed(str(failure))
                failure.kind = "busy"  # without tools only the text counts, and it is lost
            if failure.kind == "unresolved" and self._has_answered:
                failure.kind = "busy"  # the host exists: only its name server does not answer
            raise failure from error

    def _write(self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int) -> dict[str, Any]:
        """The arguments of litellm's ``acompletion``, without the parameters that the service has refused."""
        options = self.options
        request: dict[str, Any] = {
            "model": self.model,
            # Services pass on what models write, including lone surrogates, which cannot be sent.
            "messages": json.loads(printable(json.dumps(list(messages), ensure_ascii=False))),
            "temperature": options.temperature,
            self._limit: max_tokens,
            "timeout": options.request_timeout,
            "num_retries": 0,  # litellm does not retry all errors that are worth it, nor wait as long as requested
            "max_retries": 0,
        }
        if options.top_p != 1.0:
            request["top_p"] = options.top_p
        if seed is not None:
            request["seed"] = seed
        if options.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        for part in (request, *request["messages"]):
            for name in self._left_out:
                part.pop(name, None)
        if options.tools:
            # litellm would silently leave out tools for models that it does not know to support them.
            request |= {"tools": [TOOL], "tool_choice": "auto", "allowed_openai_params": ["tools"]}
            if importlib.util.find_spec("mcp") is None:
                # litellm searches the tools for MCP tools, and fails without the package mcp.
                request["_skip_mcp_handler"] = True
        if options.base_url:
            request["api_base"] = options.base_url
        if options.api_key:
            request["api_key"] = options.api_key
        elif options.base_url and self.model.startswith("openai/"):
            request["api_key"] = os.environ.get("OPENAI_API_KEY") or "none"
        return request

    def _adapt(self, request: dict[str, Any], words: str) -> bool:
        """Change how later requests are written, if a refusal names a parameter that can be left out or renamed.

        Returns:
            Whether the request is worth sending again.
        """
        if _LIMIT in request and _NEW_LIMIT in words and "instead" in words:
            if self._limit != _NEW_LIMIT:
                _log.warning("%s: sending %s instead of %s: %s", self.name, _NEW_LIMIT, _LIMIT, words)
            self._limit = _NEW_LIMIT
            return True
        told = re.split("[\"']input[\"']", words)[0]  # without the echo of what was sent
        sent = set(request).union(*request["messages"])
        named = {name for name in _OPTIONAL if name in sent and re.search(rf"\b{name}\b", told)}
        if new := named - self._left_out:
            _log.warning("%s: sending requests without %s: %s", self.name, " and ".join(sorted(new)), words)
        self._left_out |= named
        return bool(named)

    def _charge(self, usage: Usage | None, charges: list[Charge]) -> None:
        """Record what a request without an answer cost, if the service reports its usage."""
        if usage is not None:
            charges.append(Charge(usage, self.prices.cost(usage) if self.prices else None))

    def _translated(self, failure: Failure, attempts: int, *, trusted: bool = True) -> ModelError | UsageError:
        if failure.kind == "busy":
            tries = f" in {attempts} tries" if attempts > 1 else ""
            return ModelError(f"{self.name} did not answer{tries}: {failure}", retries=attempts - 1)
        what = "cannot be reached" if failure.kind == "unresolved" else "refused the request"
        message = f"{self.name} {what}: {failure}" + (f"; {failure.advice}" if failure.advice else "")
        # Until the first answer, the fault is in the options; after it, only in this conversation.
        wrong = failure.kind == "never" or (not self._has_answered and (trusted or failure.kind == "unresolved"))
        return UsageError(message) if wrong else RequestRefused(message)

    async def _check_max_tokens(
        self, messages: Sequence[dict[str, Any]], seed: int | None, overflow: Failure, charges: list[Charge]
    ) -> None:
        """Raise `UsageError` if the prompt fits, but not together with ``max_tokens`` of answer."""
        max_tokens = self.options.max_tokens
        if max_tokens <= PROBE_TOKENS:
            return
        try:
            answer = await self._send(messages, seed, PROBE_TOKENS, charges)
        except Failure as error:
            if error.kind == "overflow":
                return
            raise self._translated(error, attempts=1) from error
        self._charge(answer.usage, charges)
        raise UsageError(
            f"{self.name}: the prompt and an answer of --max-tokens {max_tokens} do not both fit into the model's "
            f"context; choose a smaller value ({overflow})"
        )

    def _warn(self, state: RetryCallState) -> None:
        """Log a retry. Conversations that wait at the same time share one warning."""
        now = time.monotonic()
        if now - self._last_warning < QUIET:
            self._unreported += 1
            return
        others = f"; {self._unreported} more retries since the last warning" if self._unreported else ""
        self._last_warning, self._unreported = now, 0
        error = state.outcome.exception() if state.outcome is not None else None
        _log.warning(
            "%s does not answer (%s); try %d of %d in %.0f s%s",
            self.name, error, state.attempt_number + 1, self.options.attempts, state.upcoming_sleep, others,
        )  # fmt: skip


class ChatPlayer:
    """One conversation. With tools it keeps its own history; without, it sends the episode's messages."""

    def __init__(self, policy: ChatPolicy, renderer: Renderer, seed: int | None) -> None:
        self._policy, self._renderer, self._seed = policy, renderer, seed
        self._history: list[dict[str, Any]] = []
        self._calls: tuple[ToolCall, ...] = ()
        self._ids: set[str] = set()
        self._failed: list[Charge] = []

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
        answer = await self._policy.request(self._history if native else messages, self._seed, failed=self._failed)
        if answer is None:
            return None
        turn = replace(answer.turn, calls=tuple(map(self._with_id, answer.turn.calls)))
        self._calls = turn.calls
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.thinking:  # some services refuse a history without it
            message |= dict.fromkeys(_THINKING, turn.thinking)
        if turn.calls:
            message["tool_calls"] = [_for_history(call) for call in turn.calls]
        self._history.append(message)
        is_turn = native or answer.refused  # a refusal is not searched for calls
        usage, prices = answer.usage, self._policy.prices
        return Completion(
            turn.text if is_turn else self._renderer.turn_text(turn),
            native=turn if is_turn else None,
            cut_off=answer.cut_off,
            refused=answer.refused,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cost=prices.cost(usage) if usage and prices else None,
        )

    def take_failed(self) -> Sequence[Charge]:
        charges, self._failed = self._failed, []
        return charges

    def _with_id(self, call: ToolCall) -> ToolCall:
        """The call with an id that no other call of the conversation has, as services require.

        Generated ids have nine letters and digits, the only form that Mistral accepts.
        """
        if not call.id or call.id in self._ids:
            made_up = (f"call{number:05d}" for number in count(len(self._ids)))
            call = replace(call, id=next(id_ for id_ in made_up if id_ not in self._ids))
        self._ids.add(call.id)
        return call


def _for_history(call: ToolCall) -> dict[str, Any]:
    """A call in the history of later requests, where services refuse invalid JSON.

    A call that was run although its JSON is not strict is written as it was understood; other invalid ones as ``{}``.
    """
    arguments = call.arguments
    constants: list[str] = []  # NaN and infinities, which JSON does not have
    try:
        sound = isinstance(json.loads(arguments, parse_constant=constants.append), dict) and not constants
    except (ValueError, RecursionError):
        sound = False
    if not sound:
        command = read_call(call).command
        arguments = "{}" if command is None else ToolCall.of(command).arguments
    return call_message(replace(call, arguments=arguments))
