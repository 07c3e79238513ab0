"""A vLLM or SGLang server as a sampler: prompt token ids go in, sampled ids and their log-probabilities come out.

According to the code of vLLM 0.33.0 and SGLang 0.5.23, with which the tests compare it:

====================  ==================================================  ============================================
what                  vLLM                                                SGLang
====================  ==================================================  ============================================
request               ``/v1/completions``: ``prompt`` of ids,             ``/generate``: ``input_ids``,
                      ``return_token_ids``, ``logprobs``                  ``return_logprob``
log-probabilities of  the model (``raw_logprobs``, the default); or the   all tokens at the temperature, ignoring top_p
                      distribution after temperature, top_k and top_p     and top_k; or the model, with the variable
                      (``--logprobs-mode processed_logprobs``)            ``SGLANG_RETURN_ORIGINAL_LOGPROB``
seed                  of each request                                     no effect unless the server is started with
                                                                          ``--enable-deterministic-inference``
also ends at          stops in the server's configuration                 the end tokens of model and tokenizer
====================  ==================================================  ============================================

**Log-probabilities** must be those of the distribution that is sampled from (see `protocol.Sampler`). `connect_server`
measures which ones a server gives; parameters for which they would differ are refused.

**Stops** are only those of the request: if an answer ended at another stop, a further request continues it. Every
sampling parameter is sent, since servers take missing ones from the model's ``generation_config.json``.

**Failures.** A status in `requests.REFUSALS` is `RequestRefused`; 401 and 403, as for an expired key, are
`ServiceDown`. Other statuses, broken connections and invalid answers are `ServiceError`, which `GuardedSampler`
retries. An answer is invalid if it has another prompt, no ids, more ids than requested, or log-probabilities that are
missing, NaN, positive or -9999 (vLLM's value for none).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx
import numpy as np
import tinker

from ..errors import RequestRefused, RTLGymError, ServiceDown, ServiceError, UsageError
from ..visible import without_secrets
from .requests import REFUSALS, first_line

Json = dict[str, Any]
CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection."""
LEAST = -9999.0
"""vLLM writes this for a log-probability that it does not have, and for any that is lower."""
COMPARED = 5
"""Number of likeliest tokens that are compared to find out which log-probabilities a server gives."""


@dataclass(frozen=True)
class Piece:
    """What one request sampled."""

    ids: list[int]
    logprobs: list[float]
    finish: str
    """``stop`` or ``length``; other values are failures."""
    matched: object = None
    """The text that ended it, if any; a server may also give a token id here."""
    top: Mapping[int, float] = field(default_factory=dict)
    """Log-probabilities of the likeliest first tokens, if requested."""


