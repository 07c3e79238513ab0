"""Adding tokens to finished transcripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym.errors import TranscriptError, UsageError
from rtl_agent_gym.transcripts import (
    End,
    Header,
    TokenRecord,
    TranscriptWriter,
    TurnRecord,
    add_tokens,
    read_transcript,
)


def write(folder: Path) -> Path:
    writer = TranscriptWriter.in_folder(folder, "p")
    writer.write(Header(problem_id="p", problem_digest="d", renderer="qwen3"))
    for number in (1, 2):
        writer.write(
            TurnRecord(turn=number, completion="é\ud800", action="final", token_ids=[1, 2], logprobs=[-1.0, -2.0])
        )
    writer.write(End(stop_reason="completed", turns=2, seconds=1.0))
    writer.close()
    return writer.path


def test_tokens_are_added_and_the_rest_stays(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = read_transcript(path)
    add_tokens(path, {2: TokenRecord(tokens=["a", "b"], teacher_logprobs=[-0.5, None])})
    after = read_transcript(path)
    assert after.turns[0] == before.turns[0]
    assert after.turns[1].logprobs == [-1.0, -2.0]
    assert after.turns[1].tokens == ["a", "b"]
    assert after.turns[1].teacher_logprobs == [-0.5, None]
    assert after.turns[1].completion == before.turns[1].completion
    assert after.complete
    assert list(tmp_path.iterdir()) == [path]


def test_mistakes_change_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    data = path.read_bytes()
    with pytest.raises(TranscriptError, match="there is no turn 3, 9"):
        add_tokens(path, {9: TokenRecord(tokens=["a"]), 3: TokenRecord(), 1: TokenRecord(tokens=["a", "b"])})
    with pytest.raises(UsageError, match="must have the same length"):
        TokenRecord(tokens=["a"], logprobs=[-1.0, -2.0])
    assert path.read_bytes() == data
    with pytest.raises(TranscriptError, match="tokens cannot be added: "):
        add_tokens(tmp_path / "none.jsonl", {1: TokenRecord()})


def test_files_of_before_these_fields_are_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    new = {"tokens", "teacher_logprobs", "files", "category", "difficulty"}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k not in new}) + "\n" for row in rows))
    old = read_transcript(path)
    assert old.header.files == {}
    assert old.turns[0].files == {}
    assert old.turns[0].teacher_logprobs is None
