#!/usr/bin/env bash
# On-policy distillation on 200 generated problems, tested on others, from end to end, with nothing prepared:
#
#   ./run_distillation_family_agentic.sh
#   TINKER_API_KEY=... ./run_distillation_family_agentic.sh
#
# Sets up what is missing. Then a student works on problems of the family `registers` in real shells, in containers, is
# scored by their hidden cocotb tests, and learns from a teacher that judges each token it sampled. Before and after, it is
# evaluated on problems that were never trained on:
#
#   test/pass_rate            128 with other combinations of width, operation, polarities and so on
#   test/wordings/pass_rate   16 with other wordings
#   test/names/pass_rate      16 with other names
#
# With TINKER_API_KEY it is Qwen3.5-9B, which learns from Qwen3.6-27B on Tinker's service; what it may cost is said first.
# Without a key it is the small student that comes with the package.
#
# Arguments are options, name=value: seed=1 num_steps=20 cvdp_jsonl_path=mine.jsonl log_path=runs/mine, and for --help:
#
#   .venv/bin/python scripts/train_distillation_agentic.py --help
#
# Stop it at any moment; the same command goes on from there. At the end, and on Ctrl-C, report.html in the run's folder
# shows the curves. Exits 0 when all steps are done, 2 on a wrong option, 3 when the machine failed, 130 on Ctrl-C.
set -euo pipefail
unset PYTHONHOME # of another Python; .venv's would not start
cd "$(dirname "${BASH_SOURCE[0]}")"

./scripts/setup --for train

exec .venv/bin/python -m rtl_agent_gym.demo.jobs family "$@"
