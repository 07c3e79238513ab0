"""The digest of an image's content, and its way between daemons: a changed image is refused."""

from __future__ import annotations

import gzip
import os
import py_compile
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import docker
import pytest
import requests
from docker.errors import APIError

from rtl_agent_gym.errors import DaemonError, ImageError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import DockerSandboxes, image, image_build
from rtl_agent_gym.sandboxes.daemon import docker_errors
from rtl_agent_gym.sandboxes.image import (
    CONTENT_LABEL,
    LOCK,
    Content,
    checked_content,
    content_of,
    load_image,
    pull_image,
    push_image,
    run_once,
    save_image,
)
from rtl_agent_gym.sandboxes.image_program import digest, packages
from rtl_agent_gym.scoring import Scorer
from tests.registry import registry
from tests.second_daemon import second_daemon

PLACES = ("etc", "usr/bin", "var/log", "var/cache/apt", "tmp", "proc", "root/.cache")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small system."""
    for place in PLACES:
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "usr/bin/tool").write_text("#!/bin/sh\n")
    (tmp_path / "usr/bin/link").symlink_to("tool")
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        "chmod 755 usr/bin/tool",
        "echo '#!/bin/bash' > usr/bin/tool",
        "ln -sf /usr/bin/tool usr/bin/link",
        "mv usr/bin/tool usr/bin/other",
        "rm usr/bin/link; echo tool > usr/bin/link",
        "mkdir srv",
    ],
)
def test_what_counts(root: Path, change: str) -> None:
    before = digest(str(root))
    subprocess.run(["sh", "-ec", change], cwd=root, check=True)
    assert digest(str(root)) != before


def test_times_caches_logs_and_what_a_runtime_makes_do_not_count(root: Path) -> None:
    before = digest(str(root))
    for path in [root, *root.rglob("*")]:
        os.utime(path, (1, 1), follow_symlinks=False)
    for place in ("var/log/apt.log", "var/cache/apt/x", "tmp/x", "proc/x", "root/.cache/x", "etc/hosts", ".dockerenv"):
        (root / place).write_text(secrets.token_hex(4))
    assert digest(str(root)) == before
    assert before.startswith("sha256:")


def test_compiled_python_counts_by_its_code(root: Path) -> None:
    source, compiled = root / "usr/m.py", root / "usr/m.pyc"

    def compiled_at(seconds: int, text: str) -> str:
        source.write_text(text)
        os.utime(source, (seconds, seconds))
        py_compile.compile(str(source), cfile=str(compiled), dfile="/m.py")
        source.unlink()
        return digest(str(root))

    first = compiled_at(1_000_000, "x = {'a', 'b', 'c'}\ny = 'name'\n")
    assert compiled_at(2_000_000, "x = {'a', 'b', 'c'}\ny = 'name'\n") == first
    assert compiled_at(1_000_000, "x = {'a', 'b', 'c'}\ny = 'nome'\n") != first
    compiled.write_bytes(b"no compiled Python")
    assert digest(str(root)) != first


def test_packages_are_those_that_are_installed(root: Path) -> None:
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(
        "Package: a\nStatus: install ok installed\nVersion: 1:2-3\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: b\nStatus: install ok installed\nDepends: a\nVersion: 4\n"
    )
    assert packages(str(root)) == {"a": "1:2-3", "b": "4"}


def test_another_version_of_a_package_is_said_in_one_line() -> None:
    recorded = dict(line.split() for line in LOCK.read_text().splitlines() if not line.startswith("#"))
    assert recorded["g++"]
    same = Content(digest=image.RECORDED.read_text().strip(), packages=recorded)
    assert same.differing == []
    assert same.remark == f"content {same.digest}: the recorded one"
    other = Content(digest="sha256:" + "0" * 64, packages=recorded | {"yosys": "9", "new": "1"})
    assert other.differing == ["new 1 (recorded: none)", f"yosys 9 (recorded: {recorded['yosys']})"]
    assert "\n" not in other.remark
    assert all(text in other.remark for text in ("is not the recorded one", "yosys 9", "image save/load or push/pull"))
    assert "packages are the recorded ones" in Content(digest="sha256:" + "0" * 64, packages=recorded).remark


@pytest.fixture
def client(client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> docker.DockerClient:
    """A client of the machine's daemon; nothing is remembered of its images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return client


