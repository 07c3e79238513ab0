#!/usr/bin/env bash
# On-policy distillation on one problem, from end to end, with nothing prepared:
#
#   ./run_distillation_1problem_agentic.sh
#   TINKER_API_KEY=... ./run_distillation_1problem_agentic.sh
#
# Sets up what is missing (the Python environment, sandboxes with or without Docker, the image). Then a student works on the
# bundled 8-bit fixed-priority arbiter in real shells, in sandboxes, is scored by the problem's hidden cocotb tests, and
# learns from a teacher that judges each token it sampled:
#
#   with TINKER_API_KEY     Qwen3.5-9B learns from Qwen3.6-27B on Tinker's service; what it may cost is said first
#   without a key           the small student that comes with the package learns from its teacher, on this machine's CPU
#
# New episodes of this problem and of 32 other arbiters, never trained on, are evaluated before and after: train/pass_rate
# and test/pass_rate in metrics.jsonl.
#
# Arguments are options, name=value: learning_rate=2e-4 num_steps=20 log_path=runs/mine, and for --help:
#
#   .venv/bin/python scripts/train_distillation_agentic.py --help
#
# Stop it at any moment; the same command goes on from there. At the end, and on Ctrl-C, report.html in the run's folder
# shows the curves. Exits 0 when all steps are done, 2 on a wrong option, 3 when the machine failed, 130 on Ctrl-C.
set -euo pipefail
unset PYTHONHOME # of another Python; .venv's would not start
cd "$(dirname "${BASH_SOURCE[0]}")"

./scripts/setup --for train

exec .venv/bin/python -m rtl_agent_gym.demo.jobs 1problem "$@"
