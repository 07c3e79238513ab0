"""The runs of a student whose initial random weights differ from its teacher's, on problems whose files must be read.

The models are in the package; `scripts/make_spelled_models.py` makes others. Every run is evaluated on held-out
problems of all splits, and on problems whose files lie.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deceived import lying_document, reading_something_else
from learning_options import NO_TEACHER, Run, changed, evaluate_all, given, local_config, summary

from research.spelled import Spelled, play
from rtl_agent_gym.demo import shipped
from rtl_agent_gym.demo.jobs import train, train_sft
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.results import read_results
from rtl_agent_gym.policies.sampler import files_digest
from rtl_agent_gym.renderers import ToolCall
from rtl_agent_gym.renderers.protocol import TOOL
from rtl_agent_gym.sources.families import FAMILIES, draw_members
from rtl_agent_gym.sources.families.looking import LookingFamily
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.run_folder import RunFolder

FAMILY = "accumulators"
SPLITS = ("wordings", "names", "sizes", "operations")
LIES = ("documents", "smoke")
PICTURE = {
    "combinations": "other\ncombinations",
    "names": "other\nnames",
    "operations": "other\noperations",
    "sizes": "larger\nsizes",
    "wordings": "other\nwordings",
    "lied-documents": "documents\nlie",
    "lied-smoke": "smoke test\nlies",
}
"""The splits in the plot of a run, with their labels."""
TRAINED = 2000
"""Number of problems that a run is trained on. With 400, the student probably memorized some of them."""
ROUNDS, PLAYED, EPOCHS = 2, 1000, 4
"""Rejection sampling: rounds, episodes of each, and how often those that passed are trained on. The runs with a reward
play 4,160 episodes."""
_BUDGET = {"kl_budget": shipped.SPELLED.defaults["kl_budget"]}
_NOT_SHARED = ("student_model", "teacher_model", "cvdp_jsonl_path", "kl_budget", "log_path")
OPTIONS: dict[str, Any] = {
    **{name: value for name, value in shipped.SPELLED.defaults.items() if name not in _NOT_SHARED},
    "engine": "local",
    "renderer_name": RENDERER,
    "teacher_renderer_name": RENDERER,
    "system_prompt": "@/dev/null",  # the empty text
    "reward": "proxy",
}
"""The options of these models' demonstration job. Controls have no KL budget, since it could hide their effect."""
_TESTED = {"reward": "default", "batch_size": 4, "group_size": 8}
_REWARD = {**NO_TEACHER, **_TESTED, "reward": "dense", "learning_rate": 4e-4}
"""At the job's learning rate, which is 2.5 times as large, the pass rate rises for 50 steps and falls again.

With documents that lie, no episode passes. The default reward would then be equal for all, and its gradient zero, so
the control could not fail. The share of hidden tests that pass differs from episode to episode."""


@dataclass(frozen=True)
class SpelledRun:
    """What a run learns from."""

    what: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lie: str = ""
    """Which files lie in the problems that it is trained on; empty for none."""
    deceived: bool = False
    """Whether its teacher reads another document than the student."""


SPELLED = {
    "spelled-following": SpelledRun("distillation from a teacher with other weights", _BUDGET),
    "spelled-self": SpelledRun(
        "distillation from itself with the reference solution in the prompt",
        {"teacher_model": "self", "teacher_renderer_name": None, "teacher_context": "reference", **_BUDGET},
    ),
    "spelled-reward": SpelledRun("the reward alone", _REWARD),
    "spelled-both": SpelledRun("the reward and the teacher", {**_TESTED, "reward_coef": 1.0, **_BUDGET}),
    "spelled-rejection": SpelledRun("rejection sampling: in rounds, supervised training on own episodes that passed"),
    "spelled-third": SpelledRun("a third round of rejection sampling"),
    "spelled-unselected": SpelledRun("control: the same with as many own episodes, whether they passed or not"),
    "spelled-sft": SpelledRun("supervised training on right episodes"),
    "spelled-negated": SpelledRun("control: the KL with the opposite sign", {"control": "negated_kl"}),
    "spelled-permuted": SpelledRun(
        "control: rewards permuted between problems", {**_REWARD, "control": "permuted_rewards"}
    ),
    "spelled-document": SpelledRun("control: the teacher reads a document with other values", deceived=True),
    "spelled-lied-documents": SpelledRun("control: the reward alone, and documents that lie", _REWARD, "documents"),
    "spelled-lied-smoke": SpelledRun("the reward alone, and a smoke test that lies", _REWARD, "smoke"),
}
"""The runs by their name on the command line. Controls take as many steps as the runs that they are compared with."""


