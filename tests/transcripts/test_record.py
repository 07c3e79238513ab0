"""Writing and reading transcripts, and adding tokens to finished ones."""

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
    TokenRecord,
    TranscriptWriter,
    TurnRecord,
    add_tokens,
    read_transcript,
)

HEAD = Header(problem_id="problem_1", problem_digest="d", renderer="qwen3", seed=4)


def write(folder: Path) -> Path:
    writer = TranscriptWriter.in_folder(folder, "problem_1")
    writer.write(HEAD)
    for number in (1, 2):
        command = CommandRecord(command="ls\n é🙂\ud800", exit_code=0)
        writer.write(
            TurnRecord(
                turn=number,
                completion="é\ud800",
                token_ids=[1, 2],
                logprobs=[-0.5, -1.0],
                action="command",
                commands=[command],
                observation="out",
            )
        )
    writer.write(End(stop_reason="completed", turns=2, seconds=1.0))
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


@pytest.mark.parametrize(
    ("error", "complete"),
    [
        ("SandboxLost: gone", True),  # a machine fault is an end, too
        ("CancelledError: ", False),
        ("LimitReached: the evaluation has cost 1 $", False),
    ],
)
def test_an_episode_that_was_broken_off_is_not_complete(error: str, complete: bool, tmp_path: Path) -> None:
    writer = TranscriptWriter.in_folder(tmp_path, "problem_1")
    writer.write(HEAD)
    assert not read_transcript(writer.path).complete
    writer.write(End(stop_reason="error", turns=0, seconds=1.0, error=error))
    writer.close()
    assert read_transcript(writer.path).complete == complete


@pytest.mark.parametrize("padding", [b"\0" * 40 + b"\n", b'{"event": "turn", "tu\0\0\0\0\n', b"\0" * 40])
def test_a_last_line_that_the_file_system_padded_is_left_out(padding: bytes, tmp_path: Path) -> None:
    path = write(tmp_path)
    *kept, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept) + padding)
    assert len(read_transcript(path).turns) == 2
    path.write_bytes(b"".join(kept) + padding.rstrip(b"\n") + b"\n" + last)
    with pytest.raises(TranscriptError, match=":4: not an event"):
        read_transcript(path)


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
        (HEADER + b'[]\n{"event', ":2: not an event"),
        (b'{"event":"header","schema_version":99}\n', "format 99.*reads up to 1.*Update"),
        (b'{"event":"header","schema_version":2}\n', "format 2.*reads up to 1.*Update"),
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
            writer.write(HEAD)
        own.close()
        with contextlib.suppress(OSError):
            full.close()


def test_commands_hold_their_outputs_and_submissions_and_transcripts_of_older_versions_are_read(tmp_path: Path) -> None:
    writer = TranscriptWriter.in_folder(tmp_path, "problem_1")
    writer.write(HEAD.model_copy(update={"category": 3, "difficulty": "easy", "files": {"rtl/a.sv": ""}}))
    native = ModelTurn("hm", "I look.", (ToolCall.of("ls"),))
    graded = SubmissionRecord(number=1, left=2, fraction=0.5, reward=0.25, score={"tests_passed": 1})
    ran = [
        CommandRecord(command="ls", exit_code=0, output="rtl\n"),
        CommandRecord(command="submit", exit_code=1, submission=graded),
    ]
    writer.write(TurnRecord(turn=1, completion="I look.", native=native, action="command", commands=ran))
    writer.close()
    [turn] = read_transcript(writer.path).turns
    assert (turn.native, turn.commands) == (native, ran)
    head, line = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert head["schema_version"] == 1  # an older reader passes over what it does not know
    for newer in ("tokens", "teacher_logprobs", "files"):
        del line[newer]
    for newer in ("category", "difficulty", "files"):
        del head[newer]
    for command in line["commands"]:
        del command["submission"], command["output"]
    line["native"]["content"] = line["native"].pop("text")
    for call in line["native"]["calls"]:
        del call["id"]
    writer.path.write_text(f"{json.dumps(head)}\n{json.dumps(line)}\n")
    old = read_transcript(writer.path)
    [turn] = old.turns
    assert turn.native == native
    assert [(command.output, command.submission) for command in turn.commands] == [(None, None)] * 2
    assert (old.header.files, turn.files, turn.teacher_logprobs) == ({}, {}, None)


def test_tokens_are_added_and_the_rest_stays(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = read_transcript(path)
    add_tokens(path, {2: TokenRecord(tokens=["a", "b"], teacher_logprobs=[-0.5, None])})
    after = read_transcript(path)
    assert after.turns[0] == before.turns[0]
    added = {"tokens": ["a", "b"], "teacher_logprobs": [-0.5, None]}
    assert after.turns[1] == before.turns[1].model_copy(update=added)
    assert after.complete
    assert list(tmp_path.iterdir()) == [path]


def test_mistakes_in_added_tokens_change_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    data = path.read_bytes()
    with pytest.raises(TranscriptError, match="there is no turn 3, 9"):
        add_tokens(path, {9: TokenRecord(tokens=["a"]), 3: TokenRecord(), 1: TokenRecord(tokens=["a", "b"])})
    with pytest.raises(UsageError, match="must have the same length"):
        TokenRecord(tokens=["a"], logprobs=[-1.0, -2.0])
    assert path.read_bytes() == data
    with pytest.raises(TranscriptError, match="tokens cannot be added: "):
        add_tokens(tmp_path / "none.jsonl", {1: TokenRecord()})
