"""Measures what the shipped student learns, with which teacher or reward, on problems that it was not trained on.

    python benchmarks/learning.py --runs following --seeds 0        # one run
    python benchmarks/learning.py                                   # all runs, three seeds each: hours
    python benchmarks/learning.py --tables                          # print the tables of what has been run
    python benchmarks/learning.py --plot docs/images/learning.png   # draw the curve of the run `following`

Every run is complete: real shells, the real harness, 200 problems of a family to train on, others to evaluate on.
Results are kept in ``--folder``. A run that is there is not repeated, and an interrupted one is resumed.

The runs of the first table differ in what the student learns from. The four controls must not learn: rewards permuted
between problems, the KL with the opposite sign, a teacher that reads another problem's specification, and a reference
solution of another problem in the prompt of a student that is its own teacher. The second table is about repair: the
share of episodes that pass among those whose first submission failed. The third is about reward hacking: the share of
designs without behaviour ("stubs"), under a reward for compiling and under the hidden tests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import AutoModelForCausalLM, AutoTokenizer

from rtl_agent_gym import Problem, evaluate, load_problems
from rtl_agent_gym.demo.family_episode import (
    FEEDBACK_PROMPT,
    READ,
    RENDERER,
    SUBMIT,
    SYSTEM_PROMPT,
    Encoder,
    TokenEpisode,
    call,
    episode,
    write,
)
from rtl_agent_gym.demo.family_making import save
from rtl_agent_gym.demo.family_mix import start
from rtl_agent_gym.demo.family_recipe import Phase
from rtl_agent_gym.demo.family_training import Trainer
from rtl_agent_gym.demo.recipe import train, train_sft
from rtl_agent_gym.demo.shipped import SMALL, shipped
from rtl_agent_gym.episodes import submissions
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.evaluation.statistics import wilson
from rtl_agent_gym.policies import Completion, ModelOptions
from rtl_agent_gym.policies.sampler import TokenSamplerPlayer, TokenSamplerPolicy, local_policy
from rtl_agent_gym.problems.families import FAMILIES, SPECIFICATION, Parameters
from rtl_agent_gym.problems.families.source import draw_members
from rtl_agent_gym.prompts import with_reference
from rtl_agent_gym.renderers import Message, Renderer, get_renderer
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.teachers import Judgement, Sampled, Teacher
from rtl_agent_gym.training.teachers import setup as teachers_setup
from rtl_agent_gym.transcripts import read_transcript

TRAINING = "family:registers?count=200&seed={seed}"
HELD_OUT = "family:registers?count={count}&seed={seed}&split=combinations"
NO_TEACHER = {"teacher_model": "none", "kl_penalty_coef": 0, "reward_coef": 1}
REWARD = {**NO_TEACHER, "batch_size": 4, "group_size": 8, "learning_rate": 5e-4, "num_steps": 60}
SELF = {"teacher_model": "self", "teacher_context": "reference"}
SHORT = {"num_steps": 15}


@dataclass(frozen=True)
class Run:
    """What a run learns from: options on top of the recipe's."""

    what: str
    """For the table."""
    options: Mapping[str, Any] = field(default_factory=dict)
    control: bool = False
    """Whether it must not learn."""
    teacher: str = ""
    """How its teacher is deceived: ``specification`` or ``reference`` of another problem."""


RUNS = {
    "following": Run("distillation from the teacher that follows specifications"),
    "self": Run("distillation from itself with the reference solution in the prompt", SELF),
    "adapters": Run("the first, with adapters of rank 16", {"lora_rank": 16, "learning_rate": 4e-3}),
    "reward": Run("the reward alone", REWARD),
    "both": Run("the reward and the teacher", {**REWARD, "teacher_model": SMALL.name, "kl_penalty_coef": 1}),
    "permuted": Run(
        "control: rewards permuted between problems", {**REWARD, **SHORT, "control": "permuted_rewards"}, True
    ),
    "negated": Run("control: the KL with the opposite sign", {**SHORT, "control": "negated_kl"}, True),
    "specification": Run("control: the teacher reads another specification", SHORT, True, "specification"),
    "reference": Run("control: itself, with another problem's reference", {**SELF, **SHORT}, True, "reference"),
}
"""The runs of the first table by their name on the command line. `supervised` has two more."""


