"""Problems by name: what frameworks carry in place of a problem, whose hidden tests must not reach their logs."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from .. import problems
from ..errors import UsageError
from ..problems import Problem, load_problems
from ..problems.cvdp_notes import Rows
from ..problems.suites import SUITES
from ..scoring.options import GradingOptions
from ..scoring.scorable import scorable


def choose_problems(
    source: str,
    *,
    ids: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
    rows: Rows = "all",
    options: GradingOptions | None = None,
) -> tuple[str, list[Problem]]:
    """The source in a form that holds in other folders, and those of its problems that can be scored with `options`.

    See `load_problems` for what chooses.

    Raises:
        ProblemError: The source cannot be read.
        UsageError: No chosen problem can be scored here.
    """
    source = absolute(source)
    loaded = load_problems(source, ids=ids, categories=categories, difficulties=difficulties, rows=rows)
    found, left_out = scorable(loaded, options, texts=False)
    if not found:
        reasons = "; ".join(sorted({reason for _, reason in left_out}))
        raise UsageError(f"no chosen problem of {source} can be scored here{f': {reasons}' if reasons else ''}")
    return source, found


def absolute(source: str) -> str:
    """A source whose path, if it has one, begins at the root: ``[PREFIX:]PATH[+mutants…]``."""
    prefix = next((one for one in SUITES if source.startswith(one)), "")
    path, *options = re.split(r"(?=\+mutants(?:\?[^?]*)?$)", source[len(prefix) :], maxsplit=1)
    known = path and path != "bundled" and Path(path).exists()
    return "".join([prefix, str(Path(path).resolve()), *options]) if known else source


def find_problem(source: str, id: str) -> Problem:
    """A problem of a source. Raises as `read_source`, and `UsageError` if the source has none of this id."""
    return problems.find_problem(read_source(source), id)


def read_source(source: str) -> Sequence[Problem]:
    """All problems of a source, which is read once in each process. Raises as `load_problems`."""
    with _reading:  # many episodes begin together: the first one reads
        return _read(source)


_reading = threading.Lock()


@lru_cache(maxsize=4)
def _read(source: str) -> Sequence[Problem]:
    return load_problems(source)
