"""A folder that an agent has filled gives its regular files and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from rtl_agent_gym.integrations.harbor import collect


@pytest.fixture
def left(tmp_path: Path) -> Path:
    folder = tmp_path / "left"
    (folder / "rtl/deep").mkdir(parents=True)
    (folder / "rtl/top.sv").write_text("module top; endmodule")
    (folder / "rtl/deep/part.sv").write_bytes(b"\xff\x00")
    (folder / "harness").mkdir()
    (folder / "harness/test.py").write_text("no graded folder")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/more.sv").write_text("secret")
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return dict(collect.read_untrusted(str(folder)))


def test_no_link_is_followed_and_nothing_special_is_opened(left: Path, tmp_path: Path) -> None:
    (left / "rtl/link.sv").symlink_to(tmp_path / "secret")
    (left / "rtl/folder").symlink_to(tmp_path / "outside")
    (left / "verif").symlink_to(tmp_path / "outside")
    os.mkfifo(left / "rtl/pipe.sv")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(left / "rtl/socket.sv"))
    assert read(left) == {"rtl/top.sv": b"module top; endmodule", "rtl/deep/part.sv": b"\xff\x00"}


def test_sizes_and_numbers_are_bounded(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MAX_FILE", 100)
    monkeypatch.setattr(collect, "MAX_TOTAL", 250)
    for number in range(4):
        (left / f"rtl/{number}.sv").write_bytes(b"x" * 100)
    with (left / "rtl/large.sv").open("wb") as large:
        large.truncate(1 << 40)  # sparse, so that reading all of it would be noticed
    found = read(left)
    assert sum(map(len, found.values())) <= 250
    assert "rtl/large.sv" not in found
    assert "rtl/top.sv" in found
    monkeypatch.setattr(collect, "MAX_TOTAL", 1000)
    monkeypatch.setattr(collect, "MAX_COUNT", 5)
    assert len(read(left)) == 5
    monkeypatch.setattr(collect, "MAX_FOLDERS", 1)
    assert {path.rpartition("/")[0] for path in read(left)} == {"rtl"}


@pytest.mark.parametrize("limit", ["MAX_COUNT", "MAX_ENTRIES"])
def test_no_number_of_other_files_keeps_the_first_ones_out(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(collect, limit, 3)
    for number in range(10):
        (left / f"rtl/{number}.txt").touch()
    (left / "rtl/link.sv").symlink_to(tmp_path / "secret")
    (left / "rtl/folder").symlink_to(tmp_path / "outside")
    first = ["rtl/link.sv", "rtl/folder/more.sv", "harness/test.py", "rtl/none.sv", "rtl/top.sv", "rtl/deep/part.sv"]
    found = list(collect.read_untrusted(str(left), first))
    assert found[:2] == [("rtl/top.sv", b"module top; endmodule"), ("rtl/deep/part.sv", b"\xff\x00")]
    assert not {path for path, _ in found} & {"rtl/link.sv", "rtl/folder/more.sv", "harness/test.py"}


def test_folders_have_a_depth(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MAX_DEPTH", 1)
    assert sorted(read(left)) == ["rtl/top.sv"]


def test_a_path_that_is_too_long_below_the_folder_of_a_trial_is_left_out(left: Path) -> None:
    deep = left.joinpath("rtl", *["f" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / "far.sv").touch()
    assert sorted(read(left)) == ["rtl/deep/part.sv", "rtl/top.sv"]


def test_names_that_are_no_text_are_left_out(left: Path) -> None:
    os.close(os.open(os.fsencode(left) + b"/rtl/\xff.sv", os.O_CREAT | os.O_WRONLY))
    assert sorted(read(left)) == ["rtl/deep/part.sv", "rtl/top.sv"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


REPLACED = """
import os, time
print(flush=True)
for _ in range(5000):
    if os.fork():
        os._exit(0)
    time.sleep(0.001)
print("outlived")
"""
"""A program whose process starts the next one and ends, again and again."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
def test_processes_that_replace_each_other_are_ended() -> None:
    theirs = subprocess.Popen(["/usr/bin/python3", "-c", REPLACED], user=64323, stdout=subprocess.PIPE)
    assert theirs.stdout is not None
    with theirs.stdout:
        theirs.stdout.readline()
        collect.end_processes(64323)
        assert theirs.stdout.read() == b""
    theirs.wait(60)
