#!/usr/bin/env python3
"""What rendering costs over a long episode: appending ids, or rendering the parsed history again in each turn.

    .venv/bin/python benchmarks/rendering.py [--turns 50] [--tokens 32000] [--repeats 5] [--json]

Both sides get the same sampled ids and the same outputs, turn by turn, without a sandbox or a model. "Ours" is
`Renderer.parse_ids`, `Renderer.observation_ids` and `TokenTranscript.model_input`; the other side is tinker-cookbook's
`EnvFromMessageEnv` with its own renderer of the same model family. Times are for rendering the whole episode, the best
of the repeats; compare only ratios within one run. ``datums`` is the number of training examples that the cookbook
makes of the episode; more than one means that prompts did not extend what was sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import warnings
from collections.abc import Sequence
from typing import Any

import tinker
from rich.console import Console
from rich.table import Table
from tinker_cookbook import renderers as theirs
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Trajectory, Transition

from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.protocol import TOOL, TOOL_NAME
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer

SYSTEM, USER = "You are a digital design engineer.", "Build the arbiter of docs/spec.md."
FAMILIES = {"qwen3": "qwen3", "gpt_oss": "gpt_oss_medium_reasoning"}
"""Our renderer's name, and the cookbook's."""


class Vocabulary:
    """Harmony's encoding with the tokenizer methods that the cookbook's gpt-oss renderer needs."""

    name_or_path = ""

    def __init__(self) -> None:
        self._encoding = harmony_encoding()

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids: list[int]) -> str:
        return str(self._encoding.decode(ids))


class Shell(MessageEnv):
    """A message environment that replies to each turn with the next prepared output."""

    def __init__(self, opening: list[theirs.Message], outputs: Sequence[str]) -> None:
        self._history, self._outputs, self._turn = list(opening), outputs, 0

    async def initial_observation(self) -> list[theirs.Message]:
        return self._history

    async def step(self, message: theirs.Message) -> MessageStepResult:
        output = self._outputs[self._turn]
        self._turn += 1
        self._history += [message, {"role": "tool", "content": output, "name": TOOL_NAME}]
        return MessageStepResult(reward=0.0, episode_done=False, next_messages=self._history)


def prepare(name: str, turns: int, tokens: int) -> tuple[list[list[int]], list[str]]:
    """Actions as a model would sample them, and outputs, for an episode of `turns` turns and about `tokens` tokens."""
    rng = random.Random(0)
    share = tokens * 9 // 7 // turns  # the words below take a little less than two tokens each
    words = ["grant", "valid", "request", "priority", "8'd0", "<=", "always_ff", "posedge", "clk", "reset", "\n", "漢"]

    def text(size: int) -> str:
        return " ".join(rng.choice(words) for _ in range(size // 2))

    actions, outputs = [], []
    for _ in range(turns):
        thought, arguments = text(share // 6), json.dumps({"command": text(share // 4)}, ensure_ascii=False)
        if name == "qwen3":
            spoken = (
                f'<think>\n{thought}\n</think>\n\n<tool_call>\n{{"name": "{TOOL_NAME}", "arguments": {arguments}}}\n'
            )
            actions.append(list(qwen3_tokenizer().encode(spoken + "</tool_call><|im_end|>").ids))
        else:
            call = f"<|channel|>commentary to=functions.{TOOL_NAME} <|constrain|>json<|message|>{arguments}<|call|>"
            spoken = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant{call}"
            actions.append(list(harmony_encoding().encode(spoken, allowed_special="all")))
        outputs.append(text(share // 2))
    return actions, outputs


def append(renderer: Renderer, actions: list[list[int]], outputs: list[str]) -> tuple[float, list[tinker.ModelInput]]:
    """Seconds that appending takes, and the prompt of each turn."""
    begun = time.perf_counter()
    transcript = TokenTranscript(renderer.initial_ids(SYSTEM, USER))
    prompts = [transcript.model_input()]
    for ids, output in zip(actions, outputs, strict=True):
        action = renderer.parse_ids(ids)
        assert len(action.commands) == 1, action
        transcript.add_action(ids)
        transcript.append(renderer.observation_ids([output], ids))
        prompts.append(transcript.model_input())
    return time.perf_counter() - begun, prompts


async def rerender(
    renderer: theirs.Renderer, actions: list[list[int]], outputs: list[str]
) -> tuple[float, list[tinker.ModelInput]]:
    """Seconds that the cookbook's rendering takes, and the prompt of each turn."""
    tool: theirs.ToolSpec = TOOL["function"]
    begun = time.perf_counter()
    opening = renderer.create_conversation_prefix_with_tools([tool], SYSTEM)
    env = EnvFromMessageEnv(renderer, Shell([*opening, {"role": "user", "content": USER}], outputs))
    observation = await env.initial_observation()
    assert isinstance(observation, tuple)
    prompts = [observation[0]]
    for ids in actions:
        result = await env.step(ids)
        assert not result.episode_done, result
        prompts.append(result.next_observation)
    return time.perf_counter() - begun, prompts


