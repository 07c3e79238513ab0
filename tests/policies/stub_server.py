"""A real OpenAI-compatible chat service on loopback, played by a script: streamed and not, with every way to fail."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = dict[str, Any]
"""One of:

- a turn: ``content``, ``reasoning``, ``refusal``, ``calls`` (name, JSON text, and maybe an id), ``finish``, ``usage``
  (None: not reported), ``headers``; with ``cut``, a streamed turn ends after that many events, as ``how`` says;
- a refusal: ``status`` with ``error`` (or with a whole ``body``) and ``headers``;
- ``drop``: the connection ends before the answer;
- ``raw``: what is written to the socket (`raw_steps`).
"""

Step = bytes | float | str
"""Bytes to send, seconds to wait, or ``"rst"`` to reset the connection; after the last step it is closed."""

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def call(command: str, *more: str) -> Reply:
    """A turn that calls the shell once a command."""
    commands = (command, *more)
    return {"content": "", "calls": [("execute_bash", json.dumps({"command": text})) for text in commands]}


@dataclass
class ChatServer:
    """Answers by the number of the assistant's turns so far in the conversation; the last turn repeats.

    Every conversation is first refused `refusals` times with 429, as a busy service does. Before anything else, each of
    `faults` is answered once.
    """

    script: list[Reply] | Callable[[Any], Reply]
    refusals: int = 0
    faults: list[Reply] = field(default_factory=list)
    whole: bool = False
    """Whether a script that is a function gets the whole body of a request, and not its messages alone."""
    path: str = "/v1/chat/completions"
    requests: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of the requests that were answered."""
    refused: int = 0
    authorizations: set[str] = field(default_factory=set)
    arrived: list[float] = field(default_factory=list)
    """When each request arrived, in seconds of `time.monotonic`."""

    def __enter__(self) -> ChatServer:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.arrived.append(time.monotonic())
                owner.authorizations.add(self.headers.get("authorization", ""))
                status, answer, headers = owner.answer(self.path, body)
                if isinstance(answer, list):
                    self.close_connection = True
                    _write_raw(self.connection, answer)
                    return
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "text/html" if isinstance(answer, str) else "application/json")
                self.send_header("content-length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._lock, self._seen = threading.Lock(), {}  # type: ignore[var-annotated]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that hung up
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        """Status, body (a list is written to the socket as it is) and more headers."""
        if path != self.path:
            return 404, {"error": {"message": f"no {path} here", "type": "not_found"}}, {}
        with self._lock:
            key = json.dumps([body["messages"], body.get("seed")])
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= self.refusals:
                self.refused += 1
                error = {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit"}
                return 429, {"error": error}, {"retry-after-ms": "1"}
            if self.faults:
                return _answer(self.faults.pop(0), body)
            self.requests.append(body)
        messages = body["messages"]
        if callable(self.script):
            reply = self.script(body if self.whole else messages)
        else:
            turn = sum(message["role"] == "assistant" for message in messages)
            reply = self.script[min(turn, len(self.script) - 1)]
        return _answer(reply, body)


def _answer(reply: Reply, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
    headers = reply.get("headers", {})
    if "drop" in reply:
        return 0, [], {}
    if "raw" in reply:
        return 0, list(reply["raw"]), {}
    if "status" in reply:
        return reply["status"], reply.get("body", {"error": reply.get("error")}), headers
    if body.get("stream"):
        return 0, streamed(body["model"], reply, usage="stream_options" in body), {}
    return 200, _completion(body["model"], reply), headers


def _write_raw(connection: socket.socket, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, bytes):
            connection.sendall(step)
        elif isinstance(step, float):
            time.sleep(step)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return
    connection.shutdown(socket.SHUT_RDWR)


def head(status: str = "200 OK", content_type: str = "application/json", **headers: object) -> bytes:
    """The head of a response as it goes over the wire; underscores in names stand for hyphens."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def body_of(reply: Reply) -> bytes:
    """The body of an answer that is not streamed."""
    return json.dumps(_completion("m", reply)).encode()


def streamed(model: str, reply: Reply, *, usage: bool) -> list[Step]:
    """A streamed turn. ``how`` a cut one ends: ``"rst"``, ``"chunk"`` (within the chunked encoding), or silently."""
    data = events(model, reply, usage=usage)
    cut = reply.get("cut")
    how = reply.get("how", "")
    if cut is not None:
        data = data[:cut]
    if how != "chunk":
        end: list[Step] = [0.1, how] if how else []
        return [head(content_type="text/event-stream"), *data, *end]
    start = head(content_type="text/event-stream", transfer_encoding="chunked")
    return [start, *(b"%x\r\n%s\r\n" % (len(event), event) for event in data)]


def events(model: str, reply: Reply, *, usage: bool) -> list[bytes]:
    """The events of a streamed turn: text in pieces, the calls' arguments in pieces that alternate between calls."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name, text in (("reasoning_content", reply.get("reasoning")), ("content", reply.get("content"))):
        deltas += [{name: piece} for piece in _pieces(text or "")]
    if reply.get("refusal"):
        deltas += [{"refusal": piece} for piece in _pieces(reply["refusal"])]
    calls = _calls(reply)
    for index, one in enumerate(calls):
        function = {"name": one["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": one["id"], "type": "function", "function": function}]})
    arguments = [_pieces(one["function"]["arguments"]) for one in calls]
    for number in range(max(map(len, arguments), default=0)):
        for index, found in enumerate(arguments):
            if number < len(found):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": found[number]}}]})
    return stream_of(model, deltas, _finish(reply), reply.get("usage", USAGE) if usage else None)


def stream_of(
    model: str, deltas: Sequence[dict[str, Any]], finish: str, usage: dict[str, Any] | None = None
) -> list[bytes]:
    """The events of these pieces of a turn, its reason to stop and its usage."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    chunks = [base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage:
        chunks.append(base | {"choices": [], "usage": usage})
    return [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


def _pieces(text: str, size: int = 7) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _calls(reply: Reply) -> list[dict[str, Any]]:
    found = []
    for number, (name, arguments, *given) in enumerate(reply.get("calls", [])):
        function = {"name": name, "arguments": arguments}
        found.append({"id": given[0] if given else f"call_{number}", "type": "function", "function": function})
    return found


def _finish(reply: Reply) -> str:
    return str(reply.get("finish") or ("tool_calls" if reply.get("calls") else "stop"))


def _completion(model: str, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("content", "")}
    if "reasoning" in reply:
        message["reasoning_content"] = reply["reasoning"]
    if "refusal" in reply:
        message["refusal"] = reply["refusal"]
    if calls := _calls(reply):
        message["tool_calls"] = calls
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
    }
    usage = reply.get("usage", USAGE)
    return answer if usage is None else answer | {"usage": usage}
