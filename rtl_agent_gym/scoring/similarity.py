"""BLEU and ROUGE between an answer and its reference, with the official benchmark's parameters.

The official BLEU is NLTK's sentence BLEU of words and pairs of words, with equal weights and without smoothing. Its
ROUGE is the share of the reference's pairs of words that occur in the answer, in lower case and without punctuation.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence

LONGEST = 2
"""Words of the longest sequences that are compared."""
LEAST = 0.4
"""The official threshold: BLEU and ROUGE must both be above it."""

_PUNCTUATION = re.compile(r"[^\w\s]")


def bleu(answer: str, reference: str) -> float:
    """The BLEU of an answer, 0..1.

    It is the geometric mean of the shares of the answer's words and pairs of words that the reference has too (each at
    most as often as there), times a penalty for answers that are shorter than the reference. As in NLTK, an answer
    with no word of the reference has 0, and one with no pair almost 0.
    """
    words, expected = answer.split(), reference.split()
    logarithms = []
    for length in range(1, LONGEST + 1):
        ours, theirs = Counter(_sequences(words, length)), Counter(_sequences(expected, length))
        common = (ours & theirs).total()
        if length == 1 and not common:
            return 0.0
        share = common / max(1, ours.total()) if common else sys.float_info.min
        logarithms.append(math.log(share) / LONGEST)
    penalty = 1.0 if len(words) > len(expected) else math.exp(1 - len(expected) / len(words))
    return penalty * math.exp(math.fsum(logarithms))


def rouge(answer: str, reference: str) -> float:
    """The ROUGE-2 recall of an answer, as the official runner computes it.

    Different pairs of words that both have, by all pairs of the reference: one that is repeated there counts once above
    the line and each time below it. Raises `ZeroDivisionError` if the reference has no pair.
    """
    ours, theirs = (_sequences(_PUNCTUATION.sub("", text.lower()).split(), LONGEST) for text in (answer, reference))
    return len(set(ours) & set(theirs)) / len(theirs)


def _sequences(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
