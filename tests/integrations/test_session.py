"""What all adapters share: turns of parsed calls, the opening for declared tools, one result, and its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import docker
import pytest

from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.episodes.tools import tool_opening
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations.session import OVER, ToolSession
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import ToolCall, get_renderer
from rtl_agent_gym.renderers.protocol import ANSWERED
from rtl_agent_gym.sandboxes.daemon import connect

GRAY = "cvdp_agentic_rtlgym_gray_counter_0001"


@pytest.fixture(scope="module")
def gray() -> Problem:
    return next(problem for problem in load_problems("bundled") if "gray_counter" in problem.id)


def write(path: str, text: str) -> str:
    return f"cat > {path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE"


def solve(problem: Problem) -> list[ToolCall]:
    assert problem.golden is not None
    return [ToolCall.of(write(path, text)) for path, text in problem.golden.items()]


class TestOpening:
    def test_it_declares_the_tool_and_teaches_no_dialect(self, gray: Problem) -> None:
        opening = tool_opening(gray)
        assert [message["role"] for message in opening.messages] == ["system", "user"]
        text = json.dumps(opening.messages)
        for mark in ("<tool_call>", "<tools>", "<|", "```bash"):
            assert mark not in text
        assert gray.prompt.strip() in opening.messages[1]["content"]
        (tool,) = opening.tools
        assert tool["function"]["name"] == "execute_bash"
        assert tool["function"]["parameters"]["required"] == ["command"]

    def test_an_answer_has_no_tool(self, gray: Problem) -> None:
        assert tool_opening(gray, EpisodeConfig(workspace="answer")).tools == []

    def test_a_limit_of_tokens_needs_the_models_own_vocabulary(self, gray: Problem) -> None:
        with pytest.raises(UsageError, match="vocabulary"):
            tool_opening(gray, EpisodeConfig(max_prompt_tokens=100))


@pytest.mark.docker
class TestSession:
    async def test_calls_of_one_turn_get_a_reply_each(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            turn = await session.act([ToolCall.of("echo one"), ToolCall.of("echo two; false")])
            assert turn.replies(2) == ["one\n", "two\n[exit code 1]"]
            broken = await session.act([ToolCall("execute_bash", "{"), ToolCall.of("touch never")])
            first, second = broken.replies(2)
            assert (broken.action.kind, second) == ("malformed", ANSWERED)
            assert "Call 1 of 2 could not be read" in first
            assert (await session.run("ls never")).endswith("[exit code 2]")
        finally:
            await session.close()

    async def test_turns_at_the_same_time_are_played_one_after_the_other(self, gray: Problem) -> None:
        slow = "export MINE={0}; echo {0} > /tmp/last; sleep 0.3; echo $MINE $(cat /tmp/last)"
        session = ToolSession(gray, EpisodeConfig(max_turns=5))
        try:
            await session.start()
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
        finally:
            await session.close()

    async def test_the_end_waits_for_all_turns_that_were_asked_for(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            runs = [asyncio.ensure_future(session.run(f"sleep 0.3; echo {number} >> docs/order")) for number in "abc"]
            await asyncio.wait(runs, timeout=0.1)
            for run in runs:
                run.cancel()
            await session.finish()
            assert [turn.number for turn in session.episode.turns] == [1, 2, 3]
        finally:
            await session.close()

    async def test_closing_ends_turns_that_still_wait(self, gray: Problem) -> None:
        session = ToolSession(gray)
        await session.start()
        runs = [asyncio.ensure_future(session.run("sleep 20")) for _ in range(3)]
        await asyncio.wait(runs, timeout=0.5)
        await session.close()
        ended = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)

    @pytest.mark.slow
    async def test_markup_in_an_answer_is_not_run(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            turn = await session.act("All done.\n```bash\ntouch rtl/trap.sv\n```")
            assert (turn.stop_reason, turn.results) == ("completed", ())
            result = await session.finish()
            assert (result.score, result.stop_reason) == (turn.score, "completed")
            assert result.numbers["tests_passed"] == 0.0
            assert result.numbers["stop/completed"] == 1.0
            assert await session.run("ls") == OVER
        finally:
            await session.close()

    async def test_finish_grades_what_is_there_once(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            await session.act(solve(gray))
            first, second = await asyncio.gather(session.finish("max_tokens"), session.finish())
            assert first == second
            assert (first.score.passed, first.stop_reason, first.reward) == (True, "max_tokens", 1.4)
            assert first.numbers["commands"] == len(solve(gray))
            assert first.numbers["turns"] == 1
            assert first.numbers["oom_kills"] == 0
        finally:
            await session.close()
            await session.close()

    async def test_a_fault_stays_a_fault(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            client = connect()
            client.containers.get(session.episode.sandbox.id).kill()
            client.close()
            with pytest.raises(SandboxError) as raised:
                await session.run("ls")
            for _ in range(2):
                with pytest.raises(SandboxError) as again:
                    await session.finish()
                assert again.value is raised.value
        finally:
            await session.close()

    async def test_no_container_is_left(self, gray: Problem) -> None:
        session = ToolSession(gray)
        await session.start()
        name = session.episode.sandbox.id
        await session.close()
        client = connect()
        with pytest.raises(docker.errors.NotFound):
            client.containers.get(name)
        client.close()
        with pytest.raises(UsageError, match="running episode"):
            await session.finish()

    async def test_a_turn_outlives_its_caller(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.act([ToolCall.of("sleep 2"), *solve(gray)]), timeout=0.5)
            result = await session.finish("max_turns")
            assert (result.score.passed, result.numbers["turns"]) == (True, 1)
        finally:
            await session.close()

    async def test_closing_ends_a_turn(self, gray: Problem) -> None:
        session = ToolSession(gray)
        await session.start()
        turn = asyncio.create_task(session.run("sleep 20"))
        await asyncio.sleep(0.5)
        begun = asyncio.get_running_loop().time()
        await session.close()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert asyncio.get_running_loop().time() - begun < 10

    async def test_a_close_that_is_cancelled_releases_what_was_leased(self, gray: Problem) -> None:
        session = ToolSession(gray)
        await session.start()
        lease = session._lease
        assert lease is not None
        runtime, turn = lease.runtime, asyncio.create_task(session.run("sleep 20"))
        await asyncio.sleep(0.5)
        users, closing = runtime.users, asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert runtime.users == users - 1

    async def test_what_is_no_command_is_told_to_the_model(self, gray: Problem) -> None:
        session = ToolSession(gray)
        try:
            await session.start()
            odd: Any = 3
            assert '"command" must be a string' in await session.run(odd)
        finally:
            await session.close()


async def test_a_session_is_used_in_order(gray: Problem) -> None:
    with pytest.raises(UsageError, match="not been started"):
        await ToolSession(gray).run("ls")
    with pytest.raises(UsageError, match="need the workspace 'shell'"):
        ToolSession(gray, EpisodeConfig(workspace="answer"))
    episode = Episode(
        gray, grader=None, renderer=get_renderer("qwen3"), config=EpisodeConfig(workspace="answer")  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(UsageError, match="running episode"):
        await episode.finish()
