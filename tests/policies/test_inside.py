"""Agents whose programs work in sandboxes without a network: a small one of Python here, the real ones in
`test_real_agents.py`. The model is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")

from rtl_agent_gym import evaluate
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.episodes.runtime import acquire
from rtl_agent_gym.episodes.workspaces import ShellWorkspace
from rtl_agent_gym.errors import (
    ModelError,
    NotFinite,
    RequestRefused,
    SandboxBroken,
    SandboxError,
    ServiceError,
    UsageError,
)
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.evaluation.replay import Replay, replay, restore
from rtl_agent_gym.evaluation.viewer import print_episode
from rtl_agent_gym.policies import ModelOptions, heredoc
from rtl_agent_gym.policies.agents import Address, Program
from rtl_agent_gym.policies.endpoint import Line
from rtl_agent_gym.policies.harness import HarnessPlayer, HarnessPolicy, InsidePlayer, _completion, _Ended
from rtl_agent_gym.policies.protocol import InStream
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.policies.streams import Answer, ContextFull
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import ModelTurn, ToolCall
from rtl_agent_gym.sandboxes import Process, SandboxSpec
from rtl_agent_gym.transcripts import TurnRecord, read_transcript

from .test_streams import Scripted, in_json, streams, vocabulary

pytestmark = pytest.mark.docker

AGENT = """
import json, subprocess, sys, urllib.error, urllib.request
TOOL = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object",
        "properties": {"command": {"type": "string"}}}}}
messages = [{"role": "system", "content": "You write Verilog."}, {"role": "user", "content": open(sys.argv[2]).read()}]
while True:
    body = json.dumps({"model": "m", "messages": messages, "tools": [TOOL]}).encode()
    try:
        reply = urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body), timeout=60)
    except urllib.error.HTTPError as error:
        sys.exit("status %d: %s" % (error.code, error.read()[:300]))
    message = json.load(reply)["choices"][0]["message"]
    messages.append(message)
    for call in message.get("tool_calls") or []:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
    if not message.get("tool_calls"):
        print("done:", message["content"])
        break
