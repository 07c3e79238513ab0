"""The data of a problem, independent of its file format."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict

Difficulty = Literal["easy", "medium", "hard"]
"""The benchmark's ratings."""

COMPARED, JUDGED = (6, 8), (9, 10)
"""The categories whose answers are text: compared with the reference by BLEU and ROUGE, or rated by a judge model."""


class Problem(BaseModel):
    """One CVDP problem. Immutable.

    All paths are relative to the work folder (``/code`` in a container), with forward slashes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Unique within a source, such as ``cvdp_agentic_fixed_arbiter_0001``."""
    category: int
    """CVDP's category number: 3 for ``cid003`` (spec to RTL), 4 modification, 5 module reuse, 16 debugging …"""
    difficulty: Difficulty
    prompt: str
    """The task, in the benchmark's words."""
    system_message: str = ""
    """The benchmark's system message; empty for non-agentic rows."""
    context: dict[str, str] = {}
    """Files the agent starts with (docs/, rtl/, verif/)."""
    targets: tuple[str, ...] = ()
    """The files that the solution must write or change."""
    harness: dict[str, str] = {}
    """The hidden tests' files: ``docker-compose.yml``, ``src/.env``, ``src/test_x.py`` … Never shown to an agent."""
    golden: dict[str, str] | None = None
    """The reference solution as complete files, patches applied; None if the benchmark withholds it."""
    reference_response: str = ""
    """The reference text of comprehension rows; empty otherwise."""
    agentic: bool = True
    """Whether the row has the agentic format."""
    unscorable: str | None = None
    """Why nothing can score this row, whatever options are given (no harness, no reference, no repository), or None."""
    checkout: str = ""
    """Heavy rows: ``REPOSITORY@COMMIT``, whose files are the `context`. An agent may change all of them."""

    @property
    def asks_text(self) -> bool:
        """Whether the solution is a text (code comprehension), not files."""
        return not self.harness and self.category in (*COMPARED, *JUDGED)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields, in hex. Problems with the same digest are equal."""
        fields = self.model_dump(mode="json", exclude=None if self.checkout else {"checkout"})
        text = json.dumps(fields, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()
