"""Sandboxes below Apptainer, whose command line a stub checks, word by word, and then carries out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rtl_agent_gym.cli.image import prune_command
from rtl_agent_gym.errors import ImageError, SandboxError
from rtl_agent_gym.sandboxes import ApptainerSandboxes, choice, root_folder
from rtl_agent_gym.sandboxes.namespaces import check_apptainer, image_file
from rtl_agent_gym.sandboxes.root_folder import find_root
from tests.sandboxes.apptainer_stub import apptainer_stub
from tests.sandboxes.ordinary_user import ROOT, SINGLE, run_as

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("root_folder")]

TESTS = f"""
import contextlib, io, json, os, pytest, sys
os.chdir({str(ROOT)!r})
with contextlib.redirect_stdout(io.StringIO()) as printed:
    files = ["tests/sandboxes/apptainer_user.py", "tests/sandboxes/test_contract.py"]
    code = pytest.main([*files, "-q", "-k", "apptainer", "-n", "0", "-p", "no:cacheprovider", "-m", ""])
print(json.dumps([int(code), printed.getvalue()]))
"""


@pytest.mark.slow  # runs the tests of the contract once more
def test_the_contract_and_its_own_tests_hold_for_an_ordinary_user() -> None:
    code, printed = run_as(SINGLE, TESTS, HOME="/tmp")
    assert code == 0, printed
    assert "skipped" not in printed
    # 9 of each role and 2 of the provider in the contract, and 10 of its own.
    assert int(printed.splitlines()[-1].split(" passed")[0].split()[-1]) >= 30, printed


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process seems to be an ordinary user's."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_root_gets_none() -> None:
    if os.geteuid():
        pytest.skip("this is root's")
    with apptainer_stub(), pytest.raises(SandboxError, match="run as another user, or use namespaces"):
        check_apptainer()


def test_what_is_missing_is_named(ordinary: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with apptainer_stub():
        assert check_apptainer().startswith("apptainer version 1.4.0-stub; ")
        monkeypatch.setenv(root_folder.VARIABLE, str(tmp_path))
        with pytest.raises(ImageError, match="rtl-agent-gym image unpack"):
            check_apptainer()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apptainer is not installed"):
        check_apptainer()


def test_a_sif_file_beside_the_root_is_used(tmp_path: Path) -> None:
    root = find_root().model_copy(update={"folder": tmp_path / "root"})
    assert image_file(root) == tmp_path / "root"
    (tmp_path / "root.sif").touch()
    assert image_file(root) == tmp_path / "root.sif"


def test_auto_takes_it_where_nothing_else_works(
    ordinary: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "_chosen", None)
    monkeypatch.setattr(choice, "_found", None)
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with apptainer_stub() as folder:
        monkeypatch.setenv("PATH", str(folder))
        assert isinstance(choice.make_provider(), ApptainerSandboxes)
        assert choice.image_kind() == "namespaces"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(root_folder, "prune", lambda: pytest.fail("it began"))
    with pytest.raises(SandboxError, match="no sandbox can be made here"):
        prune_command()