"""
PROGRAM = {
    "argv": ["python3", "/home/agent/agent.py", "{url}", "/home/agent/task.md"],
    "files": {"/home/agent/agent.py": AGENT},
    "name": "small",
}


def solution(problem: Problem) -> str:
    assert problem.golden is not None
    return "\n".join(heredoc(path, text) for path, text in problem.golden.items())


def policy(texts: list[str | Exception], agent: Any = PROGRAM, **options: Any) -> HarnessPolicy:
    sampler: Any = Scripted(vocabulary("qwen3"), texts)
    return HarnessPolicy(agent, TokenSamplerPolicy(sampler, name="scripted", options=ModelOptions(**options)))


async def play(
    problem: Problem, agent: HarnessPolicy, tmp_path: Path, sandbox: str = "auto", **rules: Any
) -> tuple[Any, list[Any], list[Any]]:
    """The result of one episode, its player, and the lines of its transcript."""
    players: list[Any] = []
    made = agent.player

    def noted(*arguments: Any, **options: Any) -> Any:
        player = made(*arguments, **options)
        assert isinstance(player, HarnessPlayer if agent.agent == "mini-swe-agent" else InsidePlayer)
        players.append(player)
        return player

    agent.player = noted  # type: ignore[method-assign]
    episode = EpisodeConfig(sandbox=SandboxSpec(kind=sandbox), **rules)
    config = EvaluationConfig(problems=[problem], folder=tmp_path / "out", attempts=1, episode=episode)
    try:
        evaluation = await evaluate(config, agent)
    finally:
        await agent.close()
    found = sorted((tmp_path / "out" / "transcripts").glob("*"))
    lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    return evaluation.results[0], [player for player in players if player.started], lines


async def replayed(problem: Problem, tmp_path: Path) -> tuple[Replay, str]:
    """The one episode of `play` again, and what `view` shows of it."""
    [path] = (tmp_path / "out" / "transcripts").glob("*")
    async with acquire() as lease:
        grader = lease.runtime.scorer(None)
        report = await replay(read_transcript(path), problem, provider=lease.runtime.agents, grader=grader)
    console = Console(file=StringIO(), width=110)
    print_episode(console, read_transcript(path))
    return report, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("sandbox", ["docker", "namespaces"])
async def test_it_solves_a_problem_in_a_sandbox_without_a_network(
    problem: Problem, tmp_path: Path, sandbox: str
) -> None:
    texts = [in_json("cat docs/specification.md; false"), in_json(solution(problem)), "Done.<|im_end|>"]
    result, [player], lines = await play(problem, policy(list(texts)), tmp_path, sandbox)
    assert result.score is not None
    assert result.score.reward == pytest.approx(1.4), result.score.reason
    assert (result.stop_reason, result.turns) == ("completed", 3)
    assert player.streams.numbers() == {"tokens/streams": 1.0, "tokens/breaks": 0.0}
    turns = [line for line in lines if line["event"] == "turn"]
    assert [turn["action"] for turn in turns] == ["command", "command", "final"]
    assert turns[0]["commands"][0]["command"] == "cat docs/specification.md; false"
    assert "arbiter" in turns[0]["commands"][0]["output"]
    assert turns[1]["files"].keys() == set(problem.golden or {})
    assert all(turn["outside"] for turn in turns)
    assert [(turn["stream"], turn["stream_reason"]) for turn in turns] == [(1, "")] * 3


async def test_the_limit_of_turns_holds(problem: Problem, tmp_path: Path) -> None:
    agent = policy([in_json(f"echo {n} > /tmp/{n}; ls /tmp") for n in range(9)])
    result, [player], lines = await play(problem, agent, tmp_path, max_turns=3)
    assert (result.stop_reason, result.turns) == ("max_turns", 3)
    assert result.score is not None
    assert len([line for line in lines if line["event"] == "turn"]) == 3
    sampled = [segment for segment in player.streams.transcripts()[0].segments if segment.sampled]
    assert len(sampled) == 3  # none beyond the episode's turns


async def test_what_it_does_to_itself_is_graded(problem: Problem, tmp_path: Path) -> None:
    agent = policy([in_json(solution(problem)), in_json("kill -9 $PPID"), "never"])
    result, _, lines = await play(problem, agent, tmp_path)
    assert result.score is not None
    assert result.score.passed
    assert "status 137" in [line for line in lines if line["event"] == "turn"][-1]["completion"]
    assert result.spent is not None  # it is known, so limits on tokens still hold
    assert result.spent.tokens == result.prompt_tokens + result.output_tokens


async def test_who_breaks_the_own_sandbox_is_graded_on_nothing(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = policy([in_json(solution(problem)), in_json("sleep 600")])
    boxes: list[Any] = []
    enter, sampler = InsidePlayer.enter, agent.model.sampler
    answer = sampler._answer  # type: ignore[attr-defined]

    def noted(self: InsidePlayer, sandbox: Any, turn_seconds: float) -> None:
        boxes.append(sandbox)
        enter(self, sandbox, turn_seconds)

    async def breaking(prompt: Any, most: int) -> Any:
        found = await answer(prompt, most)
        if not sampler.texts:  # type: ignore[attr-defined]
            with contextlib.suppress(SandboxBroken):
                await boxes[0]._ask(b"R", {}, patience=5.0)  # the warden cannot go on from this
        return found

    monkeypatch.setattr(InsidePlayer, "enter", noted)
    monkeypatch.setattr(sampler, "_answer", breaking)
    result, _, lines = await asyncio.wait_for(play(problem, agent, tmp_path), 60)
    assert result.stop_reason == "sandbox_broken"
    assert result.score is not None
    assert "nothing was left to grade" in result.score.reason
    assert "its sandbox has ended" in [line for line in lines if line["event"] == "turn"][-1]["completion"]
    report, _ = await replayed(problem, tmp_path)
    assert report.divergence is None, report.divergence
    assert (report.compared_turns, report.score_compared) == (result.turns - 1, False)
    assert any("ended the sandbox, which is not repeated" in note for note in report.notes)


async def test_who_breaks_the_sandbox_before_its_first_request_is_no_grade(problem: Problem, tmp_path: Path) -> None:
    agent = policy(["never"], PROGRAM | {"argv": ["bash", "-c", "sleep 600"]})
    enter = InsidePlayer.enter

    def broken(self: InsidePlayer, sandbox: Any, turn_seconds: float) -> None:
        enter(self, sandbox, turn_seconds)
        spawn = sandbox.spawn

        async def spawning(argv: Any, **options: Any) -> Any:
            process = await spawn(argv, **options)
            if "sleep 600" in argv:
                with contextlib.suppress(SandboxBroken):
                    await sandbox._ask(b"R", {}, patience=5.0)  # the warden cannot go on from this
            return process

        sandbox.spawn = spawning

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InsidePlayer, "enter", broken)
        result, _, _ = await asyncio.wait_for(play(problem, agent, tmp_path), 60)
    assert result.score is None
    assert "never asked its model: its sandbox has ended" in result.fault


TRACER = """python3 -c "
import ctypes, os, time
above, pid = [], os.getppid()
while pid > 1:
    above.append(pid)
    pid = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
