"""The data of a problem, and its categories and difficulties."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Literal, get_args

from pydantic import BaseModel

from ..errors import UsageError, near_matches

Difficulty = Literal["easy", "medium", "hard"]
"""The benchmark's ratings."""

COMPARED, JUDGED = (6, 8), (9, 10)
"""The categories whose answers are text: compared with the reference by BLEU and ROUGE, or rated by a judge model."""


class Problem(BaseModel, frozen=True, extra="forbid"):
    """One CVDP problem. Immutable.

    All paths are relative to the work folder (``/code`` in a container), with forward slashes.
    """

    id: str
    """Unique within a source, such as ``cvdp_agentic_fixed_arbiter_0001``."""
    category: int
    """CVDP's category number: 3 for ``cid003`` (spec to RTL), 4 modification, 5 module reuse, 16 debugging …"""
    difficulty: Difficulty
    prompt: str
    """The task, as worded by the benchmark."""
    system_message: str = ""
    """The benchmark's system message; empty for non-agentic rows."""
    context: dict[str, str] = {}
    """Files the agent starts with (docs/, rtl/, verif/)."""
    targets: tuple[str, ...] = ()
    """The files that the solution must write or change."""
    harness: dict[str, str] = {}
    """Files of the hidden tests: ``docker-compose.yml``, ``src/.env``, ``src/test_x.py`` … Never shown to an agent."""
    golden: dict[str, str] | None = None
    """The reference solution as complete files, patches applied; None if the benchmark withholds it."""
    reference_response: str = ""
    """The reference text of comprehension rows; empty otherwise."""
    agentic: bool = True
    """Whether the row has the agentic format."""
    unscorable: str | None = None
    """Why this row cannot be scored, whatever the options (no harness, no reference, no repository), or None."""
    checkout: str = ""
    """``REPOSITORY@COMMIT`` of heavy rows, whose files are the `context`. An agent may change all of them."""

    @property
    def asks_text(self) -> bool:
        """Whether the solution is a text (code comprehension) instead of files."""
        return not self.harness and self.category in (*COMPARED, *JUDGED)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields, in hex. Problems with the same digest are equal."""
        fields = self.model_dump(mode="json", exclude=None if self.checkout else {"checkout"})
        text = json.dumps(fields, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


CATEGORIES: dict[int, str] = {
    2: "RTL completion",
    3: "spec to RTL",
    4: "RTL modification",
    5: "module reuse",
    6: "RTL correspondence",
    7: "lint and quality",
    8: "testbench correspondence",
    9: "RTL questions",
    10: "testbench questions",
    12: "stimulus generation",
    13: "checker generation",
    14: "assertion generation",
    16: "debugging",
}
"""Category numbers and their names."""

DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)
"""From easy to hard."""

_CATEGORY = re.compile(r"(?:cid)?0*(\d{1,9})", re.IGNORECASE | re.ASCII)


def category_name(category: int) -> str:
    """The benchmark's name of a category: ``cid003`` for 3."""
    return f"cid{category:03d}"


def parse_category(value: int | str) -> int:
    """The number of a category given as 3, ``"3"``, ``"cid3"`` or ``"cid003"``. Raises `UsageError` for others."""
    match = _CATEGORY.fullmatch(str(value).strip())
    if match and int(match[1]) in CATEGORIES:
        return int(match[1])
    known = [category_name(number) for number in CATEGORIES]
    wanted = category_name(int(match[1])) if match else str(value)
    raise UsageError(f"unknown category {value!r}; {near_matches(wanted, known)} (all: {', '.join(known)})")


def parse_difficulty(value: str) -> Difficulty:
    """The difficulty named `value`, in upper or lower case. Raises `UsageError` if there is none."""
    name = str(value).strip().lower()
    for difficulty in DIFFICULTIES:
        if difficulty == name:
            return difficulty
    raise UsageError(f"unknown difficulty {value!r}; {near_matches(name, DIFFICULTIES)}")
