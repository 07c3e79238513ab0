"""Whole episodes with a model that a server of one's own serves by token ids: they are those of the model here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")
pytest.importorskip("torch")

from rtl_agent_gym import evaluate
from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT, shipped
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.evaluation.results import read_config
from rtl_agent_gym.policies import ModelOptions, make_policy
from rtl_agent_gym.policies.harness import HarnessPolicy
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.transcripts import read_transcript
from tests.engines.token_server import Fault, TokenService, killed, status

from .test_inside import AGENT, PROGRAM, play

SERVERS = ("vllm", "sglang")
LIMITS: dict[str, Any] = {"max_tokens": 120, "max_context": 1500}


@pytest.fixture(params=SERVERS)
async def service(request: pytest.FixtureRequest) -> AsyncIterator[TokenService]:
    async with TokenService(request.param, shipped("student")) as made:
        yield made


def named(service: TokenService) -> str:
    return f"{service.kind}:{service.model}@{service.url}"


async def transcript(policy: str, problem: Problem, folder: Path, **options: Any) -> Any:
    """The record of one episode, and its result."""
    rules = EpisodeConfig(max_turns=6, system_prompt=SYSTEM_PROMPT)
    model = ModelOptions(**(LIMITS | options))
    config = EvaluationConfig(
        problems=[problem],
        policy=policy,
        model=model,
        renderer=RENDERER,
        folder=folder,
        episode=rules,
        attempts=1,
        seed=4,
    )
    (result,) = (await evaluate(config)).results
    return result.transcript and read_transcript(folder / result.transcript), result


@pytest.mark.docker
async def test_an_episode_is_the_one_that_the_model_plays_here(
    problem: Problem, service: TokenService, tmp_path: Path
) -> None:
    service.faults = {1: status(503), 3: killed}
    served, result = await transcript(named(service), problem, tmp_path / "served")
    assert result.fault is None, result.fault
    local, expected = await transcript(f"local:{shipped('student')}", problem, tmp_path / "local")
    assert len(served.turns) == len(local.turns) >= 3
    for one, other in zip(served.turns, local.turns, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
        assert [command.command for command in one.commands] == [command.command for command in other.commands]
    assert result.score is not None
    assert (result.score.reward, result.score.reason) == (expected.score.reward, expected.score.reason)
    assert result.retries == 0
    assert len(service.requests) == len(served.turns) + 2
    record = read_config(tmp_path / "served")
    assert record.policy == f"{service.kind}:org/model"  # results of another port are of the same evaluation
    assert record.sampling["base_url"] == "http://127.0.0.1"


@pytest.mark.docker
@pytest.mark.sampled(1)  # the servers differ in their own protocols alone, which the test above compares
async def test_an_agents_episode_is_the_one_that_the_model_plays_here(
    problem: Problem, service: TokenService, tmp_path: Path
) -> None:
    """The agent's program is in the sandbox: its requests take the gateway, `ModelEndpoint` and the server's route."""
    streams = []
    for name in (named(service), f"local:{shipped('student')}"):
        model: Any = make_policy(name, ModelOptions(**LIMITS))
        folder = tmp_path / name.partition(":")[0]
        result, [player], _ = await play(problem, HarnessPolicy(PROGRAM, model), folder, max_turns=4)
        assert result.score is not None
        streams.append([(one.tokens, one.mask, one.logprobs) for one in player.streams.transcripts()])
    assert streams[0] == streams[1]
    assert sum(map(sum, (mask for _, mask, _ in streams[0]))) >= 10


@pytest.mark.docker
@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", [status(503), killed, status(400)])
async def test_a_server_that_fails_for_good_is_no_grade(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    from rtl_agent_gym import retries
    from rtl_agent_gym.engines import requests

    monkeypatch.setattr(requests, "REQUEST", retries.REQUEST._replace(first=0.0, longest=0.0))
    async with TokenService("vllm", shipped("student"), faults=dict.fromkeys(range(1, 99), fault)) as service:
        _, result = await transcript(named(service), problem, tmp_path)
    assert result.score is None
    assert result.fault is not None


@pytest.mark.docker
async def test_a_server_that_refuses_an_agents_request_is_no_grade_of_the_agent(
    problem: Problem, tmp_path: Path
) -> None:
    """As vLLM does where a log-probability is NaN. The agent's program ends as if it were content."""
    content = AGENT.replace("sys.exit(", "sys.exit(0 if error.code == 400 else ")
    assert content != AGENT
    program = PROGRAM | {"files": {"/home/agent/agent.py": content}}
    refused = dict.fromkeys(range(99), status(400, "Out of range float values are not JSON compliant"))
    async with TokenService("vllm", shipped("student"), faults=refused) as service:
        model: Any = make_policy(named(service), ModelOptions(**LIMITS))
        result, _, _ = await play(problem, HarnessPolicy(program, model), tmp_path)
    assert result.score is None
    assert "Out of range float values" in str(result.fault)


async def test_the_servers_context_is_the_policys_where_it_is_shorter(service: TokenService) -> None:
    service.context = 400

    def made(most: int) -> Any:
        return make_policy(named(service), ModelOptions(max_context=most))

    for most, expected in ((32_768, 400), (300, 300)):
        policy = made(most)
        assert policy.options.max_context == expected
        assert policy.tokenizer.encode("module") == service.sampler.get_tokenizer().encode("module")
        await policy.close()


async def test_what_cannot_be_is_said_before_the_first_episode(service: TokenService) -> None:
    def made(name: str, **options: Any) -> None:
        make_policy(name, ModelOptions(**options))

    with pytest.raises(UsageError, match=f"{service.kind}:x needs the address"):
        made(f"{service.kind}:x")
    with pytest.raises(UsageError, match="has org/model"):
        made(f"{service.kind}:x@{service.url}")
    with pytest.raises(UsageError, match="base_url"):
        made(named(service), base_url="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="supports 0 and at least"):
        made(named(service), temperature=0.001)


def test_the_program_in_the_documents_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.docs.test_pages import blocks

    program, shown = [block.body for block in blocks("howto/own_gpus.md") if block.language in ("python", "text")]

    async def serve() -> None:
        async with TokenService("vllm", shipped("student")) as service:
            written = program.replace("Qwen/Qwen3-8B@http://127.0.0.1:8000", f"{service.model}@{service.url}")
            assert service.url in written
            await asyncio.to_thread(exec, compile(written, "own_gpus.md", "exec"), {"__name__": "page"})

    asyncio.run(serve())
    assert capsys.readouterr().out == shown
