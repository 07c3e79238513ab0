"""NeMo RL: its own loader and classes accept the run of the example."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.ecosystem import ROOT, clean

RUN = ROOT / "examples/nemo_rl/grpo.yaml"
READ = """
import json, sys
from omegaconf import OmegaConf
from nemo_rl.algorithms.grpo import MasterConfig
from nemo_rl.environments.nemo_gym import should_use_nemo_gym
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

register_omegaconf_resolvers()
config = MasterConfig(**OmegaConf.to_container(load_config(sys.argv[1]), resolve=True))
found = {"gym": should_use_nemo_gym(config), "model": config.policy["model_name"], "data": config.data["train"]}
found |= {"servers": config.env["nemo_gym"]["config_paths"], "cluster": config.cluster["gpus_per_node"]}
print(json.dumps(found))
"""


@pytest.mark.ecosystem
def test_nemo_rl_accepts_the_run(tmp_path: Path) -> None:
    checkout = Path(os.environ.get("RTL_GYM_NEMO_RL", ""))
    if not (checkout / "nemo_rl").is_dir():
        pytest.skip("NeMo RL is on no package index: RTL_GYM_NEMO_RL must be the folder of a checkout")
    python = os.environ.get("RTL_GYM_NEMO_RL_PYTHON", sys.executable)
    shutil.copytree(checkout / "examples/configs", tmp_path / "configs")
    (tmp_path / "nemo_gym").mkdir()
    place = shutil.copy(RUN, tmp_path / "nemo_gym")
    done = subprocess.run(
        [python, "-c", READ, str(place)],
        env=clean() | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["gym"], found["model"], found["cluster"]) == (True, "Qwen/Qwen3.5-9B", 8)
    assert found["data"] == {"data_path": "results/rtl/train.jsonl"}
    assert found["servers"][-1] == "resources_servers/rtl/configs/rtl.yaml"
