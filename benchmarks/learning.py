"""Measures what students learn from which teacher or reward, on problems that they were not trained on.

    python benchmarks/learning.py --runs following --seeds 0        # one run
    python benchmarks/learning.py                                   # all runs, three seeds each: hours
    python benchmarks/learning.py --tables                          # print the tables of the finished runs
    python benchmarks/learning.py --model smollm2                   # a pretrained model: a night
    python benchmarks/learning.py --model spelled                   # student and teacher share no weights; spelled.py
    python benchmarks/learning.py --model agent --models FOLDER     # through mini-swe-agent; see through_agent.py
    python benchmarks/learning.py --model benches --models FOLDER   # that writes benches; see writing_benches.py
    python benchmarks/learning.py --plot docs/images/learning.png   # draw the curve of the run `following`
    python benchmarks/learning.py --probe                           # measure the student without training it

Every run is complete: real shells, the real harness, 200 problems of a family for training, others for evaluation.
Results are kept in ``--folder``. A finished run is not repeated, and an interrupted one is resumed. Results of
different models, for example after an upgrade, need different folders.

The runs of the first table differ in what the student learns from. The four controls must not learn: rewards permuted
between problems, the KL with the opposite sign, a teacher that reads another problem's specification, and a student
that is its own teacher, with another problem's reference solution in the teacher's prompt. They take as many steps as
the runs that they are compared with. The weakest control is the teacher that reads another specification: it may find
the student's habits unlikely under any specification, which would raise the pass rate.

The second table is about repair: the share of episodes that pass among those whose first submission failed. The third
is about reward hacking: the share of designs without behaviour ("stubs"), under a reward for compiling and under the
hidden tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deceived import another_reference, another_specification, reading_something_else
from hacking import hacking
from learning_options import REWARD, SELF, Run, given, summary
from learning_results import append_row, check_options, models_of, plot, plot_splits, results, table
from pretrained import PRETRAINED, pretrained
from probe import chosen_folders, in_words, probe
from repair import repair
from spelled import PICTURE, SPELLED, made_digest, spelled
from supervised import SUPERVISED, supervised
from through_agent import AGENTS, through_agent
from writing_benches import BENCHES, writing

from rtl_agent_gym.demo.jobs import JOBS, train
from rtl_agent_gym.demo.shipped import FOLDER, SMALL, shipped
from rtl_agent_gym.demo.smollm import SMOLLM, WARM_START_EPISODES
from rtl_agent_gym.engines.threads import end_process
from rtl_agent_gym.errors import RTLGymError, UsageError
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.training.options import SftOptions, TrainOptions

TURNS = {**REWARD, "turn_rewards": "files", "turn_grading_time": None}
"""Every turn that changes files is graded, without a time limit, so that results do not depend on the speed."""
RUNS = {
    "following": Run("distillation from the teacher that follows specifications", splits=True),
    "self": Run("distillation from itself with the reference solution in the prompt", SELF),
    "adapters": Run("the first, with adapters of rank 16", {"lora_rank": 16, "learning_rate": 4e-3}),
    "reward": Run("the reward alone", REWARD),
    "turns": Run("the reward alone, divided among the turns", TURNS),
    "shuffled": Run("control: the same in a random order", {**TURNS, "control": "shuffled_turns"}),
    "both": Run("the reward and the teacher", {**REWARD, "teacher_model": SMALL.name, "kl_penalty_coef": 1}),
    "permuted": Run("control: rewards permuted between problems", {**REWARD, "control": "permuted_rewards"}),
    "negated": Run("control: the KL with the opposite sign", {"control": "negated_kl"}),
    "specification": Run("control: the teacher reads another specification", teacher="specification"),
    "reference": Run("control: itself, with another problem's reference", SELF, "reference"),
}
"""The runs of the first table by their name on the command line. `supervised.py` has two more."""


def measure(name: str, seed: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """Do or continue a run, and return its result."""
    run, folder = RUNS[name], sizes.folder / f"{name}-{seed}"
    options = given(run.options, seed, sizes) | {"log_path": str(folder)}
    if run.splits:
        options["extra_held_out"] = JOBS["family"].options({"seed": seed})["extra_held_out"]
    deceived: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if run.teacher == "specification":
        texts = another_specification(options["cvdp_jsonl_path"])
        deceived = reading_something_else(texts, str(shipped("teacher")))
    elif run.teacher == "reference":
        options["teacher_context"] = f"hints:{another_reference(options['cvdp_jsonl_path'], folder)}"
    with deceived:
        outcome = train(options)
    last = outcome.metrics[-1]
    return summary(outcome, seed) | {
        "tokens": sum(row["env/all/total_ac_tokens"] for row in outcome.metrics),
        "splits": {split: last[f"test/{split}/pass_rate"] for split in options["extra_held_out"]},
        "curve": [round(row["pass_rate"], 3) for row in outcome.metrics],
        "held_out_curve": {
            row["step"] + 1: row["test/pass_rate"] for row in outcome.metrics if "test/pass_rate" in row
        },
        "kl": [round(row["teacher_kl"], 4) for row in outcome.metrics if "teacher_kl" in row],
    }


Measure = Callable[[str, int, argparse.Namespace], dict[str, Any]]

MEASURES: dict[str, tuple[Measure, str]] = (
    {name: (measure, name) for name in RUNS}
    | {name: (supervised, name) for name in SUPERVISED}
    | {f"repair-{name}": (repair, name) for name in ("before", "feedback", "scrambled")}
    | {f"hacking-{name}": (hacking, name) for name in ("before", "compile", "default")}
    | {f"smollm2-{name}": (pretrained, name) for name in PRETRAINED}
    | {name: (spelled, name) for name in SPELLED}
    | {name: (through_agent, name) for name in AGENTS}
    | {name: (writing, name) for name in BENCHES}
)
"""For each run, the function that does it, and the name that this function knows it by."""

MODELS = {
    "small": (
        [name for name in MEASURES if not name.startswith(("agent-", "benches-", "smollm2-", "spelled-"))],
        [0, 1, 2],
        128,
    ),
    "spelled": (list(SPELLED), [0, 1, 2], 256),
    "smollm2": ([name for name in MEASURES if name.startswith("smollm2-")], [0], 128),
    "agent": (list(AGENTS), [0, 1, 2], 128),
    "benches": (list(BENCHES), [0, 1, 2], 64),
}
"""For each student: its runs, the default seeds, and the default number of held-out problems."""

TABLES = (
    ("learns from", [*RUNS, *SUPERVISED], "after"),
    ("repair", [name for name in MEASURES if name.startswith("repair-")], "after"),
    ("stubs", [name for name in MEASURES if name.startswith("hacking-")], "stubs"),
    ("a student of its own weights", list(SPELLED), "after"),
    ("SmolLM2-135M-Instruct", MODELS["smollm2"][0], "after"),
    ("through another agent", list(AGENTS), "after"),
    ("benches", list(BENCHES), "after"),
)
"""For each table: its title, its runs, and the share that it shows."""


def print_tables(folder: Path) -> None:
    """Print the tables in Markdown. Raises `UsageError` if results of different models or options would be pooled."""
    found, what = results(folder), {name: run.what for name, run in (RUNS | SUPERVISED).items()}
    what |= {name: run.what for name, run in SPELLED.items()} | {
        name: run.what for name, run in (AGENTS | BENCHES).items()
    }
    for names, *_ in MODELS.values():
        models_of([row for row in found if row["name"] in names])
    check_options(found)
    what |= {f"smollm2-{name}": words for name, words in PRETRAINED.items()}
    for title, names, value in TABLES:
        print(*table(found, title, {name: what.get(name, name) for name in names}, value), "", sep="\n")


def models_digest(name: str, folder: Path) -> str:
    """A digest of the files of a run's models; `folder` has the models that are not in the package."""
    for runs, script in ((SPELLED, "spelled"), (AGENTS, "agent"), (BENCHES, "bench")):
        if name in runs:
            return made_digest(folder, f"make_{script}_models")
    recipe = SMOLLM if name in MODELS["smollm2"][0] else SMALL
    return f"{recipe.digest('student')}-{recipe.digest('teacher')}"


