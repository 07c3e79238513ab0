"""Reading what `collect` left, on the host or in the verifier's container."""

from __future__ import annotations

import json
from pathlib import Path

from ....episodes.untrusted import read_untrusted
from ....errors import SandboxError
from ....sandboxes.protocol import FoundFiles
from .collect import RECORD


def read_collected(folder: Path) -> FoundFiles:
    """The files of an agent, by path relative to the work folder.

    Args:
        folder: The copy of the folder that `collect` made.

    Raises:
        SandboxError: They were not collected, or not all of them arrived: the machine failed.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        expected = int(record["files"]), int(record["bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SandboxError(
            f"the agent's files were not collected: {folder / RECORD} is missing or damaged, so the agent's container "
            "was lost before or while its collect hook ran"
        ) from error
    found = read_untrusted(folder / "code")
    arrived = len(found), sum(map(len, found.values()))
    if arrived != expected:
        raise SandboxError(
            f"{expected[0]} files ({expected[1]} bytes) were collected in the agent's container, but {arrived[0]} "
            f"({arrived[1]} bytes) arrived"
        )
    return found
