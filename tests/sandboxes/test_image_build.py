"""Building the simulation image: its name follows its content, failures are reported, its tools are the pinned ones."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
import requests

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.files import exclusive
from rtl_agent_gym.sandboxes import image, image_build
from rtl_agent_gym.sandboxes.daemon import connect, daemon_host, find_program, is_root, silent
from rtl_agent_gym.sandboxes.image import run_once
from tests.waiting import until


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the build context that a test may change."""
    copy = tmp_path / "context"
    shutil.copytree(image.CONTEXT, copy)
    monkeypatch.setattr(image, "CONTEXT", copy)
    return copy


@pytest.fixture
def api(client: docker.DockerClient) -> docker.APIClient:
    """Its low-level calls."""
    return client.api


@pytest.fixture
def own_images(context: Path, monkeypatch: pytest.MonkeyPatch, api: docker.APIClient) -> Iterator[Path]:
    """A context for builds of a few seconds, under a name of their own; the images are gone afterwards."""
    monkeypatch.setattr(sys.modules[__name__], "BASE", image.inspect()["id"])  # as the digest is read by its Python
    name = secrets.token_hex(4)
    for module in (image, image_build):
        monkeypatch.setattr(module, "REPOSITORY", f"rtl-agent-gym-test/{name}")
    monkeypatch.setattr(image_build, "IMAGE_LABEL", f"io.rtl-agent-gym.test-{name}")
    write_dockerfile(context, "RUN echo hello")
    yield context
    (context / "gone").write_text("so that no image is the current one")
    for _ in range(50):  # a container that used one may be gone only a moment after its end
        image_build.prune()
        if not api.images(name=image.REPOSITORY):
            return
        time.sleep(0.1)
    pytest.fail(f"images were left behind: {image.REPOSITORY}")


BASES = (image_build.PULLED_BASE, image_build.BOOTSTRAPPED_BASE)
BASE = ""
"""What `write_dockerfile` builds on."""


def write_dockerfile(context: Path, *instructions: str) -> None:
    lines = (
        "ARG BASE",
        f"FROM {BASE}",
        "ARG ICARUS_VERSION=13.0",
        *instructions,
        f"LABEL {image_build.IMAGE_LABEL}=sim",
    )
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")


class TestTag:
    def test_any_change_of_the_context_is_another_tag(self, context: Path) -> None:
        tags = [image.image_tag()]
        assert re.fullmatch("rtl-agent-gym/sim:[0-9a-f]{12}", tags[0])
        for change in ("Dockerfile", "requirements.txt", "a/new/file"):
            (context / change).parent.mkdir(parents=True, exist_ok=True)
            with (context / change).open("a") as file:
                file.write("# changed\n")
            tags.append(image.image_tag())
        (context / "a/new/file").rename(context / "a/new/name")
        assert len({*tags, image.image_tag()}) == 5

    def test_caches_and_modes_do_not_count(self, context: Path) -> None:
        before = image.image_tag()
        (context / "__pycache__").mkdir()
        (context / "__pycache__/x.pyc").write_bytes(b"x")
        (context / "Dockerfile").chmod(0o755)
        assert image.image_tag() == before


