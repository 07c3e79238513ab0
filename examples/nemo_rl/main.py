#!/usr/bin/env python
"""GRPO with NeMo RL: ``environment.yaml`` beside this file is the run, and ``KEY=VALUE`` changes it.

    export NEMO_RL=…                                           # the folder of NeMo RL's checkout
    cd "$NEMO_RL" && uv pip install rtl-agent-gym              # into the environment of its driver
    uv run python …/examples/nemo_rl/main.py [grpo.max_num_steps=1 …]

Everything but the environment and its data set is NeMo RL's.
"""

import sys
from pathlib import Path
from typing import Any

from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
from omegaconf import OmegaConf

RUN = Path(__file__).with_name("environment.yaml")


def read_config(*changes: str) -> Any:
    """The run as NeMo RL's `MasterConfig`, with changes as ``KEY=VALUE``."""
    from nemo_rl.algorithms.grpo import MasterConfig

    register_omegaconf_resolvers()
    config = parse_hydra_overrides(load_config(RUN), list(changes))
    values: Any = OmegaConf.to_container(config, resolve=True)
    return MasterConfig(**values)


def main() -> None:
    """Train."""
    import ray
    from nemo_rl.algorithms.grpo import grpo_train, setup
    from nemo_rl.algorithms.utils import get_tokenizer, set_seed
    from nemo_rl.distributed.virtual_cluster import init_ray
    from nemo_rl.models.generation import configure_generation_config

    from rtl_agent_gym import EpisodeConfig
    from rtl_agent_gym.integrations.nemo_rl import NAME, RTLDataset, RTLEnvironment

    config = read_config(*sys.argv[1:])
    init_ray()
    set_seed(config.grpo.seed)
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    config.policy["generation"] = configure_generation_config(config.policy["generation"], tokenizer)

    options = config.env["rtl"]
    stated = {
        name: value for name, value in options.items() if name == "renderer" or name in EpisodeConfig.model_fields
    }
    train, validation = RTLDataset(tokenizer, "cvdp", keep="fair", **stated), RTLDataset(tokenizer, "bundled", **stated)
    actor = ray.remote(RTLEnvironment).options(num_gpus=0, max_concurrency=256).remote(options)
    environments = {NAME: actor}

    policy, generation, _, _, loader, val_loader, loss, logger, checkpointer, state, config, *_ = setup(
        config, tokenizer, train, validation
    )
    grpo_train(
        policy, generation, loader, val_loader, tokenizer, loss, environments, environments, logger, checkpointer,
        state, config,
    )  # fmt: skip


if __name__ == "__main__":
    main()
