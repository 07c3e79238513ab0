"""The commands that look at the machine: `doctor` and `image`."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from rtl_agent_gym.cli import doctor
from rtl_agent_gym.cli import image as image_command
from rtl_agent_gym.errors import DaemonError, ImageError
from rtl_agent_gym.sandboxes import choice, image
from rtl_agent_gym.sandboxes.admission import WEAK_VARIABLE
from rtl_agent_gym.sandboxes.client import OWNER_LABEL, owner_label
from rtl_agent_gym.sandboxes.daemon import DaemonInfo, connect, find_daemon
from rtl_agent_gym.sandboxes.image import image_tag
from rtl_agent_gym.sandboxes.image_build import ensure_image
from rtl_agent_gym.sandboxes.root_folder import RECORD, Root
from tests.cli.in_process import call as command
from tests.conftest import ROOT
from tests.sandboxes.apptainer_stub import apptainer_stub


def by_part(output: str) -> dict[str, dict[str, str]]:
    return {check["part"]: check for check in json.loads(output)["checks"]}


@pytest.fixture
def no_daemon(tmp_path: Path) -> dict[str, str]:
    return {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "RTL_GYM_ROOTS": str(tmp_path), "RTL_GYM_SANDBOX": "docker"}


def a_daemon(**values: object) -> DaemonInfo:
    """A daemon as it describes itself."""
    described = {"ServerVersion": "1.0", "api_version": "1.41", "seccomp": True, "missing_limits": ()}
    return DaemonInfo.model_validate({"host": "unix:///none.sock", "DockerRootDir": "/", **described, **values})


def make_record(roots: Path) -> None:
    """Let the simulation image seem to be in a folder of roots."""
    place = roots / image_tag().rpartition(":")[2]
    place.mkdir(parents=True)
    root = Root(digest="sha256:1", packages={}, tag=image_tag(), environment={}, modes={})
    (place / RECORD).write_text(root.model_dump_json())


class TestDoctor:
    @pytest.mark.docker
    @pytest.mark.daemon
    def test_a_machine_that_is_set_up(self) -> None:
        ensure_image()
        done = command("doctor", "--json", TINKER_API_KEY="secret-value")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("\n") == 1
        assert json.loads(done.stdout)["ok"] is True
        assert "secret-value" not in done.stdout
        parts = by_part(done.stdout)
        assert parts["Docker daemon"]["state"] == parts["simulation image"]["state"] == "ok"
        assert "iverilog 13.0, cocotb 2.0.1" in parts["simulation image"]["found"]
        assert parts["cgroup"]["found"].endswith("limits are enforced")
        assert parts["Tinker credentials"]["found"] == "found in TINKER_API_KEY"
        expected = {"Python", "seccomp", "storage driver", "memory", "processor cores", "disk for Docker", "HF_TOKEN"}
        assert expected | {"extra [train]", "Qwen3 vocabulary", "containers left behind"} <= set(parts)

    @pytest.mark.docker
    @pytest.mark.daemon
    def test_a_daemon_whose_containers_are_not_limited_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        systemd = find_daemon().model_copy(update={"cgroup_driver": "systemd"})
        monkeypatch.setattr(doctor, "find_daemon", lambda: systemd)
        [found] = [check for check in doctor.run_checks() if check.part == "memory of all sandboxes"]
        assert found.state == "optional"
        assert found.found == "not limited together: the daemon's cgroup driver is systemd, not cgroupfs"
        assert "SandboxSpec.memory" in found.todo

    def test_without_a_daemon_it_says_what_to_do_and_exits_with_3(self, no_daemon: dict[str, str]) -> None:
        done = command("doctor", "--json", **no_daemon)
        assert done.returncode == 3
        assert json.loads(done.stdout)["ok"] is False
        parts = by_part(done.stdout)
        assert parts["Docker daemon"]["state"] == parts["simulation image"]["state"] == "missing"
        assert "DOCKER_HOST" in parts["Docker daemon"]["todo"]
        assert parts["Python"]["state"] == parts["extra [dev]"]["state"] == "ok"
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {part for part in parts if part.startswith("extra ")} == {f"extra [{name}]" for name in extras}

    @pytest.mark.docker
    def test_a_machine_with_namespaces_needs_no_daemon(self, no_daemon: dict[str, str], root_folder: Path) -> None:
        unpacked = no_daemon | {"RTL_GYM_ROOTS": str(root_folder.parents[1]), "RTL_GYM_SANDBOX": "auto"}
        done = command("doctor", "--json", **unpacked)
        assert done.returncode == 0
        parts = by_part(done.stdout)
        assert parts["sandboxes without Docker"]["state"] == "ok"
        assert parts["sandboxes without Docker"]["found"].startswith("bubblewrap 0.")
        assert parts["Docker daemon"]["state"] == parts["simulation image"]["state"] == "optional"
        assert command("doctor", "--json", **unpacked | {"RTL_GYM_SANDBOX": "docker"}).returncode == 3

    @pytest.mark.docker
    def test_where_only_the_image_is_missing_it_says_how_to_build_it(self, no_daemon: dict[str, str]) -> None:
        done = command("doctor", "--json", **no_daemon | {"RTL_GYM_SANDBOX": "auto"})
        assert done.returncode == 3
        missing = {part: check for part, check in by_part(done.stdout).items() if check["state"] == "missing"}
        assert list(missing) == ["sandboxes without Docker"]
        assert "rtl-agent-gym image build" in missing["sandboxes without Docker"]["todo"]

    @pytest.mark.docker
    def test_it_says_which_limits_hold_without_control_groups(
        self, monkeypatch: pytest.MonkeyPatch, root_folder: Path
    ) -> None:
        monkeypatch.setattr(doctor, "why_none", lambda *_, **__: "this process may not make control groups")
        [found] = [check for check in doctor.run_checks() if check.part == "their limits"]
        assert found.state == "optional"
        assert "RLIMIT_NPROC" in found.found
        assert "not limited: processors" in found.found

    def test_what_docker_lacks_is_not_required_where_namespaces_were_chosen(
        self, no_daemon: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        daemon = a_daemon(missing_limits=("MemoryLimit",))

        def no_image() -> dict[str, object]:
            raise ImageError("it is not there; build it")

        monkeypatch.setenv(WEAK_VARIABLE, "0")
        monkeypatch.setattr(doctor, "find_daemon", lambda: daemon)
        monkeypatch.setattr(image, "inspect", no_image)
        for kind, state in (("namespaces", "optional"), ("docker", "missing")):
            parts = by_part(command("doctor", "--json", **no_daemon | {"RTL_GYM_SANDBOX": kind}).stdout)
            assert parts["simulation image"]["state"] == parts["cgroup"]["state"] == state
            assert parts["simulation image"]["todo"].endswith("--sandbox docker") == (kind == "namespaces")

    @pytest.mark.parametrize("built", [True, False])
    def test_auto_needs_no_docker_where_there_is_apptainer(
        self, no_daemon: dict[str, str], monkeypatch: pytest.MonkeyPatch, built: bool
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        if built:
            make_record(Path(no_daemon["RTL_GYM_ROOTS"]))
        with apptainer_stub() as folder:
            done = command("doctor", "--json", **no_daemon | {"RTL_GYM_SANDBOX": "auto", "PATH": str(folder)})
        parts = by_part(done.stdout)
        states = [parts[part]["state"] for part in ("Docker daemon", "simulation image", "sandboxes without Docker")]
        assert states == ["optional"] * 3
        assert parts["sandboxes below Apptainer"]["state"] == ("ok" if built else "missing")

    def test_the_disk_is_that_of_the_sandboxes_which_are_used(
        self, no_daemon: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def have(free: float) -> None:
            usage = {str(tmp_path): SimpleNamespace(free=free)}
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage.get(str(folder), SimpleNamespace(free=5e8)))

        roots = tmp_path / "not/yet"
        environment = no_daemon | {"RTL_GYM_ROOTS": str(roots), "RTL_GYM_SANDBOX": "namespaces"}
        for free, state in ((4e9, "missing"), (6e9, "ok")):
            have(free)
            parts = by_part(command("doctor", "--json", **environment).stdout)
            assert "disk for Docker" not in parts
            assert parts["disk for the image"]["state"] == state
            assert parts["disk for the image"]["found"].endswith(f"free at {tmp_path}")
        make_record(roots)
        assert by_part(command("doctor", "--json", **environment).stdout)["disk for the image"]["state"] == "optional"
        parts = by_part(command("doctor", "--json", **environment | {"RTL_GYM_SANDBOX": "docker"}).stdout)
        assert "disk for the image" not in parts
        assert parts["disk for Docker"]["state"] == "missing"

    def test_podman_is_found_at_its_own_socket(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def find_podman(host: str | None = None) -> DaemonInfo:
            if (host or os.environ.get("DOCKER_HOST")) != f"unix://{socket}":
                raise DaemonError("no Docker daemon: there is none. Start it")
            return a_daemon(podman=True)

        socket = tmp_path / "podman/podman.sock"
        monkeypatch.setenv("RTL_GYM_SANDBOX", "podman")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setenv("DOCKER_HOST", "so that it is as before afterwards")
        monkeypatch.delenv("DOCKER_HOST")
        monkeypatch.setattr(choice, "_chosen", None)
        monkeypatch.setattr(choice, "PODMAN_SOCKETS", ("{XDG_RUNTIME_DIR}/podman/podman.sock",))
        for module in (doctor, choice):
            monkeypatch.setattr(module, "find_daemon", find_podman)
        found = {check.part: check for check in doctor.run_checks()}["Docker daemon"]
        assert (found.state, found.found) == ("missing", f"no Podman: there is no socket {socket}")
        assert found.todo.startswith("Install Podman")
        socket.parent.mkdir()
        socket.touch()
        found = {check.part: check for check in doctor.run_checks()}["Docker daemon"]
        assert (found.state, found.found) == ("ok", "Podman 1.0 (API 1.41) at unix:///none.sock")

    def test_as_a_table_for_people(self, no_daemon: dict[str, str]) -> None:
        done = command("doctor", **no_daemon, COLUMNS="100", WANDB_API_KEY="")
        assert done.returncode == 3
        assert "→ set it for logging runs" in done.stdout
        assert done.stdout.rstrip().endswith("required and missing: Docker daemon, simulation image")
        assert max(len(line) for line in done.stdout.splitlines()) <= 100

    def test_credentials_and_vocabularies_where_the_variables_say(
        self, no_daemon: dict[str, str], tmp_path: Path
    ) -> None:
        variables = {"TINKER_API_KEY": "", "TINKER_CREDENTIAL_CMD": "echo tml-secret"}
        variables |= no_daemon | {"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}
        parts = by_part(command("doctor", "--json", **variables).stdout)
        credentials = parts["Tinker credentials"]
        assert (credentials["state"], credentials["found"]) == ("ok", "found in TINKER_CREDENTIAL_CMD")
        assert parts["Harmony vocabulary"]["state"] == "optional"
        (tmp_path / "o200k_base.tiktoken").touch()
        parts = by_part(command("doctor", "--json", **variables).stdout)
        assert parts["Harmony vocabulary"]["found"] == "offline, from $TIKTOKEN_ENCODINGS_BASE"

    @pytest.mark.docker
    @pytest.mark.daemon
    def test_containers_whose_owner_is_gone_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # To every other process the owner lives, so that no sweep takes the container away meanwhile.
        owner = owner_label()
        monkeypatch.setattr(doctor, "owner_lives", lambda label: label != owner)
        with closing(connect()) as client:
            container = client.api.create_container(ensure_image(), ["true"], labels={OWNER_LABEL: owner})["Id"]
            try:
                left = next(check for check in doctor.run_checks() if check.part == "containers left behind")
            finally:
                client.api.remove_container(container)
        assert left.state == "optional"
        assert container[:12] in left.todo


class TestImage:
    @pytest.mark.docker
    @pytest.mark.daemon
    def test_an_image_that_is_there_is_not_built_again_and_is_described_in_json(self) -> None:
        built = ensure_image()
        done = command("image", "build", "--start-daemon")
        assert done.returncode == 0, done.stderr
        assert f"image {image_tag()} is ready" in done.stdout
        assert "Step" not in done.stdout
        shown = json.loads(command("image", "show", "--json").stdout)
        assert shown["id"] == built
        assert shown["size"] > 100e6
        assert json.loads(command("image", "verify", "--json").stdout)["cocotb"] == "2.0.1"

    @pytest.mark.parametrize("arguments", [["build", "--start-daemon"], ["build"], ["show"], ["verify"], ["prune"]])
    def test_without_a_daemon_the_exit_code_is_3_and_the_error_one_line(
        self, arguments: list[str], no_daemon: dict[str, str]
    ) -> None:
        done = command("image", *arguments, **no_daemon)
        assert done.returncode == 3
        assert "none.sock does not exist. DOCKER_HOST has this address" in done.stderr
        assert "Traceback" not in done.stderr

    def test_folders_and_digests_are_shown_whole(self, capsys: pytest.CaptureFixture[str]) -> None:
        digest = f"sha256:{'0123456789abcdef' * 4}"
        image_command._print({}, {"folder": "/data/[old]/[/x]", "digest": digest}, as_json=False)
        shown = re.sub(r"[\s│]", "", capsys.readouterr().out)
        assert "/data/[old]/[/x]" in shown
        assert digest in shown


def test_the_advice_for_smollm_is_its_own() -> None:
    smollm = pytest.importorskip("rtl_agent_gym.demo.smollm")
    assert doctor._INSTALL["smollm"] == smollm.INSTALL
