"""NeMo RL: the configuration of a run that takes its episodes from NeMo Gym."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integrations.ecosystem import ROOT, clean

READ_RUN = """
import json, sys
from omegaconf import OmegaConf
from nemo_rl.algorithms.grpo import MasterConfig
from nemo_rl.environments.nemo_gym import should_use_nemo_gym
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

register_omegaconf_resolvers()
read = OmegaConf.to_container(load_config(sys.argv[1]), resolve=True)
config = MasterConfig(**read)
found = {"gym": should_use_nemo_gym(config), "model": config.policy["model_name"], "data": config.data["train"]}
found |= {"servers": config.env["nemo_gym"]["config_paths"], "cluster": config.cluster["gpus_per_node"]}
found |= {"validated": read["grpo"]["max_val_samples"]}
print(json.dumps(found))
"""


@pytest.mark.ecosystem
def test_nemo_rl_accepts_the_run_with_nemo_gym(tmp_path: Path) -> None:
    checkout = Path(os.environ.get("RTL_GYM_NEMO_RL", ""))
    if not (checkout / "nemo_rl").is_dir():
        pytest.skip("NeMo RL is on no package index: RTL_GYM_NEMO_RL must be the folder of a checkout")
    shutil.copytree(checkout / "examples/configs", tmp_path / "configs")
    (tmp_path / "nemo_gym").mkdir()
    place = shutil.copy(ROOT / "examples/nemo_rl/grpo.yaml", tmp_path / "nemo_gym")
    command = [os.environ.get("RTL_GYM_NEMO_RL_PYTHON", sys.executable), "-c", READ_RUN, str(place)]
    variables = clean() | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["gym"], found["model"], found["cluster"]) == (True, "Qwen/Qwen3.5-9B", 8)
    assert found["data"] == {"data_path": "results/rtl/train.jsonl"}
    assert found["servers"][-1] == "resources_servers/rtl/configs/rtl.yaml"
    assert found["validated"] is None


def test_the_run_with_nemo_gym_does_not_limit_validation() -> None:
    """NeMo RL refuses a limit there, and the configuration that the run inherits has one."""
    run = yaml.safe_load((ROOT / "examples/nemo_rl/grpo.yaml").read_text())
    assert run["grpo"].get("max_val_samples", "inherited") is None
