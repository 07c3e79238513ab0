"""BLEU, ROUGE and quotations are the official runner's. NLTK 3.10.4 computed the expected BLEU, with its parameters."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtl_agent_gym.scoring.similarity import bleu, rouge
from rtl_agent_gym.scoring.texts import quoted

REFERENCE = "The counter wraps to zero, and the carry is set for one cycle when the counter wraps."
VALUES = [
    (REFERENCE, 1.0, 14 / 16),  # a repeated pair counts once above the line and twice below it
    ("The counter wraps to zero and sets the carry.", 0.20555614525359373, 6 / 16),
    ("the counter wraps the counter wraps the counter wraps", 0.15321250465995212, 2 / 16),
    ("when it ends", 8.098489177075215e-157, 0.0),
    ("Nothing here fits", 0.0, 0.0),
    ("", 0.0, 0.0),
]


@pytest.mark.parametrize(("answer", "expected_bleu", "expected_rouge"), VALUES, ids=range(len(VALUES)))
def test_values(answer: str, expected_bleu: float, expected_rouge: float) -> None:
    assert bleu(answer, REFERENCE) == pytest.approx(expected_bleu, rel=1e-12)
    assert rouge(answer, REFERENCE) == pytest.approx(expected_rouge, rel=1e-12)


def test_the_official_example_row(cvdp_data: Path) -> None:
    """Answers made of the row's own reference; the official formulas gave the values."""
    source = cvdp_data / "cvdp_v1.1.0_example_nonagentic_code_comprehension.jsonl"
    reference = json.loads(source.read_text(encoding="utf-8").splitlines()[0])["output"]["response"]
    assert (bleu(reference, reference), rouge(reference, reference)) == (1.0, 1.0)
    first = reference.split(".")[0] + "."
    assert bleu(first, reference) == pytest.approx(0.11455884399268773, rel=1e-12)
    assert rouge(first, reference) == pytest.approx(0.2972972972972973, rel=1e-12)
    other = reference.replace("bits", "bytes")
    assert bleu(other, reference) == pytest.approx(0.9400447917659647, rel=1e-12)
    assert rouge(other, reference) == pytest.approx(0.918918918918919, rel=1e-12)


OFFICIAL_BLOCK = re.compile(r"```(?:(\w+)\n)?(.*?)```", re.DOTALL)
"""How the official runner finds code blocks (src/model_helpers.py)."""


@given(
    st.text(st.sampled_from("`a_ \n"), max_size=40)
    | st.lists(st.sampled_from(["```", "`", "sv", "\n", " "])).map("".join)
)
@example("1. Here:\n   ```sv\n   x <= 1;\n   ```\n")
@example("Here: ```x <= 1;``` and no more")
@example("```\nx <= 1;```")
@example("```sv x\ny\n```")
@example("````sv\n```\n````")
@example("``````")
@example("no end ```sv\nx")
def test_a_quotation_is_the_official_runners(answer: str) -> None:
    match = OFFICIAL_BLOCK.search(answer)
    assert quoted(answer) == (match[2] if match else answer)


@pytest.mark.parametrize("unit", ["```a\n", "`", "``a", "a", "````\n", "```"])
def test_a_quotation_takes_no_time_in_a_hostile_text(unit: str) -> None:
    started = time.process_time()
    quoted("```" + unit * (100_000 // len(unit)))
    quoted("````\n" + unit * (100_000 // len(unit)))
    assert time.process_time() - started < 1