class TokenServer:
    """A `protocol.Sampler` of one model on a server, for any event loop. Created by `connect_server`.

    Nothing is retried; see `requests.GuardedSampler`.

    Args:
        url: The server's address, with or without ``/v1``.
        model: The server's name for the model, or for an adapter.
        api_key: The key, if the server requires one.
        timeout: Maximum seconds of a request.
    """

    kind: ClassVar[str]
    path: ClassVar[str]
    of_cut: ClassVar[bool]
    """Whether its log-probabilities can be those of the distribution after top_p and top_k."""
    hint: ClassVar[str]
    """How to make it give log-probabilities at the request's temperature, for messages."""

    def __init__(self, url: str, model: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        given = httpx.URL(url)
        self.url, self.model = without_secrets(url).rstrip("/").removesuffix("/v1"), model  # messages name both
        self.context = 0
        """Context length: tokens of prompt and answer together."""
        self.source = model
        """The tokenizer's folder on the server, or its name on the Hugging Face hub."""
        self.scaled = False
        """Whether its log-probabilities are at the request's temperature; otherwise they are at temperature 1."""
        self._adapter = False
        self.connection: Json = {
            "auth": (given.username, given.password) if given.userinfo else None,
            "headers": {} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            "timeout": httpx.Timeout(timeout, connect=CONNECT_TIMEOUT),
            "verify": httpx.create_ssl_context(),
        }

    def asked(self, prompt: list[int], params: tinker.SamplingParams, top: int = 0, *, score: bool = False) -> Json:
        """The body of a request for one sequence; ``params.max_tokens`` must be set.

        It also requests log-probabilities of the `top` likeliest tokens, and with `score` those of the prompt.
        """
        raise NotImplementedError

    def piece(self, answer: Any, prompt: list[int], top: int) -> Piece:
        """What was sampled. Raises LookupError, TypeError or ValueError if the answer is malformed."""
        raise NotImplementedError

    def scores(self, answer: Any, prompt: list[int]) -> list[Any]:
        """The log-probabilities of the prompt's tokens except the first. Raises like `piece`."""
        raise NotImplementedError

    async def sample(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> tinker.SampleResponse:
        self.check(sampling_params)
        if topk_prompt_logprobs:
            raise UsageError(f"kl_top_k: most likely tokens are not supported with {self.kind} servers; use kl_top_k=0")
        ids = prompt.to_ints()
        scored = await self.compute_logprobs(prompt) if include_prompt_logprobs else None
        made = await asyncio.gather(*(self._sequence(ids, sampling_params, index) for index in range(num_samples)))
        return tinker.SampleResponse(sequences=made, _prompt_logprobs_list=scored)

    async def compute_logprobs(self, prompt: tinker.ModelInput) -> list[float | None]:
        ids = prompt.to_ints()
        found = await self._post(self.asked(ids, tinker.SamplingParams(max_tokens=1, temperature=0.0), score=True))
        with self._understanding():
            values = [_logprob(value) for value in self.scores(found, ids)]
            _agree("the number of log-probabilities", len(values), len(ids) - 1)
        return [None, *values]

    def get_tokenizer(self) -> Any:
        """The tokenizer that the server names. Raises `UsageError` if it is not available here."""
        try:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(self.source)
        except ImportError as error:
            raise UsageError(f'tokenizers need transformers: pip install "rtl-agent-gym[local]" ({error})') from error
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.model}: the server at {self.url} has the tokenizer of {self.source!r}, which is neither a "
                f"folder here nor a name on the Hugging Face hub; copy its files to this path ({first_line(error)})"
            ) from error

    def check(self, params: tinker.SamplingParams) -> None:
        """Raise `UsageError` for parameters that mean something else on this server."""
        if 0 < params.temperature < 0.01:
            raise UsageError(f"temperature: {self.kind} supports 0 and at least 0.01, not {params.temperature}")
        cut = params.temperature > 0 and (params.top_p < 1 or params.top_k > 0)
        if cut and not self.of_cut:
            raise UsageError(f"top_p, top_k: {self.kind}'s log-probabilities ignore them; use top_p=1 and no top_k")
        if (cut or params.temperature not in (0, 1)) and not self.scaled:
            raise UsageError(
                f"temperature, top_p: the server at {self.url} gives log-probabilities of the model, not of the "
                f"distribution that these values sample from; {self.hint}, or use temperature=1 and top_p=1"
            )

    async def _sequence(self, prompt: list[int], params: tinker.SamplingParams, index: int) -> tinker.SampledSequence:
        """Sample a sequence, and continue it if something other than a stop of the request ended it."""
        if (left := self.context - len(prompt)) < 1:
            raise RequestRefused(f"the prompt ({len(prompt)} tokens) leaves no room in the context of {self.context}")
        limit = min(params.max_tokens or left, left)
        stops, ids, logprobs = _stops(params), list[int](), list[float]()
        reason: tinker.StopReason | None = None
        while reason is None:
            seed = params.seed
            if seed is not None and (index or ids):
                seed = random.Random(f"{seed} {index} {len(ids)}").randrange(1 << 31)
            part = params.model_copy(update={"max_tokens": limit - len(ids), "seed": seed})
            piece = self.read(await self._post(self.asked(prompt + ids, part)), prompt + ids, limit - len(ids))
            ids, logprobs = ids + piece.ids, logprobs + piece.logprobs
            if isinstance(piece.matched, str) and piece.matched not in (stops or ()):  # as SGLang's "NaN happened"
                raise ServiceError(f"the server at {self.url} ended an answer because of {piece.matched!r}")
            if piece.finish == "stop" and (stops is None or ids[-1] in stops or piece.matched in stops):
                reason = "stop"
            elif piece.finish == "length" or len(ids) == limit:
                reason = "length"
        return tinker.SampledSequence(
            stop_reason=reason,
            sequence_id=str(index),
            tokens_np=np.array(ids, dtype=np.int32),
            logprobs_np=np.array(logprobs, dtype=np.float32),
        )

    async def _post(self, body: Json) -> Any:
        # One connection per request: a loop cannot close connections that another loop left open.
        async with httpx.AsyncClient(**self.connection) as client:
            return _json(await client.post(self.url + self.path, json=body))

    def read(self, answer: Any, prompt: list[int], most: int, top: int = 0) -> Piece:
        """What was sampled, with at most `most` tokens. Raises `ServiceError` if the answer is invalid."""
        with self._understanding():
            piece = self.piece(answer, prompt, top)
            if piece.finish not in ("stop", "length"):
                raise ValueError(f"it ended because of {piece.finish!r}")
            if not 0 < len(piece.ids) <= most or not all(type(id_) is int and 0 <= id_ < 1 << 31 for id_ in piece.ids):
                raise ValueError(f"{len(piece.ids)} token ids where at most {most} were asked for: {piece.ids[:5]}")
            _agree("the number of log-probabilities", len(piece.logprobs), len(piece.ids))
            for value in [*piece.logprobs, *piece.top.values()]:
                _logprob(value)
        return piece

    @contextlib.contextmanager
    def _understanding(self) -> Iterator[None]:
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, RTLGymError):
                raise
            what = f"{error} is missing" if isinstance(error, LookupError) else error
            message = f"the server at {self.url} did not answer as {self.kind} does: {what}"
            raise ServiceError(message) from error

    def find(self, client: httpx.Client) -> None:
        """Find the model, its context and its tokenizer. Raises `UsageError` if the server does not have it."""
        listed = _json(client.get(f"{self.url}/v1/models"))
        with self._understanding():
            cards = {card["id"]: card for card in listed["data"]}
            if self.model not in cards:
                raise UsageError(f"{self.model}: the server at {self.url} has {', '.join(cards)}")
            parent = cards[self.model].get("parent")
            self._adapter = parent is not None
            base = cards.get(parent, cards[self.model])
            self.context, self.source = int(base["max_model_len"]), str(base.get("root") or base["id"])

    def measure(self, client: httpx.Client) -> None:
        """Find out which log-probabilities the server gives.

        If they depend on the temperature, those of two tokens differ half as much at temperature 2 as at 1.
        """
        found = []
        for temperature in (1.0, 2.0):
            params = tinker.SamplingParams(max_tokens=1, temperature=temperature, stop=[], seed=0)
            answer = _json(client.post(self.url + self.path, json=self.asked([1], params, COMPARED)))
            found.append(self.read(answer, [1], 1, COMPARED).top)
        common = found[0].keys() & found[1].keys()
        if len(common) < 2 or sum(map(math.exp, found[0].values())) > 1.01:
            raise ServiceError(f"the server at {self.url} gives no log-probabilities: {dict(found[0])}")
        apart = [max(one[id_] for id_ in common) - min(one[id_] for id_ in common) for one in found]
        self.scaled = apart[1] < 0.75 * apart[0]