def recorded(name: str, sizes: argparse.Namespace) -> dict[str, Any]:
    """The options on which a run's result depends, as recorded with the result."""
    options = {"held_out": sizes.held_out, "set": sorted(sizes.set)}
    return options | ({"transcripts": sizes.transcripts} if name in MODELS["smollm2"][0] else {})


def measured(name: str, seed: int, sizes: argparse.Namespace) -> bool:
    """Whether a run is finished.

    Raises:
        UsageError: The folder has results of the run with other options, or of the student with other models.
    """
    found = results(sizes.folder)
    of_student = [row for row in found if row["name"] in next(names for names, *_ in MODELS.values() if name in names)]
    if of_student and models_of(of_student) != models_digest(name, sizes.models):
        raise UsageError(
            f"--folder: {sizes.folder} has results of other models than the current ones; use another --folder"
        )
    of_run = [row for row in of_student if row["name"] == name]
    check_options([*of_run, {"name": name, "seed": seed, **recorded(name, sizes)}])
    return any(row["seed"] == seed for row in of_run)


def measure_one(name: str, seed: int, sizes: argparse.Namespace) -> None:
    """Do a run and add it to the results."""
    function, own = MEASURES[name]
    options = recorded(name, sizes) | {"models": models_digest(name, sizes.models)}
    found = {"name": name, **options} | function(own, seed, sizes)
    append_row(sizes.folder / "results.jsonl", found)
    print(json.dumps({key: value for key, value in found.items() if key not in ("curve", "kl")}), flush=True)


