"""What keeps a machine usable for a month: pauses, tidying, images that do not build, disk; and who else uses it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker.errors import APIError

from rtl_agent_gym.episodes import recording
from rtl_agent_gym.errors import DaemonError, ImageError, SandboxLost
from rtl_agent_gym.logs import FORMAT, EpisodeFilter, logging_as
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, admission, client
from rtl_agent_gym.sandboxes.admission import VARIABLE
from rtl_agent_gym.sandboxes.client import OWNER_LABEL, owner_label, owner_lives
from rtl_agent_gym.sandboxes.container import other_owners, warning_of_others
from rtl_agent_gym.sandboxes.daemon import connect, daemon_host
from rtl_agent_gym.sandboxes.image import image_tag
from rtl_agent_gym.sandboxes.image_build import ensure_image
from rtl_agent_gym.sandboxes.namespaces import NamespaceHost
from rtl_agent_gym.training.launch import _shared
from tests.cli.in_process import call


@pytest.mark.daemon
async def test_failed_starts_count_against_the_daemon_and_a_good_one_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with DockerSandboxes() as made:
        budget = await made.budget()
        failures = budget.failed_starts

        def fails(self: Any) -> None:
            raise DaemonError("it does not answer")

        with monkeypatch.context() as patch:
            patch.setattr("rtl_agent_gym.sandboxes.container.DockerSandbox._start", fails)
            for _ in range(2):
                with pytest.raises(DaemonError):
                    await made.create()
        assert budget.failed_starts == failures + 2
        await (await made.create()).close()
        assert budget.failed_starts == 0
    assert admission.budget_of(daemon_host(), {}) is budget


@pytest.mark.daemon
async def test_starts_that_never_end_count_against_the_daemon_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtl_agent_gym.sandboxes.warden_sandbox.START_PATIENCE", 0.5)
    monkeypatch.setattr("rtl_agent_gym.sandboxes.container.program", lambda: "import time; time.sleep(60)")
    async with DockerSandboxes() as made:
        budget = await made.budget()
        failures = budget.failed_starts
        with pytest.raises(SandboxLost, match=r"has not answered for 0\.5 s"):
            await made.create()
        assert budget.failed_starts == failures + 1
    with pytest.raises(SandboxLost, match="closed"):
        await made.create()
    assert budget.failed_starts == failures + 1  # that was not the daemon's fault
    budget.start_worked()


@pytest.mark.daemon
async def test_containers_without_an_owner_are_removed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with DockerSandboxes() as made:
        await (await made.create()).close()
        # To every other process its owner, the machine's first process, lives, so that no other sweep takes it away.
        owner = owner_label(1)
        monkeypatch.setattr(client, "owner_lives", lambda label: label != owner)
        label = f"{OWNER_LABEL}={owner}"
        left = subprocess.check_output(["docker", "create", "--label", label, image_tag(), "true"], text=True).strip()
        await (await made.create()).close()
        there = ["docker", "inspect", "--format", "{{.Id}}", left]
        assert subprocess.run(there, capture_output=True).returncode == 0
        monkeypatch.setattr("rtl_agent_gym.sandboxes.container.TIDY", 0.0)
        await (await made.create()).close()
        assert subprocess.run(there, capture_output=True).returncode != 0


@pytest.mark.daemon
@pytest.mark.parametrize("then", ["create", "close"])
async def test_a_container_whose_removal_failed_is_removed_when_the_daemon_works(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    names: list[str] = []

    def there() -> bool:
        return subprocess.run(["docker", "inspect", names[0]], capture_output=True).returncode == 0

    def away(*_: Any, **__: Any) -> None:
        raise requests.ConnectionError("the daemon was killed")

    async with DockerSandboxes() as made:
        budget = await made.budget()
        api = made._client.docker().api
        create = api.create_container

        def create_and_go_away(*given: Any, **options: Any) -> None:
            create(*given, **options)
            names.append(options["name"])
            away()

        with monkeypatch.context() as patch:
            patch.setattr(api, "create_container", create_and_go_away)
            patch.setattr(api, "remove_container", away)
            with pytest.raises(DaemonError):
                await made.create()
        budget.start_worked()
        assert there()
        if then == "create":
            await (await made.create()).close()
            assert not there()
    assert not there()


@pytest.mark.parametrize("kind", [pytest.param("docker", marks=pytest.mark.daemon), "namespaces"])
async def test_an_image_that_does_not_build_is_not_built_again_and_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build(base: Any, files: Any, dockerfile: str) -> str:
        built.append(dockerfile)
        raise ImageError("step 2 failed")

    monkeypatch.setattr("rtl_agent_gym.sandboxes.container.build_from", build)
    monkeypatch.setattr("rtl_agent_gym.sandboxes.namespaces.build_root", build)
    monkeypatch.setattr(NamespaceHost, "prepare", lambda _: None)
    async with DockerSandboxes() if kind == "docker" else NamespaceSandboxes() as made:
        for _ in range(5):
            with pytest.raises(ImageError, match="step 2 failed"):
                await made.build_image({"Dockerfile": b"FROM x"})
        assert len(built) == 3
        with pytest.raises(ImageError, match="step 2 failed"):
            await made.build_image({"Dockerfile": b"FROM another"})
        assert len(built) == 4
        monkeypatch.setattr("rtl_agent_gym.sandboxes.budgeted.BUILD_PAUSE", 0.0)
        with pytest.raises(ImageError, match="step 2 failed"):
            await made.build_image({"Dockerfile": b"FROM x"})
        assert len(built) == 5


async def test_no_episode_begins_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = 100 << 20
    monkeypatch.setattr(recording, "DISK_PAUSE", 0.01)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: type("Usage", (), {"free": free}))
    waiting = asyncio.ensure_future(recording.room_on_disk(tmp_path / "not" / "yet"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    free = 1 << 30
    await asyncio.wait_for(waiting, 60)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "has only 100 MiB free" in said[0]
    assert str(tmp_path) in said[0]
    await recording.room_on_disk(tmp_path)
    assert len(caplog.records) == 2, "with room nothing waits"


async def test_every_line_names_its_episode(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.addFilter(EpisodeFilter())
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    log = logging.getLogger("rtl_agent_gym.test")
    log.addHandler(handler)

    async def episode(key: str) -> None:
        with logging_as(key):
            await asyncio.sleep(0)
            await asyncio.to_thread(log.warning, "from %s", key)

    try:
        await asyncio.gather(*(episode(f"a/{number}") for number in range(3)))
        log.warning("from nobody")
    finally:
        log.removeHandler(handler)
    assert sorted(line.split("episode=")[1] for line in lines[:3]) == [f"a/{n}: from a/{n}" for n in range(3)]
    assert lines[3].endswith("episode=-: from nobody")


def test_a_process_of_the_packages_own_writes_each_line_with_its_episode_to_stderr() -> None:
    program = """
