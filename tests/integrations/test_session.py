"""What all adapters share: problems by name, turns of parsed calls, the opening for declared tools, one result."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.prompt import tool_opening
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.episodes.runtime import acquire
from rtl_agent_gym.errors import ProblemError, SandboxError, UsageError
from rtl_agent_gym.integrations import session as shared
from rtl_agent_gym.integrations.session import (
    OVER,
    ToolSession,
    absolute,
    choose_problems,
    counted_by_caller,
    find_problem,
    read_source,
    sandboxes_at_once,
)
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.notes import note_of
from rtl_agent_gym.problems.rows import problem_row
from rtl_agent_gym.renderers import ToolCall, get_renderer
from rtl_agent_gym.renderers.protocol import ANSWERED
from rtl_agent_gym.sandboxes import admission
from rtl_agent_gym.scoring.score import Score
from tests.integrations.conformance import gray, solution
from tests.sandboxes.providers import containers, kill
from tests.waiting import soon


@pytest.fixture
async def session(request: pytest.FixtureRequest) -> AsyncIterator[ToolSession]:
    """A session that has been started; the fixture's parameter is its rules."""
    session = ToolSession(gray(), getattr(request, "param", None))
    try:
        await session.start()
        yield session
    finally:
        await session.close()


class TestOpening:
    def test_it_declares_the_tool_and_teaches_no_dialect(self) -> None:
        opening = tool_opening(gray())
        assert [message["role"] for message in opening.messages] == ["system", "user"]
        text = json.dumps(opening.messages)
        for mark in ("<tool_call>", "<tools>", "<|", "```bash"):
            assert mark not in text
        assert gray().prompt.strip() in opening.messages[1]["content"]
        (tool,) = opening.tools
        assert tool["function"]["name"] == "execute_bash"
        assert tool["function"]["parameters"]["required"] == ["command"]

    def test_an_answer_has_no_tool(self) -> None:
        assert tool_opening(gray(), EpisodeConfig(workspace="answer")).tools == []

    def test_a_limit_of_tokens_needs_the_models_own_vocabulary(self) -> None:
        with pytest.raises(UsageError, match="vocabulary"):
            tool_opening(gray(), EpisodeConfig(max_prompt_tokens=100))


async def _closed_after(finished: asyncio.Future[Any], session: ToolSession) -> None:
    await finished
    await session.close()


