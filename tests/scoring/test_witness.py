"""What the witness of a grading says, and what it does when its line breaks."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rtl_agent_gym.sandboxes.image

SITE = Path(rtl_agent_gym.sandboxes.image.__file__).parent / "image_context" / "harness" / "site"


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
                stream.write(b"{}\n")
                stream.flush()
                for _, line in zip(range(left), stream, strict=False):
                    self.heard.append(json.loads(line))
                    stream.write(b"ok\n")
                    stream.flush()

    def close(self) -> None:
        self.thread.join(10)
        self.socket.close()


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    spec = importlib.util.spec_from_file_location("rtl_gym_witness", SITE / "rtl_gym_witness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SOCKET = f"\0rtl-gym-test-{uuid.uuid4().hex}"  # type: ignore[attr-defined]
    yield module
    if module._line.stream is not None:
        module._line.stream.close()


def test_a_line_that_breaks_is_said_on_a_new_one(witness: types.ModuleType) -> None:
    listener = Listener(witness.SOCKET, until=2)
    for number in range(4):
        witness.tell(source="cocotb", number=number)
    witness._line.stream.close()
    witness._line.stream = None
    listener.close()
    said = [message.get("number", message.get("fault", "")[:28]) for message in listener.heard]
    assert said == [0, 1, "a witness lost its line to t", 2, 3]


def test_in_a_grading_it_waits_for_its_supervisor(witness: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTL_GYM_SEED", "1")
    teller = threading.Thread(target=witness.tell, kwargs={"number": 0})
    teller.start()
    teller.join(0.2)
    assert teller.is_alive()
    listener = Listener(witness.SOCKET, until=0)
    teller.join(10)
    witness._close(witness._line.stream)
    listener.close()
    assert [message.get("number") for message in listener.heard][-1] == 0


def test_outside_of_a_grading_it_says_nothing(witness: types.ModuleType) -> None:
    witness.tell(source="cocotb")
    assert witness._line.stream is None


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
    source: str, failing: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, witness: types.ModuleType
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rtl_gym_witness", witness)
    spec = importlib.util.spec_from_file_location("rtl_gym_report", SITE / "rtl_gym_report.py")
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setattr(plugin, "HARNESS", (str(tmp_path),))
    (tmp_path / "test_it.py").write_text(source)
    assert plugin._goes_on(str(tmp_path / "test_it.py"), failing) == goes_on
    assert not plugin._goes_on(str(SITE / "rtl_gym_report.py"), 40)
