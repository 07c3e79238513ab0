"""GRPO with SkyRL's own trainer: Qwen3.5-9B on CVDP's agentic rows, 8 GPUs of one machine.

    uv pip install "skyrl[fsdp]==0.3.0" "rtl-agent-gym[skyrl]"
    python examples/skyrl/grpo.py [NAME=VALUE ...]

The options are SkyRL's, and override those of `RUN`. ``environment.skyrl_gym.rtl.NAME`` sets an option of the
environment: ``problems``, ``attempts``, or an argument of `CVDPAgenticEnv`.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.config.config import EnvironmentConfig, SkyRLGymConfig
from skyrl.train.utils import validate_cfg

from rtl_agent_gym.integrations.skyrl import register, rows

TRAIN, VALIDATION = Path("runs/skyrl/train.jsonl"), Path("runs/skyrl/validation.jsonl")
"""The data sets, written before the run: rows of CVDP that are known to be fair, and the bundled problems."""

RUN = """
data.train_data=['runs/skyrl/train.jsonl']
data.val_data=['runs/skyrl/validation.jsonl']
trainer.strategy=fsdp
trainer.policy.model.path=Qwen/Qwen3.5-9B
trainer.policy.language_model_only=true
trainer.policy.optimizer_config.lr=1e-6
trainer.placement.colocate_all=true
trainer.placement.policy_num_gpus_per_node=8
trainer.placement.ref_num_gpus_per_node=8
trainer.algorithm.advantage_estimator=grpo
trainer.algorithm.use_kl_loss=false
trainer.epochs=20
trainer.logger=console
trainer.train_batch_size=16
trainer.policy_mini_batch_size=16
trainer.micro_forward_batch_size_per_gpu=1
trainer.micro_train_batch_size_per_gpu=1
trainer.max_prompt_length=8192
trainer.eval_interval=20
trainer.ckpt_interval=20
trainer.ckpt_path=runs/skyrl/checkpoints
generator.inference_engine.num_engines=8
generator.inference_engine.tensor_parallel_size=1
generator.inference_engine.backend=vllm
generator.inference_engine.language_model_only=true
generator.inference_engine.engine_init_kwargs={max_model_len:32768}
generator.n_samples_per_prompt=8
generator.max_turns=50
generator.max_input_length=28672
generator.sampling_params.max_generate_length=4096
generator.sampling_params.logprobs=0
generator.eval_sampling_params.max_generate_length=4096
generator.batched=false
generator.chat_template_kwargs={enable_thinking:true}
environment.env_class=rtl
environment.skyrl_gym.max_env_workers=128
environment.skyrl_gym.rtl.problems=cvdp
environment.skyrl_gym.rtl.renderer=qwen3.5
environment.skyrl_gym.rtl.max_turns=50
environment.skyrl_gym.rtl.command_timeout=30
"""


@dataclass
class GymConfig(SkyRLGymConfig):
    """SkyRL's options of its environments, and those of the environment ``rtl``."""

    rtl: dict[str, Any] = field(default_factory=dict)


@dataclass
class Environment(EnvironmentConfig):
    """SkyRL's section ``environment``, with `GymConfig`."""

    skyrl_gym: GymConfig = field(default_factory=GymConfig)


@dataclass
class Config(SkyRLTrainConfig):
    """All options of SkyRL, with `Environment`."""

    environment: Environment = field(default_factory=Environment)


def read_options(arguments: list[str]) -> Config:
    """The options of the run, checked by SkyRL. Raises SkyRL's errors."""
    config = Config.from_cli_overrides([*RUN.split("\n")[1:-1], *arguments])
    validate_cfg(config)
    return config


def main() -> None:
    """Write the data sets, and train."""
    import ray
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.utils.utils import initialize_ray

    config = read_options(sys.argv[1:])
    options = dict(config.environment.skyrl_gym.rtl)
    source = options["problems"]
    for path, found in (
        (TRAIN, rows(source, keep="fair" if source == "cvdp" else "all")),
        (VALIDATION, rows("bundled")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in found))

    @ray.remote(num_cpus=1)
    def train() -> None:
        register()
        BasePPOExp(config).run()

    initialize_ray(config)
    ray.get(train.remote())


if __name__ == "__main__":
    main()
