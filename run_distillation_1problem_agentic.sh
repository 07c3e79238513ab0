#!/usr/bin/env bash
# On-policy distillation on one problem, from end to end, with nothing prepared:
#
#   ./run_distillation_1problem_agentic.sh
#   TINKER_API_KEY=... ./run_distillation_1problem_agentic.sh
#
# Sets up what is missing (the Python environment, the Docker daemon, the simulation image). Then a student works on the
# bundled 8-bit fixed-priority arbiter in real shells, in containers, is scored by the problem's hidden cocotb tests, and
# learns from a teacher that judges each token it sampled:
#
#   with TINKER_API_KEY     Qwen3-8B learns from Qwen3-32B on Tinker's service
#   without a key           a tiny student learns from a tiny teacher, both made on the spot, on this machine's CPU;
#                           some minutes, and you can watch it go from failing to passing
#
# Arguments are options, name=value: learning_rate=2e-4 num_steps=20 log_path=runs/mine, and for --help:
#
#   .venv/bin/python scripts/train_distillation_agentic.py --help
#
# Stop it at any moment; the same command goes on from there. At the end, and on Ctrl-C, report.html in the run's folder
# shows the curves. Exits 0 when all steps are done, 2 on a wrong option, 3 when the machine failed, 130 on Ctrl-C.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

./scripts/setup --for train

exec .venv/bin/python scripts/train_distillation_agentic.py \
    cvdp_jsonl_path=bundled problem_ids=cvdp_agentic_rtlgym_fixed_priority_arbiter_0001 "$@"
