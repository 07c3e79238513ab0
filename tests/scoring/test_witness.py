"""What the witness of a grading says, and what it does when its line breaks."""

from __future__ import annotations

import json
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from rtl_agent_gym.scoring.grader import plugin
from rtl_agent_gym.scoring.grader import witness as witness_module
from rtl_agent_gym.scoring.grader.messages import Judged


class Listener:
    """A supervisor that hangs up on its first caller after a number of messages."""

    def __init__(self, address: str, until: int) -> None:
        self.until, self.heard = until, list[dict[str, Any]]()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(address)
        self.socket.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        for left in (self.until, 99):
            connection, _ = self.socket.accept()
            with connection, connection.makefile("rwb") as stream:
                stream.write(b'{"settings": {}, "seed": 1, "named": [], "times": []}\n')
                stream.flush()
                for _, line in zip(range(left), stream, strict=False):
                    self.heard.append(json.loads(line))
                    stream.write(b"ok\n")
                    stream.flush()

    def close(self) -> None:
        self.thread.join(60)
        self.socket.close()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"\0rtl-gym-test-{uuid.uuid4().hex}"
    monkeypatch.setattr(witness_module, "SOCKET", name)
    witness = witness_module._Witness()
    monkeypatch.setattr(witness_module, "_witness", witness)
    yield name
    if witness.line is not None:
        witness.line.close()


def judged(number: int) -> Judged:
    return {"kind": "test", "item": "", "process": 1, "test": str(number), "outcome": "passed"}


def test_a_line_that_breaks_is_said_on_a_new_one(address: str) -> None:
    listener = Listener(address, until=2)
    for number in range(4):
        witness_module.send(judged(number))
    assert witness_module._witness.line is not None
    witness_module._witness.line.close()
    listener.close()
    said = [message.get("test", message.get("text", "")[:29]) for message in listener.heard]
    assert said == ["0", "1", "a witness lost its connection", "2", "3"]


def test_in_a_grading_it_waits_for_its_supervisor(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTL_GYM_SEED", "1")
    teller = threading.Thread(target=witness_module.send, args=[judged(0)])
    teller.start()
    teller.join(0.2)
    assert teller.is_alive()
    listener = Listener(address, until=0)
    teller.join(60)
    assert witness_module._witness.line is not None
    witness_module._witness.line.close()
    listener.close()
    assert [message.get("test") for message in listener.heard][-1] == "0"


def test_outside_of_a_grading_it_says_nothing(address: str) -> None:
    witness_module.send(judged(0))
    assert witness_module._witness.line is None


def test_every_outcome_of_a_test_is_said_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {
        "test_passed": "passed",
        "test_failed": "failed",
        "test_init_failed": "error",
        "test_skipped": "skipped",
    }
    recorded = Mock()
    methods = {f"_record_{name}": getattr(recorded, name) for name in outcomes}
    module: Any = ModuleType("cocotb.regression")
    module.RegressionManager = type("Manager", (), {"_execute": recorded, "_test": Mock(fullname="x.one"), **methods})
    for name in ("cocotb", "cocotb.result"):
        monkeypatch.setitem(sys.modules, name, Mock())
    monkeypatch.setattr(witness_module, "atexit", Mock())
    said = list[Any]()
    monkeypatch.setattr(witness_module, "send", said.append)
    manager = module.RegressionManager()
    witness_module.complete(module)
    for name in methods:
        getattr(manager, name)()
    assert [message["outcome"] for message in said] == list(outcomes.values())
    assert [call[0] for call in recorded.method_calls] == list(outcomes)


@pytest.mark.parametrize(
    ("source", "failing", "goes_on"),
    [
        ("def test():\n    run(1)\n    check()\n", 2, False),
        ("def test():\n    for n in (1, 2):\n        run(n)\n", 3, True),
        ("def test():\n    [run(n) for n in (1, 2)]\n", 2, True),
        ("def test():\n    while True:\n        run()\n", 3, True),
        ("def test():\n    run(1)\n    run(2)\n", 2, True),
        ("def test():\n    run(1)\n    run(2)\n", 3, False),
        ("def test():\n    for n in (1, 2):\n        prepare(n)\n    run()\n", 4, False),
        ("def a():\n    run(1)\n\ndef b():\n    run(2)\n", 2, False),
    ],
)
def test_what_would_have_gone_on(
    source: str, failing: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "HARNESS", (str(tmp_path),))
    (tmp_path / "test_it.py").write_text(source)
    assert plugin._would_repeat(str(tmp_path / "test_it.py"), failing) == goes_on
    assert not plugin._would_repeat(plugin.__file__, 40)
