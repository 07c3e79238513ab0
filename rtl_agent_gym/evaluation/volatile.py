"""Patterns of the values that may differ between two runs of the same commands; everything else must be equal.

Each pattern is as narrow as possible: it must never match a number in a simulation's output, a register's value or a
count. Each has an example, which a test checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Volatile:
    """One kind of value that changes from run to run."""

    name: str
    """The kind of value."""
    pattern: re.Pattern[str]
    """Matches it; a group named ``keep`` before it is kept."""
    example: str
    """A text in which the pattern matches."""

    @property
    def placeholder(self) -> str:
        """The text that replaces it in a comparison."""
        return f"<{self.name}>"


def _volatile(name: str, pattern: str, example: str) -> Volatile:
    return Volatile(name, re.compile(pattern, re.MULTILINE), example)


_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"[0-2]\d:[0-5]\d(?::[0-6]\d(?:[.,]\d+)?)?"

VOLATILE: tuple[Volatile, ...] = (
    _volatile(
        "time",
        rf"\b{_DAY},? +(?:{_MONTH} +\d{{1,2}}|\d{{1,2}} +{_MONTH})(?: \d{{4}})? +{_CLOCK}(?: [AP]M)?(?: [A-Z]{{3,4}})?"
        r"(?: [12]\d{3})?\b",
        "Sat Nov 21 01:26:00 UTC 2026",
    ),
    _volatile(
        "time", rf"\b[12]\d{{3}}-\d\d-\d\d(?:[T ]{_CLOCK}(?: ?(?:Z|[+-]\d\d:?\d\d))?)?", "2026-11-21 01:26:00.123 +0000"
    ),
    _volatile(
        "time", rf"\b{_MONTH} +\d{{1,2}} +(?:{_CLOCK}|[12]\d{{3}})\b", "-rw-r--r-- 1 agent agent 12 Nov 21 01:26 x.sv"
    ),
    _volatile("time", r"(?P<keep>^\[?)[0-2]\d:[0-5]\d:[0-6]\d(?:[.,]\d+)?\b", "[01:26:00] begun"),
    _volatile("time", r"\b1[6-9]\d{8}\.\d+\b|^1[6-9]\d{8}$", "1795224360.482913"),
    _volatile("duration", r"\b\d+m\d+[.,]\d+s\b", "real\t0m0.053s"),
    _volatile("duration", r"\b\d+\.\d+(?:e-\d+)? ?(?:s|sec|secs|seconds)\b", "3 passed in 0.12s"),
    _volatile(
        "duration",
        r"(?P<keep>\*\* \S+ +(?:(?:PASS|FAIL|SKIP) +)?(?:[A-Z]+=\d+ +)*\d+\.\d\d)"
        r" +\d+\.\d\d +(?:\d+\.\d\d|-\.--|inf) +(?=\*\*)",
        "** test_top.counts    PASS     120.00        0.01      12000.00  **",
    ),
    _volatile(
        "duration", r"(?P<keep>\b(?:elab|cvt|bld)=)\d+\.\d+", "Walltime 0.010 s (elab=0.000, cvt=0.006, bld=0.000)"
    ),
    _volatile("memory", r"(?P<keep>\balloced )\d+(?:\.\d+)? [KMG]?B\b", "cpu 0.010 s on 1 threads; alloced 11.234 MB"),
    _volatile(
        "address",
        r"(?<![0-9A-Fa-f])0x(?:7[ef]|5[56]|ffff|aaaa)[0-9a-f]{8,10}(?![0-9A-Fa-f])",
        "<object at 0x7f3a5c0d1e90>",
    ),
    _volatile("pid", r"(?P<keep>^\[\d+\][+-]? +)\d+\b(?! *(?:Running|Done|Exit))", "[1] 4711"),
    _volatile("pid", r"(?P<keep>: line \d+:) +\d+(?= [A-Z])", "bash: line 3:   812 Killed   sleep 9"),
    _volatile("pid", r"(?P<keep>\b(?:pid|PID|ppid|PPID)[ =:]+)\d+\b", "pid 812"),
    _volatile("pid", r"^(?P<keep>(?:[a-z]\w*)?) *\d+(?: +\d+)*(?= +(?:\?|pts/\d+) )", "  812 ?        00:00:00 bash"),
    _volatile("seed", r"(?P<keep>\b(?:[Ss]eed(?:ing)?\b[^\n\d]{0,40}|COCOTB_RANDOM_SEED=))\d{9,}\b", "seed 1795224360"),
    _volatile(
        "tmp name",
        # of mktemp, also as `ls /tmp` lists it; Python; GCC; Icarus
        r"(?P<keep>/tmp/(?:tmp\.(?=\w{10}\b)|tmp(?=\w{8}\b)|cc(?=\w{6}\b)|ivrl[a-z]?2?(?=[0-9a-f]{4,8}\b))"
        r"|^tmp\.(?=\w*[A-Z0-9])(?=\w{10}$))\w+",
        "/tmp/tmp.Qx3vK2a8Zd",
    ),
)
"""All kinds, in the order in which they are replaced."""


_READER_GONE = re.compile(r'^Unable to get version from ".*"\n', re.MULTILINE)
"""What ``iverilog -V`` says of its parts that find the reader of a pipe gone. In ``| head -1``, that is a race."""


def mask_volatile(text: str) -> str:
    """`text` with a placeholder for each volatile value, ready to be compared."""
    text = _READER_GONE.sub("", text)
    for kind in VOLATILE:
        keep = r"\g<keep>" if "keep" in kind.pattern.groupindex else ""
        text = kind.pattern.sub(keep + kind.placeholder, text)
    return text
