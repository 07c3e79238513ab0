"""The servers' own code, in an environment that has it: it reads requests and writes answers. No model, no GPU.

Reads ``[FUNCTION, ARGUMENT]`` as JSON from stdin, and prints the result as the last line of stdout. It imports nothing
of this project, whose requirements the environment lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from types import SimpleNamespace
from typing import Any

DEFAULTS = {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.2, "repetition_penalty": 1.3}
"""As of a model's ``generation_config.json``."""


def vllm(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What vLLM's HTTP route answers, and what it asks of its engine, which samples what the case says.

    Args:
        cases: ``body`` of a request; what the engine ``sampled``: ``ids``, ``logprobs``, ``top`` of each position,
            ``finish``, ``stop`` and ``prompt_logprobs``.

    Returns:
        ``status`` and ``text`` of the answer, the ``params`` of the engine's call, and what the server did not
        understand of the request (``unknown``).
    """
    import httpx
    from fastapi import FastAPI
    from vllm.entrypoints.openai.completion import api_router
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput

    called: list[Any] = []

    class Engine:
        errored = False

        def check_admission(self, n: int) -> None: ...

        async def generate(self, engine_input: Any, params: Any, request_id: str, **_: Any) -> Any:
            called.append(params)
            given = case["sampled"]
            positions = [
                {id_: Logprob(value, 1)} | {int(other): Logprob(one, 1) for other, one in top.items()}
                for id_, value, top in zip(given["ids"], given["logprobs"], given["top"], strict=True)
            ]
            prompt = engine_input["prompt_token_ids"]
            scored = given["prompt_logprobs"]
            scores = scored and [None, *({id_: Logprob(v, 1)} for id_, v in zip(prompt[1:], scored, strict=True))]
            output = CompletionOutput(0, "", given["ids"], None, positions, None, given["finish"], given["stop"])
            yield RequestOutput(request_id, None, prompt, scores, [output], True)

    class Serving(OpenAIServingCompletion):
        """Without the checks of a real engine's configuration."""

        def __init__(self) -> None:
            self.engine_client = Engine()
            self.models = SimpleNamespace(
                lora_requests={},
                base_model_paths=[SimpleNamespace(name="org/model")],
                is_base_model=lambda name: name == "org/model",
                model_name=lambda lora: "org/model",
            )
            self.model_config = SimpleNamespace(max_model_len=4096, is_encoder_decoder=False)
            self.renderer = SimpleNamespace(tokenizer=None)
            self.request_logger = self.system_fingerprint = self.override_max_tokens = None
            self.return_tokens_as_token_ids = self.enable_log_outputs = self.has_kv_connector = False
            self.enable_prompt_tokens_details = self.enable_per_request_metrics = False
            self.default_sampling_params = DEFAULTS

        async def render_completion_request(self, request: Any) -> Any:
            error = await self._check_model(request)
            return error or [{"type": "token", "prompt_token_ids": request.prompt, "prompt": ""}]

    app = FastAPI()
    api_router.attach_router(app)
    init_exception_handler(app)
    app.state.openai_serving_completion = Serving()
    app.state.args = SimpleNamespace(log_error_stack=False)
    names = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
    names += ["max_tokens", "seed", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "n", "logprobs"]
    results = []

    async def ask(body: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as client:
            return await client.post("/v1/completions", json=body)

    for case in cases:
        called.clear()
        answer = asyncio.run(ask(case["body"]))
        unknown = sorted(CompletionRequest.model_validate(case["body"]).model_extra or ())
        params = {name: getattr(called[0], name) for name in names} if called else None
        results.append({"status": answer.status_code, "text": answer.text, "params": params, "unknown": unknown})
    return results


def vllm_logprobs(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What vLLM's own sampler draws from rows of logits, and the log-probabilities that it gives, by ``mode``."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    found = []
    for case in cases:
        logits = torch.tensor(case["logits"])
        rows, temperature = len(logits), case["temperature"]
        metadata = SamplingMetadata(
            temperature=torch.full((rows,), temperature),
            all_greedy=temperature == 0,
            all_random=temperature > 0,
            top_p=torch.full((rows,), case["top_p"]) if case["top_p"] < 1 else None,
            top_k=torch.full((rows,), case["top_k"], dtype=torch.int32) if case["top_k"] > 0 else None,
            generators={},
            max_num_logprobs=0,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=torch.zeros(rows),
            presence_penalties=torch.zeros(rows),
            repetition_penalties=torch.ones(rows),
            output_token_ids=[[] for _ in range(rows)],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )
        output = Sampler(case["mode"])(logits, metadata)
        ids, logprobs = output.sampled_token_ids[:, 0], output.logprobs_tensors.logprobs[:, 0]
        found.append({"ids": ids.tolist(), "logprobs": logprobs.tolist()})
    return found


def vllm_answers(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers as vLLM's own model of them has them, and what they have beyond it."""
    from vllm.entrypoints.openai.completion.protocol import CompletionResponse

    read = [CompletionResponse.model_validate(answer) for answer in answers]
    extra = [[*(one.model_extra or ()), *(one.choices[0].model_extra or ())] for one in read]
    dumped = [json.loads(one.model_dump_json()) for one in read]
    return [{"answer": answer, "extra": more} for answer, more in zip(dumped, extra, strict=True)]


def sglang(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sampling parameters that SGLang reads in requests, after its own schema and checks."""
    from sglang.api.v1.api_types import GenerateRequest
    from sglang.srt.sampling.sampling_params import SamplingParams

    found = []
    for body in bodies:
        request = GenerateRequest.from_json_value(body).to_json_value()
        params = SamplingParams(**body["sampling_params"])
        params.verify(1000)
        names = [name for name in body["sampling_params"] if name not in ("stop", "stop_token_ids")]
        read = {name: getattr(params, name) for name in names}
        read |= {"stop": params.stop_strs, "stop_token_ids": sorted(params.stop_token_ids or ())}
        found.append({"params": read, "request": request})
    return found


def sglang_answers(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers through SGLang's schema of them."""
    from sglang.api.v1.api_types import GenerateResponse

    return [GenerateResponse.from_json_value(answer).to_json_value() for answer in answers]


if __name__ == "__main__":
    name, argument = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        result = globals()[name](argument)
    print(json.dumps(result))
