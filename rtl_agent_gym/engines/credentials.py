"""Whether Tinker's service can be used from here, found as the SDK finds its credentials, without importing it."""

from __future__ import annotations

import os
from pathlib import Path

STORED = "~/.tinker/credentials.json"
"""Where ``tinker auth login`` keeps a key."""


def has_key() -> bool:
    """Whether the SDK has credentials to send: a key or a command for one in the environment, or a stored key.

    Whether the service accepts them is not asked.
    """
    if os.environ.get("TINKER_API_KEY") or os.environ.get("TINKER_CREDENTIAL_CMD"):
        return True
    if not Path(STORED).expanduser().is_file():
        return False  # the SDK takes seconds to import
    try:
        from tinker.auth import tinker_has_credentials
    except ImportError:
        return False
    return tinker_has_credentials()
