"""What is installed, the names that the package promises, and what importing it costs."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import rtl_agent_gym
from tests.conftest import ROOT
from tests.parsing import parsed

NAMES = {"Episode", "EpisodeConfig", "Problem", "Score", "Scorer", "evaluate", "load_problems", "score_files"}
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = (
    "torch", "tinker", "tinker_cookbook", "transformers", "peft", "ray", "litellm", "huggingface_hub", "trl",
    "datasets", "openenv", "fastapi", "uvicorn",
)  # fmt: skip


def test_the_promised_names_are_there_and_no_others() -> None:
    assert set(rtl_agent_gym.__all__) == NAMES | {"__version__"}
    for name in NAMES:
        assert callable(getattr(rtl_agent_gym, name))
        assert getattr(rtl_agent_gym, name).__name__ == name
        assert name in dir(rtl_agent_gym)
    with pytest.raises(AttributeError, match="module 'rtl_agent_gym' has no attribute 'nosuch'"):
        rtl_agent_gym.nosuch  # noqa: B018
    with pytest.raises(ImportError, match="nosuch"):
        exec("from rtl_agent_gym import nosuch")


def test_importing_it_brings_no_machine_learning_framework() -> None:
    """Nor any other module of its own, before a name is used."""
    own = "print([name for name in sys.modules if name.startswith('rtl_agent_gym.')])"
    heavy = f"print([name for name in {HEAVY} if name in sys.modules])"
    program = f"import sys, rtl_agent_gym; {own}; {heavy}; from rtl_agent_gym.cli import app; {heavy}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['rtl_agent_gym.starting']", "[]", "[]"]


def test_the_environment_needs_no_extra() -> None:
    """What an extra brings is hidden, as in an environment that has the base alone."""
    hidden = [*HEAVY, "httpx", "openai", "litellm", "huggingface_hub", "ray"]
    modules = "rtl_agent_gym.envs, rtl_agent_gym.cli, rtl_agent_gym.evaluation, rtl_agent_gym.integrations.session"
    program = f"import sys; sys.modules.update(dict.fromkeys({hidden})); import {modules}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


FRAMEWORKS = {
    "verifiers": {"integrations/verifiers.py"},
    "trl": set(),  # its trainer calls the adapter, which needs nothing of it
    "datasets": {"integrations/trl.py"},
    "harbor": {"integrations/harbor/verifier.py"},
    "openenv": {"integrations/openenv.py", "integrations/openenv_server.py"},
    "fastapi": {"integrations/nemo_gym.py", "integrations/openenv_server.py"},
    "nemo_gym": {"integrations/nemo_gym.py"},
    "uvicorn": {"integrations/openenv_server.py"},
    "inspect_ai": {"integrations/inspect.py"},
    "skyrl_gym": {"integrations/skyrl.py"},
    "verl": {"integrations/verl.py"},
    "omegaconf": {"integrations/verl.py"},
}
"""Where a framework may be imported: most of them are in no environment that has another one."""


def test_each_framework_is_imported_only_by_its_adapter() -> None:
    package, found = ROOT / "rtl_agent_gym", {name: set[str]() for name in FRAMEWORKS}
    for path in package.rglob("*.py"):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names} & FRAMEWORKS.keys():
                found[name].add(path.relative_to(package).as_posix())
    assert found == FRAMEWORKS


def test_no_message_names_a_script_of_a_clone() -> None:
    """Who installed the package with pip has none."""
    package = ROOT / "rtl_agent_gym"
    assert [path for path in package.rglob("*.py") if "scripts/setup" in path.read_text(encoding="utf-8")] == []


def test_every_requirement_is_pinned_without_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    pinned = {pin.partition("==")[0] for pin in pins}
    assert len(pinned) == len(pins)
    project = METADATA["project"]
    extras = project["optional-dependencies"]
    apart = {path.stem: path for path in (ROOT / "tests" / "integrations" / "requirements").glob("*.txt")}
    assert apart.keys() - {"prime", "servers"} <= extras.keys()  # prime-rl, vLLM and SGLang, which no extra installs
    assert names(project["dependencies"]) <= pinned
    for extra, requirements in extras.items():  # a framework that contradicts the pins has versions of its own
        own = names(apart[extra].read_text().splitlines()) if extra in apart else pinned
        assert names(requirements) <= pinned or names(requirements) <= own


def test_every_pin_installs_with_the_oldest_python() -> None:
    """Metadata of what is installed here, which is what `scripts/setup --for dev` installs."""
    oldest = METADATA["project"]["requires-python"].removeprefix(">=") + ".0"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = names([line for line in lines if not line.startswith("#")])
    installed = [package for package in distributions() if names([package.metadata["Name"]]) <= pinned]
    assert len(installed) > len(pinned) / 2
    assert [
        (package.metadata["Name"], text)
        for package in installed
        for text in package.metadata.get_all("Requires-Python", [])
        if not SpecifierSet(text).contains(oldest)
    ] == []


def names(requirements: list[str]) -> set[str]:
    """The normalised names of packages."""
    lines = [line for line in requirements if not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", re.split(r"[<>=\[; ]", line)[0]).lower() for line in lines}


def tracked_files(*paths: str) -> list[str]:
    """What git tracks. A test that needs it is skipped where git refuses, as for root in another user's checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        reason, _, _ = listed.stderr.partition("\n")
        pytest.skip(f"git does not list this checkout: {reason}")
    return listed.stdout.splitlines()


def test_an_sdist_has_what_is_tracked_and_nothing_that_runs_write() -> None:
    tracked = {name.partition("/")[0] for name in tracked_files()} - {".ci"}
    chosen = METADATA["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    added = [".gitignore", "LICENSE", "README.md", "pyproject.toml"]  # by hatchling
    assert sorted([*chosen, *added]) == sorted(tracked)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_data_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
    assert "rtl_agent_gym/sandboxes/image_context/Dockerfile" in held
    assert "rtl_agent_gym/problems/problems.jsonl" in held
    assert all(name.startswith(("rtl_agent_gym/", "rtl_agent_gym_verifiers.py", "rtl_agent_gym-")) for name in held)
    tracked = tracked_files("rtl_agent_gym", "rtl_agent_gym_verifiers.py")
    assert {name for name in tracked if (ROOT / name).exists()} <= held


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", ["", "[chat]"])
def test_it_serves_where_there_is_no_checkout(wheel: Path, tmp_path: Path, extra: str) -> None:
    bin_ = tmp_path / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)

    def run(*command: str) -> str:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = [str(bin_ / "pip"), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    run(*pip, f"rtl-agent-gym{extra} @ {wheel.as_uri()}")
    command = str(bin_ / "rtl-agent-gym")
    run(command, "image", "build")
    problem = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
    played = run(command, "run", "--problem", problem, "--policy", "golden", "--json")
    assert json.loads(played.splitlines()[-1])["score"]["passed"] is True
    made = "import gymnasium, rtl_agent_gym; print(len(gymnasium.make('CVDPAgentic-v0').reset(seed=0)[0]) > 100)"
    assert run(str(bin_ / "python"), "-c", made).strip() == "True"
