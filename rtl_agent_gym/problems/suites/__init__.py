"""Other benchmarks, from their files as they publish them: VerilogEval v2, RTLLM v2, and NotSoTiny in CVDP's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rtl_agent_gym.problems.suites import notsotiny, rtllm, verilog_eval
from rtl_agent_gym.problems.suites.common import Located

SUITES: dict[str, Callable[[str], Iterator[Located]]] = {
    suite.PREFIX: suite.read_suite for suite in (verilog_eval, rtllm, notsotiny)
}
"""By the prefix of a source, such as ``rtllm:``, what reads its problems."""

__all__ = ["SUITES", "Located"]
