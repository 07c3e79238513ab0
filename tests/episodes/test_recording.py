"""What a transcript holds of an episode's last files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes import recording as recordings
from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.recording import MAX_RECORDED_FILE, MAX_RECORDED_TOTAL, Recording, changed_files
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.episodes.turns import Turn
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.policies.protocol import Completion
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import Action, get_renderer
from rtl_agent_gym.sandboxes import CommandResult, FoundFiles
from rtl_agent_gym.scoring import Score
from rtl_agent_gym.transcripts import Header, TranscriptWriter, read_transcript


def test_the_last_files_have_the_limits_of_those_after_each_turn(tmp_path: Path) -> None:
    """An agent that leaves much in its folders must not fill the host's disk."""
    [problem, *_] = load_problems("bundled")
    target = problem.targets[0]
    recording = Recording(problem, EpisodeConfig(transcript_dir=tmp_path))
    recording._writer = TranscriptWriter.in_folder(tmp_path, problem.id)
    recording._write(Header(problem_id=problem.id, problem_digest="d", renderer="qwen3", category=3, difficulty="easy"))
    dumps = {f"verif/{number:02}.vcd": b"x" * MAX_RECORDED_FILE for number in range(40)}
    files = {target: b"module m; endmodule\n", "verif/large": b"x" * (MAX_RECORDED_FILE + 1), "verif/binary": b"\xff"}
    recording.score(Score(passed=False), changed_files(recording.problem, {**files, **dumps}))
    recording.end("completed", 0, 0.0, None, None)
    found = read_transcript(tmp_path / recording.path.name).score if recording.path else None
    assert found is not None
    assert found.files[target] == "module m; endmodule\n"
    assert not {"verif/large", "verif/binary"} & found.files.keys()
    assert MAX_RECORDED_TOTAL / 2 < sum(map(len, found.files.values())) <= MAX_RECORDED_TOTAL


async def test_the_changes_of_all_turns_have_a_limit_in_bytes_of_the_transcript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control character takes six bytes there."""
    monkeypatch.setattr(recordings, "MAX_RECORDED_EPISODE", 2 << 20)
    [problem, *_] = load_problems("bundled")
    recording = Recording(problem, EpisodeConfig(transcript_dir=tmp_path))
    recording._writer = TranscriptWriter.in_folder(tmp_path, problem.id)
    recording._write(Header(problem_id=problem.id, problem_digest="d", renderer="qwen3", category=3, difficulty="easy"))
    sandbox: Any = object()
    large = 100_000
    for number in range(1, 8):
        found = {"verif/a": b"\1" * (large + number), "verif/z": b"small"}
        if number == 7:
            del found["verif/a"]
        turn = Turn(number, Action("command", ("x",)), (CommandResult("", 0),), ("",))
        read = FoundFiles(found, [("verif/huge", "too large")], 1)
        await recording.turn(Completion("x"), turn, 0.0, sandbox, read, get_renderer("qwen3"))
    dumps = {f"verif/{number}": b"\1" * 200_000 for number in range(9)}
    recording.score(Score(passed=False), changed_files(recording.problem, dumps))
    recording.end("completed", 7, 0.0, None, None)
    assert recording.path is not None
    assert recording.path.stat().st_size < (2 << 20) + MAX_RECORDED_TOTAL + 10_000
    transcript = read_transcript(recording.path)
    first, second, third, fourth, *_, last = transcript.turns
    assert list(first.files) == ["verif/a", "verif/z"]
    assert [list(turn.files) for turn in (second, third)] == [["verif/a"]] * 2
    assert fourth.files == {}
    assert fourth.left_out == ["verif/huge: too large", "verif/a: at most 2 MiB of changes are recorded"]
    assert last.files == {"verif/a": None}
    assert transcript.score is not None
    assert len(transcript.score.files) == 3


async def test_a_file_that_is_text_no_longer_is_not_recorded_as_removed(tmp_path: Path) -> None:
    """A replay of an agent's own program would delete it."""
    [problem, *_] = load_problems("bundled")
    recording = Recording(problem, EpisodeConfig(transcript_dir=tmp_path))
    recording._writer = TranscriptWriter.in_folder(tmp_path, problem.id)
    recording._write(Header(problem_id=problem.id, problem_digest="d", renderer="qwen3", category=3, difficulty="easy"))
    sandbox: Any = object()
    for number, content in enumerate((b"text", b"\xff", b"\xff", b"text", b"more"), 1):
        turn = Turn(number, Action("command", ("x",)), (CommandResult("", 0),), ("",))
        found = FoundFiles({"verif/a": content, "verif/binary": b"\xfe"})
        await recording.turn(Completion("x"), turn, 0.0, sandbox, found, get_renderer("qwen3"))
    recording.end("completed", 5, 0.0, None, None)
    assert recording.path is not None
    turns = read_transcript(recording.path).turns
    assert [turn.files for turn in turns] == [{"verif/a": "text"}, {}, {}, {}, {"verif/a": "more"}]
    assert [turn.left_out for turn in turns] == [[], *[["verif/a: it is not text"]] * 2, [], []]


async def test_a_full_disk_does_not_hide_what_ended_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that became a fault of the machine would be played again, and the run could not be stopped."""
    [problem, *_] = load_problems("bundled")

    class Waits:
        async def score(self, *_: Any, **__: Any) -> Score:
            await asyncio.sleep(60)
            raise AssertionError("it is cancelled before")

    rules = EpisodeConfig(workspace="answer", transcript_dir=tmp_path)
    episode = Episode(problem, grader=Waits(), renderer=get_renderer("qwen3"), config=rules)
    await episode.start()
    step = asyncio.ensure_future(episode.step("module m; endmodule"))
    await asyncio.sleep(0.1)

    def full(*_: Any) -> None:
        raise SandboxError("No space left on device")

    monkeypatch.setattr(TranscriptWriter, "write", full)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert episode.over
    await episode.close()


async def test_an_episode_that_is_closed_during_its_last_turn_has_its_score(tmp_path: Path) -> None:
    [problem, *_] = load_problems("bundled")
    may_end = asyncio.Event()

    class Waits:
        async def score(self, *_: Any, **__: Any) -> Score:
            await may_end.wait()
            return Score(passed=True, reward=1.0)

    rules = EpisodeConfig(workspace="answer", transcript_dir=tmp_path)
    episode = Episode(problem, grader=Waits(), renderer=get_renderer("qwen3"), config=rules)
    await episode.start()
    step = asyncio.ensure_future(episode.step("module m; endmodule"))
    await asyncio.sleep(0.1)
    await episode.close()
    may_end.set()
    turn = await step
    assert turn.score is not None
    assert turn.score.passed
    assert episode.transcript_path is not None
    assert not read_transcript(episode.transcript_path).complete
