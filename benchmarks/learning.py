"""Does it learn? The whole job without a key: models made, distilled with real sandboxes and harness, measured.

    python benchmarks/learning.py --seeds 0 1 2             # distillation, the job of the shell script
    python benchmarks/learning.py --seeds 0 --variant lora  # or: rl, control
    python benchmarks/learning.py --seeds 0 1 2 --check     # exits 1 when a target is missed
    python benchmarks/learning.py --seeds 0 1 2 --plot docs/images/learning.png

Models and scores are made anew for each seed, in a cache of its own, unless ``--cache`` names one to keep.

For each seed: the pass rate of the first 5 steps and of the last 10, of fresh episodes before and after, the KL to the
teacher of the first 5 and the last 10 steps, and the seconds that everything took.
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
"""Options on top of the job's own."""


def measure(seed: int, variant: str, episodes: int, folder: Path) -> dict[str, Any]:
    """One job."""
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
        "fresh_before": rows[0].get("test_before/pass_rate"),
        "fresh_after": rows[-1].get("test/pass_rate"),
        "kl_first_5": mean(rows[:5], "teacher_kl"),
        "kl_last_10": mean(rows[-10:], "teacher_kl"),
        "seconds": time.monotonic() - begun,
        "curve": [round(row["pass_rate"], 3) for row in rows],
        "kl_curve": [round(row["teacher_kl"], 4) for row in rows if "teacher_kl" in row],
    }


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    """The mean of a metric, or None where it is not there."""
    values = [float(row[name]) for row in rows if name in row]
    return sum(values) / len(values) if values else None


def misses(found: dict[str, Any]) -> list[str]:
    """The targets that a job missed."""
    missed = []
    if found["variant"] == "distill":
        if found["pass_last_10"] < 0.9:
            missed.append("the last 10 steps pass in less than 90 %")
        if found["pass_first_5"] > 0.4:
            missed.append("the first 5 steps pass in more than 40 %")
        if found["kl_last_10"] > found["kl_first_5"] / 5:
            missed.append("the KL is not down 5-fold")
        if found["seconds"] > 600:
            missed.append("more than 10 minutes")
    if found["variant"] == "lora" and found["pass_last_10"] < 0.8:
        missed.append("the last 10 steps pass in less than 80 %")
    if found["variant"] == "rl" and found["pass_last_10"] < found["pass_first_5"] + 0.1:
        missed.append("reward alone does not improve it")
    if found["variant"] == "control" and abs(found["pass_last_10"] - found["pass_first_5"]) > 0.2:
        missed.append("the control moved")
    return missed


def main() -> int:
    """Run the jobs one after another and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="distill")
    parser.add_argument("--episodes", type=int, default=64, help="fresh episodes before and after; 0 for none")
    parser.add_argument("--folder", type=Path, help="keep the runs there")
    parser.add_argument("--cache", type=Path, help="keep models and scores there, and take those that are there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--plot", type=Path, help="draw the curves of all seeds there")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each seed")
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
    """Draw the pass rate and the KL of each job, step by step, as a PNG."""
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
    kl.set(xlabel="step", ylabel="nats a token", title="KL to the teacher")
    for axes in (passed, kl):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.savefig(path)


def shown(value: float | None, form: str) -> str:
    """A number, or a dash."""
    return "–" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
