"""Writing and reading transcripts."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from rtl_agent_gym.errors import SandboxError, TranscriptError, UsageError
from rtl_agent_gym.renderers import ModelTurn, ToolCall
from rtl_agent_gym.transcripts import (
    CommandRecord,
    End,
    Header,
    SubmissionRecord,
    TranscriptWriter,
    TurnRecord,
    read_transcript,
)


def write(folder: Path, turns: int = 2, end: bool = True) -> Path:
    writer = TranscriptWriter.in_folder(folder, "problem_1")
    writer.write(Header(problem_id="problem_1", problem_digest="d", renderer="qwen3", seed=4))
    for number in range(1, turns + 1):
        command = CommandRecord(command="ls\n é🙂\ud800", exit_code=0)
        writer.write(
            TurnRecord(
                turn=number,
                completion="say",
                token_ids=[1, 2],
                logprobs=[-0.5, -1.0],
                action="command",
                commands=[command],
                observation="out",
            )
        )
    if end:
        writer.write(End(stop_reason="completed", turns=turns, seconds=1.0))
    writer.close()
    return writer.path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    transcript = read_transcript(write(tmp_path))
    assert transcript.complete
    assert transcript.header.seed == 4
    assert [turn.turn for turn in transcript.turns] == [1, 2]
    assert transcript.turns[0].token_ids == [1, 2]
    assert transcript.turns[0].logprobs == [-0.5, -1.0]
    assert transcript.turns[0].commands[0].command.startswith("ls\n é🙂")
    assert transcript.turns[0].time > 1.6e9


def test_names_never_collide(tmp_path: Path) -> None:
    assert len({write(tmp_path) for _ in range(5)}) == 5


def test_every_cut_reads_up_to_the_last_whole_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for size in [*range(ends[0], len(data), 37), *ends]:
        path.write_bytes(data[:size])
        transcript = read_transcript(path)
        assert len(transcript.turns) == min(2, sum(end <= size for end in ends) - 1)
        assert transcript.complete == (size == len(data))


HEADER = b'{"event":"header","problem_id":"x","problem_digest":"","renderer":"qwen3"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no complete line"),
        (b'{"event": "header"', "no complete line"),
        (b"garbage\nmore\n", "not a transcript .the first line is not a JSON object"),
        (b"garbage\n", "not a transcript"),
        (b'{"event":"end","stop_reason":"x","turns":1,"seconds":1}\n', "the first line has no header.$"),
        (b'{"id":"x","prompt":"y"}\n', "the first line has no header.; is it a file of problems.$"),
        (b'{"event":"header","problem_id":"x"}\n', "header has a wrong or missing field"),
        (HEADER + b"[]\n{}\n", ":2: not an event"),
        (b'{"event":"header","schema_version":99}\n', "format 99.*reads up to 1.*Update"),
        (b'{"event":"header","schema_version":"1"}\n', "schema_version is '1'"),
        (b'{"event":"header","schema_version":null}\n', "schema_version is 'None'"),
        (b'{"event":"header","schema_version":[2]}\n', "schema_version is"),
        (b'{"event":"header","schema_version":true}\n', "schema_version is 'True'"),
        (b'{"event":"header","schema_version":1e400}\n', "schema_version is 'inf'"),
        (HEADER + b'{"event":"score","score":' + b"[" * 100_000 + b"\n{}\n", ":2: .*nested deeper"),
        (HEADER + b'{"event":"score","score":{"a":' + b"[" * 200 + b"]" * 200 + b"}}\n{}\n", ":2: .*nested deeper"),
        (b"\xff\xfe\n{}\n", "not a transcript"),
    ],
)
def test_what_is_no_transcript(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TranscriptError, match=message):
        read_transcript(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot be read: No such file"):
        read_transcript(tmp_path / "none.jsonl")


def test_a_folder_or_a_pipe_is_no_transcript(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")  # reading it would wait for ever
    for path in (tmp_path, tmp_path / "pipe.jsonl", tmp_path / "nul\0"):
        with pytest.raises(TranscriptError, match="cannot be read"):
            read_transcript(path)


def test_a_place_that_takes_no_transcript(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/nobody"), tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match=r"^transcripts: "):
            TranscriptWriter.in_folder(folder, "problem_1")


def test_a_full_disk_is_the_machines_fault(tmp_path: Path) -> None:
    writer = TranscriptWriter.in_folder(tmp_path, "problem_1")
    with open("/dev/full", "w") as full:
        writer._file, own = full, writer._file
        with pytest.raises(SandboxError, match="cannot be written: No space left on device"):
            writer.write(Header(problem_id="problem_1", problem_digest="d", renderer="qwen3"))
        own.close()
        with contextlib.suppress(OSError):
            full.close()


def test_a_submission_stays_with_its_command_and_older_files_have_none(tmp_path: Path) -> None:
    writer = TranscriptWriter.in_folder(tmp_path, "problem_1")
    writer.write(Header(problem_id="problem_1", problem_digest="d", renderer="qwen3"))
    graded = SubmissionRecord(number=1, left=2, fraction=0.5, reward=0.25, score={"tests_passed": 1})
    commands = [
        CommandRecord(command="ls", exit_code=0),
        CommandRecord(command="submit", exit_code=1, submission=graded),
    ]
    writer.write(TurnRecord(turn=1, completion="say", action="command", commands=commands))
    writer.close()
    assert [command.submission for command in read_transcript(writer.path).turns[0].commands] == [None, graded]
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert lines[0]["schema_version"] == 1  # an older reader passes over what it does not know
    for command in lines[1]["commands"]:
        del command["submission"]
    writer.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [command.submission for command in read_transcript(writer.path).turns[0].commands] == [None, None]


def test_a_command_holds_its_output_and_transcripts_of_older_versions_are_read(tmp_path: Path) -> None:
    writer = TranscriptWriter.in_folder(tmp_path, "problem_1")
    writer.write(Header(problem_id="problem_1", problem_digest="d", renderer="qwen3"))
    native = ModelTurn("hm", "I look.", (ToolCall.of("ls"),))
    ran = CommandRecord(command="ls", exit_code=0, output="rtl\n")
    writer.write(TurnRecord(turn=1, completion="I look.", native=native, action="command", commands=[ran]))
    writer.close()
    [turn] = read_transcript(writer.path).turns
    assert (turn.native, turn.commands) == (native, [ran])
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    del lines[1]["commands"][0]["output"]
    lines[1]["native"]["content"] = lines[1]["native"].pop("text")
    for call in lines[1]["native"]["calls"]:
        del call["id"]
    writer.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [turn] = read_transcript(writer.path).turns
    assert (turn.native, turn.commands[0].output) == (native, None)
