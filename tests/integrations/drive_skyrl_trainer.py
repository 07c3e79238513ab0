"""Plays a script through the generator of SkyRL's trainer with an engine of token ids; runs where that is installed."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from transformers import AutoTokenizer

from rtl_agent_gym.integrations.skyrl import register, rows
from rtl_agent_gym.renderers import get_renderer
from tests.integrations.conformance import Script, gray, ids_of

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples/skyrl/grpo.py"))
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGPROB = -0.5


def parsed() -> dict[str, Any]:
    """What SkyRL makes of the example's run, and of one with an option of the environment."""
    run, other = (EXAMPLE["read_options"](options) for options in ([], ["environment.skyrl_gym.rtl.problems=bundled"]))
    return {
        "environment": run.environment.skyrl_gym.rtl,
        "other": other.environment.skyrl_gym.rtl,
        "model": run.trainer.policy.model.path,
        "engines": run.generator.inference_engine.num_engines,
    }


class Engine:
    """Answers turn N of its one conversation with the ids of a script's turn N."""

    def __init__(self, turns: list[list[int]], tokenizer: Any) -> None:
        self.turns, self.tokenizer = turns, tokenizer
        self.prompts: list[list[int]] = []

    async def generate(self, asked: Any, **_: Any) -> dict[str, Any]:
        """See SkyRL's `InferenceEngineInterface`."""
        [prompt] = asked["prompt_token_ids"]
        ids = self.turns[len(self.prompts)]
        self.prompts.append(list(prompt))
        text = self.tokenizer.decode(ids[:-1])
        logprobs = [[LOGPROB] * len(ids)]
        return {
            "responses": [text],
            "response_ids": [list(ids)],
            "stop_reasons": ["stop"],
            "response_logprobs": logprobs,
        }

    async def finish_session(self, *_: Any, **__: Any) -> None:
        """Nothing is kept for a session."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"SkyRL's generator asks its engine for {name}")


def play(script: Script, folder: str) -> dict[str, Any]:
    """The trajectory of a script."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    renderer = get_renderer("qwen3_disable_thinking")
    turns = [ids_of(turn, renderer, tokenizer) for turn in script.turns]
    options = ["problems=bundled", "renderer=qwen3_disable_thinking"]
    config = EXAMPLE["read_options"](
        [*(f"environment.skyrl_gym.rtl.{option}" for option in options), "generator.chat_template_kwargs={}"]
    )
    register()
    [row] = [row for row in rows("bundled") if row["problem_id"] == gray().id]
    engine = Engine(turns, tokenizer)
    generator = SkyRLGymGenerator(config.generator, config.environment.skyrl_gym, engine, tokenizer)
    extras = {key: value for key, value in row.items() if key not in ("prompt", "env_class")}
    batch = {"prompts": [row["prompt"]], "env_classes": ["rtl"], "env_extras": [extras]}
    found = asyncio.run(generator.generate(batch, disable_tqdm=True))
    return {
        "rewards": found["rewards"][0],
        "ids": found["response_ids"][0],
        "mask": found["loss_masks"][0],
        "logprobs": found["rollout_logprobs"][0],
        "sampled": turns,
        "metrics": {name: float(value) for name, value in (found["rollout_metrics"] or {}).items()},
    }
