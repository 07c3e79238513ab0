"""Policies play an answer as they play a shell, and the record of it can be read back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import AsyncMock, Mock

import pytest

from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.prompt import episode_renderer
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.episodes.submissions import Submissions
from rtl_agent_gym.episodes.workspaces import ShellWorkspace
from rtl_agent_gym.errors import SandboxBroken, SandboxError, SandboxLost, UsageError
from rtl_agent_gym.evaluation import Observer, play
from rtl_agent_gym.policies import make_policy
from rtl_agent_gym.policies.protocol import Completion
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Message, ModelTurn, Renderer, ToolCall, get_renderer
from rtl_agent_gym.renderers.renderer import ToollessRenderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer
from rtl_agent_gym.sandboxes import CommandResult, DockerSandboxes, FoundFiles, SandboxSpec
from rtl_agent_gym.sandboxes.results import ReadRequest
from rtl_agent_gym.scoring import Score, Scorer
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import call
from tests.counters import counted

TARGET = "rtl/fixed_priority_arbiter.sv"
ANSWER = EpisodeConfig(workspace="answer")


class Counting:
    """A grader that keeps what it is given."""

    def __init__(self) -> None:
        self.files: list[dict[str, str | bytes]] = []

    async def score(self, problem: Problem, files: dict[str, str | bytes], *_: Any, **__: Any) -> Score:
        self.files.append(files)
        return Score(passed=bool(files), reward=float(len(files)))


@pytest.mark.docker
@pytest.mark.parametrize("workspace", ["shell", "answer"])
@pytest.mark.parametrize("renderer", ["qwen3", "gpt_oss"])
async def test_the_reference_solution_passes_in_both(
    workspace: Literal["shell", "answer"],
    renderer: str,
    provider: DockerSandboxes,
    arbiter: Problem,
    tmp_path: Path,
    gradings: Path,
) -> None:
    rules = EpisodeConfig(workspace=workspace, transcript_dir=tmp_path)
    async with Scorer(provider, cache=gradings) as scorer:
        episode = Episode(
            arbiter, provider=provider, grader=scorer, renderer=get_renderer(renderer), config=rules, seed=3
        )
        played = await play(episode, make_policy("golden"), seed=3)
    assert played.score is not None
    assert (played.score.passed, played.stop_reason) == (True, "completed")
    (path,) = tmp_path.iterdir()
    recorded = read_transcript(path)
    assert EpisodeConfig.from_record(recorded.header.options).workspace == workspace
    assert (recorded.header.seed, recorded.header.renderer) == (3, renderer)
    assert recorded.score is not None
    assert recorded.score.files == arbiter.golden


class TokenPolicy:
    """Samples one text in tokens, and remembers the prompt."""

    name = "tokens"

    def __init__(self, text: str) -> None:
        self.text, self.prompt = text, list[int]()

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> TokenPolicy:
        self.renderer = renderer
        return self

    def opened(self, system: str, user: str) -> None:
        self.prompt = self.renderer.initial_ids(system, user)

    def answered(self, *_: Any) -> None:
        raise AssertionError("nothing follows an answer")

    async def act(self, messages: Sequence[Message]) -> Completion:
        assert "execute_bash" not in "".join(message["content"] for message in messages)
        ids = list(qwen3_tokenizer().encode(self.text, add_special_tokens=False).ids)
        return Completion(self.text, token_ids=ids)


async def test_a_policy_of_tokens_opens_without_the_tool_and_its_tokens_are_kept(arbiter: Problem) -> None:
    text = f"<think>\nhm\n</think>\n\n```verilog {TARGET}\nmodule fixed_priority_arbiter; endmodule\n```<|im_end|>"
    policy, grader = TokenPolicy(text), Counting()
    episode = Episode(arbiter, grader=grader, renderer=get_renderer("qwen3", qwen3_tokenizer()), config=ANSWER)
    played = await play(episode, policy)
    assert (played.stop_reason, list(grader.files[0])) == ("completed", [TARGET])
    prompt = qwen3_tokenizer().decode(policy.prompt, skip_special_tokens=False)
    assert "<tools>" not in prompt
    assert arbiter.prompt.strip() in prompt
    assert episode.tokens.tokens[: len(policy.prompt)] == policy.prompt
    assert sum(episode.tokens.mask) == len(qwen3_tokenizer().encode(text, add_special_tokens=False).ids)


async def test_what_a_chat_service_calls_a_tool_is_no_answer(arbiter: Problem) -> None:
    call = ToolCall("execute_bash", '{"command": "ls"}')
    for native, stop in (
        (ModelTurn(calls=(call,)), "parse_error"),
        (ModelTurn(text=f"```verilog {TARGET}\nmodule fixed_priority_arbiter; endmodule\n```"), "completed"),
    ):
        async with Episode(arbiter, grader=Counting(), renderer=get_renderer("qwen3"), config=ANSWER) as episode:
            await episode.start()
            turn = await episode.step(Completion("", native=native))
        assert (turn.stop_reason, turn.terminated, turn.truncated) == (stop, True, False)


async def test_all_turns_of_the_policy_count_as_acting(arbiter: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    now, texts = 0.0, ["<tool_call>", "Done."]

    async def act(_: object) -> Completion:
        nonlocal now
        now += 1
        return Completion(texts.pop(0))

    def stepped(_: object) -> None:
        nonlocal now
        now += 10

    # By its name: `rtl_agent_gym.evaluation.play` is the function.
    module = import_module("rtl_agent_gym.evaluation.play")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    sandbox = AsyncMock(run=AsyncMock(return_value=CommandResult("", 0)))
    sandbox.read_files.return_value, sandbox.oom_kills.return_value = FoundFiles({}), 0
    provider = Mock(create=AsyncMock(return_value=sandbox))
    episode = Episode(arbiter, provider=provider, grader=Counting(), renderer=get_renderer("qwen3"))
    policy: Any = Mock(player=lambda *_: SimpleNamespace(act=act))
    played = await play(episode, policy, Observer(turn=stepped))
    assert (played.turns, played.malformed, played.acting_seconds, played.seconds) == (2, 1, 2.0, 22.0)


def with_sandbox(problem: Problem, **rules: Any) -> tuple[Episode, AsyncMock]:
    """An episode in a shell that does nothing, and its sandbox."""
    sandbox = AsyncMock(run=AsyncMock(return_value=CommandResult("", 0)))
    sandbox.read_files.return_value, sandbox.oom_kills.return_value = FoundFiles({}), 0
    provider, config = Mock(create=AsyncMock(return_value=sandbox)), EpisodeConfig(**rules)
    return Episode(
        problem, provider=provider, grader=Counting(), renderer=get_renderer("qwen3"), config=config
    ), sandbox


@pytest.mark.parametrize(
    ("turns", "reason"),
    [("good good good good", "max_turns"), ("bad good bad good", "max_turns"), ("good bad bad", "parse_error")],
)
async def test_when_an_episode_is_ended(arbiter: Problem, turns: str, reason: str) -> None:
    episode, _ = with_sandbox(arbiter, max_turns=4, max_malformed=2)
    async with episode:
        await episode.start()
        played = [await episode.step(call("ls") if turn == "good" else "<tool_call>") for turn in turns.split()]
    assert [turn.stop_reason for turn in played] == [*[None] * (len(played) - 1), reason]


async def test_files_that_the_machine_lost_are_not_graded_as_none(arbiter: Problem) -> None:
    """Those that the agent's commands lost are."""
    for error in (SandboxLost("gone"), SandboxBroken("full")):
        episode, sandbox = with_sandbox(arbiter)
        sandbox.read_files.side_effect = error
        async with episode:
            await episode.start()
            if isinstance(error, SandboxBroken):
                assert "nothing was left to grade: full" in (await episode.finish()).reason
            else:
                with pytest.raises(SandboxLost, match="gone"):
                    await episode.finish()


