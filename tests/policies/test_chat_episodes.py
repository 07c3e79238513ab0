"""Real episodes with a chat model behind the stub server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.transcripts import Transcript, read_transcript
from tests.cli import in_process
from tests.policies.service_messages import OVERFLOW
from tests.policies.stub_server import ChatServer, Reply, call

pytestmark = pytest.mark.docker
ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"


def played(folder: Path, server: ChatServer, *more: str) -> tuple[dict[str, Any], Transcript]:
    """The summary of one episode, and its last transcript."""
    options = ["--policy", "chat:org/model", "--base-url", server.url, "--weights", "proxy", "--json", *more]
    done = in_process.call("eval", "--out", str(folder / "run"), "--problem", ARBITER, *options)
    assert done.returncode in (0, 3), done.stderr
    transcripts = sorted((folder / "run" / "transcripts").iterdir(), key=lambda path: path.stat().st_mtime)
    return json.loads(done.stdout.splitlines()[-1]), read_transcript(transcripts[-1])


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_parallel_calls_run_in_order_without_a_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    def unused(*_: object, **__: object) -> None:
        raise AssertionError("a dialect was written or read")

    for name in ("parse_text", "parse_ids", "turn_text"):
        monkeypatch.setattr(type(get_renderer("qwen3")), name, unused)
    turn = {**call("echo one > a", "cat a; echo two >> a", "cat a; exit 3"), "content": "Look."}
    with ChatServer([turn, {"content": "Done."}]) as server:
        found, transcript = played(tmp_path, server, stream)
    assert (found["finished"], found["cost"]["turns"], found["cost"]["malformed"]) == (1, 2, 0)
    tools = [message for message in server.requests[1]["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in tools] == ["call_0", "call_1", "call_2"]
    assert [message["content"] for message in tools] == ["[no output, exit code 0]", "one\n", tools[2]["content"]]
    assert tools[2]["content"].startswith("one\ntwo\n")
    first = transcript.turns[0]
    assert first.native is not None
    assert [command.command for command in first.commands] == [
        "echo one > a", "cat a; echo two >> a", "cat a; exit 3",
    ]  # fmt: skip
    assert [one["role"] for one in server.requests[1]["messages"]] == ["system", "user", "assistant", *["tool"] * 3]


@pytest.mark.parametrize(
    ("last", "stop", "cause"),
    [
        ({"status": 400, "error": {"message": OVERFLOW}}, "max_tokens", "out of turns or tokens"),
        ({"status": 400, "error": {"message": "Bad", "code": "content_filter"}}, "completed", "refused"),
        ({"content": None, "refusal": "I will not."}, "completed", "refused"),
    ],
    ids=["overflow", "filter", "refusal"],
)
def test_what_ends_an_episode_is_graded(tmp_path: Path, last: Reply, stop: str, cause: str) -> None:
    with ChatServer([call("echo module x > rtl/x.sv"), last]) as server:
        found, transcript = played(tmp_path, server)
    assert (found["finished"], found["faults"], found["retries"]) == (1, 0, 0)
    assert found["causes"] == {cause: 1}
    assert transcript.end is not None
    assert (transcript.end.stop_reason, transcript.score is not None) == (stop, True)


@pytest.mark.slow
def test_a_connection_that_is_lost_again_and_again_is_no_verdict(tmp_path: Path) -> None:
    lost = {"content": "I am done", "cut": 2}
    with ChatServer([call("ls"), {"status": 400, "error": {"message": "cannot"}}], faults=[lost]) as server:
        found, transcript = played(tmp_path, server, "--stream")
    assert (found["finished"], found["faults"], found["retries"]) == (0, 1, 2)
    assert transcript.score is None
    assert transcript.end is not None
    assert "RequestRefused" in str(transcript.end.error)
