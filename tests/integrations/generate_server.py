"""vLLM's generate endpoint on loopback, which verifiers' train client uses: token ids in, scripted token ids out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.loopback import serving

LOGPROB = -0.5


@dataclass
class GenerateServer:
    url: str = ""
    prompts: list[list[int]] = field(default_factory=list)
    """The ids that each request had."""
    sampled: list[list[int]] = field(default_factory=list)
    """The ids that each answer had."""


@contextmanager
def generating(sample: Callable[[int], list[int]]) -> Iterator[GenerateServer]:
    """Answers request N, from 0, of its one conversation with ``sample(N)``."""
    server = GenerateServer()

    def answer(path: str, body: bytes) -> tuple[int, Any]:
        if not body:
            return 200, {"data": []}
        assert path == "/inference/v1/generate"
        ids = sample(len(server.prompts))
        server.prompts.append(json.loads(body)["token_ids"])
        server.sampled.append(ids)
        content = [{"token": f"token_id:{id_}", "logprob": LOGPROB} for id_ in ids]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        return 200, {"request_id": f"r{len(server.prompts)}", "choices": [choice]}

    with serving(answer) as url:
        server.url = f"{url}/v1"
        yield server
