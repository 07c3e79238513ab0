"""A Docker host that several processes use: who plans with the whole of it is told about the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from rtl_agent_gym.sandboxes import budget, image_build, sharing
from rtl_agent_gym.sandboxes.client import OWNER_LABEL, owner_label
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.limits import VARIABLE
from rtl_agent_gym.sandboxes.sharing import other_owners, warning_of_others
from rtl_agent_gym.training.launch import _shared
from tests.cli.in_process import call

LIVES, GONE = f"{socket.gethostname()}:1", f"{socket.gethostname()}:4194999"


@pytest.fixture
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has set no limits."""
    monkeypatch.setattr(budget, "_given", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sharing, "MOST_NAMED", 1000)  # other tests run beside this one


@pytest.fixture
def others(nothing_given: None) -> Iterator[None]:
    """Running containers of another process, of one that has ended, and of this one.

    The one whose owner has ended is an orphan: any other test's client may remove it at any moment.
    """
    with closing(connect()) as client:
        api: Any = client.api
        made = []
        try:
            for owner in (LIVES, LIVES, GONE, owner_label()):
                made.append(
                    api.create_container(image_build.ensure_image(), ["sleep", "600"], labels={OWNER_LABEL: owner})
                )
                with suppress(APIError) if owner == GONE else nullcontext():  # 404, or 409 while it is removed
                    api.start(made[-1]["Id"])
            yield
        finally:
            for one in made:
                with suppress(APIError):
                    api.remove_container(one["Id"], force=True)


@pytest.mark.docker
@pytest.mark.usefixtures("others")
def test_running_containers_of_other_live_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = other_owners()
    assert owners[LIVES] == 2
    assert not owners.keys() & {GONE, owner_label()}
    warning = warning_of_others("--this-option")
    assert LIVES in warning
    assert "give each its part, with --this-option" in warning
    assert LIVES in warning_of_others("--this-option", "ready=2")  # which says nothing of memory and processors
    monkeypatch.setenv(VARIABLE, "memory=8G")
    assert warning_of_others("--this-option") == ""


@pytest.mark.docker
@pytest.mark.usefixtures("others")
def test_evaluations_and_trainings_say_so_unless_they_have_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_budgets", {})  # as in a new process
    asked = ["eval", "--policy", "nobody", "--out", str(tmp_path / "run")]
    assert LIVES in call(*asked).stdout
    assert LIVES not in call(*asked, "--sandbox-limits", "memory=8G").stdout
    budget._given.clear()  # those of the last command
    options = {"ray_address": "", "sandbox_limits": ""}
    plan: Any = SimpleNamespace(supervised=None, options=SimpleNamespace(**options))
    [warning] = asyncio.run(_shared(plan))
    assert LIVES in warning
    for set_one in ({"ray_address": "auto"}, {"sandbox_limits": "cpus=1"}):
        plan.options = SimpleNamespace(**options | set_one)
        assert asyncio.run(_shared(plan)) == []


@pytest.mark.usefixtures("nothing_given")
def test_without_a_daemon_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert warning_of_others("--this-option") == ""
