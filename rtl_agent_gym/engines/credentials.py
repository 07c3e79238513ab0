"""Whether there are credentials for Tinker's service, found as the SDK finds them but without importing it."""

from __future__ import annotations

import os
from pathlib import Path

STORED = "~/.tinker/credentials.json"
"""Where ``tinker auth login`` keeps a key."""


def has_key() -> bool:
    """Whether there is a key or a command for one in the environment, or a stored key. It is not checked."""
    if os.environ.get("TINKER_API_KEY") or os.environ.get("TINKER_CREDENTIAL_CMD"):
        return True
    if not Path(STORED).expanduser().is_file():
        return False  # the SDK takes seconds to import
    try:
        from tinker.auth import tinker_has_credentials
    except ImportError:
        return False
    return tinker_has_credentials()