def spelled(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do or continue a run, and return its result."""
    run = SPELLED[name]
    problems = source(TRAINED, seed, "train")
    if name in ("spelled-rejection", "spelled-third", "spelled-unselected"):
        return rejection(name, seed, sizes)
    if name == "spelled-sft":
        episodes = sizes.folder / f"{name}-{seed}.jsonl"
        episodes.parent.mkdir(parents=True, exist_ok=True)
        episodes.write_text("".join(json.dumps(row) + "\n" for row in right_episodes(problems)))
        return summary(train_sft(_supervised(name, seed, sizes, episodes)), seed)
    options = options_of(name, seed, sizes)
    extra = options["extra_held_out"]
    deceived: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if run.deceived:
        deceived = reading_something_else(lying_document(problems), options["teacher_model"])
    with deceived:
        outcome = train(options)
    first, last = outcome.metrics[0], outcome.metrics[-1]
    return summary(outcome, seed) | {
        "split_episodes": last[f"test/{next(iter(extra))}/episodes"],
        "splits_before": {split: first[f"test_before/{split}/pass_rate"] for split in extra},
        "splits": {split: last[f"test/{split}/pass_rate"] for split in extra},
        "curve": [round(row["pass_rate"], 3) for row in outcome.metrics if "pass_rate" in row],
        "kl": [round(row["teacher_kl"], 4) for row in outcome.metrics if "teacher_kl" in row],
    }


def rejection(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Play problems, train on the episodes that passed, and again with the new weights. Each round has new problems.

    The control ``spelled-unselected`` trains on as many episodes, drawn from all that were played. The run
    ``spelled-third`` adds a round to those of ``spelled-rejection``, in the same folder. Rounds that are finished are
    not repeated; ``seconds`` are those of the last sitting.
    """
    begun, rounds, after = time.monotonic(), ROUNDS, "after"
    if name == "spelled-third":
        name, rounds, after = "spelled-rejection", ROUNDS + 1, "after-third"
    folder = sizes.folder / f"{name}-{seed}"
    model, state, steps, curve = Path(folder_of(sizes.models, "student")), dict[str, str](), 0, list[float]()

    def share(problems: str, what: str) -> float:
        """The share of episodes that pass."""
        config = local_config(model, problems, folder / what, OPTIONS["max_turns"], concurrency=16, seed=seed)
        found = asyncio.run(evaluate_all(config)).summary
        return found.passed / found.finished

    held_out = {"combinations": sizes.held_out} | dict.fromkeys(SPLITS, max(1, sizes.held_out // 4))
    before = share(source(sizes.held_out, seed, "combinations"), "before")
    for number in range(rounds):
        played = folder / f"episodes-{number}"
        # Seeds of problems above 1000 are used by no other run.
        curve.append(share(source(PLAYED, seed + 1000 * (number + 1), "train"), played.name))
        options = _supervised(name, seed, sizes, played) | state
        if name == "spelled-unselected":
            episodes = sorted(read_results(played), key=lambda result: result.problem_id)
            passed = sum(result.score is not None and result.score.passed for result in episodes)
            drawn = random.Random(seed).sample(episodes, passed)
            options |= {"passed_only": False, "episodes": [f"{played}/{result.transcript}" for result in drawn]}
        options |= {"epochs": EPOCHS, "held_out": None, "log_path": str(folder / f"round-{number}")}
        steps += train_sft(options).steps
        last = RunFolder(folder / f"round-{number}").checkpoints()[-1]
        model, state = Path(last["sampler_path"]), {"load_checkpoint_path": last["state_path"]}
    found = {split: share(source(count, seed, split), f"{after}-{split}") for split, count in held_out.items()}
    return {
        "seed": seed,
        "steps": steps,
        "before": before,
        "after": found.pop("combinations"),
        "episodes": sizes.held_out,
        "split_episodes": held_out["names"],
        "splits": found,
        "curve": curve,
        "seconds": round(time.monotonic() - begun),
    }


def _supervised(name: str, seed: int, sizes: argparse.Namespace, episodes: Path) -> dict[str, Any]:
    """The options of supervised training on recorded episodes."""
    not_applicable = ("batch_size", "kl_penalty_coef", "reward_coef", "num_steps", "group_size", "kl_clip")
    options = {
        option: value for option, value in OPTIONS.items() if option in {*SftOptions.names()} - {*not_applicable}
    }
    return (
        options
        | _common(name, seed, sizes)
        | {"episodes": str(episodes), "batch_size": 16}
        | changed(sizes, SftOptions)
    )


def options_of(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """The options of a run that is not supervised."""
    run, common = SPELLED[name], _common(name, seed, sizes)
    fewer = max(1, sizes.held_out // 4)
    extra = {split: source(fewer, seed, split) for split in SPLITS}
    extra |= {f"lied-{lie}": source(fewer, seed, "combinations", lie) for lie in LIES}
    own = {"teacher_model": folder_of(sizes.models, "teacher"), "extra_held_out": extra}
    own |= {"cvdp_jsonl_path": source(TRAINED, seed, "train", run.lie)}
    return {**OPTIONS, **common, **own, **run.options, **changed(sizes)}


def _common(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    return {
        "student_model": folder_of(sizes.models, "student"),
        "seed": seed,
        "held_out": source(sizes.held_out, seed, "combinations"),
        "log_path": str(sizes.folder / f"{name}-{seed}"),
    }


def source(count: int, seed: int, split: str, lie: str = "") -> str:
    """The source of a run's problems; those of different seeds differ."""
    return f"family:{FAMILY}?count={count}&seed={seed + 1}&split={split}" + (f"&lie={lie}" if lie else "")


def folder_of(models: Path, name: str, script: str = "make_spelled_models") -> str:
    """The folder of a model that a script makes. Raises `UsageError` if it has no model."""
    if not (models / name / "config.json").is_file():
        command = f"scripts/{script}.py --out {models}"
        raise UsageError(f"--models: {models / name} has no model; make it first with {command}")
    return str(models / name)


def made_options(script: str, run: Run, seed: int, sizes: argparse.Namespace, **taught: Any) -> dict[str, Any]:
    """The options of a run with models that a script makes, in addition to those that the shipped models need."""
    not_shared = ("student_model", "teacher_model", "problem_ids", "log_path")
    shared = {option: value for option, value in shipped.SMALL.defaults.items() if option not in not_shared}
    student, teacher = (folder_of(sizes.models, model, script) for model in ("student", "teacher"))
    taught |= {"teacher_model": teacher, "teacher_renderer_name": RENDERER}
    options = shared | given({**taught, **run.options}, seed, sizes)
    if options["teacher_model"] == "none":
        options.pop("teacher_renderer_name")
    return options | {"engine": "local", "student_model": student, "renderer_name": RENDERER}


def made_digest(models: Path, script: str = "make_spelled_models") -> str:
    """A digest of the files of both models. Raises like `folder_of`."""
    return "-".join(files_digest(Path(folder_of(models, name, script))) for name in ("student", "teacher"))


def right_episodes(problems: str) -> Iterator[dict[str, Any]]:
    """A right episode of each problem, in the format of ``rtl-agent-gym export`` for supervised training."""
    for member in draw_members(problems):
        family = FAMILIES[member.family]
        if not isinstance(family, LookingFamily):
            raise UsageError(f"{family.name} is not a family whose files must be read; use accumulators")
        right = play(family, member, Spelled(forced=0.0), random.Random(0))
        messages: list[dict[str, Any]] = [{"role": "user", "content": right.user}]
        for number, turn in enumerate(right.turns[:-1], 1):
            called = json.loads(turn.text.split("\n")[1])
            made, id_ = ToolCall.of(called["arguments"]["command"]), f"call_{number}_1"
            function = {"name": made.name, "arguments": made.arguments}
            tool_calls = [{"id": id_, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": "", "tool_calls": tool_calls})
            messages.append({"role": "tool", "tool_call_id": id_, "content": turn.output})
        messages.append({"role": "assistant", "content": right.turns[-1].text})
        yield {"messages": messages, "tools": [TOOL], "metadata": {"problem_id": member.digest, "passed": True}}