import logging
from rtl_agent_gym.logs import log_to_stderr, logging_as
log_to_stderr()
with logging_as("step 1 group 2"):
    logging.getLogger("rtl_agent_gym.sandboxes").info("it starts")
logging.getLogger("rtl_agent_gym").debug("a detail")
logging.getLogger("another").warning("of another package")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, other = done.stderr.splitlines()
    assert first.endswith(" INFO rtl_agent_gym.sandboxes episode=step 1 group 2: it starts")
    assert other == "of another package"


LIVES, GONE = owner_label(1), owner_label(4194999)


@pytest.mark.parametrize("differs", ["_MACHINE_ID", "_PID_NAMESPACE"])
def test_owners_of_another_pid_namespace_or_machine_of_the_same_name_count_as_alive(
    differs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (owner_lives(owner_label()), owner_lives(GONE)) == (True, False)
    (tmp_path / "other").write_text("another")
    monkeypatch.setattr(client, differs, tmp_path / "other")
    assert owner_lives(GONE)


def test_where_a_machine_has_no_id_the_pid_namespace_tells_owners_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "_MACHINE_ID", tmp_path / "missing")
    gone = owner_label(4194999)
    assert (owner_lives(owner_label()), owner_lives(gone)) == (True, False)
    (tmp_path / "other").touch()
    monkeypatch.setattr(client, "_PID_NAMESPACE", tmp_path / "other")
    assert owner_lives(gone)


@pytest.fixture
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has set no limits."""
    monkeypatch.setattr(admission, "_given", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("rtl_agent_gym.sandboxes.container.MOST_NAMED", 1000)  # other tests run beside this one


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
                made.append(api.create_container(ensure_image(), ["sleep", "600"], labels={OWNER_LABEL: owner}))
                with suppress(APIError) if owner == GONE else nullcontext():  # 404, or 409 while it is removed
                    api.start(made[-1]["Id"])
            yield
        finally:
            for container in made:
                with suppress(APIError):
                    api.remove_container(container["Id"], force=True)


@pytest.mark.daemon
@pytest.mark.usefixtures("others")
def test_running_containers_of_other_live_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = other_owners()
    assert owners[LIVES] == 2
    assert not owners.keys() & {GONE, owner_label()}
    warning = warning_of_others("--this-option")
    assert LIVES in warning
    assert "limit each one with --this-option" in warning
    assert LIVES in warning_of_others("--this-option", "ready=2")  # which says nothing of memory and processors
    monkeypatch.setenv(VARIABLE, "memory=8G")
    assert warning_of_others("--this-option") == ""


@pytest.mark.daemon
@pytest.mark.usefixtures("others")
def test_evaluations_and_trainings_say_so_unless_they_have_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_budgets", {})  # as in a new process
    asked = ["eval", "--policy", "nobody", "--out", str(tmp_path / "run")]
    assert LIVES in call(*asked).stdout
    assert LIVES not in call(*asked, "--sandbox-limits", "memory=8G").stdout
    admission._given.clear()  # those of the last command
    options = {"ray_address": "", "sandbox_limits": "", "sandbox": ""}
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
