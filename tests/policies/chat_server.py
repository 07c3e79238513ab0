"""A real OpenAI-compatible chat service on loopback, played by a script."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = dict[str, Any]
"""``content``, ``reasoning``, ``calls`` (name, JSON text), ``finish``; or a fault: ``status`` with ``error`` (or with a
whole ``body``) and ``headers``, or ``drop`` for a connection that ends."""


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

    def __enter__(self) -> ChatServer:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.authorizations.add(self.headers.get("authorization", ""))
                status, answer, headers = owner.answer(self.path, body)
                if status == 0:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
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
        """Status (0 for none), body and more headers."""
        if path != self.path:
            return 404, {"error": {"message": f"no {path} here", "type": "not_found"}}, {}
        with self._lock:
            key = json.dumps([body["messages"], body.get("seed")])
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= self.refusals:
                self.refused += 1
                error = {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit"}
                return 429, {"error": error}, {"retry-after": "0"}
            if self.faults:
                return _fault(self.faults.pop(0))
            self.requests.append(body)
        messages = body["messages"]
        if callable(self.script):
            reply = self.script(body if self.whole else messages)
        else:
            turn = sum(message["role"] == "assistant" for message in messages)
            reply = self.script[min(turn, len(self.script) - 1)]
        if "status" in reply or "drop" in reply:
            return _fault(reply)
        return 200, _completion(body["model"], reply), {}


def _fault(reply: Reply) -> tuple[int, Any, dict[str, str]]:
    if "drop" in reply:
        return 0, None, {}
    return reply["status"], reply.get("body", {"error": reply.get("error")}), reply.get("headers", {})


def _completion(model: str, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("content", "")}
    if "reasoning" in reply:
        message["reasoning_content"] = reply["reasoning"]
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(reply.get("calls", []))
    ]
    if calls:
        message["tool_calls"] = calls
    finish = reply.get("finish") or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