@pytest.fixture
def derived(client: docker.DockerClient) -> Iterator[Callable[..., str]]:
    """Makes an image from the simulation image by some instructions of a Dockerfile."""
    made = []

    def make(*instructions: str) -> str:
        text = "\n".join((f"FROM {image.find_image(client)}", *instructions))
        name = f"rtl-agent-gym-test/{secrets.token_hex(4)}:derived"
        made.append(name)
        return image_build._build(client, name, image_build._tar({"Dockerfile": text.encode()}), lambda line: None)

    yield make
    for name in made:
        client.api.remove_image(name, force=True)


class Api:
    """A daemon that breaks off, and what it is told to name and to remove."""

    def __init__(self) -> None:
        self.api, self.named, self.removed = self, list[str](), list[str]()

    def get_image(self, name: str) -> Iterator[bytes]:
        yield b"a part"
        raise requests.ConnectionError("the daemon was killed")

    def tag(self, name: str, *_: object) -> None:
        self.named.append(name)

    def remove_image(self, name: str, **_: object) -> None:
        self.removed.append(name)


def refused(status: int) -> APIError:
    """The error of a daemon that answers with a status."""
    response = requests.Response()
    response.status_code = status
    return APIError("it is refused", response=response)


def test_a_daemon_that_breaks_off_is_not_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connected() -> Iterator[Api]:
        with docker_errors():
            yield Api()

    monkeypatch.setattr(image, "connected", connected)
    monkeypatch.setattr(image, "find_image", lambda client: "new")
    monkeypatch.setattr(image, "checked_content", lambda *_: Content(digest="sha256:1", packages={}))
    with pytest.raises(DaemonError, match="the daemon was killed"):
        save_image(tmp_path / "image.tar.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", ["earlier", None])