async def test_an_answer_that_never_comes_is_graded_as_nothing(arbiter: Problem) -> None:
    grader, before = Counting(), counted("episodes", outcome="failed")
    async with Episode(arbiter, grader=grader, renderer=get_renderer("qwen3"), config=ANSWER) as episode:
        await episode.start()
        assert (await episode.finish("max_tokens")).reward == 0.0
    assert grader.files == [{}]
    assert counted("episodes", outcome="failed") == before + 1


async def test_what_an_episode_needs_is_said(arbiter: Problem) -> None:
    with pytest.raises(UsageError, match="needs a provider of sandboxes"):
        Episode(arbiter, grader=Counting(), renderer=get_renderer("qwen3"))
    async with Episode(arbiter, grader=Counting(), renderer=get_renderer("qwen3"), config=ANSWER) as episode:
        with pytest.raises(UsageError, match="no tokens before start"):
            _ = episode.tokens
        with pytest.raises(UsageError, match="call start"):
            await episode.step("x")
        await episode.start()
        with pytest.raises(UsageError, match="started already"):
            await episode.start()
        with pytest.raises(UsageError, match="only an episode in a shell has a sandbox"):
            _ = episode.sandbox
        assert (await episode.step("x")).terminated
        with pytest.raises(UsageError, match="running episode"):
            await episode.step("y")


