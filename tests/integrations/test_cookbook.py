"""tinker-cookbook 0.6 and its transformers, which contradict constraints.txt: a step of training on each engine."""

from __future__ import annotations

import json
import subprocess

import pytest

from rtl_agent_gym.renderers.vocabularies import package_file
from tests.integrations.ecosystem import REQUIREMENTS, ROOT, clean, environment, lacking
from tests.test_bounds import pins

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
        ("tests/envs/test_tinker_tokenizers.py", "-m", ""),
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
    listed = pins(REQUIREMENTS / "train.txt")
    for name, version in json.loads(found.stdout).items():
        assert str(listed[name]) == version
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    variables = clean() | {"PYTHONPATH": str(ROOT)}
    if litellm := package_file("litellm", "__init__.py"):
        # The list cannot have litellm, which allows no filelock 4; its copy of Harmony's vocabulary is here.
        variables |= {"TIKTOKEN_RS_CACHE_DIR": str(litellm.parent / "litellm_core_utils" / "tokenizers")}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
