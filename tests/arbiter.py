"""The bundled problem that most tests play, and turns in the dialect qwen3 that write designs for it."""

from __future__ import annotations

from data.bundled import wrong_designs
from rtl_agent_gym.policies import heredoc, write_turn
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer

ARBITER = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
RTL = "rtl/fixed_priority_arbiter.sv"


def call(*commands: str) -> str:
    return write_turn(get_renderer("qwen3"), "", commands)


def golden_call(problem: Problem, *before: str) -> str:
    assert problem.golden
    return call("\n".join([*before, *(heredoc(path, text) for path, text in problem.golden.items())]))


def write(text: str) -> str:
    return heredoc(RTL, text)


def wrong(name: str) -> str:
    return wrong_designs(ARBITER)[name][RTL]


def right(problem: Problem) -> str:
    assert problem.golden
    return problem.golden[RTL]