for pid in above:
    ctypes.CDLL(None).ptrace(16, pid, 0, 0)
time.sleep(600)
" < /dev/null > /dev/null 2>&1; sleep 600"""
"""Attaches to the agent, which stops it, and would hide its end from the warden."""


async def test_an_agent_whose_end_is_hidden_is_graded(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["rtl_agent_gym.evaluation.play"], "SLOWEST_START", 4.0)
    monkeypatch.setattr("rtl_agent_gym.sandboxes.warden_sandbox.GRACE", 4.0)
    agent = policy([in_json(solution(problem)), in_json(TRACER), "never"])
    result, _, lines = await asyncio.wait_for(play(problem, agent, tmp_path, command_timeout=0.5), 60)
    assert result.score is not None, result.fault
    assert result.score.passed
    assert "did not ask its model" in [line for line in lines if line["event"] == "turn"][-1]["completion"]


async def test_a_bug_in_watching_it_ends_the_episode(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Process) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Process, "close_stdin", broken)
    with pytest.raises(KeyError, match="a bug"):
        await asyncio.wait_for(play(problem, policy(["never"]), tmp_path), 60)


async def test_a_program_that_does_not_start_is_no_grade(problem: Problem, tmp_path: Path) -> None:
    wrong = policy([], {"argv": ["sh", "-c", "seq 1000; echo no such luck; exit 3"], "name": "wrong"})
    result, _, _ = await play(problem, wrong, tmp_path)
    assert result.score is None
    assert str(result.fault).startswith("SandboxError: wrong never asked its model")
    assert "no such luck" in str(result.fault)


