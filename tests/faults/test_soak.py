"""A process that plays many episodes holds nothing of them afterwards."""

from __future__ import annotations

import contextlib
import json
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import docker
import pytest

from rtl_agent_gym.sandboxes.client import OWNER_LABEL, owner_label
from rtl_agent_gym.sandboxes.image import image_tag

from .processes import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.daemon]  # they count what a Docker daemon has


@pytest.mark.slow
def test_whatever_is_kept_is_noticed(tmp_path: Path) -> None:
    soak = runpy.run_path(str(ROOT / "benchmarks/soak.py"))
    with contextlib.closing(docker.from_env()) as client, contextlib.ExitStack() as made:
        api: Any = client.api
        gone = client.networks.create("rtl-gym-test-soak-gone")
        removed = made.enter_context(contextlib.ExitStack())
        removed.callback(gone.remove)
        before = soak["asdict"](soak["held"](api, tmp_path))
        made.enter_context((tmp_path / "left").open("w"))
        end = threading.Event()
        threading.Thread(target=end.wait).start()
        made.callback(end.set)
        kept = bytearray(b"x") * (200 << 20)
        container = client.containers.create(image_tag(), "true", labels={OWNER_LABEL: owner_label()})
        made.callback(container.remove)
        made.callback(client.networks.create("rtl-gym-test-soak").remove)
        made.callback(client.volumes.create().remove)
        removed.close()  # as another program may do meanwhile
        after = soak["asdict"](soak["held"](api, tmp_path))
        found = {"before": before, "after": after}
        assert set(soak["grown"](found, 64.0)) == set(before)
        assert soak["grown"]({"before": after, "after": after}, 0.0) == []
        assert len(kept) == 200 << 20


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_episodes_leave_nothing() -> None:
    argv = [sys.executable, "benchmarks/soak.py", "1000", "--concurrency", "16", "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["episodes"], found["without a result"], found["grown"]) == (1000, 0, []), found
    assert done.returncode == 0
