"""What is sent to vLLM and SGLang, and what is read of their answers, against their own code and schemas."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch

pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")

from rtl_agent_gym.engines.sampling import _truncate
from rtl_agent_gym.engines.servers import SERVERS, Piece, connect_server
from rtl_agent_gym.errors import ServiceError
from tests.engines.conftest import make_model
from tests.engines.token_server import TokenService
from tests.integrations.ecosystem import REQUIREMENTS, clean, environment
from tests.integrations.servers_code import DEFAULTS
from tests.test_bounds import pins

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]

ASKED: list[dict[str, Any]] = [
    {"max_tokens": 5, "stop": [7, 9], "seed": 3},
    {"max_tokens": 5, "stop": None, "temperature": 0.0},
    {"max_tokens": 1, "stop": []},
    {"max_tokens": 9, "stop": ["\n", "</x>"], "temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": (1 << 31) - 1},
    {"max_tokens": 9, "stop": "end"},
]
PROMPT = [1, 250, 3, 4]


def run(function: str, argument: Any) -> Any:
    """Call a function of ``servers_code.py`` where vLLM and SGLang are."""
    program = Path(__file__).with_name("servers_code.py")
    command = [str(environment("servers")), str(program)]
    given = json.dumps([function, argument])
    done = subprocess.run(command, input=given, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def asked(kind: str, **options: Any) -> list[Any]:
    server = SERVERS[kind]("http://127.0.0.1:1", "org/model")
    return [server.asked(PROMPT, tinker.SamplingParams(**one), **options) for one in ASKED]


def sampled(body: dict[str, Any], rng: random.Random, **more: Any) -> dict[str, Any]:
    """What an engine samples for a request."""
    ids = rng.sample(range(300), body["max_tokens"])
    logprobs = [rng.uniform(-9, 0) for _ in ids]
    top = [{str(rng.randrange(300, 400)): -0.25} if body["logprobs"] else {} for _ in ids]
    scored = None if body["prompt_logprobs"] is None else [rng.uniform(-9, 0) for _ in PROMPT[1:]]
    found = {"ids": ids, "logprobs": logprobs, "top": top, "finish": "length", "stop": None}
    return found | {"prompt_logprobs": scored} | more


def test_the_documented_versions_are_the_tested_ones() -> None:
    from rtl_agent_gym.engines import servers

    listed = pins(REQUIREMENTS / "servers.txt")
    page = (REQUIREMENTS.parents[2] / "docs" / "howto" / "own_gpus.md").read_text()
    for name, package in (("vLLM", "vllm"), ("SGLang", "sglang")):
        assert f"{name} {listed[package]}" in str(servers.__doc__)
        assert f"{name} {listed[package]}" in page


def test_vllm_reads_every_parameter_as_it_is_meant() -> None:
    rng = random.Random(0)
    bodies = asked("vllm")
    found = run("vllm", [{"body": body, "sampled": sampled(body, rng)} for body in bodies])
    for params, one in zip(ASKED, found, strict=True):
        expected = tinker.SamplingParams(**params)
        stops = [expected.stop] if isinstance(expected.stop, str) else list(expected.stop or ())
        assert one["unknown"] == []
        assert one["params"] == {
            "temperature": expected.temperature,
            "top_p": expected.top_p,
            "top_k": expected.top_k if expected.temperature else 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": expected.max_tokens,
            "seed": expected.seed,
            "stop": [stop for stop in stops if isinstance(stop, str)],
            "stop_token_ids": [stop for stop in stops if isinstance(stop, int)],
            "ignore_eos": expected.stop is not None,
            "skip_special_tokens": False,
            "n": 1,
            "logprobs": 0,
        }
    assert all(found[0]["params"][name] != value for name, value in DEFAULTS.items())


def test_what_vllm_answers_is_what_was_sampled() -> None:
    rng = random.Random(1)
    server = SERVERS["vllm"]("http://127.0.0.1:1", "org/model")
    cases = [{"body": body, "sampled": sampled(body, rng)} for body in [*asked("vllm"), *asked("vllm", top=5)]]
    cases[0]["sampled"] |= {"finish": "stop", "stop": 9}
    cases[3]["sampled"] |= {"finish": "stop", "stop": "\n"}
    for case, one in zip(cases, run("vllm", cases), strict=True):
        given = case["sampled"]
        assert one["status"] == 200
        top = {int(id_): value for id_, value in given["top"][0].items()}
        likeliest = {given["ids"][0]: given["logprobs"][0]} | top if case["body"]["logprobs"] else {}
        expected = Piece(given["ids"], given["logprobs"], given["finish"], given["stop"], likeliest)
        found = server.read(json.loads(one["text"]), PROMPT, case["body"]["max_tokens"], case["body"]["logprobs"])
        assert found == expected
    [body, *_] = asked("vllm", score=True)
    given = sampled(body, rng)
    [one] = run("vllm", [{"body": body, "sampled": given}])
    assert server.scores(json.loads(one["text"]), PROMPT) == given["prompt_logprobs"]


def test_vllms_processed_logprobs_are_those_of_the_local_engine_and_its_raw_ones_the_models() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 30) * 2
    wanted = [(1.0, 1.0, -1), (0.0, 1.0, -1), (0.6, 1.0, -1), (1.0, 0.7, -1), (1.4, 1.0, 3), (0.8, 0.9, 5)]
    cases: list[dict[str, Any]] = [
        {"mode": mode, "temperature": temperature, "top_p": top_p, "top_k": top_k, "logits": logits.tolist()}
        for mode in ("raw_logprobs", "processed_logprobs")
        for temperature, top_p, top_k in wanted
    ]
    for case, found in zip(cases, run("vllm_logprobs", cases), strict=True):
        named = {name: case[name] for name in ("temperature", "top_p", "top_k")}
        processed = case["mode"] == "processed_logprobs"
        for row, id_, logprob in zip(logits, found["ids"], found["logprobs"], strict=True):
            asked = tinker.SamplingParams(**named) if processed else tinker.SamplingParams()
            assert logprob == pytest.approx(as_here(row, id_, asked), abs=1e-4), case["mode"]


def as_here(logits: torch.Tensor, id_: int, params: tinker.SamplingParams) -> float:
    """The local engine's log-probability of a token that is drawn with these parameters."""
    probabilities = torch.softmax(logits.double() / (params.temperature or 1.0), -1)
    if params.temperature > 0:
        probabilities = _truncate(probabilities, params.top_k, params.top_p)
    return float((probabilities[id_] / probabilities.sum()).log())