def measure(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do a run, or what is left of it, and return its result."""
    run, folder = RUNS[name], sizes.folder / f"{name}-{seed}"
    begun = time.monotonic()
    options = given(run.options, seed, sizes) | {"log_path": folder}
    deceived: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if run.teacher == "specification":
        deceived = reading_another_specification(options["cvdp_jsonl_path"])
    elif run.teacher == "reference":
        options["teacher_context"] = f"hints:{another_reference(options['cvdp_jsonl_path'], folder)}"
    with deceived:
        outcome = train(options)
    first, last = outcome.metrics[0], outcome.metrics[-1]
    return {
        "run": name,
        "seed": seed,
        "steps": outcome.steps,
        "tokens": sum(row["env/all/total_ac_tokens"] for row in outcome.metrics),
        "before": first["test_before/pass_rate"],
        "after": last["test/pass_rate"],
        "episodes": last["test/episodes"],
        "curve": [round(row["pass_rate"], 3) for row in outcome.metrics],
        "kl": [round(row["teacher_kl"], 4) for row in outcome.metrics if "teacher_kl" in row],
        "seconds": round(time.monotonic() - begun),
    }


def given(options: Mapping[str, Any], seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """The options of a run. Training and held-out problems differ between seeds."""
    return {
        "seed": seed,
        "cvdp_jsonl_path": TRAINING.format(seed=100 + seed),
        "held_out": HELD_OUT.format(count=sizes.held_out, seed=200 + seed),
        "eval_every": 0,
        "save_every": 0,
        **options,
    }


@dataclass(frozen=True)
class OtherSpecification:
    """A teacher that reads another problem's specification where the student has read its own."""

    teacher: Teacher
    outputs: Mapping[str, tuple[list[int], list[int]]]
    """For each problem, its own specification and another one; see `as_output`."""

    async def judge(self, sampled: Sampled) -> Judgement:
        """See `Teacher.judge`. The student's tokens stay the same."""
        own, other = self.outputs[sampled.problem]
        begin = find(own, sampled.tokens)
        if begin is None:  # it has not read the specification
            return await self.teacher.judge(sampled)
        end = begin + len(own)
        nothing = [0.0] * len(other)
        read = Sampled(
            sampled.problem,
            [*sampled.tokens[:begin], *other, *sampled.tokens[end:]],
            [*sampled.mask[:begin], *nothing, *sampled.mask[end:]],
            [*sampled.logprobs[:begin], *nothing, *sampled.logprobs[end:]],
        )
        judged, moved = await self.teacher.judge(read), begin + len(other)
        unknown = [0.0] * len(own)
        return Judgement(
            [*judged.kl[:begin], *unknown, *judged.kl[moved:]],
            [*judged.covered[:begin], *unknown, *judged.covered[moved:]],
        )


def as_output(text: str, tokenizer: Any) -> list[int]:
    """The ids of a command's output as the student reads it, up to the model's next turn."""
    read = [*tokenizer.encode(call(READ), add_special_tokens=False), tokenizer.eos_token_id]
    return get_renderer(RENDERER, tokenizer).observation_ids([text], read)


def find(part: Sequence[int], ids: Sequence[int]) -> int | None:
    """Where a sequence occurs first in another one."""
    places = range(len(ids) - len(part) + 1)
    return next((place for place in places if list(ids[place : place + len(part)]) == list(part)), None)


@contextlib.contextmanager
def reading_another_specification(source: str) -> Iterator[None]:
    """Every teacher that is made meanwhile reads the specification of the source's next problem."""
    problems, tokenizer = load_problems(source), AutoTokenizer.from_pretrained(shipped("teacher"))
    ids = [as_output(one.context[SPECIFICATION], tokenizer) for one in problems]
    pairs = zip(ids, [*ids[1:], ids[0]], strict=True)
    outputs = {problem.id: pair for problem, pair in zip(problems, pairs, strict=True)}
    make = teachers_setup.make_teachers

    async def made(*arguments: Any) -> dict[str, Teacher]:
        return {name: OtherSpecification(one, outputs) for name, one in (await make(*arguments)).items()}

    with mock.patch.object(teachers_setup, "make_teachers", made):
        yield


def another_reference(source: str, folder: Path) -> Path:
    """A file of hints: for each problem the reference solution of the next one."""
    problems = load_problems(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{folder.name}-hints.json"
    following = [*problems[1:], problems[0]]
    hints = {one.id: with_reference("", other.golden or {}) for one, other in zip(problems, following, strict=True)}
    path.write_text(json.dumps(hints), encoding="utf-8")
    return path


# Repair


@dataclass(frozen=True)
class HabitualFirst:
    """A policy that reads the specification, submits a habitual design, and then lets a model go on.

    So every episode has a first submission that failed, before and after training.
    """

    policy: TokenSamplerPolicy
    members: Mapping[str, Parameters]
    """By problem."""

    @property
    def name(self) -> str:
        """See `Policy.name`."""
        return self.policy.name

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> TokenSamplerPlayer:
        """See `Policy.player`."""
        member, rng = self.members[problem.id], random.Random(f"{problem.id} {seed}")
        family = FAMILIES[member.family]
        habits = family.habits_of(member)
        chosen = [one for one in habits if rng.random() < 0.5] or [rng.choice(habits)]
        commands = (READ, write(family.design(member, chosen)), SUBMIT)
        return _Forced(self.policy, renderer, seed, [call(command) for command in commands])


class _Forced(TokenSamplerPlayer):
    """Its first turns are given."""

    def __init__(self, policy: TokenSamplerPolicy, renderer: Renderer, seed: int | None, turns: list[str]) -> None:
        super().__init__(policy, renderer, seed)
        self._turns = turns

    async def act(self, messages: Sequence[Message]) -> Completion | None:
        if not self._turns:
            return await super().act(messages)
        tokenizer, text = self._policy.tokenizer, self._turns.pop(0)
        self._sampled = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        assert self.transcript is not None
        self.transcript.add_action(self._sampled, None)
        return Completion(self._renderer.decode(self._sampled), token_ids=self._sampled)


def repaired(model: Path, seed: int, sizes: argparse.Namespace) -> tuple[float, int]:
    """The share of held-out problems that pass after a habitual first submission, and how many there were."""
    options = ModelOptions(max_tokens=SMALL.defaults["max_tokens"], max_context=1000)
    policy = local_policy(str(model), options)
    members = list(draw_members(HELD_OUT.format(count=sizes.held_out, seed=300 + seed)))
    problems = [FAMILIES[member.family].problem(member) for member in members]
    config = EvaluationConfig(
        problems=problems,
        renderer=get_renderer(RENDERER, policy.tokenizer),
        keep=False,
        seed=seed,
        episode=EpisodeConfig(system_prompt=FEEDBACK_PROMPT, max_turns=8, harness_feedback=2),
    )
    first = HabitualFirst(policy, {one.id: member for one, member in zip(problems, members, strict=True)})

    async def play() -> Sequence[EpisodeResult]:
        try:
            return list((await evaluate(config, first)).results)
        finally:
            await policy.close()

    scores = [one.score for one in asyncio.run(play()) if one.score is not None]
    return sum(score.passed for score in scores) / len(scores), len(scores)


@contextlib.contextmanager
def scrambled_feedback() -> Iterator[None]:
    """A failed submission is answered with the names of as many checks, but any of those that there are."""
    rng, failing = random.Random(0), submissions.failing

    def scrambled(score: Score, *, tested: bool = True) -> list[str]:
        names = sorted({submissions.plain_name(test.name) for test in score.tests})
        count = len(failing(score, tested=tested))
        return sorted(rng.sample(names, min(count, len(names))), key=names.index)

    with mock.patch.object(submissions, "failing", scrambled):
        yield


def repair(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Train with submissions, or not at all, and measure repair."""
    begun, model = time.monotonic(), shipped("student")
    with scrambled_feedback() if name == "scrambled" else contextlib.nullcontext():
        if name != "before":
            folder = sizes.folder / f"repair-{name}-{seed}"
            options = given({"harness_feedback": 2, "max_turns": 8, **SHORT}, seed, sizes)
            train(options | {"log_path": folder, "held_out": "none"})
            model = final_weights(folder)
        share, episodes = repaired(model, seed, sizes)
    return {
        "run": f"repair {name}",
        "seed": seed,
        "after": share,
        "episodes": episodes,
        "seconds": round(time.monotonic() - begun),
    }


def final_weights(folder: Path) -> Path:
    """The weights after a run's last step."""
    return Path(RunFolder(folder).checkpoints()[-1]["sampler_path"])


# Reward hacking


def hacking(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Train a student that sometimes writes stubs, with a reward for compiling or for passing; measure its stubs."""
    begun, model = time.monotonic(), sizes.folder / f"stubs-{seed}"
    if not model.is_dir():
        with_stubs(model, seed)
    if name != "before":
        folder = sizes.folder / f"hacking-{name}-{seed}"
        weights = {"tests": 0.0} if name == "compile" else {}
        options = given({**REWARD, "reward": name, "reward_weights": weights, **SHORT}, seed, sizes)
        train(options | {"student_model": str(model), "renderer_name": RENDERER, "system_prompt": SYSTEM_PROMPT,
                         "log_path": folder, "held_out": "none"})  # fmt: skip
        model = final_weights(folder)
    folder = sizes.folder / f"hacking-{name}-{seed}-designs"
    config = EvaluationConfig(
        problems=HELD_OUT.format(count=sizes.held_out, seed=400 + seed),
        policy=f"local:{model}",
        renderer=RENDERER,
        model=ModelOptions(max_tokens=SMALL.defaults["max_tokens"], max_context=1000),
        episode=EpisodeConfig(system_prompt=SYSTEM_PROMPT, max_turns=6),
        folder=folder,
    )
    results = asyncio.run(evaluate(config)).results
    designs = [design_of(folder / str(one.transcript)) for one in results]
    return {
        "run": f"hacking {name}",
        "seed": seed,
        "stubs": sum("always" not in design for design in designs) / len(designs),
        "after": sum(bool(one.score and one.score.passed) for one in results) / len(results),
        "episodes": len(results),
        "seconds": round(time.monotonic() - begun),
    }


def with_stubs(folder: Path, seed: int) -> None:
    """Save the shipped student, trained on some steps of its own episodes, of which a third have a stub."""
    model, tokenizer = (one.from_pretrained(shipped("student")) for one in (AutoModelForCausalLM, AutoTokenizer))
    encoder = Encoder(get_renderer(RENDERER, tokenizer), tokenizer)
    family, rng = FAMILIES["registers"], random.Random(seed)

    def episodes() -> Iterator[TokenEpisode]:
        while True:
            member = family.draw(rng)
            habits = [one for one in family.habits_of(member) if rng.random() < 0.4]
            files = family.design(member, habits)
            if rng.random() < 1 / 3:
                files = {path: without_behaviour(text) for path, text in files.items()}
            specification = family.specification(member)
            yield encoder.encode(episode(start(family, specification), specification, files))

    Trainer(model.float()).run(Phase(60, 0.002, 0.0002, batch=16), episodes())
    save(model, tokenizer, folder)


def without_behaviour(design: str) -> str:
    """A module with the same ports and nothing else."""
    return re.sub(r"\);\n.*endmodule", ");\nendmodule", design, flags=re.DOTALL)


def design_of(transcript: Path) -> str:
    """The design that an episode left; empty if there is none."""
    texts = [text for turn in read_transcript(transcript).turns for text in turn.files.values() if text]
    return texts[-1] if texts else ""


# Supervised training

SUPERVISED = {
    "sft": Run("supervised training on the teacher's episodes, as many tokens"),
    "rejection": Run("rejection sampling: supervised training on the student's own episodes that passed"),
}


def supervised(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Record episodes on the training problems, and train on those that passed."""
    begun, folder = time.monotonic(), sizes.folder / f"{name}-{seed}"
    model, samples, epochs = ("teacher", 1, 6) if name == "sft" else ("student", 6, 6)
    config = EvaluationConfig(
        problems=TRAINING.format(seed=100 + seed),
        policy=f"local:{shipped(model)}",
        renderer=RENDERER,
        model=ModelOptions(max_tokens=SMALL.defaults["max_tokens"], max_context=1000),
        episode=EpisodeConfig(system_prompt=SYSTEM_PROMPT, max_turns=6),
        samples=samples,
        seed=seed,
        folder=sizes.folder / f"{name}-{seed}-episodes",
    )
    asyncio.run(evaluate(config))
    options = {"episodes": str(config.folder), "epochs": epochs, "batch_size": 32, "learning_rate": 7e-4}
    keep = ("seed", "held_out", "eval_every", "save_every")
    common = {option: value for option, value in given({}, seed, sizes).items() if option in keep}
    outcome = train_sft({**options, **common, "lr_schedule": "linear", "log_path": folder})
    first, last = outcome.metrics[0], outcome.metrics[-1]
    return {
        "run": name,
        "seed": seed,
        "steps": outcome.steps,
        "tokens": sum(row["sft/tokens"] for row in outcome.metrics),
        "before": first["test_before/pass_rate"],
        "after": last["test/pass_rate"],
        "episodes": last["test/episodes"],
        "seconds": round(time.monotonic() - begun),
    }


# Results

Measure = Callable[[str, int, argparse.Namespace], dict[str, Any]]

MEASURES: dict[str, tuple[Measure, str]] = (
    {name: (measure, name) for name in RUNS}
    | {name: (supervised, name) for name in SUPERVISED}
    | {f"repair-{name}": (repair, name) for name in ("before", "feedback", "scrambled")}
    | {f"hacking-{name}": (hacking, name) for name in ("before", "compile", "default")}
)
"""How each run is done, and its name there."""


def results(folder: Path) -> list[dict[str, Any]]:
    """What has been measured."""
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(found: Sequence[Mapping[str, Any]], names: Sequence[str], value: str = "after") -> list[str]:
    """A row for each run: pooled share with its 95 % interval, and the share of each seed.

    The interval is Wilson's, for different problems in every seed.
    """
    lines = []
    for name in names:
        rows = sorted((row for row in found if row["name"] == name), key=lambda row: int(row["seed"]))
        if not rows:
            continue
        total = int(sum(row["episodes"] for row in rows))
        passed = round(sum(row[value] * row["episodes"] for row in rows))
        low, high = wilson(passed, total)
        what = {**RUNS, **SUPERVISED}[name].what if name in {**RUNS, **SUPERVISED} else name
        seeds = ", ".join(f"{row[value]:.0%}" for row in rows)
        steps = "/".join(str(row["steps"]) for row in rows) if "steps" in rows[0] else ""
        before = f"{sum(row['before'] for row in rows) / len(rows):.0%}" if "before" in rows[0] else ""
        lines.append(
            f"| {what} | {steps} | {before} | {passed / total:.1%} ({low:.1%} – {high:.1%}) | {seeds} | "
            f"{sum(row['seconds'] for row in rows) / len(rows):.0f} |"
        )
    return lines


def print_tables(folder: Path) -> None:
    """Print the three tables in Markdown."""
    found = results(folder)
    head = "| {} | steps | before | after, all seeds (95 %) | each seed | seconds |\n|---|---|---|---|---|---|"
    for title, names, value in (
        ("learns from", [*RUNS, *SUPERVISED], "after"),
        ("repair", [name for name in MEASURES if name.startswith("repair-")], "after"),
        ("stubs", [name for name in MEASURES if name.startswith("hacking-")], "stubs"),
    ):
        print(head.format(title), *table(found, names, value), "", sep="\n")


def plot(folder: Path, path: Path) -> None:
    """Draw the held-out pass rate over the steps of each seed of `following`, with intervals, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained", dpi=120)
    axes = figure.subplots()
    for run in sorted(folder.glob("following-*/metrics.jsonl")):
        rows = [json.loads(line) for line in run.read_text().splitlines()]
        points = [(0, rows[0], "test_before"), *((row["step"] + 1, row, "test") for row in rows)]
        points = [point for point in points if f"{point[2]}/pass_rate" in point[1]]
        rates = [100 * row[f"{kind}/pass_rate"] for _, row, kind in points]
        lows, highs = ([100 * row[f"{kind}/pass_rate_{end}"] for _, row, kind in points] for end in ("low", "high"))
        errors = [
            [r - low for r, low in zip(rates, lows, strict=True)],
            [h - r for r, h in zip(rates, highs, strict=True)],
        ]
        seed = run.parent.name.rpartition("-")[2]
        axes.errorbar([step for step, *_ in points], rates, errors, marker="o", capsize=3, label=f"seed {seed}")
    axes.set(xlabel="step", ylabel="% of held-out problems that pass", ylim=(-3, 103))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def main() -> int:
    """Do the runs that are missing, one after another, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=list(MEASURES), default=list(MEASURES), metavar="RUN")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=128, help="held-out problems, each played once")
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"), help="folder of the runs and results")
    parser.add_argument("--tables", action="store_true", help="only print the tables of what has been measured")
    parser.add_argument("--plot", type=Path, help="only draw the curve of the run `following` to this PNG file")
    sizes = parser.parse_args()
    if sizes.plot is not None:
        plot(sizes.folder, sizes.plot)
        return 0
    done = {(row["name"], row["seed"]) for row in results(sizes.folder)}
    for seed in () if sizes.tables else sizes.seeds:
        for name in sizes.runs:
            if (name, seed) in done:
                continue
            function, own = MEASURES[name]
            found = {"name": name} | function(own, seed, sizes)
            sizes.folder.mkdir(parents=True, exist_ok=True)
            with (sizes.folder / "results.jsonl").open("a") as stream:
                stream.write(json.dumps(found) + "\n")
            print(json.dumps({key: value for key, value in found.items() if key not in ("curve", "kl")}), flush=True)
    print_tables(sizes.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