class VllmServer(TokenServer):
    """A vLLM server."""

    kind, path = "vLLM", "/v1/completions"
    of_cut, hint = True, "start it with --logprobs-mode processed_logprobs"

    def asked(self, prompt: list[int], params: tinker.SamplingParams, top: int = 0, *, score: bool = False) -> Json:
        return _sampling(params) | {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": params.max_tokens,
            "seed": params.seed,
            "ignore_eos": params.stop is not None,
            "logprobs": top,
            "prompt_logprobs": 0 if score else None,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def piece(self, answer: Any, prompt: list[int], top: int) -> Piece:
        [choice] = answer["choices"]
        _agree("prompt_token_ids", choice["prompt_token_ids"], prompt)
        ids, found = choice["token_ids"], choice["logprobs"]
        _agree("logprobs.tokens", found["tokens"], [f"token_id:{id_}" for id_ in ids])
        first = found["top_logprobs"][0] if top else {}
        likely = {int(token.removeprefix("token_id:")): value for token, value in first.items()}
        return Piece(ids, found["token_logprobs"], choice["finish_reason"], choice["stop_reason"], likely)

    def scores(self, answer: Any, prompt: list[int]) -> list[Any]:
        [choice] = answer["choices"]
        _agree("prompt_token_ids", choice["prompt_token_ids"], prompt)
        found = zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)
        return [values[str(id_)]["logprob"] for values, id_ in found]


