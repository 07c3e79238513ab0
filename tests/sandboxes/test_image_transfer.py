"""The simulation image moves between daemons and stays the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rtl_agent_gym.errors import ImageError, UsageError
from rtl_agent_gym.sandboxes import image
from rtl_agent_gym.sandboxes.image_transfer import load_image, pull_image, push_image, save_image
from tests.second_daemon import second_daemon


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_saved_image_has_the_same_id_on_another_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "image.tar.gz"
    here = image.inspect()["id"]
    assert save_image(file) == here
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    with second_daemon() as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.host)
        subprocess.run(["docker", "-H", daemon.host, "rmi", "-f", image.image_tag()], check=True, capture_output=True)
        with pytest.raises(ImageError, match="image build"):
            image.inspect()
        assert load_image(file) == here
        assert load_image(file) == here
        assert image.inspect()["id"] == here
        assert "iverilog" in image.verify()


@pytest.mark.docker
@pytest.mark.parametrize("text", [b"", b"no archive", b"\x1f\x8bno gzip"])
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
