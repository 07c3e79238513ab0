"""The simulation image moves between daemons and stays the same."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from rtl_agent_gym.errors import ImageError, UsageError
from rtl_agent_gym.sandboxes import image
from rtl_agent_gym.sandboxes.image_transfer import load_image, pull_image, push_image, save_image
from tests.registry import registry
from tests.second_daemon import second_daemon


@pytest.mark.docker
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
        assert "iverilog" in image.verify()
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


@pytest.mark.docker
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
                assert "iverilog" in image.verify()

                # Whoever can write to the registry replaces the image, and this machine has the right one already.
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


@pytest.mark.docker
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


@pytest.mark.docker
def test_a_registry_that_does_not_answer_is_named() -> None:
    with pytest.raises(ImageError, match=r"cannot push 127\.0\.0\.1:9/rtl"):
        push_image("127.0.0.1:9/rtl")
