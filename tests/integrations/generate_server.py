"""vLLM's generate endpoint on loopback, which verifiers' train client uses: token ids in, scripted token ids out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

LOGPROB = -0.5


class GenerateServer:
    """Answers request N, from 0, of its one conversation with ``sample(N)``.

    Attributes:
        prompts: The ids that each request had.
        sampled: The ids that each answer had.
    """

    def __init__(self, sample: Callable[[int], list[int]]) -> None:
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({"data": []})

            def do_POST(self) -> None:
                assert self.path == "/inference/v1/generate"
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                ids = sample(len(owner.prompts))
                owner.prompts.append(body["token_ids"])
                owner.sampled.append(ids)
                content = [{"token": f"token_id:{id_}", "logprob": LOGPROB} for id_ in ids]
                choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
                self.answer({"request_id": f"r{len(owner.prompts)}", "choices": [choice]})

            def answer(self, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> GenerateServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