@pytest.mark.parametrize(
    "error", [UsageError("TINKER_API_KEY: revoked"), RuntimeError("CUDA error"), NotFinite("a logit is nan")], ids=repr
)
async def test_what_ends_a_run_with_the_model_ends_it_with_an_agent(
    problem: Problem, tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        await play(problem, policy([in_json("ls"), error]), tmp_path)


@pytest.mark.parametrize("kind", [ModelError, RequestRefused, ServiceError])
async def test_a_fault_of_the_model_keeps_its_kind(problem: Problem, tmp_path: Path, kind: type[Exception]) -> None:
    result, _, _ = await play(problem, policy([in_json("ls"), kind("too odd")]), tmp_path)
    assert result.score is None
    assert str(result.fault).startswith(f"{kind.__name__}: ")
    assert "too odd" in str(result.fault)


async def test_files_that_cannot_be_written_are_no_grade(problem: Problem, tmp_path: Path) -> None:
    result, _, _ = await play(problem, policy([], {**PROGRAM, "files": {"/opt/agent.py": AGENT}}), tmp_path)
    assert result.score is None
    assert str(result.fault).startswith("SandboxLost: small cannot be started")


@pytest.mark.parametrize(
    "path", ["agent.py", "/", "/home//a.py", "/home/agent/../a.py", "/home/./a.py", "/home/a\0.py"]
)
def test_a_file_needs_a_plain_absolute_path(path: str) -> None:
    with pytest.raises(UsageError, match=r"files: .* is not an absolute path"):
        policy([], {**PROGRAM, "files": {path: ""}})


def test_files_get_the_address_and_not_the_task() -> None:
    code = 'print(f"Solve this:\\n{task}", "{url}", "{anthropic_url}", {other})'
    plain = {"argv": ["run", "{task}"], "stdin": "{task}{other}", "files": {"/home/agent/agent.py": code}}
    task = 'Write "x".\nIts ports are {url}.'
    filled = Program.read(plain).filled(Address("http://a/v1", context=1000, most=100), task)
    assert (filled.argv, filled.stdin) == (("run", task), task + "{other}")
    expected = code.replace("{url}", "http://a/v1").replace("{anthropic_url}", "http://a")
    assert filled.files == {"/home/agent/task.md": task, "/home/agent/agent.py": expected}


async def test_replay_restores_what_it_did(problem: Problem, tmp_path: Path) -> None:
    first = in_json("echo x > rtl/more.sv; head -c 300000 /dev/zero > rtl/large.sv")
    texts = [first, in_json(solution(problem) + "\nrm rtl/more.sv rtl/large.sv"), "Done.<|im_end|>"]
    result, _, _ = await play(problem, policy(list(texts)), tmp_path)
    assert result.score is not None
    report, shown = await replayed(problem, tmp_path)
    assert report.divergence is None, report.divergence
    assert report.score_compared
    assert report.compared_turns == 3
    for part in ("their files are restored", "too large, too many or not text"):
        assert any(part in note for note in report.notes)
    for part in ("turn 1 · command · stream 1", "echo x > rtl/more.sv", "(status unknown)", "+ rtl/more.sv", "Done."):
        assert part in shown


WRITER = """
import json, sys, urllib.request
messages = [{"role": "user", "content": open(sys.argv[2]).read()}]
for _ in range(int(sys.argv[3])):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    reply = urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body), timeout=60)
    message = json.load(reply)["choices"][0]["message"]
    path, _, text = message["content"].partition(chr(10))
    open(path, "w").write(text + chr(10))
    messages += [message, {"role": "user", "content": "Go on."}]
"""
"""Writes what the model says into files itself: its first line is the path."""


@pytest.mark.parametrize("turns", [pytest.param(1, marks=pytest.mark.slow), 2])
async def test_what_a_program_without_tools_writes_is_recorded(problem: Problem, tmp_path: Path, turns: int) -> None:
    program = {
        "argv": ["python3", "/home/agent/agent.py", "{url}", "/home/agent/task.md", str(turns)],
        "files": {"/home/agent/agent.py": WRITER},
        "name": "writer",
    }
    assert problem.golden is not None
    [(target, golden)] = problem.golden.items()
    texts = ["rtl/more.sv\n// more<|im_end|>", f"{target}\n{golden}<|im_end|>"][-turns:]
    result, _, lines = await play(problem, policy(list(texts), program), tmp_path)
    assert result.score is not None
    assert result.score.passed, result.score.reason
    assert result.turns == turns
    changed = [list(line["files"]) for line in lines if line["event"] == "turn"]
    assert changed == [["rtl/more.sv"], [target]][-turns:]
    report, shown = await replayed(problem, tmp_path)
    assert report.divergence is None, report.divergence
    assert (report.compared_turns, report.score_compared) == (turns, True)
    for [path] in changed:
        assert f" {path}" in shown


MANY = {f"rtl/{number:0200}.sv": None for number in range(12_000)}
"""Names that are too long together to be the arguments of one process."""


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({"rtl/x": "1"}, {"rtl/x": None, "rtl/x/y.sv": "2"}, {"rtl/x/y.sv": b"2"}),
        ({"rtl/x/y.sv": "1"}, {"rtl/x/y.sv": None, "rtl/x": "2"}, {"rtl/x": b"2"}),
        ({"rtl/x": "1", "rtl/y": "1"}, MANY | {"rtl/x": None}, {"rtl/y": b"1"}),
    ],
    ids=["a file becomes a folder", "a folder becomes a file", "many are removed"],
)
async def test_any_change_is_restored(
    before: dict[str, str], change: dict[str, str | None], after: dict[str, bytes]
) -> None:
    turn = TurnRecord(turn=1, completion="", action="command", outside=True, files=change)
    async with acquire() as lease:
        sandbox = await lease.runtime.agents.create(SandboxSpec())
        try:
            await sandbox.write_files(before)
            await restore(sandbox, turn)
            assert await sandbox.read_files(["rtl"]) == after
            await sandbox.run("chmod -R a-w rtl")
            with pytest.raises(SandboxError, match="turn 1 removed are still there"):
                await restore(sandbox, turn.model_copy(update={"files": dict.fromkeys(after)}))
        finally:
            await sandbox.close()