def datums(prompts: list[tinker.ModelInput], actions: list[list[int]]) -> int:
    """The number of training examples that the cookbook makes of the episode."""
    transitions = [
        Transition(
            ob=prompt,
            ac=TokensWithLogprobs(tokens=ids, maybe_logprobs=[0.0] * len(ids)),
            reward=0.0,
            episode_done=False,
        )
        for prompt, ids in zip(prompts, actions, strict=False)
    ]
    return len(trajectory_to_data(Trajectory(transitions=transitions, final_ob=prompts[-1]), 1.0))


def measure(name: str, turns: int, tokens: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each fifth of the episode, to show how costs grow."""
    if name == "qwen3":
        from transformers import PreTrainedTokenizerFast

        wrap: Any = PreTrainedTokenizerFast
        vocabulary: Any = wrap(tokenizer_object=qwen3_tokenizer(), eos_token="<|im_end|>")
    else:
        vocabulary = Vocabulary()
    ours = get_renderer(name, qwen3_tokenizer() if name == "qwen3" else None)
    other = theirs.get_renderer(FAMILIES[name], vocabulary)
    actions, outputs = prepare(name, turns, tokens)
    rows = []
    for part in range(1, 6):
        n = turns * part // 5
        mine = [append(ours, actions[:n], outputs[:n]) for _ in range(repeats)]
        cookbooks = [asyncio.run(rerender(other, actions[:n], outputs[:n])) for _ in range(repeats)]
        (appending, prompts), (rerendering, their_prompts) = (
            min(runs, key=lambda run: run[0]) for runs in (mine, cookbooks)
        )
        rows.append(
            {
                "renderer": name,
                "turns": n,
                "tokens": prompts[-1].length,
                "ours_s": appending,
                "cookbook_s": rerendering,
                "ratio": rerendering / appending,
                "ours_ms_per_turn": 1e3 * appending / n,
                "cookbook_ms_per_turn": 1e3 * rerendering / n,
                "ours_datums": datums(prompts, actions[:n]),
                "cookbook_datums": datums(their_prompts, actions[:n]),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for name in FAMILIES for row in measure(name, options.turns, options.tokens, options.repeats)]
    if options.json:
        print(json.dumps(rows))
        return
    table = Table(title="Rendering an episode: appending, and the cookbook's rendering of the whole history")
    for heading in (
        "renderer",
        "turns",
        "tokens",
        "ours ms",
        "cookbook ms",
        "ratio",
        "ours ms/turn",
        "cookbook ms/turn",
    ):
        table.add_column(heading, justify="left" if heading == "renderer" else "right")
    table.add_column("datums ours / cookbook", justify="right")
    for row in rows:
        table.add_row(
            row["renderer"],
            str(row["turns"]),
            f"{row['tokens']:,}",
            f"{1e3 * row['ours_s']:.1f}",
            f"{1e3 * row['cookbook_s']:.1f}",
            f"{row['ratio']:.1f}",
            f"{row['ours_ms_per_turn']:.2f}",
            f"{row['cookbook_ms_per_turn']:.2f}",
            f"{row['ours_datums']} / {row['cookbook_datums']}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
