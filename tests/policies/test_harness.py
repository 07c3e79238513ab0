"""mini-swe-agent, the real program, as the policy of real episodes. Its model is scripted."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install 'rtl-agent-gym[agents]'")

from rtl_agent_gym import evaluate
from rtl_agent_gym.episodes.workspaces import describe
from rtl_agent_gym.errors import RequestRefused, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.policies import make_policy
from rtl_agent_gym.policies.endpoint import ModelEndpoint
from rtl_agent_gym.policies.harness import HarnessPolicy, _run_mini, _SandboxEnvironment, _Wire
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.renderer import ToollessRenderer
from rtl_agent_gym.sandboxes import CommandResult
from rtl_agent_gym.transcripts import read_transcript
from tests.waiting import soon

from . import test_inside
from .agents_table import note
from .test_inside import play, replayed, solution
from .test_streams import Scripted, in_json, vocabulary

pytestmark = pytest.mark.docker

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
policy = partial(test_inside.policy, agent="mini-swe-agent")


@pytest.mark.parametrize("sandbox", ["docker", "namespaces"])
async def test_it_solves_a_problem_in_a_sandbox_without_a_network(
    problem: Problem, tmp_path: Path, sandbox: str
) -> None:
    texts = [in_json("cat docs/specification.md; false"), in_json(solution(problem)), in_json(SUBMIT)]
    result, [player], _ = await play(problem, policy(list(texts)), tmp_path, sandbox=sandbox)
    assert result.score is not None
    assert result.score.passed, result.score.reason
    assert result.score.reward == pytest.approx(1.4)
    assert result.stop_reason == "completed"
    assert player.streams.numbers() == {"tokens/streams": 1.0, "tokens/breaks": 0.0}
    [transcript] = player.streams.transcripts()
    tokenizer = vocabulary("qwen3")
    sampled = [segment.ids for segment in transcript.segments if segment.sampled]
    assert [tokenizer.decode(list(ids), skip_special_tokens=False) for ids in sampled] == texts
    seen = tokenizer.decode(transcript.tokens, skip_special_tokens=False)
    assert problem.prompt[:200] in seen
    assert '"returncode": 1' in seen  # what mini-swe-agent makes of the first output
    note("mini-swe-agent", f"solved with {sandbox.replace('docker', 'Docker')}", result, player)


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (CommandResult("", 0), 0),
        (CommandResult("no\n", 3, restarted="it exited with status 3"), 3),
        (CommandResult("", 137, restarted="signal 9 ended it"), 137),
        (CommandResult("begun\n", None, timed_out=True), 124),
        (CommandResult("", None, timed_out=True, restarted="it did not come back"), 124),
    ],
)
def test_the_agent_reads_each_status(result: CommandResult, status: int) -> None:
    environment = _SandboxEnvironment(lambda _: describe(result, 30))
    assert environment.execute({"command": "any"})["returncode"] == status


async def test_a_malformed_answer_is_a_stream_of_its_own(problem: Problem, tmp_path: Path) -> None:
    malformed = '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>'
    texts = [f"{malformed}<|im_end|>", in_json(solution(problem)), in_json(SUBMIT)]
    result, [player], _ = await play(problem, policy(list(texts)), tmp_path)
    assert result.score is not None
    assert result.score.passed
    # mini-swe-agent leaves the malformed answer out of its history, which the stream cannot follow.
    assert player.streams.numbers() == {"tokens/streams": 2.0, "tokens/breaks": 1.0, "tokens/breaks/answer": 1.0}
    counts = [sum(segment.sampled for segment in one.segments) for one in player.streams.transcripts()]
    assert counts == [1, 2]
    seen = vocabulary("qwen3").decode(player.streams.transcripts()[0].tokens, skip_special_tokens=False)
    assert seen.endswith(texts[0])
    note("mini-swe-agent", "unreadable call", result, player)


async def test_the_record_has_its_streams_and_replay_runs_its_commands_again(problem: Problem, tmp_path: Path) -> None:
    texts = [in_json("ls rtl; false"), "I have no call.<|im_end|>", in_json(solution(problem)), in_json(SUBMIT)]
    result, [player], _ = await play(problem, policy(list(texts)), tmp_path)
    sampled = [segment for one in player.streams.transcripts() for segment in one.segments if segment.sampled]
    assert len(sampled) == 4
    assert result.output_tokens == sum(len(segment.ids) for segment in sampled)
    assert result.prompt_tokens == sum(map(len, player.streams.policy.sampler.prompts))
    [path] = (tmp_path / "out" / "transcripts").glob("*")
    record = read_transcript(path)
    assert record.header.system == ""  # the agent has its own
    assert [(turn.stream, turn.stream_reason) for turn in record.turns] == [(1, ""), *[(2, "answer")] * 3]
    report, shown = await replayed(problem, tmp_path)
    assert "turn 1 · command · stream 1 ·" in shown
    assert "turn 2 · command · stream 2 (answer) ·" in shown
    assert "exit code 1" in shown
    assert report.divergence is None, report.divergence
    assert report.score_compared
    assert (report.compared_turns, report.notes) == (4, [])


async def test_the_limits_of_the_episode_hold_and_its_thread_ends(problem: Problem, tmp_path: Path) -> None:
    result, players, _ = await play(problem, policy([in_json(f"echo {n}") for n in range(9)]), tmp_path, max_turns=3)
    assert result.stop_reason == "max_turns"
    assert result.turns == 3
    assert result.score is not None
    assert not result.score.passed
    players.clear()

    def left() -> list[str]:
        gc.collect()
        return [thread.name for thread in threading.enumerate() if "_run_mini" in thread.name]

    assert await soon(lambda: not left(), 10), left()


async def test_what_the_model_raises_keeps_its_kind(problem: Problem, tmp_path: Path) -> None:
    result, _, _ = await play(problem, policy([in_json("ls"), RequestRefused("too odd")]), tmp_path / "first")
    assert str(result.fault).startswith("RequestRefused: ")
    with pytest.raises(UsageError, match="the key was revoked"):
        await play(problem, policy([in_json("ls"), UsageError("the key was revoked")]), tmp_path / "second")


async def test_an_agent_that_fails_is_no_fault_of_the_model(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such template")

    monkeypatch.setattr("rtl_agent_gym.policies.harness.mini_swe_agent", broken)
    result, _, _ = await play(problem, policy([]), tmp_path)
    assert result.fault == "SandboxError: mini-swe-agent failed: RuntimeError: no such template"


async def test_a_full_context_ends_the_episode_and_it_is_graded(problem: Problem, tmp_path: Path) -> None:
    texts: list[str | Exception] = [in_json(solution(problem)), in_json("seq 5000"), "never"]
    result, _, _ = await play(problem, policy(texts, max_context=6000, max_tokens=2000), tmp_path)
    assert result.stop_reason == "max_tokens"
    assert result.score is not None
    assert result.score.passed


async def test_a_command_that_is_none_is_answered(problem: Problem, tmp_path: Path) -> None:
    texts = list(map(in_json, ("", "  \n", solution(problem), "echo \0", SUBMIT)))
    result, [player], _ = await asyncio.wait_for(play(problem, policy(list(texts)), tmp_path), 120)
    assert result.score is not None
    assert result.score.passed
    assert result.malformed == 3
    seen = vocabulary("qwen3").decode(player.streams.transcripts()[0].tokens, skip_special_tokens=False)
    assert seen.count("Nothing was run.") >= 3
    assert "execute_bash" not in seen  # its own tool is called bash


@pytest.mark.parametrize(
    "last",
    [pytest.param(f"{SUBMIT}; echo", marks=pytest.mark.slow), f"{SUBMIT}; printf '<tool%s> execute_bash' _call"],
)
async def test_a_submission_that_is_no_answer_ends_the_episode(problem: Problem, tmp_path: Path, last: str) -> None:
    texts = [in_json(solution(problem)), in_json(last)]
    result, _, _ = await asyncio.wait_for(play(problem, policy(list(texts)), tmp_path), 120)
    assert (result.stop_reason, result.turns, result.malformed) == ("completed", 3, 0)
    assert result.score is not None
    assert result.score.passed


async def test_it_reaches_its_model_where_a_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    sampler: Any = Scripted(vocabulary("qwen3"), ["I have no call.<|im_end|>"] * 3)
    async with ModelEndpoint(TokenSamplerPolicy(sampler, name="scripted"), "qwen3") as endpoint:
        wire = _Wire()
        await asyncio.to_thread(_run_mini, wire, endpoint.open().url, "Write an adder.")
        ended = await wire.wants.get()
        assert not isinstance(ended, str)
        assert ended.text == "RepeatedFormatError"


def test_one_policy_serves_several_loops(problem: Problem, tmp_path: Path) -> None:
    agent = policy([in_json(SUBMIT), in_json(SUBMIT)])
    for number in range(2):
        config = EvaluationConfig(problems=[problem], folder=tmp_path / str(number), attempts=1)
        found = asyncio.run(asyncio.wait_for(evaluate(config, agent), 120))
        assert found.results[0].score is not None
    asyncio.run(agent.close())


async def test_each_dialect_has_its_own_endpoint() -> None:
    agent = policy([])
    endpoints = [await agent.endpoint(dialect) for dialect in ("qwen3", "qwen3_coder", "qwen3")]
    assert endpoints[0] is endpoints[2]
    assert [endpoint.open().streams.dialect.name for endpoint in endpoints[:2]] == ["qwen3", "qwen3_coder"]
    addresses = [endpoint.address for endpoint in endpoints[:2]]
    await agent.close()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


async def test_a_dialect_that_the_model_was_not_trained_on_is_refused(problem: Problem) -> None:
    agent = policy([])
    agent.model.base_model = "Qwen/Qwen3.5-9B"
    with pytest.raises(UsageError, match=r"^renderer: qwen3 does not fit Qwen/Qwen3\.5-9B"):
        await evaluate(EvaluationConfig(problems=[problem], keep=False), agent)


def test_a_single_turn_episode_has_no_shell(problem: Problem) -> None:
    with pytest.raises(UsageError, match="mini-swe-agent works in a shell, and a single-turn episode has none"):
        policy([]).player(problem, ToollessRenderer(get_renderer("qwen3")))


def test_names() -> None:
    with pytest.raises(UsageError, match="mini-swe-agent"):
        HarnessPolicy("clippy", policy([]).model)
    with pytest.raises(UsageError, match="samples tokens"):
        make_policy("harness:mini-swe-agent golden")
    with pytest.raises(UsageError, match="needs an agent"):
        make_policy("harness")