async def test_a_result_that_is_refused_can_be_sent_again(problem: Problem, tmp_path: Path) -> None:
    odd = "result = messages[-1]\n    if result['role'] == 'tool' and isinstance(result['content'], str): " + (
        "refused(messages[:-1] + [{**result, 'content': [{'type': 'image_url'}]}])\n    body = json.dumps("
    )
    helper = """
def refused(messages):
    try:
        ask(json.dumps({"model": "m", "messages": messages, "tools": [TOOL]}).encode())
    except urllib.error.HTTPError as error:
        assert error.code == 400 and b"image_url" in error.read()
def ask(body):
    return urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body), timeout=60)
"""
    source = AGENT.replace("body = json.dumps(", odd, 1).replace("messages = [", helper + "messages = [", 1)
    agent = {**PROGRAM, "files": {"/home/agent/agent.py": source}}
    texts = [in_json("echo 1"), in_json(solution(problem)), "Done.<|im_end|>"]
    played = play(problem, policy(list(texts), agent), tmp_path)
    result, [player], lines = await asyncio.wait_for(played, 120)
    assert result.score is not None
    assert result.score.passed
    turns = [line for line in lines if line["event"] == "turn"]
    assert [turn["action"] for turn in turns] == ["command", "command", "final"]
    assert turns[0]["commands"][0]["output"] == "1\n"
    assert player.streams.numbers()["tokens/breaks"] == 0


def test_results_belong_to_their_calls() -> None:
    """In any order, between those of other conversations, or left out. A turn that the limit ended is cut off."""
    calls = tuple(ToolCall("bash", "{}", f"call_1_0_{number}") for number in range(3))
    answer = Answer(ModelTurn(calls=calls), "length", 10, 5, InStream(1))
    results: list[Any] = [("call_1_0_2", "two"), ("call_1_0_0", "zero"), ("call_7_0_0", "of another one")]
    messages: list[Any] = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": ""}]
    messages += [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in results]
    found = _completion(answer, messages)
    assert found.outside is not None
    assert (found.outside.outputs, found.cut_off) == (("zero", "", "two"), True)
    assert not _completion(replace(answer, finish="tool_calls"), ()).cut_off
    messages[2]["content"] = [{"type": "image_url"}]
    with pytest.raises(UsageError, match="image_url"):
        _completion(answer, messages)


@pytest.mark.parametrize("answered", [False, True])
async def test_the_time_of_a_refused_request_is_the_programs_own(answered: bool) -> None:
    player = InsidePlayer(policy([]), "qwen3", None)
    player._seconds = player._left = 3600.0
    player._wanted.set()
    with contextlib.suppress(ContextFull):
        async with player.turn([]) as take:
            await asyncio.sleep(0.05)
            if not answered:
                raise ContextFull("too long")
            take(Answer(ModelTurn(text="Done."), "stop", 10, 5, InStream(1)))
    left = player._left
    player.end()
    assert (left < 3599.96) == (not answered)


