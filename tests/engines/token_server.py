"""A server that speaks the routes of vLLM 0.33 or SGLang 0.5.23 by token ids. Behind them is the local engine.

What the servers do otherwise than the local engine, it does as they do: which log-probabilities it gives, and at which
tokens of its own it ends. ``tests/integrations/test_servers.py`` holds its answers against the servers' own code.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tinker
import torch
from aiohttp import web

from rtl_agent_gym.engines.local import LocalServiceClient

Fault = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
"""What happens in place of an answer, or to it."""


def status(code: int, text: str = "no") -> Fault:
    """Answer with an error."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": text, "code": code}}, status=code)

    return answer


def text(body: str) -> Fault:
    """Answer with this, whatever it is."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=body, content_type="application/json")

    return answer


async def killed(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Break the connection in the middle of the answer."""
    response = web.StreamResponse(headers={"Content-Length": "9999", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"id": "cmpl-1", "choices": [')
    assert request.transport is not None
    request.transport.abort()
    return response


def changed(change: Callable[[dict[str, Any]], None]) -> Fault:
    """Answer with what is left after a change to the body."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        change(body)
        return web.json_response(body)

    return answer


class TokenService:
    """The server, in a thread of its own.

    Args:
        kind: ``vllm`` or ``sglang``.
        folder: The model.
        processed: Whether its log-probabilities are at the temperature.
        own_stops: Ids at which it ends whatever a request says, as SGLang does at the model's end tokens.
        faults: By the number of a sampling request from 0, without those of `connect_server`.
        adapters: Names of adapters, which are the model itself here.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        processed: bool = True,
        own_stops: tuple[int, ...] = (),
        faults: Mapping[int, Fault] | None = None,
        adapters: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.folder, self.processed, self.own_stops = kind, folder, processed, own_stops
        self.faults, self.adapters = dict(faults or {}), adapters
        self.requests: list[dict[str, Any]] = []
        """The bodies of requests that were no measurements."""
        self.answers: list[dict[str, Any]] = []
        """What was answered, before any fault."""
        self.model = "org/model"
        self.key: str | None = None
        """The key that requests must have."""
        self._service = LocalServiceClient()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def __aenter__(self) -> TokenService:
        import transformers

        library: Any = transformers
        self._module = library.AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        self.sampler = await self._service.create_sampling_client(model_path=str(self.folder))
        self.context = self.sampler.context
        self._thread.start()
        await self._in_thread(self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._in_thread(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
        await asyncio.to_thread(self._service.close)

    async def _in_thread(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/model_info", self._info)
        app.router.add_post({"vllm": "/v1/completions", "sglang": "/generate"}[self.kind], self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def _models(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        root = str(self.folder) if self.kind == "vllm" else self.model
        base = {"id": self.model, "object": "model", "root": root, "parent": None, "max_model_len": self.context}
        made = [base | {"id": name, "root": f"/adapters/{name}", "parent": self.model} for name in self.adapters]
        return web.json_response({"object": "list", "data": [base, *(one | {"max_model_len": None} for one in made)]})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": self.model, "tokenizer_path": str(self.folder)})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        measured = bool(body["logprobs"] if self.kind == "vllm" else body["top_logprobs_num"])
        fault = None if measured else self.faults.get(len(self.requests))
        if not measured:
            self.requests.append(body)
        prompt = body["prompt"] if self.kind == "vllm" else body["input_ids"]
        if len(prompt) >= self.context:
            message = f"The input ({len(prompt)} tokens) is longer than the model's context length ({self.context})."
            return await status(400, message)(request, {})
        found = await (self._vllm(body) if self.kind == "vllm" else self._sglang(body))
        self.answers.append(found)
        return web.json_response(found) if fault is None else await fault(request, found)

    async def _sampled(self, prompt: list[int], body: Mapping[str, Any], seed: int | None, most: int) -> Any:
        """A sequence with what a server says of its end: its reason, and the text or token."""
        ends: list[Any] = [*body["stop"], *body["stop_token_ids"], *self.own_stops]
        params = tinker.SamplingParams(
            max_tokens=most,
            seed=seed,
            stop=ends if body["ignore_eos"] or ends else None,
            temperature=body["temperature"],
            top_k=body["top_k"],
            top_p=body["top_p"],
        )
        sequence = (await self.sampler.sample(tinker.ModelInput.from_ints(prompt), 1, params)).sequences[0]
        logprobs = [float(value) for value in sequence.logprobs or ()]
        if not self.processed:
            whole = tinker.ModelInput.from_ints([*prompt, *sequence.tokens])
            logprobs = [float(value or 0.0) for value in (await self.sampler.compute_logprobs(whole))[len(prompt) :]]
        matched = None
        if sequence.stop_reason == "stop":
            last, tail = sequence.tokens[-1], self.sampler.get_tokenizer().decode(sequence.tokens)
            matched = last if last in ends else next((end for end in body["stop"] if end in tail), None)
        return sequence, logprobs, matched

    def _likeliest(self, prompt: list[int], count: int, temperature: float) -> list[tuple[int, float]]:
        with torch.inference_mode():
            logits = self._module(input_ids=torch.tensor([prompt])).logits[0, -1].float()
        top = (logits / (temperature if self.processed else 1.0)).log_softmax(-1).topk(count)
        return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))

    async def _vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        sequence, logprobs, matched = await self._sampled(prompt, body, body["seed"], body["max_tokens"])
        names = [f"token_id:{id_}" for id_ in sequence.tokens]
        count = body["logprobs"]
        first = {
            f"token_id:{id_}": value
            for id_, value in (self._likeliest(prompt, count, body["temperature"]) if count else ())
        }
        top = [{name: value} for name, value in zip(names, logprobs, strict=True)]
        scores = None
        if body["prompt_logprobs"] is not None:
            found = await self.sampler.compute_logprobs(tinker.ModelInput.from_ints(prompt))
            pairs = zip(found[1:], prompt[1:], strict=True)
            scores = [None, *({str(id_): {"logprob": value, "rank": 1, "decoded_token": ""}} for value, id_ in pairs)]
        choice = {
            "index": 0,
            "text": "",
            "logprobs": {
                "text_offset": [0] * len(names),
                "token_logprobs": logprobs,
                "tokens": names,
                "top_logprobs": [top[0] | first, *top[1:]],
            },
            "finish_reason": sequence.stop_reason,
            "stop_reason": matched,
            "token_ids": list(sequence.tokens),
            "prompt_logprobs": scores,
            "prompt_token_ids": prompt,
        }
        total = len(prompt) + len(names)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(names), "total_tokens": total}
        return {"id": "cmpl-1", "object": "text_completion", "model": self.model, "choices": [choice], "usage": usage}

    async def _sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, sampling = body["input_ids"], body["sampling_params"]
        assert sampling["top_p"] == 1, "its log-probabilities would not regard it"
        most, seed = sampling["max_new_tokens"], sampling["sampling_seed"]
        sequence, logprobs, matched = await self._sampled(prompt, sampling, seed, most)
        end: dict[str, Any] = {"type": "length", "length": most}
        if sequence.stop_reason == "stop":
            end = {"type": "stop", "matched": matched if matched is not None else sequence.tokens[-1]}
        meta: dict[str, Any] = {
            "id": "1",
            "finish_reason": end,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(logprobs),
            "output_token_logprobs": [[value, id_, None] for value, id_ in zip(logprobs, sequence.tokens, strict=True)],
            "input_token_logprobs": [],
        }
        if body["logprob_start_len"] == 0:
            scores = await self.sampler.compute_logprobs(tinker.ModelInput.from_ints(prompt))
            meta["input_token_logprobs"] = [[value, id_, None] for value, id_ in zip(scores, prompt, strict=True)]
        if count := body["top_logprobs_num"]:
            likeliest = self._likeliest(prompt, count, sampling["temperature"])
            meta["output_top_logprobs"] = [[[value, id_, None] for id_, value in likeliest]]
        return {"text": "", "output_ids": list(sequence.tokens), "meta_info": meta}
