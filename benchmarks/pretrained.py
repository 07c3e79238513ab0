"""A pretrained model: supervised training on transcripts, then distillation from itself, or a reward.

``sft`` comes first. ``teacher`` measures what the model could learn from: the weights after ``sft`` with the reference
solution in the prompt. The others start from these weights and are compared with them on the same held-out problems.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from deceived import another_reference
from learning_options import NO_TEACHER, SELF, changed, final_weights, played, summary

from research.episodes import COMPILE, COMPILED, DONE, NO_OUTPUT, READ, write
from rtl_agent_gym import Problem, load_problems
from rtl_agent_gym.demo.jobs import train, train_sft
from rtl_agent_gym.demo.smollm import SMOLLM, SYSTEM_PROMPT
from rtl_agent_gym.engines.models import without_progress_bars
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.episodes.prompt import open_prompt
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, Summary
from rtl_agent_gym.evaluation.results import read_results
from rtl_agent_gym.evaluation.statistics import compare
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.protocol import Completion
from rtl_agent_gym.policies.sampler import TokenSamplerPlayer, TokenSamplerPolicy, local_policy
from rtl_agent_gym.prompts import build_prompt, with_reference
from rtl_agent_gym.renderers import Renderer, ToolCall, get_renderer
from rtl_agent_gym.renderers.protocol import TOOL
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.sources.families import SPECIFICATION
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.sft.data import encode, read_demonstrations

REFERENCES = 0.3
"""Share of the transcripts with a reference solution in the prompt, since the model will be its own teacher."""
WARM_START = {"batch_size": 4, "learning_rate": 2e-4, "warmup_steps": 5, "lr_schedule": "linear", "resume_every": 30}
DISTILLED = SELF | {
    "batch_size": 16,
    "group_size": 1,
    "kl_top_k": 8,
    "kl_clip": None,
    "num_substeps": 4,
    "warmup_steps": 2,
}
"""One episode of each problem: a teacher judges each episode alone, and those of different problems differ more. The
student agrees with it on nearly all tokens, so the KL covers all likely tokens, and Adam's first steps, whose size does
not depend on the gradient's, are kept small."""
FOLLOWING: dict[str, dict[str, Any]] = {
    **{f"self-{rate}": DISTILLED | {"learning_rate": rate} for rate in ("5e-6", "2e-5", "5e-5", "1e-4")},
    "another-reference": DISTILLED | {"learning_rate": "1e-4"},
    "reward": NO_TEACHER | {"learning_rate": "3e-5", "num_steps": 16, "warmup_steps": 4},
}
"""Options of the runs that start from the weights after ``sft``, on top of `SMOLLM.defaults`."""
PRETRAINED = {
    "sft": "supervised training on transcripts",
    "teacher": "these weights with the reference solution in the prompt",
    "self-5e-6": "then distillation from itself with the reference solution in the prompt, rate 5e-6",
    "self-2e-5": "the same, rate 2e-5",
    "self-5e-5": "the same, rate 5e-5",
    "self-1e-4": "the same, rate 1e-4",
    "another-reference": "control: the same, with the reference solution of another problem",
    "reward": "instead the reward alone, rate 3e-5, 16 steps",
}
EPISODE = EpisodeConfig(
    system_prompt=SYSTEM_PROMPT,
    max_turns=SMOLLM.defaults["max_turns"],
    command_timeout=SMOLLM.defaults["timeout_seconds"],
)


class WithReference(TokenSamplerPolicy):
    """A model that reads the problem's reference solution at the end of its prompt."""

    def __init__(self, policy: TokenSamplerPolicy) -> None:
        super().__init__(policy.sampler, name=f"{policy.name} with references", options=policy.options)

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> TokenSamplerPlayer:
        """A player of one episode."""
        opening = open_prompt(problem, EPISODE, renderer)
        told = with_reference(opening.user, problem.golden or {})
        return _Told(self, renderer, seed, renderer.initial_ids(opening.system, told))