@pytest.mark.parametrize(
    ("error", "raised", "removed"),
    [
        (DaemonError("it does not answer"), DaemonError, []),
        (KeyboardInterrupt(), KeyboardInterrupt, []),
        (refused(500), APIError, []),
        (refused(400), ImageError, ["new"]),  # it has no Python
    ],
)
def test_an_image_stays_until_the_next_one_is_accepted(
    error: BaseException,
    raised: type[BaseException],
    removed: list[str],
    before: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an earlier one, an image that was not accepted loses its name."""
    client = Api()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(image, "run_once", Mock(side_effect=error))
    with pytest.raises(raised, match="refused" if removed else None):
        image._accept(client, "new", before, None, "a file")
    assert client.named == ([before] if before else [])
    assert client.removed == ([] if before else [image.image_tag()]) + removed
    client.removed.clear()
    monkeypatch.setattr(image, "checked_content", lambda *_: Content(digest="sha256:1", packages={}))
    image._accept(client, "new", "earlier", None, "a file")
    assert client.removed == ["earlier"]


def test_a_refused_image_loses_its_name_also_if_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class InUse(Api):
        def remove_image(self, name: str, **options: object) -> None:
            if name == "new" or not options.get(
                "force"
            ):  # Docker keeps the only name of such an image, too, unless it is forced
                raise refused(409)
            super().remove_image(name)

    client = InUse()
    monkeypatch.setattr(image, "checked_content", lambda *_: Content(digest="sha256:1", packages={}))
    with pytest.raises(ImageError, match="not sha256:2"):
        image._accept(client, "new", None, "sha256:2", "a file")
    assert client.removed == [image.image_tag()]


@pytest.mark.parametrize("status", [404, 409])
def test_an_earlier_image_that_is_gone_or_in_use_is_no_error(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(Api):
        def remove_image(self, name: str, **_: object) -> None:
            raise refused(status)

    monkeypatch.setattr(image, "checked_content", lambda *_: Content(digest="sha256:1", packages={}))
    assert image._accept(Refuses(), "new", "earlier", None, "a file") == "sha256:1"


def test_a_command_is_process_1_of_its_container_whatever_the_daemons_default_is() -> None:
    class Creates(Api):
        def __init__(self) -> None:
            super().__init__()
            self.containers, self.asked = self, dict[str, object]()

        def version(self) -> dict[str, object]:
            return {}

        def create(self, *_: object, **options: object) -> None:
            self.asked = options
            raise DaemonError("it makes no container")

    client: Any = Creates()
    with pytest.raises(DaemonError):
        run_once(client, "sha256:1", ["true"])
    assert client.asked["init"] is False


@pytest.mark.daemon
class TestImages:
    def test_it_is_read_once_and_the_build_recorded_it(
        self, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = image.find_image(client)
        found = content_of(client, here)
        assert client.images.get(here).labels[CONTENT_LABEL] == found.digest
        monkeypatch.setattr(image, "_read", lambda client, image: pytest.fail("read again"))
        assert content_of(client, here) == found

    @pytest.mark.slow
    def test_an_image_that_was_changed_is_refused(
        self, client: docker.DockerClient, derived: Callable[..., str]
    ) -> None:
        assert checked_content(client, image.find_image(client)).packages["yosys"]
        changed = derived("RUN echo '# changed' >> /venv/lib/python3.13/site-packages/cocotb/__init__.py")
        with pytest.raises(ImageError, match=r"was changed after it was built.*image build --no-cache"):
            checked_content(client, changed)

    @pytest.mark.slow
    def test_a_build_of_the_recorded_packages_has_the_recorded_digest(self, client: docker.DockerClient) -> None:
        found = content_of(client, image.find_image(client))
        if found.differing:
            pytest.skip(f"this image has other packages: {found.remark}")
        assert found.digest == image.RECORDED.read_text().strip()

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_a_build_without_cached_steps_has_the_digest_of_the_one_before(
        self, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another build on another day, as far as its packages are still to be had."""
        here, before = image.find_image(client), client.api.inspect_image(image.find_image(client))["Created"]
        tag = f"{image.REPOSITORY}:test-{os.getpid()}"
        monkeypatch.setattr(image_build, "image_tag", lambda: tag)
        try:
            again = image_build.ensure_image(rebuild=True)
            assert again != here
            assert client.api.inspect_image(again)["Created"] > before
            assert content_of(client, again) == content_of(client, here)
        finally:
            client.api.remove_image(tag, force=True)

    @pytest.mark.slow
    async def test_two_builds_give_gradings_the_same_key(
        self, client: docker.DockerClient, derived: Callable[..., str], tmp_path: Path
    ) -> None:
        problem: Problem = load_problems("bundled")[0]
        assert problem.golden
        cached = []
        touched = derived("RUN touch -d 2001-02-03 /usr/local/bin/* /etc/passwd; date > /var/log/build")
        for name in (image.find_image(client), touched, derived("RUN echo x > /etc/x")):
            async with DockerSandboxes(name) as provider, Scorer(provider, cache=tmp_path / "gradings") as scorer:
                score = await scorer.score(problem, problem.golden)
                assert score.passed
                cached.append(score.cached)
        assert cached == [False, True, False]


@pytest.mark.daemon
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_saved_image_has_the_same_digest_on_another_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "image.tar.gz"
    here = image.inspect()
    assert save_image(file) == here["digest"]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    with second_daemon() as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.host)
        subprocess.run(["docker", "-H", daemon.host, "rmi", "-f", image.image_tag()], check=True, capture_output=True)
        with pytest.raises(ImageError, match="image build"):
            image.inspect()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what arrives is read again
        assert load_image(file) == here["digest"]
        assert load_image(file, here["digest"]) == here["digest"]
        assert image.inspect() | {"id": here["id"]} == here
        assert "iverilog" in image_build.verify()
        with pytest.raises(ImageError, match=rf"its content is {here['digest']}, not sha256:00"):
            load_image(file, "sha256:" + "0" * 64)


