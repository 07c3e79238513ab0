"""``rtl-agent-gym shell``, driven through a real terminal."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.in_process import ROOT
from tests.cli.terminal import COMMAND, terminal

pytestmark = pytest.mark.docker
ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"


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


def test_without_a_terminal_it_says_what_to_do() -> None:
    done = subprocess.run(
        [*COMMAND, "shell", "--problem", ARBITER],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
