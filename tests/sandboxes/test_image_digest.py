"""The digest of an image's content: what counts, what does not, and that a changed image is refused."""

from __future__ import annotations

import os
import py_compile
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.sandboxes import image, image_digest
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.image_digest import CONTENT_LABEL, LOCK, Content, checked_content, content_of
from rtl_agent_gym.sandboxes.image_program import digest, packages
from rtl_agent_gym.scoring import Scorer

PLACES = ("etc", "usr/bin", "var/log", "var/cache/apt", "tmp", "proc", "root/.cache")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small system."""
    for place in PLACES:
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "usr/bin/tool").write_text("#!/bin/sh\n")
    (tmp_path / "usr/bin/link").symlink_to("tool")
    return tmp_path


def _mode(root: Path) -> None:
    (root / "usr/bin/tool").chmod(0o755)


def _text(root: Path) -> None:
    (root / "usr/bin/tool").write_text("#!/bin/bash\n")


def _link(root: Path) -> None:
    (root / "usr/bin/link").unlink()
    (root / "usr/bin/link").symlink_to("/usr/bin/tool")


def _name(root: Path) -> None:
    (root / "usr/bin/tool").rename(root / "usr/bin/other")


def _kind(root: Path) -> None:
    (root / "usr/bin/link").unlink()
    (root / "usr/bin/link").write_text("tool")


@pytest.mark.parametrize("change", [_mode, _text, _link, _name, _kind, lambda root: (root / "srv").mkdir()])
def test_what_counts(root: Path, change: Callable[[Path], object]) -> None:
    before = digest(str(root))
    change(root)
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
    same = Content(digest=image_digest.RECORDED.read_text().strip(), packages=recorded)
    assert same.differing == []
    assert same.remark == f"content {same.digest}: the recorded one"
    other = Content(digest="sha256:" + "0" * 64, packages=recorded | {"yosys": "9", "new": "1"})
    assert other.differing == ["new 1 (recorded: none)", f"yosys 9 (recorded: {recorded['yosys']})"]
    assert "\n" not in other.remark
    assert all(text in other.remark for text in ("is not the recorded one", "yosys 9", "image save/load or push/pull"))
    assert "packages are the recorded ones" in Content(digest="sha256:" + "0" * 64, packages=recorded).remark


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.DockerClient]:
    """A client of the machine's daemon; nothing is remembered of its images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with closing(connect()) as client:
        yield client


@pytest.fixture
def derived(client: docker.DockerClient) -> Iterator[Callable[..., str]]:
    """Makes an image from the simulation image by some instructions of a Dockerfile."""
    made = []

    def make(*instructions: str) -> str:
        text = "\n".join((f"FROM {image.find_image(client)}", *instructions))
        name = f"rtl-agent-gym-test/{secrets.token_hex(4)}:derived"
        made.append(name)
        return image._build(client, name, image._tar({"Dockerfile": text.encode()}), lambda line: None)

    yield make
    for name in made:
        client.api.remove_image(name, force=True)


@pytest.mark.docker
class TestImages:
    @pytest.mark.slow
    def test_the_digest_does_not_depend_on_times_and_ids(
        self, client: docker.DockerClient, derived: Callable[..., str]
    ) -> None:
        here = image.find_image(client)
        touched = derived("RUN touch -d 2001-02-03 /usr/local/bin/* /etc/passwd; date > /var/log/build")
        assert touched != here
        assert content_of(client, touched) == content_of(client, here)

    def test_it_is_read_once(self, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> None:
        here = image.find_image(client)
        found = content_of(client, here)
        monkeypatch.setattr(image_digest, "_read", lambda client, image: pytest.fail("read again"))
        assert content_of(client, here) == found

    @pytest.mark.slow
    def test_an_image_that_was_changed_is_refused(
        self, client: docker.DockerClient, derived: Callable[..., str]
    ) -> None:
        assert checked_content(client, image.find_image(client)).packages["yosys"]
        changed = derived("RUN echo '# changed' >> /venv/lib/python3.13/site-packages/cocotb/__init__.py")
        with pytest.raises(ImageError, match=r"was changed after it was built.*image build --no-cache"):
            checked_content(client, changed)

    def test_the_build_recorded_it(self, client: docker.DockerClient) -> None:
        here = client.images.get(image.image_tag())
        assert here.labels[CONTENT_LABEL] == content_of(client, str(here.id)).digest

    @pytest.mark.slow
    def test_a_build_of_the_recorded_packages_has_the_recorded_digest(self, client: docker.DockerClient) -> None:
        found = content_of(client, image.find_image(client))
        if found.differing:
            pytest.skip(f"this image has other packages: {found.remark}")
        assert found.digest == image_digest.RECORDED.read_text().strip()

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_a_build_without_cached_steps_has_the_digest_of_the_one_before(
        self, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another build on another day, as far as its packages are still to be had."""
        here, before = image.find_image(client), client.api.inspect_image(image.find_image(client))["Created"]
        monkeypatch.setattr(image, "image_tag", lambda: f"{image.REPOSITORY}:test-{os.getpid()}")
        monkeypatch.setattr(image, "_tag", lambda *_: image.image_tag())
        try:
            again = image.ensure_image(rebuild=True)
            assert again != here
            assert client.api.inspect_image(again)["Created"] > before
            assert content_of(client, again) == content_of(client, here)
        finally:
            client.api.remove_image(image.image_tag(), force=True)

    @pytest.mark.slow
    async def test_two_builds_give_gradings_the_same_key(
        self, client: docker.DockerClient, derived: Callable[..., str], tmp_path: Path
    ) -> None:
        from rtl_agent_gym.sandboxes import DockerSandboxes

        problem: Problem = load_problems("bundled")[0]
        assert problem.golden
        cached = []
        for name in (image.find_image(client), derived("RUN date > /var/log/build"), derived("RUN echo x > /etc/x")):
            async with DockerSandboxes(name) as provider, Scorer(provider, cache=tmp_path / "gradings") as scorer:
                score = await scorer.score(problem, problem.golden)
                assert score.passed
                cached.append(score.cached)
        assert cached == [False, True, False]
