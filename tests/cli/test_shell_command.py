"""``rtl-agent-gym shell``, driven through a real terminal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pexpect
import pytest

from rtl_agent_gym.cli import shell
from rtl_agent_gym.errors import DaemonError, UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import Sandbox
from rtl_agent_gym.scoring import Scorer
from tests.arbiter import ARBITER
from tests.cli.in_process import ROOT
from tests.cli.terminal import COMMAND, terminal
from tests.waiting import until

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("kind", ["docker", "namespaces"])
def test_a_person_at_the_terminal(kind: str, root_folder: Path) -> None:
    with terminal("--sandbox", kind, "shell", "--problem", ARBITER, code=1, columns=100) as child:
        child.expect_exact("agent@rtl:/code$")
        child.sendline("ls docs; tty; id; stty size")
        child.expect_exact("specification.md")
        child.expect("/dev/pts/[0-9]+")
        child.expect(r"uid=\d+\(agent\) gid=\d+\(agent\)")
        child.expect_exact("40 100")
        child.expect_exact("agent@rtl:/code$")
        # The program that is interrupted says itself that it runs: bash can miss a Ctrl-C between two commands.
        child.sendline("sh -c 'echo be\"\"gun; exec sleep 1000'")
        child.expect_exact("begun")
        child.sendcontrol("c")  # for what runs there
        child.expect_exact("agent@rtl:/code$")
        child.sendline("echo 'module fixed_priority_arbiter; endmodule' > rtl/fixed_priority_arbiter.sv")
        child.sendline("exit")
        child.expect_exact("failed")


def test_the_files_outlive_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    child: Any = pexpect.spawn(COMMAND[0], [*COMMAND[1:], "shell", "--problem", ARBITER], cwd=str(ROOT), timeout=60)
    try:
        child.expect_exact("agent@rtl:/code$")
        child.sendline("echo 'module mine; endmodule' > rtl/fixed_priority_arbiter.sv; echo written")
        child.expect_exact("\rwritten\r\n")
        os.close(child.child_fd)  # as a terminal's window or a broken connection does
        assert until(lambda: not child.isalive())
    finally:
        child.ptyproc.terminate(force=True)
    assert child.exitstatus == 2
    [saved] = tmp_path.glob("rtl-agent-gym-shell-*/rtl/fixed_priority_arbiter.sv")
    assert saved.read_text() == "module mine; endmodule\n"


def test_without_a_terminal_it_says_what_to_do() -> None:
    command = [*COMMAND, "shell", "--problem", ARBITER]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem(id="x", category=3, difficulty="easy", prompt="p"), "no hidden tests"),
        (Problem(id="x", category=6, difficulty="easy", prompt="p", reference_response="two words"), "answer is text"),
    ],
)
def test_no_shell_opens_for_a_problem_that_cannot_be_scored_afterwards(
    problem: Problem, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "require_terminal", lambda *_: None)
    monkeypatch.setattr(shell, "one_problem", lambda *_: problem)
    monkeypatch.setattr(shell, "make_provider", lambda: pytest.fail("it begins"))
    with pytest.raises(UsageError, match=words):
        shell.shell_command()


def test_the_files_outlive_a_machine_that_cannot_score_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(sandbox: Sandbox, *_: str) -> None:
        await sandbox.write_files({"rtl/fixed_priority_arbiter.sv": "module mine; endmodule\n"})

    async def score(*_: Any, **__: Any) -> None:
        raise DaemonError("no daemon answers")

    monkeypatch.setattr(shell, "require_terminal", lambda *_: None)
    monkeypatch.setattr(shell, "attach_terminal", work)
    monkeypatch.setattr(shell, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(Scorer, "score", score)
    with pytest.raises(DaemonError, match="no daemon answers"):
        shell.shell_command(problem=ARBITER)
    assert (tmp_path / "rtl/fixed_priority_arbiter.sv").read_text() == "module mine; endmodule\n"
    assert f"your files are in {tmp_path}; " in capsys.readouterr().out