class _Told(TokenSamplerPlayer):
    def __init__(self, policy: WithReference, renderer: Renderer, seed: int | None, prompt: Sequence[int]) -> None:
        super().__init__(policy, renderer, seed)
        self._prompt = prompt

    async def sample(self, tokens: TokenTranscript) -> Completion | None:
        told = TokenTranscript(self._prompt)
        for segment in tokens.segments[1:]:
            (told.add_action if segment.sampled else told.append)(segment.ids)
        return await super().sample(told)


def held_out(seed: int, count: int) -> str:
    """The held-out problems of a seed."""
    return f"family:registers?count={count}&seed={seed + 1}&split=combinations"


def pretrained(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do or continue a run of `PRETRAINED`. The others need ``sft`` and do it first."""
    problems = held_out(seed, sizes.held_out)
    start, folder = sizes.folder / f"smollm2-sft-{seed}", sizes.folder / f"smollm2-{name}-{seed}"
    shared = {option: SMOLLM.defaults[option] for option in ("local_batch", "local_batch_tokens")}
    shared |= {
        "engine": "local",
        "student_model": SMOLLM.name,
        "seed": seed,
        "held_out": problems,
        "eval_every": 0,
        "save_every": 0,
    }
    episodes = sizes.folder / f"smollm2-{seed}.jsonl"
    demonstrated = f"family:registers?count={sizes.transcripts}&seed={seed + 101}&split=train"
    write_transcripts(episodes, demonstrated, REFERENCES, seed)
    warm_start = shared | WARM_START | {"episodes": str(episodes), "log_path": str(start)}
    outcome = train_sft(warm_start | changed(sizes, SftOptions))  # continues it if it is not finished
    if name == "teacher":
        begun = time.monotonic()
        found = play_with_references(final_weights(start), problems, seed)
        rate = {"after": found.passed / found.episodes, "episodes": found.episodes}
        return {"seed": seed, **rate, "seconds": round(time.monotonic() - begun)}
    against = {}
    if name != "sft":
        checkpoint = RunFolder(start).checkpoints()[-1]["state_path"]
        source = f"family:registers?count=400&seed={seed + 1}&split=train"
        options = {"cvdp_jsonl_path": source, "load_checkpoint_path": checkpoint, "log_path": str(folder)}
        options |= FOLLOWING[name]
        if name == "another-reference":
            options["teacher_context"] = f"hints:{another_reference(source, folder)}"
        outcome = train(shared | options | changed(sizes))
        against = paired(start, folder)
    references = sizes.folder / f"smollm2-references-{seed}.jsonl"
    return (
        summary(outcome, seed)
        | against
        | {
            "nll": reference_nll(final_weights(folder), problems, references),
            "weights": str(final_weights(folder)),
            "curve": [round(row["pass_rate"], 3) for row in outcome.metrics if "pass_rate" in row],
        }
    )


def note_of_reset(design: str) -> str:
    """A comment that names the kind of a register's reset, to be put before the design; empty without a reset.

    The kind is needed after ``@(posedge clk``. A model of this size hardly learns to look it up in the specification
    there, because the preceding name leads it to another line. With the comment, it first copies the words, and then
    reads them from the comment.
    """
    found = re.search(r"@\(posedge \w+( or \w+ \w+)?\)\s+if \((!?)\w+\)", design)
    if found is None:
        return ""
    kind, level = "asynchronous" if found[1] else "synchronous", "low" if found[2] else "high"
    return f"// The reset is {kind} and active {level}.\n"


def demonstrations(source: str, *, references: float = 0.0, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Episodes that write the reference solutions, in the format of ``rtl-agent-gym export`` for supervised training.

    The model has never written Verilog in a shell, so it is trained on some of these before it can learn from its own
    episodes. Nothing is run: the outputs are what the real shell prints.

    Args:
        source: Generated problems, such as ``family:registers?count=400``.
        references: Share of the episodes whose prompt has a reference solution, which the design follows. A model that
            is to be its own teacher must know such prompts. Half of these solutions are of another problem: otherwise
            the model could ignore them and read the specification.
        seed: Seed for the choice of these episodes.

    Raises:
        UsageError: There is no such source, or its problems have no reference solution.
    """
    rng, before = random.Random(seed), None
    for problem in load_problems(source):
        if not problem.golden or SPECIFICATION not in problem.context:
            raise UsageError(f"{problem.id} has no {SPECIFICATION} or solution; give a source such as family:registers")
        prompt, design = build_prompt(problem)[1], dict(problem.golden)
        if rng.random() < references:
            design = dict(before.golden or {}) if before and rng.random() < 0.5 else design
            prompt = with_reference(prompt, design)
        before = problem
        noted = {path: note_of_reset(text) + text for path, text in design.items()}
        turns = [(READ, problem.context[SPECIFICATION]), (write(noted), NO_OUTPUT), (COMPILE, COMPILED)]
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        for number, (command, output) in enumerate(turns, 1):
            made, id_ = ToolCall.of(command), f"call_{number}_1"
            function = {"name": made.name, "arguments": made.arguments}
            messages.append(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": id_, "type": "function", "function": function}],
                }
            )
            messages.append({"role": "tool", "tool_call_id": id_, "content": output})
        messages.append({"role": "assistant", "content": DONE})
        yield {"messages": messages, "tools": [TOOL], "metadata": {"problem_id": problem.id, "passed": True}}


def write_transcripts(path: Path, source: str, references: float, seed: int) -> None:
    """Write the transcripts of a source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = demonstrations(source, references=references, seed=seed)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def play_with_references(weights: Path, problems: str, seed: int) -> Summary:
    """Play problems with these weights and each problem's reference solution in the prompt.

    Raises:
        SandboxError: An episode has no verdict.
    """
    options = ModelOptions(
        max_tokens=SMOLLM.defaults["max_tokens"], max_context=SMOLLM.defaults["max_trajectory_tokens"]
    )
    policy = local_policy(str(weights), options)
    config = EvaluationConfig(
        problems=problems,
        renderer=get_renderer(SMOLLM.renderer, policy.tokenizer),
        keep=False,
        seed=seed,
        episode=EPISODE,
        concurrency=32,
    )
    return played(config, WithReference(policy), policy)


def paired(start: Path, folder: Path) -> dict[str, Any]:
    """The gain of a run over the run that it started from, on the same held-out problems, and its p-value."""

    def verdicts(run: Path) -> dict[str, tuple[int, int]]:
        last = max(path for path in (run / "evaluations").iterdir() if path.name.endswith("-test"))
        return {
            result.problem_id: (int(result.score.passed), 1)
            for result in read_results(last)
            if result.score is not None
        }

    found = compare(verdicts(start), verdicts(folder))
    return {} if found is None else {"gained": found.difference, "p": found.p_value}


def reference_nll(weights: Path, source: str, episodes: Path) -> float:
    """Mean negative log-likelihood, in nats per token, of the model's turns in the right episodes.

    Args:
        weights: Folder of a model.
        source: The problems.
        episodes: The file to which their transcripts are written.

    Raises:
        UsageError: A logit is not finite.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_transcripts(episodes, source, 0.0, 0)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    with without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    renderer, total, count = get_renderer(SMOLLM.renderer, tokenizer), 0.0, 0
    options = SftOptions.build({"episodes": str(episodes)})
    with torch.inference_mode():
        for demonstration in read_demonstrations(options, Counter()):
            episode = encode(demonstration, renderer)
            assert episode is not None
            ids, own = torch.tensor([episode.tokens]), torch.tensor(episode.mask[1:], dtype=torch.bool)
            hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0, own]
            losses = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[0, 1:][own], reduction="sum")
            total, count = total + float(losses), count + int(own.sum())
    if not torch.tensor(total).isfinite():
        raise UsageError(f"{weights}: the model's logits are not finite; are its weights damaged?")
    return round(total / count, 4)
