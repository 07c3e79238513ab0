"""TRL's own trainer with a model that samples scripts: prompts, tool calls, rewards and the step are TRL's."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer

from rtl_agent_gym.renderers import ToolCall, get_renderer
from tests.integrations.conformance import Script, ids_of
from tests.sandboxes.providers import kill


def tiny() -> tuple[Any, Any]:
    """A random Qwen3 of a few thousand weights, and the shipped tokenizer with Qwen3's own chat template."""
    import torch
    import transformers

    from rtl_agent_gym.demo.shipped import shipped

    library: Any = transformers
    tokenizer = library.AutoTokenizer.from_pretrained(shipped("student"))
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    tokenizer.chat_template = (Path(spec.origin).parent / "chat_templates" / "qwen3.jinja").read_text()
    torch.manual_seed(0)
    config = library.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=32768, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return library.Qwen3ForCausalLM(config), tokenizer


class ScriptedTrainer(GRPOTrainer):
    """Row N of its one batch samples script N, whose fault happens before the turn that the script says.

    A script that is cut off would go on with the calls of its last turn, which TRL's limit of turns drops.
    """

    def __init__(self, *arguments: Any, scripts: Sequence[Script], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scripts = scripts
        self.texts: list[tuple[list[int], list[int]]] = []
        """Of each episode: all its ids, and the places of those that were sampled."""
        self._live = list(range(len(scripts)))
        self._turn = 0

    def _given(self, row: int, turn: int) -> tuple[ToolCall, ...] | str:
        turns = self.scripts[row].turns
        return turns[min(turn, len(turns) - 1)]

    def sampled(self, row: int, turn: int) -> list[int]:
        """The ids of a turn, which is numbered from 0."""
        return ids_of(self._given(row, turn), get_renderer("qwen3_disable_thinking"), self._tokenizer)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[Any, None]:
        turn, self._turn = self._turn, self._turn + 1
        if turn == 0:
            self.texts = [(list(prompt), []) for prompt in prompt_ids]
        answers = []
        for row, prompt in zip(self._live, prompt_ids, strict=True):
            before, places = self.texts[row]
            assert prompt[: len(before)] == before, "a prompt is not the one before, the sampled ids, and more"
            assert (len(prompt) > len(before)) == (turn > 0)
            if turn + 1 == self.scripts[row].fault_in:
                kill(self.environments[row]._session.episode.sandbox)
            answers.append(self.sampled(row, turn))
            places += range(len(prompt), len(prompt) + len(answers[-1]))
            self.texts[row] = ([*prompt, *answers[-1]], places)
        self._live = [row for row in self._live if not isinstance(self._given(row, turn), str)]
        return answers, None

    def _generate(self, prompts: Any) -> Any:
        self.made = super()._generate(prompts)
        return self.made

    def _calculate_rewards(self, *arguments: Any) -> Any:
        self.rewards = super()._calculate_rewards(*arguments)
        return self.rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.scored = super()._generate_and_score_completions(inputs)
        return self.scored

    def check_tokens(self) -> None:
        """What TRL trains on: the ids of each episode, and of these the sampled ones, which are the scripts'."""
        prompt_ids, completion_ids, mask, *_ = self.made
        for row, (ids, places) in enumerate(self.texts):
            assert prompt_ids[row] + completion_ids[row] == ids
            offset = len(prompt_ids[row])
            assert [offset + place for place, one in enumerate(mask[row]) if one] == places
            turns = range(sum(message["role"] == "assistant" for message in self.made[3][row]))
            assert [ids[place] for place in places] == list(chain(*(self.sampled(row, turn) for turn in turns)))


def settings(folder: Path, episodes: int, turns: int) -> GRPOConfig:
    """Of a trainer that plays so many episodes in one step."""
    return GRPOConfig(
        output_dir=str(folder), max_steps=1, num_generations=episodes, per_device_train_batch_size=episodes,
        max_tool_calling_iterations=turns, max_completion_length=20000, logging_steps=1, report_to=[], use_cpu=True,
        bf16=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