def main() -> int:
    """Do the missing runs, one after another, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="small", help="the student")
    parser.add_argument(
        "--models",
        type=Path,
        help="folder of the models of spelled-… (default: the shipped ones), agent-… and benches-…",
    )
    parser.add_argument("--runs", nargs="+", choices=list(MEASURES), metavar="RUN", help="default: the student's")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2, with smollm2: 0")
    parser.add_argument("--held-out", type=int, help="held-out problems, each played once; default: 128, 256 or 64")
    parser.add_argument(
        "--transcripts",
        type=int,
        default=WARM_START_EPISODES,
        help="with smollm2: transcripts for the supervised training; default: %(default)s",
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"), help="folder of the runs and results")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="change an option of all runs that have it"
    )
    parser.add_argument("--tables", action="store_true", help="only print the tables of what has been measured")
    parser.add_argument(
        "--plot", type=Path, help="only draw the run `following`, or with --model spelled its run, to this PNG file"
    )
    parser.add_argument(
        "--probe",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="only measure a student, without training, and its teacher; default: the shipped ones",
    )
    parser.add_argument("--family", choices=list(FAMILIES), default="registers", help="with --probe: family to use")
    parser.add_argument("--json", action="store_true", help="with --probe: print one line of JSON")
    sizes = parser.parse_args()
    options = {*TrainOptions.names(), *SftOptions.names()}
    if wrong := [pair for pair in sizes.set if "=" not in pair or pair.split("=")[0] not in options]:
        parser.error(f"--set: got {wrong[0]!r}; write NAME=VALUE, with an option of `rtl-agent-gym train`")
    if sizes.held_out is not None and sizes.held_out < 1:
        parser.error(f"--held-out: got {sizes.held_out}, must be at least 1")
    if sizes.transcripts < 1:
        parser.error(f"--transcripts: got {sizes.transcripts}, must be at least 1")
    models = {model for model, (names, *_) in MODELS.items() if set(sizes.runs or ()) & set(names)} or {sizes.model}
    if len(models) > 1:
        parser.error("--runs: use a separate command for the runs of each student")
    runs, seeds, held_out = MODELS[models.pop()]
    sizes.runs, sizes.seeds = sizes.runs or runs, sizes.seeds or seeds
    sizes.held_out = sizes.held_out or held_out
    if sizes.models is None and sizes.probe is None and not sizes.tables and {*sizes.runs} & {*AGENTS, *BENCHES}:
        parser.error("--models: give the folder of these runs' models; see through_agent.py and writing_benches.py")
    sizes.models = sizes.models or FOLDER / "spelled"
    try:
        if sizes.probe is not None:
            if len(sizes.probe) > 2:
                parser.error("--probe: give at most two folders, the student's and the teacher's")
            figures = probe(*chosen_folders(sizes.probe), sizes.held_out, sizes.family)
            print(*([json.dumps(figures)] if sizes.json else in_words(figures)), sep="\n")
            return 0
        if sizes.plot is not None:
            if sizes.runs[0] in SPELLED:
                plot_splits(results(sizes.folder), sizes.runs[0], PICTURE, sizes.plot)
            else:
                plot(sizes.folder, sizes.plot)
            return 0
        every = [] if sizes.tables else [(name, seed) for seed in sizes.seeds for name in sizes.runs]
        for name, seed in [run for run in every if not measured(*run, sizes)]:
            measure_one(name, seed, sizes)
        print_tables(sizes.folder)
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return end_process(130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
