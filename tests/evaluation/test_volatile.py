"""What a comparison leaves out, and what it must never leave out."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from rtl_agent_gym.evaluation.replay import VOLATILE, mask_volatile

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"
EXAMPLES = re.findall(
    r"^\| ([\w ]+) \| `(.*)` \|$", PAGE.read_text(encoding="utf-8").partition("What is not compared")[2], re.M
)
"""The kinds in the documentation, each with an example."""


def test_the_documentation_lists_every_kind() -> None:
    assert [name for name, _ in EXAMPLES] == [name for name, _ in VOLATILE]


@pytest.mark.parametrize(("number", "text"), [(at, text) for at, (_, text) in enumerate(EXAMPLES)])
def test_each_kind_finds_its_example(number: int, text: str) -> None:
    name, pattern = VOLATILE[number]
    assert re.search(pattern, text)
    assert f"<{name}>" in mask_volatile(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Sat Nov 21 01:26:00 UTC 2026", "Sun Nov 22 11:02:59 UTC 2026"),
        ("-rw-r--r-- 1 agent agent 12 Nov  1 01:26 x.sv", "-rw-r--r-- 1 agent agent 12 Dec 21 23:59 x.sv"),
        ("2026-11-21T01:26:00.1234Z x", "2027-01-02 03:04:05 +0100 x"),
        ("real\t0m0.053s\nuser\t0m0.001s", "real\t1m2.100s\nuser\t0m9.000s"),
        ("===== 3 passed in 0.12s =====", "===== 3 passed in 11.02s ====="),
        ("** t.a  PASS  120.00  0.01  12000.00  **", "** t.a  PASS  120.00  0.00  -.--  **"),
        ("- Verilator: cpu 0.010 s; alloced 11.234 MB", "- Verilator: cpu 0.020 s; alloced 9.1 MB"),
        (
            "user 0.22s system 0.02s, MEM: 16.53 MB peak\nTime spent: 36% 1x abc (0 sec), 9% 2x opt (0 sec), ...",
            "user 0.31s system 0.01s, MEM: 16.67 MB peak\nTime spent: 32% 1x abc (1 sec), 9% 7x opt_expr (0 sec), ...",
        ),
        ("<object at 0x7f3a5c0d1e90>", "<object at 0x7fffa0b1c2d0>"),
        ("[1] 4711", "[1] 12"),
        ("agent    812   1 pts/0 00:00:00 bash", "agent     99  12 pts/0 00:00:00 bash"),
        ("bash: line 3:   812 Killed   sleep 9", "bash: line 3: 90 Killed   sleep 9"),
        ("/tmp/tmp.Qx3vK2a8Zd/a", "/tmp/tmp.aaaaaaaaaa/a"),
        ("['/tmp/tmpab12cd_9']", "['/tmp/tmpzzzzzzz0']"),
        ('ivl -V -C"/tmp/ivrlh50fa73aa" -C"', 'ivl -V -C"/tmp/ivrlh3e52dff5" -C"'),
        ("/tmp/ivrlg21b0c /tmp/ivrl6b8b4567", "/tmp/ivrlg2327b23c6 /tmp/ivrl2ae8"),
        ("as -o /tmp/ccXp2bQ1.o /tmp/ccuMVM5G.s", "as -o /tmp/ccaaaaaa.o /tmp/cc000000.s"),
        ('Icarus 13.0\nUnable to get version from "/usr/local/lib/ivl/ivlpp -V"\n', "Icarus 13.0\n"),
        ("a.log\ntmp.SsxpxsPwLl\nz.log", "a.log\ntmp.YAmjAo5gPK\nz.log"),
        ("uid=1349435664(agent) gid=1349435664(agent)", "uid=1783573428(agent) gid=1783573428(agent)"),
        (
            "Device: 0,662  Inode: 2\nAccess: (0755/drwxr-xr-x)  Uid: (1134476964/   agent)",
            "Device: 0,78  Inode: 2\nAccess: (0755/drwxr-xr-x)  Uid: (1246325496/   agent)",
        ),
        (
            "it was proved equal to the given design in the first 12 steps only",
            "it was proved equal to the given design in the first 9 steps only",
        ),
        ("of sandbox rtl-gym-agent-7-00000000 ended it", "of sandbox rtl-gym-agent-1234-deadbeef ended it"),
    ],
)
def test_two_runs_are_equal_when_masked(one: str, other: str) -> None:
    assert one != other
    assert mask_volatile(one) == mask_volatile(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("count = 12", "count = 13"),
        ("the first 12 steps only", "the first 13 steps only"),
        ("q = 0x1f", "q = 0x2f"),
        ("data 0xdeadbeef00", "data 0xdeadbeef01"),
        ("$finish called at 1650000000 (1ps)", "$finish called at 1650000001 (1ps)"),
        ("3 passed in 0.12s", "2 passed in 0.12s"),
        ("** t.a  PASS  120.00  0.01  1.00  **", "** t.a  FAIL  120.00  0.01  1.00  **"),
        ("** t.a  PASS  120.00  0.01  1.00  **", "** t.a  PASS  130.00  0.01  1.00  **"),
        ("at 120 ns", "at 130 ns"),
        ("display shows 12:34:56", "display shows 12:34:57"),
        ("/tmp/sim_output.vvp", "/tmp/sim_results.vvp"),
        ("tmp.data_valid", "tmp.data_ready"),
        ("/tmp/ivrl_notes", "/tmp/ivrl_texts"),
        ("rtl/a.sv:12: syntax error", "rtl/a.sv:13: syntax error"),
        ("-rw-r--r-- 1 agent agent 12 Nov 21 01:26 x.sv", "-rw-r--r-- 1 agent agent 13 Nov 21 01:26 x.sv"),
        ("[1]+ Done sleep", "[2]+ Done sleep"),
    ],
)
def test_what_a_design_says_is_always_compared(one: str, other: str) -> None:
    assert mask_volatile(one) != mask_volatile(other)


def test_a_long_line_costs_no_time() -> None:
    begun = time.process_time()
    line = "a" + "1" * 20_000
    assert mask_volatile(line) == line
    assert time.process_time() - begun < 1  # each split between name and number: 6 s