class SglangServer(TokenServer):
    """An SGLang server."""

    kind, path = "SGLang", "/generate"
    of_cut, hint = False, "start it without the variable SGLANG_RETURN_ORIGINAL_LOGPROB"

    def find(self, client: httpx.Client) -> None:
        super().find(client)
        self.source = str(_json(client.get(f"{self.url}/model_info")).get("tokenizer_path") or self.source)

    def asked(self, prompt: list[int], params: tinker.SamplingParams, top: int = 0, *, score: bool = False) -> Json:
        sampling = _sampling(params) | {
            "max_new_tokens": params.max_tokens,
            "sampling_seed": params.seed,
            "ignore_eos": params.stop == [],  # SGLang then also ignores stop_token_ids
        }
        body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
        body |= {"logprob_start_len": 0 if score else -1, "top_logprobs_num": top}
        return body | ({"lora_path": self.model} if self._adapter else {})

    def piece(self, answer: Any, prompt: list[int], top: int) -> Piece:
        found = answer["meta_info"]
        _agree("prompt_tokens", found["prompt_tokens"], len(prompt))
        finish, entries = found["finish_reason"], found["output_token_logprobs"]
        ids = [entry[1] for entry in entries]
        _agree("output_ids", answer["output_ids"], ids)
        likely = {entry[1]: entry[0] for entry in (found["output_top_logprobs"][0] if top else ())}
        return Piece(ids, [entry[0] for entry in entries], finish["type"], finish.get("matched"), likely)

    def scores(self, answer: Any, prompt: list[int]) -> list[Any]:
        entries = answer["meta_info"]["input_token_logprobs"]
        _agree("input_token_logprobs", [entry[1] for entry in entries], prompt)
        return [entry[0] for entry in entries[1:]]


SERVERS: Mapping[str, type[TokenServer]] = {"vllm": VllmServer, "sglang": SglangServer}


def connect_server(kind: str, url: str, model: str, api_key: str | None = None, timeout: float = 600.0) -> TokenServer:
    """Connect to a server, and find out how it answers. `kind` is a key of `SERVERS`; for the rest see `TokenServer`.

    Raises `UsageError` if the server does not have the model, or refuses the key or token ids; `ServiceError` if it
    does not answer, or not in the format of its kind.
    """
    server = SERVERS[kind](url, model, api_key, timeout)
    try:
        with httpx.Client(**server.connection) as client:
            server.find(client)
            server.measure(client)
    except httpx.HTTPError as error:
        raise ServiceError(f"the server at {server.url} does not answer: {first_line(error)}") from error
    except RequestRefused as error:
        raise UsageError(f"no {server.kind} server with token ids: {error}") from error
    except ServiceDown as error:
        raise UsageError(str(error)) from error
    return server


def _stops(params: tinker.SamplingParams) -> list[int | str] | None:
    """The texts and ids that end an answer; None for the model's own end tokens."""
    return [params.stop] if isinstance(params.stop, str) else None if params.stop is None else list(params.stop)


def _sampling(params: tinker.SamplingParams) -> Json:
    """The parameters that have the same name on both servers."""
    stops = _stops(params) or []
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [stop for stop in stops if isinstance(stop, str)],
        "stop_token_ids": [stop for stop in stops if isinstance(stop, int)],
        "skip_special_tokens": False,
    }


def _agree(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"{what}: {str(found)[:80]} where {str(expected)[:80]} was expected")


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST < value < 1e-3:
        raise ValueError(f"{value} for a log-probability")
    return float(value)


def _json(answer: httpx.Response) -> Any:
    """The JSON object of an answer. Raises as documented above for statuses other than 200."""
    text = f"{answer.url}: status {answer.status_code}: {' '.join(answer.text.split())[:500]}"
    if answer.status_code in (401, 403):
        raise ServiceDown(f"api_key (--api-key): {text}")
    if answer.status_code in REFUSALS:
        raise RequestRefused(text)
    try:
        found = answer.json() if answer.status_code == 200 else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServiceError(text)
    return found