def _change(host: str) -> None:
    """Change a file of the image, below its name and its labels, as no build does."""
    script = "FROM {}\nRUN echo '# changed' >> /venv/lib/python3.13/site-packages/cocotb/__init__.py\n"
    docker = ["docker", "-H", host]
    environment = os.environ | {"DOCKER_BUILDKIT": "0"}
    text = script.format(image.image_tag()).encode()
    build = [*docker, "build", "-q", "--network", "none", "-t", image.image_tag(), "-"]
    subprocess.run(build, input=text, env=environment, check=True, capture_output=True)


@pytest.mark.daemon
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_registry_carries_the_image_between_daemons_and_a_changed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with registry(tmp_path) as port:
        repository = f"127.0.0.1:{port}/some/rtl"
        here = image.inspect()
        tag = image.image_tag().split(":")[1]
        assert push_image(repository) == (f"{repository}:{tag}", here["digest"])
        with second_daemon(image=False) as daemon:
            assert daemon.process is not None
            monkeypatch.setenv("DOCKER_HOST", daemon.host)
            with registry(tmp_path, port, namespace_of=daemon.process.pid):
                with pytest.raises(ImageError, match="has no image"):
                    pull_image(repository, "sha256:" + "0" * 64)
                assert pull_image(repository) == here["digest"]
                assert pull_image(repository, here["digest"]) == here["digest"]
                assert image.inspect() == here
                assert "iverilog" in image_build.verify()

                # A changed image takes the first tag in the registry, and this machine has the right one already.
                _change(daemon.host)
                with pytest.raises(ImageError, match="was changed after it was built"):
                    push_image(repository)
                docker = ["docker", "-H", daemon.host]
                for words in (["tag", image.image_tag(), f"{repository}:{tag}"], ["push", f"{repository}:{tag}"]):
                    subprocess.run([*docker, *words], check=True, capture_output=True)
                subprocess.run(
                    [*docker, "rmi", f"{repository}:{tag}", image.image_tag()], check=True, capture_output=True
                )
                with pytest.raises(ImageError, match=r"refused: .*was changed after it was built"):
                    pull_image(repository)
                with pytest.raises(ImageError, match="image build"):
                    image.inspect()
                assert pull_image(repository, here["digest"]) == here["digest"]
                with pytest.raises(ImageError, match="is refused"):
                    pull_image(repository)
                assert image.inspect() == here
                names = subprocess.run([*docker, "images", "-q"], capture_output=True, text=True, check=True).stdout
                assert len(names.split()) == 1, "a refused image, or a name in the registry, is still there"


DAMAGED = gzip.compress(bytes(5000), mtime=0)[:12] + b"\xff" * 20
"""Begins as a gzip file, and goes on with what cannot be unpacked."""


@pytest.mark.daemon
@pytest.mark.parametrize(
    "text", [b"", b"no archive", b"\x1f\x8bno gzip", DAMAGED], ids=["empty", "text", "header only", "damaged"]
)
def test_a_file_that_holds_no_image_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x").write_bytes(text)
    with pytest.raises((UsageError, ImageError), match="x"):
        load_image(tmp_path / "x")
    with pytest.raises(UsageError, match="nothing"):
        load_image(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["here/x:1", "x@sha256:0"])
def test_a_repository_has_no_tag(name: str) -> None:
    for move in (push_image, pull_image):
        with pytest.raises(UsageError, match="without a tag"):
            move(name)


@pytest.mark.daemon
def test_a_registry_that_does_not_answer_is_named() -> None:
    with pytest.raises(ImageError, match=r"cannot push 127\.0\.0\.1:9/rtl"):
        push_image("127.0.0.1:9/rtl")
