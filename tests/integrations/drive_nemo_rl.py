"""Plays a script with NeMo RL's own rollout, and reads the run of ``examples/nemo_rl``; needs NeMo RL's source."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch

from rtl_agent_gym.renderers import ModelTurn, get_renderer
from tests.integrations.conformance import Script, gray


def _example() -> Any:
    path = Path(__file__).resolve().parents[2] / "examples/nemo_rl/main.py"
    spec = importlib.util.spec_from_file_location("nemo_rl_main", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["nemo_rl_main"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(*changes: str) -> dict[str, Any]:
    """What NeMo RL's own loader and classes make of the run."""
    config = _example().read_config(*changes)
    policy, generation = config.policy, config.policy["generation"]
    return {
        "env": config.env["rtl"],
        "model": [policy["model_name"], policy["max_total_sequence_length"], generation["vllm_cfg"]["max_model_len"]],
        "batch": [config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt],
        "train_global_batch_size": policy["train_global_batch_size"],
        "gpus": config.cluster["gpus_per_node"],
    }


class Generation:
    """Samples the turns of a script as token ids, as NeMo RL's `GenerationInterface` returns them."""

    def __init__(self, script: Script, tokenizer: Any, renderer: Any, cfg: dict[str, Any]) -> None:
        self.cfg = cfg
        self._script, self._tokenizer, self._renderer = script, tokenizer, renderer
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []

    async def generate_async(self, data: Any, greedy: bool = False) -> Any:
        """The next turn of the script, for the one sample."""
        from nemo_rl.distributed.batched_data_dict import BatchedDataDict

        given = self._script.turns[len(self.prompts)]
        text = self._renderer.turn_text(ModelTurn(text=given) if isinstance(given, str) else ModelTurn(calls=given))
        ids = self._tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        prompt = data["input_ids"][0][: int(data["input_lengths"][0])].tolist()
        self.prompts.append(prompt)
        self.sampled.append(list(ids))
        output = torch.tensor([prompt + ids])
        answer: Any = BatchedDataDict(
            {
                "output_ids": output,
                "logprobs": torch.full(output.shape, -0.5),
                "generation_lengths": torch.tensor([len(ids)]),
                "unpadded_sequence_lengths": torch.tensor([output.shape[1]]),
            }
        )
        yield 0, answer


def play(script: Script, tokenizer: str) -> dict[str, Any]:
    """What NeMo RL's rollout returns of a row of the data set, with the run's options."""
    from nemo_rl.data.collate_fn import rl_collate_fn
    from nemo_rl.experience.rollouts import run_async_multi_turn_rollout
    from transformers import AutoTokenizer

    from rtl_agent_gym.integrations.nemo_rl import NAME, RTLDataset, RTLEnvironment

    config = _example().read_config()
    options = config.env["rtl"]
    encoder: Any = AutoTokenizer.from_pretrained(tokenizer)
    rows = RTLDataset(encoder, renderer=options["renderer"])
    [row] = [
        row for row in (rows[index] for index in range(len(rows))) if row["extra_env_info"]["problem_id"] == gray().id
    ]
    generation: Any = Generation(script, encoder, get_renderer(options["renderer"]), config.policy["generation"])
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": dict(os.environ)})
    try:
        remote: Any = ray.remote(RTLEnvironment)
        actor = remote.options(max_concurrency=4).remote(options)
        batch, metrics = run_async_multi_turn_rollout(
            generation, rl_collate_fn([row]), encoder, {NAME: actor}, 32768, config.grpo.max_rollout_turns
        )
        ray.get(actor.shutdown.remote())
    finally:
        ray.shutdown()
    [log] = batch["message_log"]
    return {
        "reward": float(batch["total_reward"][0]),
        "terminated": metrics["natural_termination_rate"],
        "roles": [message["role"] for message in log],
        "trained": [message["token_ids"].tolist() for message in log if message["role"] == "assistant"],
        "prompts": generation.prompts,
        "sampled": generation.sampled,
        "told": [message["content"] for message in log if message["role"] == "environment"],
    }
