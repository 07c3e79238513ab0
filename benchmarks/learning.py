"""Measures how well training works: complete runs of the shipped models, with real sandboxes and the real harness.

    python benchmarks/learning.py --seeds 0 1 2             # distillation, as in the shell script
    python benchmarks/learning.py --seeds 0 --variant lora  # or: rl, control
    python benchmarks/learning.py --seeds 0 1 2 --check     # exits 1 if a target is missed
    python benchmarks/learning.py --seeds 0 1 2 --plot docs/images/learning.png

Each seed has a new cache, so that its files are graded again, unless ``--cache`` names one.

The table shows for each seed the pass rate of the first 5 and the last 10 steps, the pass rate of new episodes before
and after the training, the KL to the teacher in the first 5 and the last 10 steps, and the total time in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rtl_agent_gym.demo.recipe import train

VARIANTS: dict[str, dict[str, Any]] = {
    "distill": {},
    "lora": {"lora_rank": 32, "learning_rate": 1e-3},
    "rl": {"teacher_model": "none", "kl_penalty_coef": 0, "reward_coef": 1},
    "control": {
        "teacher_model": "none",
        "kl_penalty_coef": 0,
        "reward_coef": 1,
        "constant_reward": 1.0,
        "num_steps": 20,
    },
}
"""Options on top of the recipe's."""


def measure(seed: int, variant: str, episodes: int, folder: Path) -> dict[str, Any]:
    """Do one run and return its row of the table."""
    begun = time.monotonic()
    options = {"seed": seed, "log_path": str(folder), "eval_episodes": episodes, "eval_every": 0, **VARIANTS[variant]}
    outcome = train(options)
    rows = outcome.metrics
    return {
        "seed": seed,
        "variant": variant,
        "steps": len(rows),
        "pass_first_5": mean(rows[:5], "pass_rate"),
        "pass_last_10": mean(rows[-10:], "pass_rate"),
        "fresh_before": rows[0].get("train_before/pass_rate"),
        "fresh_after": rows[-1].get("train/pass_rate"),
        "kl_first_5": mean(rows[:5], "teacher_kl"),
        "kl_last_10": mean(rows[-10:], "teacher_kl"),
        "seconds": time.monotonic() - begun,
        "curve": [round(row["pass_rate"], 3) for row in rows],
        "kl_curve": [round(row["teacher_kl"], 4) for row in rows if "teacher_kl" in row],
    }


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    """The mean of a metric; None if no row has it."""
    values = [float(row[name]) for row in rows if name in row]
    return sum(values) / len(values) if values else None


def misses(found: dict[str, Any]) -> list[str]:
    """The targets that a run missed."""
    missed = []
    if found["variant"] == "distill":
        if found["pass_last_10"] < 0.9:
            missed.append("the pass rate of the last 10 steps is below 90 %")
        if found["pass_first_5"] > 0.4:
            missed.append("the pass rate of the first 5 steps is above 40 %")
        if found["kl_last_10"] > found["kl_first_5"] / 5:
            missed.append("the KL is not down 5-fold")
        if found["seconds"] > 600:
            missed.append("it took more than 10 minutes")
    if found["variant"] == "lora" and found["pass_last_10"] < 0.8:
        missed.append("the pass rate of the last 10 steps is below 80 %")
    if found["variant"] == "rl" and found["pass_last_10"] < found["pass_first_5"] + 0.1:
        missed.append("the pass rate has not risen by 10 points")
    if found["variant"] == "control" and abs(found["pass_last_10"] - found["pass_first_5"]) > 0.2:
        missed.append("the control run's pass rate has changed by more than 20 points")
    return missed


def main() -> int:
    """Do the runs one after another and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="distill")
    parser.add_argument("--episodes", type=int, default=64, help="new episodes before and after; 0 for none")
    parser.add_argument("--folder", type=Path, help="keep the runs in this folder")
    parser.add_argument("--cache", type=Path, help="use this folder as the cache of scores")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--plot", type=Path, help="draw the curves of all seeds to this PNG file")
    parser.add_argument("--json", action="store_true", help="also print a line of JSON for each seed")
    arguments = parser.parse_args()
    home = arguments.folder or Path(tempfile.mkdtemp(prefix="learning-"))
    failed = False
    jobs: list[dict[str, Any]] = []
    try:
        heads = f"{'seed':>4} {'steps':>5} {'first 5':>8} {'last 10':>8} {'before':>7} {'after':>7}"
        print(f"{heads} {'KL':>16} {'seconds':>8}")
        for seed in arguments.seeds:
            os.environ["XDG_CACHE_HOME"] = str(arguments.cache or home / f"cache-{arguments.variant}-{seed}")
            found = measure(seed, arguments.variant, arguments.episodes, home / f"{arguments.variant}-{seed}")
            jobs.append(found)
            kl = f"{shown(found['kl_first_5'], '.4f')} → {shown(found['kl_last_10'], '.4f')}"
            print(
                f"{seed:>4} {found['steps']:>5} {shown(found['pass_first_5'], '.2f'):>8} "
                f"{shown(found['pass_last_10'], '.2f'):>8} {shown(found['fresh_before'], '.2f'):>7} "
                f"{shown(found['fresh_after'], '.2f'):>7} {kl:>16} {found['seconds']:>8.0f}",
                flush=True,
            )
            if arguments.json:
                print(json.dumps(found), flush=True)
            for line in misses(found):
                failed = True
                print(f"     missed: {line}", flush=True)
    finally:
        if arguments.folder is None:
            shutil.rmtree(home, ignore_errors=True)
    if arguments.plot is not None:
        plot(jobs, arguments.plot)
    return int(failed and arguments.check)


def plot(jobs: list[dict[str, Any]], path: Path) -> None:
    """Draw the pass rate and the KL of each run over its steps, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained", dpi=120)
    passed, kl = figure.subplots(1, 2)
    for job in jobs:
        steps = range(1, job["steps"] + 1)
        passed.plot(steps, [100 * rate for rate in job["curve"]], marker=".", linewidth=1, label=f"seed {job['seed']}")
        if job["kl_curve"]:
            kl.plot(steps, job["kl_curve"], marker=".", linewidth=1)
    passed.set(xlabel="step", ylabel="%", title="episodes that pass the hidden tests", ylim=(-3, 103))
    passed.legend(frameon=False, loc="lower right")
    kl.set(xlabel="step", ylabel="nats per token", title="KL to the teacher")
    for axes in (passed, kl):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.savefig(path)


def shown(value: float | None, form: str) -> str:
    """Format a number; a dash for None."""
    return "–" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
