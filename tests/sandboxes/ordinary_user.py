"""Runs a program as an ordinary user, who exists only in a mount namespace of that program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.sandboxes.root_folder import VARIABLE, roots_folder

ROOT = Path(__file__).resolve().parents[2]
RANGED, SINGLE = "ranged", "single"
"""A user with a range of user ids, and one without."""
USER_ID = 61_234
_SCRIPT = """
set -e
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift
while [ "$1" != -- ]; do mount -t tmpfs -o mode=755 none "$1"; shift; done; shift
while [ "$1" != -- ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done; shift
exec "$@"
"""


def run_as(user: str, program: str, **variables: str) -> Any:
    """Run a Python program that prints one JSON value; return that.

    The user may read the interpreter, this checkout and the root folders, wherever these are.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    scratch = Path(tempfile.mkdtemp(prefix="rtl-gym-user-"))
    scratch.chmod(0o755)
    try:
        tables = {"passwd": f"{user}:x:{USER_ID}:{USER_ID}::/:/bin/sh\n", "subuid": "", "subgid": ""}
        tables |= dict.fromkeys(("subuid", "subgid"), f"{user}:300000:65536\n" if user == RANGED else "")
        binds = []
        for name, lines in tables.items():
            (scratch / name).write_text((Path("/etc/passwd").read_text() if name == "passwd" else "") + lines)
            Path("/etc", name).touch()
            binds += [str(scratch / name), f"/etc/{name}"]
        again = []
        places = [Path(sys.base_prefix), Path(sys.prefix), ROOT, roots_folder()]
        hidden = {parent for place in places for parent in place.parents if not parent.stat().st_mode & 0o001}
        for number, place in enumerate(place for place in places if set(place.parents) & hidden):
            (there := scratch / str(number)).mkdir()
            binds += [str(place), str(there)]
            again += [str(there), str(place)]
        tops = [str(place) for place in hidden if not set(place.parents) & hidden]
        become = [
            "setpriv",
            f"--reuid={USER_ID}",
            f"--regid={USER_ID}",
            "--clear-groups",
            sys.executable,
            "-c",
            program,
        ]
        found = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", *binds, "--", *tops, "--", *again, "--", *become],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), VARIABLE: str(roots_folder()), **variables},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)
    finally:
        shutil.rmtree(scratch)
