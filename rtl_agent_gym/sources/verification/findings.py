"""What was found out about a design's mutants and variants, on disk: a source of verification problems runs nothing.

The package has the findings of the bundled problems (``findings.jsonl``, written by ``benchmarks/verification.py``).
Those of other designs are kept in the user's cache by ``problems verify``.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rtl_agent_gym.errors import cannot_write

SHIPPED = Path(__file__).with_name("findings.jsonl")
"""The findings that are part of the package."""

STRENGTH = 0.95
"""The share of the mutants that a reference must reject."""


class KeyedModel(BaseModel):
    """What is known of something with a key."""

    key: str
    """Of the design and the options."""


class Findings(KeyedModel):
    """What is known of a design."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem_id: str
    mutants: tuple[str, ...] = ()
    """Digests of the mutants that the given stimuli tell from the right design."""
    netlist: str = ""
    """The design as Yosys writes it, if the same stimuli do not tell it from the right one."""
    renamed: bool = False
    """Whether they do not tell the design with other inner names from it either, as it should be."""
    fault: str = ""
    """Why no problem can be made of it; empty if one can."""
    strength: dict[str, float] = {}
    """For each kind of problem that was verified, the share of the mutants that its reference rejects."""
    image: str = ""
    """The digest of the simulation image."""

    def is_usable(self, kind: str) -> bool:
        """Whether a problem of a kind can be made: the design has enough mutants, and its reference is strong."""
        return not self.fault and self.strength.get(kind, 0.0) >= STRENGTH


Known = TypeVar("Known", bound=KeyedModel)


class Store(Generic[Known]):
    """What was found out, in a folder, a file for each key, over what the package has.

    Args:
        model: What a file holds.
        folder: Created if missing; or a name, for ``$XDG_CACHE_HOME/rtl-agent-gym/NAME``.
        shipped: A file of the package with one on each line; None for none.
    """

    def __init__(self, model: type[Known], folder: Path | str, shipped: Path | None = None) -> None:
        if isinstance(folder, str):
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtl-agent-gym" / folder
        self.folder, self._model, self._shipped = folder, model, shipped

    def get(self, key: str) -> Known | None:
        """What is known; None if nothing is, or the file cannot be read."""
        with contextlib.suppress(OSError, ValidationError):
            return self._model.model_validate_json((self.folder / f"{key}.json").read_bytes())
        line = _lines_by_key(self._shipped).get(key) if self._shipped else None
        return self._model.model_validate_json(line) if line else None

    def put(self, findings: Known) -> None:
        """Store it. Raises `UsageError` or `SandboxError` if it cannot be written."""
        path = self.folder / f"{findings.key}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(findings.model_dump_json())
            os.replace(name, path)
        except OSError as error:
            raise cannot_write("what was found out (XDG_CACHE_HOME names its folder)", path, error) from error


@cache
def _lines_by_key(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    return {json.loads(line)["key"]: line for line in lines}


class FindingsStore(Store[Findings]):
    """The findings of verification problems.

    Args:
        folder: Created if missing; None for ``$XDG_CACHE_HOME/rtl-agent-gym/verification``.
        shipped: Whether the package's findings count.
    """

    def __init__(self, folder: Path | None = None, *, shipped: bool = True) -> None:
        super().__init__(Findings, folder or "verification", SHIPPED if shipped else None)
