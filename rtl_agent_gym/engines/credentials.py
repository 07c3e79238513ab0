"""Whether there are credentials for Tinker's service, found as the SDK finds them but without importing it."""

from __future__ import annotations

import os
from pathlib import Path

STORED = "~/.tinker/credentials.json"
"""Where ``tinker auth login`` keeps a key."""


def key_source() -> str | None:
    """Where the SDK finds credentials: the name of an environment variable, or `STORED`; None if there are none.

    Whether the service accepts them is not checked.
    """
    for variable in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        if os.environ.get(variable):
            return variable
    if not Path(STORED).expanduser().is_file():
        return None  # the SDK takes seconds to import
    try:
        from tinker.auth import tinker_has_credentials
    except ImportError:
        return None
    return STORED if tinker_has_credentials() else None


def has_key() -> bool:
    """Whether the SDK finds credentials."""
    return key_source() is not None
