"""BLEU, ROUGE and quotations are the official runner's; its BLEU is NLTK's."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nltk.translate.bleu_score import sentence_bleu

from rtl_agent_gym.scoring.texts import bleu, quoted, rouge

WORDS = st.lists(st.sampled_from("abcd"), max_size=9).map(" ".join)


@pytest.mark.filterwarnings(r"ignore:\s*The hypothesis contains 0 counts")
@given(answer=WORDS, reference=WORDS.filter(bool))
@example(answer="a a a a", reference="a")
@example(answer="b a", reference="a b")
def test_bleu_is_nltks(answer: str, reference: str) -> None:
    expected = sentence_bleu([reference.split()], answer.split(), weights=(0.5, 0.5))
    assert bleu(answer, reference) == pytest.approx(expected, rel=1e-12)


def test_bleu_by_hand() -> None:
    """Clipped counts, the geometric mean and the penalty for a short answer, as in the definition of BLEU-2."""
    # Words of the answer x, x, y: x counts once, as in the reference, y once: 2 of 3. Pairs xx, xy: xy of 2, so 1 of 2.
    # The answer has 3 words and the reference 4: exp(1 - 4/3). sqrt(2/3 * 1/2) * exp(-1/3) = 0.57735 * 0.71653.
    assert bleu("x x y", "x y z z") == pytest.approx(math.sqrt(2 / 3 * 1 / 2) * math.exp(-1 / 3), rel=1e-12)
    assert bleu("x x y", "x y z z") == pytest.approx(0.41369, abs=5e-6)
    # Words a, a, b: all 3 of 3. Pairs aa, ab against ab, ba: 1 of 2. As long as the reference: no penalty. sqrt(1/2).
    assert bleu("a a b", "a b a") == pytest.approx(math.sqrt(1 / 2), rel=1e-12)


def test_rouge_by_hand() -> None:
    """The recall of pairs of words: those of the reference are counted below the line."""
    # Reference: the-cat, cat-sat, sat-on, on-the, the-cat: 5. The answer has the-cat and cat-sat, each counted once.
    assert rouge("The cat, sat.", "the cat sat on the cat") == 2 / 5
    # Reference: ab, bc, cd: 3. The answer's pairs: ba, ab, bc. Two are common, and their order does not matter.
    assert rouge("b a b c", "a b c d") == 2 / 3


REFERENCE = "The counter wraps to zero, and the carry is set for one cycle when the counter wraps."


@pytest.mark.parametrize(
    ("answer", "reference", "expected_bleu", "expected_rouge"),
    [
        (REFERENCE, REFERENCE, 1.0, 14 / 16),  # a repeated pair counts once above the line and twice below it
        ("The counter wraps to zero and sets the carry.", REFERENCE, 0.20555614525359373, 6 / 16),
        ("the counter wraps the counter wraps the counter wraps", REFERENCE, 0.15321250465995212, 2 / 16),
        ("when it ends", REFERENCE, 8.098489177075215e-157, 0.0),
        ("Nothing here fits", REFERENCE, 0.0, 0.0),
        ("", REFERENCE, 0.0, 0.0),
        (" \n\t", "it wraps to zero", 0.0, 0.0),
        ("wraps", "it wraps to zero", 0.0, 0.0),  # no pair: BLEU is the root of the smallest number, times exp(-3)
        ("wraps", "wraps around", 0.0, 0.0),
        ("it wraps", "wraps it", 0.0, 0.0),  # the words without their order
        # ROUGE ignores case and commas; BLEU has one of three words in common, and no pair.
        ("Zähler läuft über", "zähler, läuft Über", 0.0, 1.0),
        ("信号 清零 后", "信号 清零 后", 1.0, 1.0),
        ("信号清零后", "信号清零后 为 一", 0.0, 0.0),  # nothing but spaces separates words
        ("a\u00a0b\u3000c", "a b c", 1.0, 1.0),  # and any of Unicode's spaces does
        ("nai\u0308ve reset", "na\u00efve reset", 0.0, 0.0),  # composed and decomposed letters are different words
    ],
    ids=range(15),
)
def test_values(answer: str, reference: str, expected_bleu: float, expected_rouge: float) -> None:
    assert bleu(answer, reference) == pytest.approx(expected_bleu, rel=1e-12, abs=1e-100)
    assert rouge(answer, reference) == expected_rouge


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
