"""tinker-cookbook 0.6 and its transformers, which contradict constraints.txt: a step of training on each engine."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.integrations.ecosystem import REQUIREMENTS, ROOT, clean, environment, lacking

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]

PROGRAM = """
import importlib.metadata, json, torch
print(json.dumps({name: importlib.metadata.version(name) for name in ("tinker-cookbook", "transformers")}))
"""


@pytest.mark.docker
@pytest.mark.parametrize(
    "tests",
    [
        ("tests/envs/test_tinker_training.py", "-k", "test_train_on_policy or test_rl_train"),
        ("tests/envs/test_tinker_tokenizers.py",),
        ("tests/engines/test_local.py", "-m", "not slow"),
    ],
    ids=["the cookbook's trainers", "tokenizers", "the local engine"],
)
def test_the_same_tests_pass_on_the_newest(tests: tuple[str, ...]) -> None:
    python = environment("train")
    found = subprocess.run([str(python), "-c", PROGRAM], env=clean(), capture_output=True, text=True)
    if "libcu" in found.stderr or "libnv" in found.stderr:
        lacking("torch in the environment 'train' is a CUDA build, without CUDA's libraries")
    assert found.returncode == 0, found.stderr
    lines = (REQUIREMENTS / "train.txt").read_text().splitlines()
    assert {f"{name}=={version}" for name, version in json.loads(found.stdout).items()} <= {*lines}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=clean() | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