def test_what_vllm_answers_when_something_is_wrong() -> None:
    rng = random.Random(2)
    server = SERVERS["vllm"]("http://127.0.0.1:1", "org/model")
    [body, *_] = asked("vllm")
    nan, low = ([value, *sampled(body, rng)["logprobs"][1:]] for value in (float("nan"), float("-inf")))
    cases = [
        {"body": body, "sampled": sampled(body, rng, logprobs=nan)},
        {"body": body, "sampled": sampled(body, rng, logprobs=low)},
        {"body": body, "sampled": sampled(body, rng, finish="error")},
        {"body": body, "sampled": sampled(body, rng, finish="abort")},
        {"body": body | {"model": "other"}, "sampled": sampled(body, rng)},
        {"body": body | {"prompt": [1] * 5000}, "sampled": sampled(body, rng)},
        {"body": body | {"temperature": -1}, "sampled": sampled(body, rng)},
    ]
    found = run("vllm", cases)
    assert [one["status"] for one in found] == [400, 200, 500, 200, 404, 400, 400]
    assert "not JSON compliant" in found[0]["text"]  # NaN is refused by vLLM itself
    for one, match in ((found[1], "-9999.0 for a log-probability"), (found[3], "'abort'")):
        with pytest.raises(ServiceError, match=match):
            server.read(json.loads(one["text"]), PROMPT, 5)
    assert "maximum context length" in found[5]["text"]


def test_sglang_reads_every_parameter_as_it_is_meant() -> None:
    for params, one in zip(ASKED, run("sglang", asked("sglang")), strict=True):
        expected, found = tinker.SamplingParams(**params), one["params"]
        stops = [expected.stop] if isinstance(expected.stop, str) else list(expected.stop or ())
        assert one["request"]["input_ids"] == PROMPT
        assert one["request"]["return_logprob"] is True
        assert found["stop"] == [stop for stop in stops if isinstance(stop, str)]
        assert found["stop_token_ids"] == [stop for stop in stops if isinstance(stop, int)]
        assert found["ignore_eos"] is (expected.stop == [])
        assert (found["max_new_tokens"], found["sampling_seed"]) == (expected.max_tokens, expected.seed)
        whole = 1 << 30
        if expected.temperature:
            top_k = whole if expected.top_k == -1 else expected.top_k
            assert (found["temperature"], found["top_p"], found["top_k"]) == (
                expected.temperature,
                expected.top_p,
                top_k,
            )
        else:
            assert (found["temperature"], found["top_k"]) == (1.0, 1)  # SGLang's word for the likeliest
        neutral = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        assert {name: found[name] for name in neutral} == neutral


@pytest.fixture(params=SERVERS)
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TokenService]:
    async with TokenService(request.param, make_model(tmp_path / "model")) as made:
        yield made


async def test_the_server_of_the_tests_answers_in_the_servers_own_form(service: TokenService) -> None:
    server = connect_server(service.kind, service.url, service.model)
    stops: list[Any] = [[], list(range(100)), ["a", "e"], None]
    for stop in stops:
        params = tinker.SamplingParams(max_tokens=20, seed=1, stop=stop)
        await server.sample(tinker.ModelInput.from_ints(PROMPT), 1, params)
    await server.compute_logprobs(tinker.ModelInput.from_ints(PROMPT))
    found = run(f"{service.kind}_answers", service.answers)
    for answer, read in zip(service.answers, found, strict=True):
        if service.kind == "vllm":
            assert read["extra"] == []
            read = read["answer"]
        meta = answer.get("meta_info", {})
        prompt = (
            PROMPT if len(PROMPT) in (meta.get("prompt_tokens"), answer.get("usage", {}).get("prompt_tokens")) else [1]
        )
        likeliest = len(meta.get("output_top_logprobs", ()))
        assert server.read(read, prompt, 20, likeliest) == server.read(answer, prompt, 20, likeliest)
    assert server.scores(found[-1].get("answer", found[-1]), PROMPT) == server.scores(service.answers[-1], PROMPT)
