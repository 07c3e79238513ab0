"""Servers by token ids: the tokens and log-probabilities are those of the engine behind them, or there is an error."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import tinker

pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")

from rtl_agent_gym.engines.requests import GuardedSampler, Requests
from rtl_agent_gym.engines.servers import SERVERS, TokenServer, connect_server
from rtl_agent_gym.errors import RequestRefused, ServiceDown, ServiceError, UsageError
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.renderers.transcript import TokenTranscript

from . import test_contract
from .conftest import prompt_of
from .token_server import Fault, TokenService, changed, killed, status, text

PROMPT = prompt_of(40)
FREE: Any = {"max_tokens": 24, "seed": 3, "stop": []}


def connected(service: TokenService, model: str = "org/model", key: str | None = None) -> TokenServer:
    return connect_server(service.kind, service.url + "/v1", model, key)


async def one(sampler: Any, prompt: list[int] | None = None, **params: Any) -> tinker.SampledSequence:
    asked = tinker.SamplingParams(**(FREE | params))
    return (await sampler.sample(tinker.ModelInput.from_ints(prompt or PROMPT), 1, asked)).sequences[0]


def same(found: tinker.SampledSequence, expected: tinker.SampledSequence, near: float = 0.0) -> None:
    assert list(found.tokens) == list(expected.tokens)
    assert list(found.logprobs or ()) == pytest.approx(list(expected.logprobs or ()), abs=near, rel=0)
    assert found.stop_reason == expected.stop_reason


@pytest.fixture(params=SERVERS)
async def service(request: pytest.FixtureRequest, model_path: Path) -> AsyncIterator[TokenService]:
    async with TokenService(request.param, model_path) as made:
        yield made


@pytest.fixture
async def engine(service: TokenService) -> test_contract.Engine:
    """For the contract's tests of samplers."""

    class Service:
        async def create_sampling_client(self, base_model: str) -> Any:
            server = connected(service)
            return GuardedSampler(server, Requests(), server.context)

    made: Any = Service()
    return test_contract.Engine(made, service.model)


test_contract_scores_what_is_sampled = test_contract.test_sampled_logprobs_are_those_that_scoring_gives
test_contract_scores_all_but_the_first = test_contract.test_scoring_gives_one_value_a_token_and_none_for_the_first
test_contract_prompt_logprobs = test_contract.test_prompt_logprobs_come_with_a_sample
test_contract_stop_token = test_contract.test_a_sample_ends_at_its_limit_or_at_a_stop_token_which_it_keeps
test_contract_stop_text = test_contract.test_a_stop_text_ends_a_sample_with_the_token_that_completes_it
test_contract_temperature_zero = test_contract.test_temperature_zero_takes_the_likeliest_token


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"temperature": 0.6}, {"max_tokens": None}])
async def test_tokens_and_logprobs_are_those_of_the_engine(service: TokenService, params: dict[str, Any]) -> None:
    sampler = connected(service)
    prompt = prompt_of(service.context - 30)
    found = await one(sampler, prompt, **params)
    same(found, await one(service.sampler, prompt, **params))
    assert len(found.tokens) == params.get("max_tokens", 24) or len(found.tokens) == 30
    scored = await sampler.compute_logprobs(tinker.ModelInput.from_ints(PROMPT))
    assert scored == await service.sampler.compute_logprobs(tinker.ModelInput.from_ints(PROMPT))