async def test_an_episode_that_is_closed_while_it_starts_leaves_no_sandbox(arbiter: Problem) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()
    sandbox = AsyncMock(run=AsyncMock(return_value=CommandResult("", 0)))

    async def create(spec: SandboxSpec) -> Any:
        asked.set()
        await closed.wait()
        return sandbox

    episode = Episode(arbiter, provider=Mock(create=create), grader=Counting(), renderer=get_renderer("qwen3"))
    starting = asyncio.ensure_future(episode.start())
    await asked.wait()
    await episode.close()
    closed.set()
    with pytest.raises(UsageError, match="closed while it started"):
        await starting
    sandbox.close.assert_awaited_once()


async def test_a_sandbox_whose_shell_does_not_work_is_closed(arbiter: Problem) -> None:
    sandbox = AsyncMock(run=AsyncMock(return_value=CommandResult("no bash", 1)))
    provider, config = Mock(create=AsyncMock(return_value=sandbox)), EpisodeConfig(start_attempts=1)
    episode = Episode(arbiter, provider=provider, grader=Counting(), renderer=get_renderer("qwen3"), config=config)
    with pytest.raises(SandboxLost, match="has no working shell: no bash"):
        await episode.start()
    sandbox.close.assert_awaited_once()


async def test_a_machines_fault_in_the_grading_is_raised(arbiter: Problem, tmp_path: Path) -> None:
    class Broken(Counting):
        async def score(self, *_: Any, **__: Any) -> Score:
            raise SandboxError("the daemon is gone")

    rules, before = EpisodeConfig(workspace="answer", transcript_dir=tmp_path), counted("episodes", outcome="fault")
    async with Episode(arbiter, grader=Broken(), renderer=get_renderer("qwen3"), config=rules) as episode:
        await episode.start()
        with pytest.raises(SandboxError, match="the daemon is gone"):
            await episode.step("nothing")
        assert episode.over
        with pytest.raises(SandboxError, match="the daemon is gone"):
            await episode.finish()
    assert counted("episodes", outcome="fault") == before + 1
    (path,) = tmp_path.iterdir()
    end = read_transcript(path).end
    assert end is not None
    assert (end.stop_reason, end.error) == ("error", "SandboxError: the daemon is gone")


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct", "gpt_oss"])
def test_a_renderer_without_the_tool_is_a_renderer(name: str) -> None:
    renderer = episode_renderer(ANSWER, get_renderer(name))
    assert isinstance(renderer, Renderer)
    assert isinstance(renderer, ToollessRenderer)
    assert episode_renderer(ANSWER, renderer) is renderer
    assert episode_renderer(EpisodeConfig(), get_renderer(name)).name == renderer.name == name
    assert renderer.initial_messages("", "U") == [{"role": "user", "content": "U"}]
    assert renderer.initial_text("S", "U") == "S\n\nU"
    assert renderer.parse_text("plain words").text == "plain words"


async def test_each_command_has_the_limits_of_the_rules_and_the_last_one_reads(arbiter: Problem) -> None:
    asked: list[tuple[Any, ...]] = []

    class Recorder:
        async def run(self, command: str, **given: Any) -> CommandResult:
            asked.append((command, given["timeout"], given["max_output"], given["then_read"]))
            return CommandResult("", 0)

    config, recorder, unused = EpisodeConfig(command_timeout=7.0, max_output=300), Recorder(), Mock()
    submissions = Submissions(arbiter, unused, config)
    workspace = ShellWorkspace(arbiter, config, unused, get_renderer("qwen3"), submissions, 0)
    workspace.sandbox, wanted = recorder, ReadRequest(["rtl"])  # type: ignore[assignment]
    calls = tuple(map(ToolCall.of, ("ls", "pwd")))
    await workspace.act(Completion("", native=ModelTurn(calls=calls)), 1, wanted)
    workspace.sandbox = None  # there is nothing to close
    assert asked == [("ls", 7.0, 300, None), ("pwd", 7.0, 300, wanted)]
