"""``rtl-agent-gym shell``, driven through a real terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

pytestmark = pytest.mark.docker
ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
ROOT = Path(__file__).resolve().parents[2]
COMMAND = "from rtl_agent_gym.cli import main; main()"


@pytest.mark.parametrize("kind", ["docker", "namespaces"])
def test_a_person_at_the_terminal(kind: str, root_folder: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-c", COMMAND, "--sandbox", kind, "shell", "--problem", ARBITER],
        cwd=str(ROOT),
        timeout=60,
        encoding="utf-8",
        dimensions=(40, 100),
    )
    try:
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
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 1
    finally:
        child.close(force=True)


def test_without_a_terminal_it_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "shell", "--problem", ARBITER],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
