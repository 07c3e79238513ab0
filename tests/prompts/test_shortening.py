"""Shortening prompts: the interface stays, cuts are said, and what fits is not touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.prompts.shortening import MARKER, fit_passages, split_pieces

SPEC = (
    """Design an arbiter.

## Background

Once upon a time.

It was long ago.

## Interface

Clocked on the rising edge.

### Widths

- `grant`: 8 bits

## Examples

```
a long table
```

"""
    + "And more of it.\n\n" * 20
    + "The end.\n"
)


def characters(passages: Sequence[str]) -> int:
    return sum(map(len, passages))


def test_what_fits_is_left_alone() -> None:
    fitted = fit_passages([SPEC, "x"], characters, len(SPEC) + 1)
    assert fitted is not None
    assert (fitted.passages, fitted.cut) == ([SPEC, "x"], ())


def test_the_interface_stays_and_the_cut_is_said() -> None:
    fitted = fit_passages([SPEC], characters, len(SPEC) - 40)
    assert fitted is not None
    (text,) = fitted.passages
    assert len(text) <= len(SPEC) - 40 + 1
    for kept in ("Design an arbiter.", "## Interface", "Clocked on", "### Widths", "`grant`: 8 bits", "Once upon"):
        assert kept in text
    assert "The end." not in text
    assert fitted.cut == tuple(line for line in text.splitlines() if MARKER in line)
    assert "of 'Examples'" in fitted.cut[-1]


def test_the_last_passage_goes_first() -> None:
    fitted = fit_passages([SPEC, "note one\n\n" + "note two\n\n" * 40], characters, len(SPEC) + 100)
    assert fitted is not None
    assert fitted.passages[0] == SPEC
    assert "left out" in fitted.passages[1]


def test_nothing_fits() -> None:
    assert fit_passages([SPEC], characters, 60) is None
    with pytest.raises(UsageError, match="at most 0 tokens"):
        fit_passages([SPEC], characters, 0)


def test_the_header_of_a_module_stays() -> None:
    body = "\n\n".join(f"  assign w{i} = {i};" for i in range(300))
    code = f"// a file\n\nmodule top (\n  input clk,\n\n  output reg q\n);\n\n{body}\nendmodule\n"
    fitted = fit_passages([code], characters, 300)
    assert fitted is not None
    assert "module top (\n  input clk,\n\n  output reg q\n);" in fitted.passages[0]
    assert "w299" not in fitted.passages[0]


@pytest.mark.parametrize(
    "line",
    [
        "module has two inputs (a and b) that",
        "interface signals",
        "module top",
        "interface between the two is wide",
        "interface signals (see below) are registered.",
        "interface signals (see https://a.b/c) are\nregistered (all of them).",
    ],
)
def test_prose_that_begins_like_a_module_can_be_cut(line: str) -> None:
    text = f"Write a design. The\n{line}\n\n" + "It counts.\n\n" * 1000
    fitted = fit_passages([text], characters, 500)
    assert fitted is not None
    assert characters(fitted.passages) <= 500


@pytest.mark.parametrize("after", ["", "## Background", "```"])
def test_a_paragraph_heading_or_fence_after_such_prose_can_be_cut(after: str) -> None:
    text = f"Write a design. The\ninterface signals (see below) are registered.\n{after}\n" + "It counts.\n" * 1000
    fitted = fit_passages([text], characters, 500)
    assert fitted is not None
    assert "registered." in fitted.passages[0]
    assert characters(fitted.passages) <= 500


@pytest.mark.parametrize(
    "header",
    [
        "module top;",
        "module top\n  #(parameter W = 8)\n\n  (\n  input clk,\n\n  output q\n);",
        "module top // counts\n(\n  input clk\n);",
        "module top #(parameter W = 8)\n\n\n// ports\n(\n  input clk, // 1) of all\n\n  output q\n);",
        "module top (\n  /* modes:\n     1) fast\n     2) slow */\n\n  input clk,\n  output q\n);",
        "module top #(parameter W = 8)\n\n`ifdef X\n(input a,\n\n`endif\n input b);",
        "module automatic top#(\n\n  parameter W = 8\n) (input clk);",
        "interface bus (input clk);",
        "module top import types::*;",
    ],
)
def test_headers_of_any_form_stay(header: str) -> None:
    pieces = split_pieces(f"// a file\n\n{header}\n\n  assign a = b;\n\nendmodule\n")
    assert [piece.text for piece in pieces if piece.kept][1:] == [f"{header}\n"]


def test_many_passages_are_measured_a_few_times() -> None:
    """A measurement encodes the whole prompt."""
    files = [f"// file {n}\n\n{'  assign a = b;' * 20}\n\nendmodule\n" for n in range(500)]
    measured = 0

    def measure(passages: Sequence[str]) -> int:
        nonlocal measured
        measured += 1
        return characters(passages)

    fitted = fit_passages(files, measure, characters(files) // 2)
    assert fitted is not None
    assert measured < 20
    assert fitted.passages[:150] == files[:150]
    assert fitted.passages[-1].startswith("// file 499\n\n[")
    measured = 0
    assert fit_passages(files, measure, 500) is None
    assert measured == 2


def test_what_is_shorter_than_the_line_about_it_stays() -> None:
    files = ["// a file\n\nendmodule\n"] * 50
    assert fit_passages(["task\n", *files, "0\n\n" * 1000], characters, 2_000) is not None
    assert fit_passages(["task\n", *files], characters, characters(files)) is None


def test_a_table_of_one_long_line_can_be_cut() -> None:
    fitted = fit_passages(["task\n\n", "0" * 400_000], characters, 5_000)
    assert fitted is not None
    assert characters(fitted.passages) <= 5_000


@given(st.text(alphabet="ab#`~ \n*;():", max_size=400))
def test_pieces_put_together_are_the_text(text: str) -> None:
    assert "".join(piece.text for piece in split_pieces(text)) == text


@given(st.lists(st.sampled_from(SPEC.split("\n\n")), max_size=30), st.integers(1, 800))
def test_the_budget_holds_whatever_the_text(parts: list[str], limit: int) -> None:
    passages = ["\n\n".join(parts[::2]), "\n\n".join(parts[1::2])]
    fitted = fit_passages(passages, characters, limit)
    assert fitted is None or characters(fitted.passages) <= limit


def test_long_problems_of_the_benchmark_fit(cvdp_data: Path) -> None:
    problems = load_problems(cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl")
    longest = sorted(problems, key=lambda problem: len(problem.prompt))[-5:]
    for problem in longest:
        fitted = fit_passages([problem.prompt], characters, len(problem.prompt) * 3 // 4)
        assert fitted is not None
        assert fitted.cut
        assert problem.prompt[:60] == fitted.passages[0][:60]