async def test_nothing_is_left_to_the_defaults_of_a_models_generation_config(service: TokenService) -> None:
    await one(connected(service), seed=7)
    [body] = service.requests
    sampling = body.get("sampling_params", body)
    unchanged = {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "stop": [],
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    assert {name: sampling[name] for name in unchanged} == unchanged
    assert sampling.get("seed", sampling.get("sampling_seed")) == 7


async def test_vllm_with_processed_logprobs_regards_top_p_and_top_k(model_path: Path) -> None:
    async with TokenService("vllm", model_path) as service:
        sampler = connected(service)
        for params in ({"top_p": 0.7}, {"top_k": 3}, {"top_k": 4, "top_p": 0.8, "temperature": 1.3}):
            same(await one(sampler, **params), await one(service.sampler, **params))


@pytest.mark.parametrize(
    ("kind", "processed", "params", "match"),
    [
        ("vllm", False, {"temperature": 0.6}, "--logprobs-mode processed_logprobs"),
        ("vllm", False, {"top_p": 0.9}, "--logprobs-mode processed_logprobs"),
        ("vllm", False, {"top_k": 5}, "--logprobs-mode processed_logprobs"),
        ("vllm", True, {"temperature": 0.005}, "at least 0.01"),
        ("sglang", False, {"temperature": 0.6}, "SGLANG_RETURN_ORIGINAL_LOGPROB"),
        ("sglang", True, {"top_p": 0.9}, "top_p, top_k: SGLang"),
    ],
)
async def test_logprobs_of_another_distribution_are_refused(
    model_path: Path, kind: str, processed: bool, params: dict[str, Any], match: str
) -> None:
    async with TokenService(kind, model_path, processed=processed) as service:
        sampler = connected(service)
        assert sampler.scaled is processed
        with pytest.raises(UsageError, match=match):
            await one(sampler, **params)
        assert not service.requests
        for temperature in (1.0, 0.0):
            found, expected = [await one(engine, temperature=temperature) for engine in (sampler, service.sampler)]
            same(found, expected, 0.0 if processed else 1e-5)


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_answer_that_the_servers_own_stop_ended_is_continued(model_path: Path, kind: str) -> None:
    async with TokenService(kind, model_path) as service:
        whole = list((await one(service.sampler, temperature=0.0)).tokens)
    own = whole[5]
    async with TokenService(kind, model_path, own_stops=(own,)) as service:
        found = await one(connected(service), temperature=0.0)
        expected = await one(service.sampler, temperature=0.0)
        same(found, expected, 1e-5)
        assert list(found.tokens) == whole
        parts = whole.count(own) + (whole[-1] != own)
        assert len(service.requests) == parts >= 2
        seeds = [body.get("seed", body.get("sampling_params", {}).get("sampling_seed")) for body in service.requests]
        assert seeds[0] == 3
        assert len(set(seeds)) == parts  # or each part would begin with the same random numbers
        service.requests.clear()
        stopped = await one(connected(service), temperature=0.0, stop=[own])
        assert (list(stopped.tokens), stopped.stop_reason) == (whole[: whole.index(own) + 1], "stop")
        assert len(service.requests) == 1


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_adapter_is_asked_for_by_its_name(model_path: Path, kind: str) -> None:
    async with TokenService(kind, model_path, adapters=("trained",)) as service:
        sampler = connected(service, "trained")
        same(await one(sampler), await one(service.sampler))
        assert service.requests[0]["model" if kind == "vllm" else "lora_path"] == "trained"
        assert sampler.context == service.context
        assert sampler.source == str(model_path)
        assert sampler.get_tokenizer().encode("abc") == service.sampler.get_tokenizer().encode("abc")


# ---- faults


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses."""
    from rtl_agent_gym import retries
    from rtl_agent_gym.engines import requests

    monkeypatch.setattr(requests, "REQUEST", retries.REQUEST._replace(first=0.0, longest=0.0))


def guarded(service: TokenService) -> GuardedSampler:
    server = connected(service)
    return GuardedSampler(server, Requests(), server.context)


@pytest.mark.usefixtures("quick")
async def test_what_may_pass_is_tried_again(service: TokenService) -> None:
    sampler = guarded(service)
    passing: list[list[Fault]] = [[status(503), status(500)], [status(429), killed], [text("<html>Bad Gateway</html>")]]
    for faults in passing:
        service.requests.clear()
        service.faults = dict(enumerate(faults))
        same(await one(sampler), await one(service.sampler))
        assert len(service.requests) == len(faults) + 1


@pytest.mark.usefixtures("quick")
async def test_a_refused_request_costs_one_episode_and_is_not_sent_again(service: TokenService) -> None:
    codes, sampler = (400, 404, 422), guarded(service)
    service.faults = {number: status(code, "bad things") for number, code in enumerate(codes)}
    for number, code in enumerate(codes, 1):
        with pytest.raises(RequestRefused, match=f"status {code}.*bad things"):
            await one(sampler)
        assert len(service.requests) == number
    same(await one(sampler), await one(service.sampler))


async def test_a_key_that_is_revoked_later_costs_no_episode(service: TokenService) -> None:
    sampler = guarded(service)
    policy = TokenSamplerPolicy(sampler, name="m", options=ModelOptions(temperature=1.0))
    service.faults = {number: status(401 + 2 * number, "expired") for number in range(2)}
    with pytest.raises(ServiceDown, match=r"--api-key.*status 401.*expired"):
        await one(sampler)
    with pytest.raises(UsageError, match=r"--api-key.*status 403.*expired"):
        await policy.request(TokenTranscript(PROMPT), [], 4, None)
    assert len(service.requests) == 2


async def test_a_password_in_the_address_is_sent_and_in_no_error(service: TokenService) -> None:
    server = connect_server(service.kind, service.url.replace("://", "://alice:secret@"), "org/model")
    assert server.connection["auth"] == ("alice", "secret")
    service.faults = {0: status(503), 1: status(401)}
    for code in (503, 401):
        with pytest.raises(ServiceError, match=f"//127.0.0.1:.*status {code}") as caught:
            await one(server)
        assert "secret" not in str(caught.value)


async def test_a_prompt_that_fills_the_context_is_refused_as_by_the_local_engine(service: TokenService) -> None:
    with pytest.raises(RequestRefused, match=f"no room in the context of {service.context}"):
        await one(guarded(service), prompt_of(service.context))
    assert not service.requests
    server = connected(service)
    server.context += 9  # the server was started again with less
    with pytest.raises(RequestRefused, match="longer than the model's context length"):
        await one(server, prompt_of(service.context))


Change = Callable[[dict[str, Any]], None]
GONE = object()


def put(body: Any, path: str, value: Any) -> None:
    """Set what is at a path such as ``choices/0/token_ids``; delete it for `GONE`; for a function, set its result."""
    *folders, last = [int(name) if name.lstrip("-").isdigit() else name for name in path.split("/")]
    for name in folders:
        body = body[name]
    if value is GONE:
        del body[last]
    else:
        body[last] = value(body[last]) if callable(value) else value


def at(vllm: dict[str, Any], sglang: dict[str, Any]) -> Change:
    """Changes an answer of either server at these paths, those of vLLM below its choice."""

    def change(body: dict[str, Any]) -> None:
        for path, value in (vllm if "choices" in body else sglang).items():
            put(body, f"choices/0/{path}" if "choices" in body else path, value)

    return change


VLLM, SGLANG = "logprobs/token_logprobs", "meta_info/output_token_logprobs"


def with_logprob(value: object) -> Change:
    return at({f"{VLLM}/2": value}, {f"{SGLANG}/2/0": value})


ABORTED = {"type": "abort", "message": "Aborted", "status_code": None}
stopped_for_a_fault = at(
    {"finish_reason": "repetition", "stop_reason": "repetition_detected"},
    {"meta_info/finish_reason": {"type": "stop", "matched": "NaN happened"}},
)


ANSWERS: list[tuple[Change, str]] = [
    (with_logprob(float("nan")), "nan for a log-probability"),
    (with_logprob(None), "None for a log-probability"),
    (with_logprob(-9999.0), "-9999.0 for a log-probability"),
    (with_logprob(3.5), "3.5 for a log-probability"),
    (with_logprob("x"), "x for a log-probability"),
    (with_logprob(float("-inf")), "-inf for a log-probability"),
    (at({f"{VLLM}/-1": GONE}, {f"{SGLANG}/-1": GONE}), "was expected"),
    (at({"logprobs": None}, {SGLANG: GONE}), "did not answer as"),
    (at({"token_ids": None}, {"output_ids": GONE}), "did not answer as"),
    (
        at({"token_ids": [], "logprobs/tokens": [], VLLM: []}, {"output_ids": [], SGLANG: []}),
        "0 token ids where at most 24",
    ),
    (
        at(
            {
                "token_ids": lambda ids: [*ids, 1],
                "logprobs/tokens": lambda tokens: [*tokens, "token_id:1"],
                VLLM: lambda values: [*values, -0.5],
            },
            {"output_ids": lambda ids: [*ids, 1], SGLANG: lambda values: [*values, [-0.5, 1, None]]},
        ),
        "25 token ids where at most 24",
    ),
    (at({"token_ids/3": lambda id_: id_ + 1}, {"output_ids/3": lambda id_: id_ + 1}), "was expected"),
    (
        at({"token_ids/0": "x", "logprobs/tokens/0": "token_id:x"}, {"output_ids/0": "x", f"{SGLANG}/0/1": "x"}),
        "token ids",
    ),
    (
        at({"prompt_token_ids/0": GONE}, {"meta_info/prompt_tokens": lambda count: count - 1}),
        "prompt_token.* was expected",
    ),
    (at({"finish_reason": "abort"}, {"meta_info/finish_reason": ABORTED}), "ended because of 'abort'"),
    (stopped_for_a_fault, "because of"),
    (lambda body: body.clear(), "is missing"),
    (lambda body: body.update(choices=[], meta_info=[]), "did not answer as"),
]
"""Answers that are not what was asked for, and what the error says of them."""
GARBAGE = ["", "{", "[]", "null", "not found", json.dumps({"choices": None, "meta_info": None})]


@pytest.mark.usefixtures("quick")
async def test_an_answer_that_is_not_what_was_asked_for_is_an_error_and_no_result(service: TokenService) -> None:
    sampler = connected(service)
    for number, (change, match) in enumerate(ANSWERS):
        service.faults = {number: changed(change)}
        with pytest.raises(ServiceError, match=match) as caught:
            await one(sampler, stop=None if change is stopped_for_a_fault else [])
        assert not isinstance(caught.value, RequestRefused), match
    for number, body in enumerate(GARBAGE, len(ANSWERS)):
        service.faults = {number: text(body)}
        with pytest.raises(ServiceError):
            await one(sampler)
    service.requests.clear()
    service.faults = dict.fromkeys(range(9), changed(with_logprob(None)))
    with pytest.raises(ServiceError, match="None for a log-probability"):
        await one(guarded(service))
    assert len(service.requests) == 5


async def test_scores_that_are_incomplete_are_an_error(service: TokenService) -> None:
    change = at({"prompt_logprobs/3": GONE}, {"meta_info/input_token_logprobs/3/0": None})
    service.faults = {0: changed(change)}
    with pytest.raises(ServiceError, match="did not answer as"):
        await connected(service).compute_logprobs(tinker.ModelInput.from_ints(PROMPT))


# ---- connecting


async def test_a_server_that_is_not_there_or_does_not_know_the_model_or_the_key(service: TokenService) -> None:
    with pytest.raises(UsageError, match=r"other: the server at http.* has org/model"):
        connected(service, "other")
    service.key = "secret"
    with pytest.raises(UsageError, match=r"--api-key.*401"):
        connected(service)
    connected(service, key="secret")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServiceError, match="does not answer"):
            connect_server(service.kind, url, "org/model")


async def test_a_server_of_the_other_kind_is_told_apart(service: TokenService) -> None:
    other = next(kind for kind in SERVERS if kind != service.kind)
    with pytest.raises(UsageError, match=f"no {SERVERS[other].kind} server with token ids"):
        connect_server(other, service.url, "org/model")


async def test_logits_are_no_logprobs(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``--logprobs-mode raw_logits``."""

    def logits(self: TokenService, prompt: list[int], count: int, temperature: float) -> list[tuple[int, float]]:
        return [(id_, -0.1) for id_ in range(count)]

    monkeypatch.setattr(TokenService, "_likeliest", logits)
    async with TokenService("vllm", model_path) as service:
        with pytest.raises(ServiceError, match="gives no log-probabilities"):
            connected(service)