class TestContext:
    def test_the_hosts_certificates_go_to_the_build_but_not_into_the_tag(
        self, context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        before = image.image_tag()
        with tarfile.open(fileobj=image_build._tar(image_build.build_context())) as tar:
            assert tar.getmember("host-ca.crt").size == 0
        (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        with tarfile.open(fileobj=image_build._tar(image_build.build_context())) as tar:
            member = tar.extractfile("host-ca.crt")
            assert member is not None
            assert member.read() == b"-----BEGIN CERTIFICATE-----\n"
        assert image.image_tag() == before

    def test_certificates_stay_in_the_build_stage(self) -> None:
        final_stage = (image.CONTEXT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
        assert "host-ca" not in final_stage

    def test_the_hosts_package_indexes_go_to_the_build_but_not_into_the_tag(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Index(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        asked: list[str] = []
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        locked, before = image_build.build_context()["requirements.lock"], image.image_tag()
        assert locked == image.context_files()["requirements.lock"]
        with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            here = f"http://127.0.0.1:{server.server_port}"
            monkeypatch.setenv("PIP_INDEX_URL", f"{here}/a/simple")
            monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{here}/b {here}/c")
            monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
            try:
                given = image_build.build_context()["requirements.lock"]
                assert given.endswith(locked)
                assert given.removesuffix(locked).decode().splitlines() == [
                    f"--index-url {here}/a/simple",
                    f"--extra-index-url {here}/b",
                    f"--extra-index-url {here}/c",
                    "--trusted-host 127.0.0.1",
                ]
                (tmp_path / "requirements.lock").write_bytes(given)
                command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "--require-hashes"]
                done = subprocess.run(
                    [*command, "--retries=0", "-r", "requirements.lock"], cwd=tmp_path, capture_output=True, text=True
                )
            finally:
                server.shutdown()
        assert "No matching distribution" in done.stderr
        assert {path.split("/")[1] for path in asked} == {"a", "b", "c"}
        assert image.image_tag() == before

    def test_scripts_are_executable_whatever_the_checkout_made_of_them(self, context: Path) -> None:
        (context / "tool").write_text("#!/bin/sh\n")
        (context / "tool").chmod(0o600)
        with tarfile.open(fileobj=image_build._tar(image_build.build_context())) as tar:
            assert tar.getmember("tool").mode == 0o755
            assert tar.getmember("Dockerfile").mode == 0o644

    def test_pinned_versions_are_read_from_the_context(self) -> None:
        pins = image_build.pinned_versions()
        assert pins["iverilog"] == "13.0"
        assert pins["cocotb"] == "2.0.1"
        assert pins["pytest"] == "8.3.2"

    def test_python_packages_are_locked_with_digests_at_the_pinned_versions(self) -> None:
        lock = (image.CONTEXT / "requirements.lock").read_text()
        locked = dict(re.findall(r"(?m)^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", lock))
        assert len(locked) == lock.count("==")
        assert locked | {k: v for k, v in image_build.pinned_versions().items() if k != "iverilog"} == locked


def test_prune_waits_for_a_build_whose_finished_stages_have_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, said = list[str](), list[str]()
    api = SimpleNamespace(images=lambda **asked: ["sha256:1"] if "filters" in asked else [])
    docker_client = SimpleNamespace(api=api, images=SimpleNamespace(remove=removed.append))
    monkeypatch.setattr(image_build, "connected", lambda: nullcontext(docker_client))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor() as threads:
        with exclusive("image", silent):
            pruning = threads.submit(image_build.prune, said.append)
            with pytest.raises(TimeoutError):
                pruning.result(timeout=0.2)
            assert (removed, said) == ([], ["waiting for another process that prepares the image"])
        assert pruning.result(timeout=60) == removed == ["sha256:1"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            docker.errors.APIError("500 of http+docker://x/build?buildargs=secret: no", explanation="disk full"),
            "disk full",
        ),
        (requests.ConnectionError("Max retries exceeded with url: /build?buildargs=secret (refused)"), "refused"),
    ],
)
def test_a_build_that_breaks_off_names_no_proxys_password(error: Exception, why: str) -> None:
    def build(**options: object) -> None:
        raise error

    client: Any = SimpleNamespace(api=SimpleNamespace(build=build))
    with pytest.raises(ImageError, match=f"was interrupted: .*{why}") as caught:
        image_build._build(client, "x", image_build._tar({}), silent)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(find_program("apt-get") is None, reason="no apt-get on this system")
class TestMirror:
    """Which of this machine's sources of packages a build takes Debian from."""

    @pytest.fixture
    def apt(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder with apt's sources, and the lists that it has fetched, in `lists`."""
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
        (tmp_path / "lists").mkdir()
        (tmp_path / "sources.list").write_text(
            "deb https://cloud.example/apt cloud-sdk-bookworm main\n"
            "deb http://deb.example/debian-security bookworm-security main\n"
            "deb http://deb.example/debian bookworm main\n"
        )
        (tmp_path / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{tmp_path}/sources.list"; Dir::Etc::sourceparts "-"; '
            f'Dir::State::lists "{tmp_path}/lists"; APT::Architecture "amd64";'
        )
        monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
        return tmp_path

    def fetch(self, apt: Path, source: str, origin: str, label: str = "") -> None:
        """Note the description of a source, as ``apt-get update`` does."""
        path, _, packages = source.partition(" ")
        name = path.replace("/", "_")
        text = f"Origin: {origin}\nLabel: {label or origin}\nSHA256:\n {hashlib.sha256(b'').hexdigest()} 0 {packages}\n"
        (apt / "lists" / f"{name}_InRelease").write_text(text)
        (apt / "lists" / f"{name}_{packages.replace('/', '_')}").touch()

    def test_it_is_debians_among_those_of_others(self, apt: Path) -> None:
        packages = "main/binary-amd64/Packages"
        self.fetch(apt, f"cloud.example/apt/dists/cloud-sdk-bookworm {packages}", "cloud")
        self.fetch(apt, f"deb.example/debian-security/dists/bookworm-security {packages}", "Debian", "Debian-Security")
        self.fetch(apt, f"deb.example/debian/dists/bookworm {packages}", "Debian")
        assert image_build.debian_mirror() == "http://deb.example/debian/"
        assert image_build._debootstrap_command("/root")[-2:] == ["/root", "http://deb.example/debian/"]

    def test_it_is_the_general_one_before_lists_are_fetched_and_elsewhere(
        self, apt: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert image_build.debian_mirror() == "http://deb.debian.org/debian"
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "ubuntu"})
        assert image_build.debian_mirror() == "http://deb.debian.org/debian"


@pytest.mark.daemon
class TestTheImage:
    def test_its_tools_run_and_have_the_pinned_versions(self, api: docker.APIClient) -> None:
        of_image = {"ancestor": image.inspect()["id"]}
        before = {container["Id"] for container in api.containers(all=True, filters=of_image)}
        versions = image_build.verify()
        assert versions["iverilog"] == versions["vvp"] == "13.0"
        assert versions["cocotb"] == "2.0.1"
        assert versions["verilator"] >= "5.032"
        assert versions["yosys"]
        exited = of_image | {"status": "exited"}  # Docker removes the container a moment after its end
        assert until(lambda: {left["Id"] for left in api.containers(all=True, filters=exited)} <= before, 5)

    def test_holds_no_certificates_of_the_machine_that_built_it(self, client: docker.DockerClient) -> None:
        script = "find / -xdev -name 'host-ca*' 2>/dev/null; echo searched"
        output = run_once(client, image.inspect()["id"], ["/bin/sh", "-c", script])
        assert output == "searched\n"


@pytest.mark.daemon
class TestBuilding:
    def test_stages_are_built_apart_and_put_together(self, own_images: Path, client: docker.DockerClient) -> None:
        label = f"LABEL {image_build.IMAGE_LABEL}=sim"
        lines = (
            *(f"FROM {BASE} AS first", "WORKDIR /made", "ENV A=1", label),
            *("FROM first AS left", "RUN echo left $A > l", "FROM first AS right", "RUN echo right $A > r"),
            *(f"FROM {BASE}", "COPY --from=left /made /", "COPY --from=right /made /", label),
        )
        (own_images / "Dockerfile").write_text("\n".join(lines) + "\n")
        said: list[str] = []
        built = image_build.ensure_image(said.append)
        assert image.image_id(client, image.image_tag()) == built
        assert any(line.startswith("left: Step 2/2 : RUN echo left") for line in said)
        assert run_once(client, built, ["cat", "/l", "/r"]) == "left 1\nright 1\n"

    def test_a_failing_step_is_reported_with_its_last_lines(self, own_images: Path, api: docker.APIClient) -> None:
        before = len(api.containers(all=True, filters={"status": "exited"}))
        write_dockerfile(own_images, f"RUN for i in $(seq 100); do echo line $i {secrets.token_hex(4)}; done; exit 7")
        with pytest.raises(ImageError) as caught:
            image_build.ensure_image()
        text = str(caught.value)
        assert "returned a non-zero code: 7" in text
        assert "line 100 " in text
        assert "line 70 " not in text
        assert text.count("\n") == 30
        assert len(api.containers(all=True, filters={"status": "exited"})) <= before
        with pytest.raises(ImageError, match="is not there; build it with: rtl-agent-gym image build"):
            image.inspect()

    @pytest.mark.slow
    def test_an_image_without_the_tools_fails_verification(self, own_images: Path) -> None:
        write_dockerfile(own_images, "RUN rm -rf /venv /usr/local/bin")
        image_build.ensure_image()
        with pytest.raises(ImageError, match=r"iverilog  ?\(expected 13\.0\).*cocotb missing.*vvp missing.*--no-cache"):
            image_build.verify()

    @pytest.mark.slow
    def test_prune_removes_earlier_ones_and_keeps_the_current(
        self, own_images: Path, client: docker.DockerClient
    ) -> None:
        image_build.ensure_image()
        earlier = image.image_tag()
        write_dockerfile(own_images, "RUN echo another")
        current = image_build.ensure_image()
        assert image_build.prune() == [earlier]
        assert image.inspect()["id"] == current
        assert image.image_id(client, earlier) is None
        assert image_build.prune() == []

    @pytest.mark.slow
    def test_prune_leaves_what_a_container_uses(self, own_images: Path, api: docker.APIClient) -> None:
        built = image_build.ensure_image()
        container = api.create_container(built, ["true"])["Id"]
        try:
            (own_images / "new").write_text("another tag")
            image_build.prune()
            assert api.inspect_image(built)["Id"] == built
        finally:
            api.remove_container(container)


@pytest.mark.daemon
@pytest.mark.slow
@pytest.mark.skipif(not is_root() or find_program("debootstrap") is None, reason="only root bootstraps Debian")
def test_a_base_is_bootstrapped_where_no_registry_gives_one(
    monkeypatch: pytest.MonkeyPatch, client: docker.DockerClient
) -> None:
    monkeypatch.setattr(image_build, "PULLED_BASE", "127.0.0.1:9/rtl-agent-gym-test:none")
    monkeypatch.setattr(image_build, "BOOTSTRAPPED_BASE", "rtl-agent-gym-test/base:trixie")
    said: list[str] = []
    try:
        name = image_build.ensure_base(client, said.append)
        assert name == "rtl-agent-gym-test/base:trixie"
        assert any("bootstrapping Debian" in line for line in said)
        script = "cat /etc/os-release; ls /usr/share/keyrings; ls /var/lib/apt/lists"
        release = run_once(client, name, ["/bin/sh", "-c", script])
        assert "VERSION_CODENAME=trixie" in release
        assert "debian-archive-keyring.gpg" in release
        assert image_build.ensure_base(client, said.append) == name
    finally:
        client.api.remove_image("rtl-agent-gym-test/base:trixie", force=True)
    assert not list(Path("/var/tmp").glob("rtl-agent-gym-base-*"))


@pytest.mark.daemon
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestPins:
    """How a build chooses the versions of Debian's packages; in a container of the base, with its mirror."""

    def choose(self, snapshot: str, lock: str) -> list[str]:
        """What `debian.sh` says, then the version of `tree` that apt installs."""
        with closing(connect()) as client:
            base = next((name for name in BASES if image.image_id(client, name)), None)
        if base is None:
            pytest.skip("the base is not here any more")
        archive = image_build._tar(
            {"debian.sh": (image.CONTEXT / "debian.sh").read_bytes(), "packages.lock": lock.encode()}
        )
        script = (
            f"mkdir /build && tar -x -C /build && sh /build/debian.sh '{snapshot}' && apt-get update -qq && "
            "apt-get install -qq --no-install-recommends tree > /dev/null && dpkg-query -W -f '${Version}' tree"
        )
        command = ["docker", "-H", daemon_host(), "run", "--rm", "-i", base, "sh", "-c", script]
        done = subprocess.run(command, input=archive.read(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return [line for line in done.stdout.decode().splitlines() if line]

    def test_a_version_that_the_mirror_no_longer_has_does_not_fail_the_build(self) -> None:
        said, version = self.choose("http://127.0.0.1:9/debian", "# recorded\ntree 0.0-1\n")
        assert "cannot be reached" in said
        assert version[0].isdigit()
        assert version != "0.0-1"
        assert self.choose("http://127.0.0.1:9/debian", f"tree {version}\n") == [said, version]

    def test_the_recorded_day_of_the_archive_is_used_where_it_can_be_reached(self) -> None:
        mirror = self.choose("", "")[0].split()[-3]  # any archive of Debian's will do
        assert mirror.startswith("http")
        assert self.choose(mirror, "")[0] == f"Debian packages: as of {mirror}"
