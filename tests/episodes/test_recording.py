"""What a transcript holds of an episode's last files."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes import recording as recordings
from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.recording import MAX_RECORDED_FILE, MAX_RECORDED_TOTAL, Recording, changed_files
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.episodes.turns import Opening, Turn
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.policies.protocol import Completion
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Action, get_renderer
from rtl_agent_gym.sandboxes import CommandResult, FoundFiles
from rtl_agent_gym.scoring import Score
from rtl_agent_gym.transcripts import Transcript, TranscriptWriter, read_transcript


@pytest.fixture
def recording(tmp_path: Path, arbiter: Problem) -> Recording:
    """A recording that has begun, of a problem without files."""
    made = Recording(arbiter.model_copy(update={"context": {}}), EpisodeConfig(transcript_dir=tmp_path))
    made.begin(Opening("", "", []), renderer="qwen3", seed=0, image="", weights=None)
    return made


def recorded(recording: Recording, turns: int = 0) -> Transcript:
    """The transcript, after its end."""
    recording.end("completed", turns, 0.0, None, None)
    assert recording.path is not None
    return read_transcript(recording.path)


async def record_turn(recording: Recording, number: int, found: FoundFiles) -> None:
    """Record a turn after which these files are there."""
    sandbox: Any = object()
    turn = Turn(number, Action("command", ("x",)), (CommandResult("", 0),), ("",))
    await recording.turn(Completion("x"), turn, 0.0, sandbox, found, get_renderer("qwen3"))


def test_the_last_files_have_the_limits_of_those_after_each_turn(recording: Recording) -> None:
    """An agent that leaves much in its folders must not fill the host's disk."""
    target = recording.problem.targets[0]
    dumps = {f"verif/{number:02}.vcd": b"x" * MAX_RECORDED_FILE for number in range(40)}
    files = {target: b"module m; endmodule\n", "verif/large": b"x" * (MAX_RECORDED_FILE + 1), "verif/binary": b"\xff"}
    recording.score(Score(passed=False), changed_files(recording.problem, {**files, **dumps}))
    found = recorded(recording).score
    assert found is not None
    assert found.files[target] == "module m; endmodule\n"
    assert not {"verif/large", "verif/binary"} & found.files.keys()
    assert MAX_RECORDED_TOTAL / 2 < sum(map(len, found.files.values())) <= MAX_RECORDED_TOTAL


async def test_the_changes_of_all_turns_have_a_limit_in_bytes_of_the_transcript(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control character takes six bytes there."""
    monkeypatch.setattr(recordings, "MAX_RECORDED_EPISODE", 2 << 20)
    for number in range(1, 8):
        found = {"verif/a": b"\1" * (100_000 + number), "verif/z": b"small"}
        if number == 7:
            del found["verif/a"]
        await record_turn(recording, number, FoundFiles(found, [("verif/huge", "too large")], 1))
    dumps = {f"verif/{number}": b"\1" * 200_000 for number in range(9)}
    recording.score(Score(passed=False), changed_files(recording.problem, dumps))
    transcript = recorded(recording, 7)
    assert transcript.path.stat().st_size < (2 << 20) + MAX_RECORDED_TOTAL + 10_000
    first, second, third, fourth, *_, last = transcript.turns
    assert list(first.files) == ["verif/a", "verif/z"]
    assert [list(turn.files) for turn in (second, third)] == [["verif/a"]] * 2
    assert fourth.files == {}
    assert fourth.left_out == ["verif/huge: too large", "verif/a: at most 2 MiB of changes are recorded"]
    assert last.files == {"verif/a": None}
    assert transcript.score is not None
    assert len(transcript.score.files) == 3


async def test_a_file_that_is_text_no_longer_is_not_recorded_as_removed(recording: Recording) -> None:
    """A replay of an agent's own program would delete it."""
    for number, content in enumerate((b"text", b"\xff", b"\xff", b"text", b"more"), 1):
        await record_turn(recording, number, FoundFiles({"verif/a": content, "verif/binary": b"\xfe"}))
    turns = recorded(recording, 5).turns
    assert [turn.files for turn in turns] == [{"verif/a": "text"}, {}, {}, {}, {"verif/a": "more"}]
    assert [turn.left_out for turn in turns] == [[], *[["verif/a: it is not text"]] * 2, [], []]


class Waits:
    """A grader that waits until it may end."""

    def __init__(self) -> None:
        self.asked, self.may_end = asyncio.Event(), asyncio.Event()

    async def score(self, *_: Any, **__: Any) -> Score:
        self.asked.set()
        await self.may_end.wait()
        return Score(passed=True, reward=1.0)


async def in_its_grading(problem: Problem, folder: Path, grader: Waits) -> tuple[Episode, asyncio.Task[Turn]]:
    """An episode and its last turn, whose files are being graded."""
    rules = EpisodeConfig(workspace="answer", transcript_dir=folder)
    episode = Episode(problem, grader=grader, renderer=get_renderer("qwen3"), config=rules)
    await episode.start()
    step = asyncio.create_task(episode.step("module m; endmodule"))
    await grader.asked.wait()
    return episode, step


async def test_a_full_disk_does_not_hide_what_ended_the_episode(
    tmp_path: Path, arbiter: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that became a fault of the machine would be played again, and the run could not be stopped."""
    episode, step = await in_its_grading(arbiter, tmp_path, Waits())

    def full(*_: Any) -> None:
        raise SandboxError("No space left on device")

    monkeypatch.setattr(TranscriptWriter, "write", full)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert episode.over
    await episode.close()


@pytest.mark.parametrize("cancelled", [True, False])
async def test_how_an_episode_was_finished_is_recorded(cancelled: bool, tmp_path: Path, arbiter: Problem) -> None:
    grader = Waits()
    rules = EpisodeConfig(workspace="answer", transcript_dir=tmp_path)
    episode = Episode(arbiter, grader=grader, renderer=get_renderer("qwen3"), config=rules)
    await episode.start()
    finishing = asyncio.create_task(episode.finish("max_tokens"))
    await grader.asked.wait()
    finishing.cancel() if cancelled else grader.may_end.set()
    with contextlib.suppress(asyncio.CancelledError):
        assert (await finishing).passed
    assert finishing.cancelled() == cancelled
    assert episode.transcript_path is not None
    transcript = read_transcript(episode.transcript_path)
    assert transcript.complete == (not cancelled)
    assert transcript.end is not None
    assert transcript.end.stop_reason == ("error" if cancelled else "max_tokens")
    assert episode.over
    await episode.close()


async def test_an_episode_that_is_closed_during_its_last_turn_has_its_score(tmp_path: Path, arbiter: Problem) -> None:
    grader = Waits()
    episode, step = await in_its_grading(arbiter, tmp_path, grader)
    await episode.close()
    grader.may_end.set()
    turn = await step
    assert turn.score is not None
    assert turn.score.passed
    assert episode.transcript_path is not None
    assert not read_transcript(episode.transcript_path).complete