@pytest.mark.docker
class TestSession:
    async def test_calls_of_one_turn_get_a_reply_each(self, session: ToolSession) -> None:
        turn = await session.act([ToolCall.of("echo one"), ToolCall.of("echo two; false")])
        assert turn.replies(2) == ["one\n", "two\n[exit code 1]"]
        broken = await session.act([ToolCall("execute_bash", "{"), ToolCall.of("touch never")])
        first, second = broken.replies(2)
        assert (broken.action.kind, second) == ("malformed", ANSWERED)
        assert "Call 1 of 2 could not be read" in first
        assert (await session.run("ls never")).endswith("[exit code 2]")
        odd: Any = 3
        assert '"command" must be a string' in await session.run(odd)

    @pytest.mark.parametrize("session", [EpisodeConfig(max_turns=5)], indirect=True)
    async def test_turns_at_the_same_time_are_played_one_after_the_other(self, session: ToolSession) -> None:
        slow = "export MINE={0}; echo {0} > /tmp/last; sleep 0.1; echo $MINE $(cat /tmp/last)"
        acts = [session.act([ToolCall.of(slow.format(number))]) for number in (0, 1)]
        runs = [session.run(slow.format(number)) for number in range(2, 8)]
        turns = await asyncio.gather(*acts)
        assert [(turn.number, turn.replies()) for turn in turns] == [(1, ["0 0\n"]), (2, ["1 1\n"])]
        *played, last, late, later = await asyncio.gather(*runs)
        assert played == ["2 2\n", "3 3\n", "4 4\n"]
        assert {last, late, later} == {OVER}
        with pytest.raises(UsageError, match="running episode"):
            await session.act("Done.")
        assert (await session.finish()).stop_reason == "max_turns"

    async def test_the_end_waits_for_all_turns_that_were_asked_for(self, session: ToolSession) -> None:
        runs = [asyncio.ensure_future(session.run(f"sleep 0.3; echo {number} >> docs/order")) for number in "abc"]
        await asyncio.wait(runs, timeout=0.1)
        for run in runs:
            run.cancel()
        await session.finish()
        assert [turn.number for turn in session.episode.turns] == [1, 2, 3]

    @pytest.mark.parametrize("session", [counted_by_caller(EpisodeConfig(), gray())], indirect=True)
    async def test_broken_calls_of_one_turn_do_not_end_an_episode_whose_caller_counts_turns(
        self, session: ToolSession
    ) -> None:
        for _ in range(EpisodeConfig().max_malformed):
            await session.act([ToolCall("execute_bash", "{")])
        assert not session.over

    async def test_the_transcript_has_the_prompt_that_the_model_reads(self, tmp_path: Path) -> None:
        rules = EpisodeConfig(max_turns=12, transcript_dir=tmp_path)
        session = ToolSession(gray(), counted_by_caller(rules, gray()))
        await session.start()
        await session.close()
        (path,) = tmp_path.iterdir()
        header = json.loads(path.read_text().splitlines()[0])
        assert "at most 12 turns" in header["system"]
        assert [header["system"], header["user"]] == [each["content"] for each in tool_opening(gray(), rules).messages]

    async def test_memory_that_is_not_known_is_no_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared, "usage", dict)
        assert await sandboxes_at_once(EpisodeConfig(), 8) == math.inf

    async def test_closing_ends_turns_that_run_or_wait_and_leaves_no_container(self, session: ToolSession) -> None:
        name = session.episode.sandbox.id
        runs = [asyncio.ensure_future(session.run("sleep 20")) for _ in range(3)]
        await asyncio.wait(runs, timeout=0.5)
        begun = asyncio.get_running_loop().time()
        await session.close()
        ended = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)
        assert asyncio.get_running_loop().time() - begun < 10
        await session.close()
        assert await soon(lambda: not containers(name, all=True))  # the daemon may still be removing it
        with pytest.raises(UsageError, match="running episode"):
            await session.finish()

    async def test_closing_ends_a_start(self) -> None:
        other, session = acquire(), ToolSession(gray())  # with the lease, the loop's provider stays open
        starting = asyncio.create_task(session.start())
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(asyncio.CancelledError):
            await starting
        with pytest.raises(UsageError, match="has a sandbox"):
            _ = session.episode.sandbox
        await other.release()

    @pytest.mark.slow
    async def test_markup_in_an_answer_is_not_run(self, session: ToolSession) -> None:
        turn = await session.act("All done.\n```bash\ntouch rtl/trap.sv\n```")
        assert (turn.stop_reason, turn.results) == ("completed", ())
        result = await session.finish()
        assert (result.score, result.stop_reason) == (turn.score, "completed")
        assert result.numbers["tests_passed"] == 0.0
        assert result.numbers["stop/completed"] == 1.0
        assert await session.run("ls") == OVER

    async def test_a_turn_outlives_its_caller_and_finish_grades_what_is_there_once(self, session: ToolSession) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.act([ToolCall.of("sleep 1"), *solution()]), timeout=0.3)
        first, second = await asyncio.gather(session.finish("max_tokens"), session.finish())
        assert first == second
        assert (first.score.passed, first.stop_reason, first.reward) == (True, "max_tokens", 1.4)
        assert first.numbers["commands"] == 1 + len(solution())
        assert first.numbers["turns"] == 1
        assert first.numbers.get("oom_kills", 0) == 0

    async def test_a_grading_outlives_its_caller_and_all_get_its_score(
        self, session: ToolSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        grading, graded = asyncio.Event(), asyncio.Event()
        score = Score(passed=True, reason="because")

        async def grade(*_: object) -> Score:
            assert not grading.is_set(), "it is graded once"
            grading.set()
            await graded.wait()
            return score

        monkeypatch.setattr(session.episode._submissions, "grade", grade)
        first = asyncio.ensure_future(session.finish("max_tokens"))
        await grading.wait()
        first.cancel()  # as a framework's time limit does
        await asyncio.wait([first])
        others = [asyncio.ensure_future(session.finish("max_turns")) for _ in range(6)]
        closing = asyncio.ensure_future(_closed_after(others[0], session))
        await asyncio.sleep(0.1)
        graded.set()
        results = await asyncio.gather(*others)
        await closing
        assert {id(result.score) for result in results} == {id(score)}
        assert {result.stop_reason for result in results} == {"max_tokens"}

    async def test_a_fault_stays_a_fault(self, session: ToolSession) -> None:
        kill(session.episode.sandbox)
        with pytest.raises(SandboxError) as raised:
            await session.run("ls")
        for _ in range(2):
            with pytest.raises(SandboxError) as again:
                await session.finish()
            assert again.value is raised.value

    async def test_a_close_that_is_cancelled_releases_what_was_leased(self, session: ToolSession) -> None:
        lease = session._lease
        assert lease is not None
        runtime, turn = lease.runtime, asyncio.create_task(session.run("sleep 20"))
        await asyncio.sleep(0.1)
        users, closing = runtime.users, asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert runtime.users == users - 1


async def test_a_session_is_used_in_order() -> None:
    with pytest.raises(UsageError, match="not been started"):
        await ToolSession(gray()).run("ls")
    with pytest.raises(UsageError, match="need the workspace 'shell'"):
        ToolSession(gray(), EpisodeConfig(workspace="answer"))
    answers = EpisodeConfig(workspace="answer")
    episode = Episode(gray(), grader=None, renderer=get_renderer("qwen3"), config=answers)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="running episode"):
        await episode.finish()