async def test_refused_requests_do_not_postpone_the_end_of_the_programs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    player = InsidePlayer(policy([]), "qwen3", None)
    player._seconds = player._left = 10.0
    player._wanted.set()
    player._run_clock()
    for _ in range(3):
        now += 3.0
        with contextlib.suppress(ContextFull):
            async with player.turn([]):
                raise ContextFull("too long")
        assert player._alarm is not None
        assert player._alarm.when() == 10.0
    player.end()


async def test_while_this_process_is_stopped_a_programs_time_does_not_end() -> None:
    killed = asyncio.Event()

    class Killed:
        async def kill(self) -> None:
            killed.set()

    player = InsidePlayer(policy([]), "qwen3", None)
    player._seconds = player._left = 0.3
    player._process = Killed()  # type: ignore[assignment]
    player._run_clock()
    time.sleep(1.5)  # as Ctrl-Z and `fg`, or other work in the event loop's thread
    await asyncio.sleep(0.1)
    assert (player._silence, killed.is_set()) == ("", False)
    player._wanted.set()
    async with player.turn([]) as take:  # its request, which was not read meanwhile
        take(Answer(ModelTurn(text="Go on."), "stop", 10, 5, InStream(1)))
    await asyncio.wait_for(killed.wait(), 60)
    assert player._silence == "it was ended, as it did not ask its model for 0.3 s"


@pytest.mark.parametrize("answered", [False, True])
async def test_an_agent_that_ends_after_a_refusal_says_which(answered: bool) -> None:
    player = InsidePlayer(policy([]), "qwen3", None)
    player._line, player._answered = Line("", streams("qwen3", [])[0], refused="stop: [1] is not understood"), answered
    refused = r"its last request was refused \(stop: \[1\] is not understood\); it ended with status 1"
    if not answered:
        with pytest.raises(SandboxError, match=f"^small got no answer from its model: {refused}$"):
            await player._last(_Ended("it ended with status 1"))
        return
    completion = await player._last(_Ended("it ended with status 1"))
    assert completion is not None
    assert re.search(refused, completion.text)
    assert completion.outside is not None
    assert completion.outside.last


async def test_it_cannot_submit(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^harness_feedback: harness:small scripted works inside the sandbox"):
        await play(problem, policy([]), tmp_path, harness_feedback=1)


async def test_a_silent_program_is_ended(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["rtl_agent_gym.evaluation.play"], "SLOWEST_START", 4.0)
    files = ShellWorkspace.files

    async def late(self: ShellWorkspace) -> Any:
        await asyncio.sleep(0.5)
        return await files(self)

    monkeypatch.setattr(ShellWorkspace, "files", late)
    writing = in_json("while sleep 0.01; do echo // >> rtl/more.sv; done")
    texts: list[str | Exception] = [in_json(solution(problem)), writing, "never"]
    result, _, lines = await play(problem, policy(texts), tmp_path, command_timeout=0.5)
    assert result.score is not None
    assert result.score.passed
    [written] = [line["files"]["rtl/more.sv"] for line in lines if "rtl/more.sv" in line.get("files", ())][:-1]
    [graded] = [line["files"]["rtl/more.sv"] for line in lines if line["event"] == "score"]
    assert graded == written  # nothing was written after its end
    assert "did not ask its model for 8 s" in [line for line in lines if line["event"] == "turn"][-1]["completion"]


async def test_a_full_context_ends_the_episode_and_it_is_graded(problem: Problem, tmp_path: Path) -> None:
    texts: list[str | Exception] = [in_json(solution(problem)), in_json("seq 5000"), "never"]
    result, _, _ = await play(problem, policy(texts, max_context=6000, max_tokens=2000), tmp_path)
    assert (result.stop_reason, result.turns) == ("max_tokens", 2)
    assert result.score is not None
    assert result.score.passed


@pytest.mark.parametrize(
    "wrong", [{}, {"argv": "ls"}, {"argv": []}, {"argv": ["ls"], "env": {"A": 1}}, {"argv": ["x"], "y": 1}]
)
def test_what_is_no_program_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="an agent is a name, or"):
        policy([], wrong)
