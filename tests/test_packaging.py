"""What is installed, and what importing it costs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("torch", "tinker", "tinker_cookbook", "transformers", "peft", "ray", "litellm", "huggingface_hub")


@pytest.mark.parametrize("what", ["import rtl_agent_gym", "from rtl_agent_gym.cli import app"])
def test_importing_it_brings_no_machine_learning_framework(what: str) -> None:
    program = f"import sys; {what}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_every_requirement_is_pinned_without_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    pinned = {pin.partition("==")[0] for pin in pins}
    assert len(pinned) == len(pins)
    project = METADATA["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=\[; ]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert names <= pinned


@pytest.mark.slow
def test_the_wheel_holds_every_data_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "rtl_agent_gym"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "rtl_agent_gym/sandboxes/image_context/Dockerfile" in held
    assert any(name.endswith("/src/.env") for name in tracked)
    assert {name for name in tracked if (ROOT / name).exists()} <= held