def test_rows_are_chosen_by_their_notes(cvdp_data: Path) -> None:
    path = cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
    source, found, _ = choose_problems(str(path), rows="fair")
    fair = {problem.id for problem in load_problems(path) if (note := note_of(problem)) is not None and note.fair}
    assert source == str(path.resolve())
    assert {problem.id for problem in found} == fair
    assert 0 < len(fair) < len(choose_problems(str(path))[1])


@pytest.mark.parametrize(
    "source",
    ["{}", "notsotiny:{}", "{}+mutants?count=3", "rtllm:{}+mutants", "rtllm:{}+mutants?count=3+verify?kind=checker"],
)
def test_a_source_holds_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "rows.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert absolute(source.format("rows.jsonl")) == source.format(tmp_path / "rows.jsonl")
    assert absolute(source.format("none.jsonl")) == source.format("none.jsonl")


@pytest.mark.parametrize("source", ["bundled", "bundled+mutants?count=40", "family:registers?count=2"])
def test_other_sources_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    assert absolute(source) == source


def test_problems_without_notes_are_not_fair() -> None:
    with pytest.raises(UsageError, match=r"fair .*14"):
        choose_problems("bundled", rows="fair")


@pytest.mark.parametrize(
    ("source", "chosen", "words"),
    [
        ("nosuch.jsonl", {}, r"there is no file or folder nosuch\.jsonl"),
        ("bundled", {"ids": ["gray_countr"]}, "there is no problem 'gray_countr'; "),
        ("bundled", {"categories": ["cid999"]}, "cid999"),
        ("bundled", {"difficulties": ["simple"]}, "simple"),
        ("bundled", {"rows": "good"}, "rows is 'good'; choose one of all, "),
        ("bundled", {"categories": ["cid003"], "ids": []}, "no problem of bundled matches"),
    ],
)
def test_a_choice_of_nothing_is_refused_with_one_line(source: str, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        choose_problems(source, **chosen)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_scored_is_said_with_its_reason(tmp_path: Path) -> None:
    row = problem_row(gray()) | {"categories": ["cid006", "easy"], "harness": {}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=r"rows\.jsonl can be scored here: \S+: its answer is text"):
        choose_problems(str(path))


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "x"\n')
    with pytest.raises(ProblemError, match=r"rows\.jsonl:1"):
        choose_problems(str(path))


def test_a_problem_that_a_source_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no problem 'nosuch'; "):
        find_problem("bundled", "nosuch")
    assert read_source("bundled") is read_source("bundled")


@pytest.mark.parametrize(("processes", "number"), [(1, 16), (2, 8), (32, 1)])
async def test_a_sandbox_counts_with_what_is_reserved_for_it(
    processes: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with its limit, which is much more; and there is always room for one."""
    assert EpisodeConfig().sandbox.memory > admission.RESERVED["agent"]
    monkeypatch.setattr(shared, "usage", lambda: {"agent/capacity": 16.0 * admission.RESERVED["agent"]})
    assert await sandboxes_at_once(EpisodeConfig(), processes) == number
