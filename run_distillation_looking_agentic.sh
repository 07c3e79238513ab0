#!/usr/bin/env bash
# On-policy distillation on 2,000 generated problems that need a look, tested on others, with nothing prepared:
#
#   ./run_distillation_looking_agentic.sh
#   TINKER_API_KEY=... ./run_distillation_looking_agentic.sh
#
# Sets up what is missing. Then a student works on problems of the family `accumulators` in real shells. What it has to write
# stands in a document among others, and a smoke test tells what no document says; it learns from a teacher that judges each
# token it sampled. Before and after, it is evaluated by hidden cocotb tests on problems that were never trained on:
#
#   test/pass_rate                  128 with other combinations of width, operations, polarities and so on
#   test/names/pass_rate            32 with other names
#   test/operations/pass_rate       32 with pairs of operations that never occurred together
#   test/sizes/pass_rate            32 with larger widths
#   test/lied-documents/pass_rate   32 whose documents lie: whoever reads them fails
#
# With TINKER_API_KEY it is Qwen3.5-9B, which learns from Qwen3.6-27B on Tinker's service; what it may cost is said first.
# Without a key it is a small student that comes with the package, and a teacher with other weights.
#
# Arguments are options, name=value: seed=1 num_steps=20 log_path=runs/mine, and for --help:
#
#   .venv/bin/python scripts/train_distillation_agentic.py --help
#
# Stop it at any moment; the same command goes on from there. At the end, and on Ctrl-C, report.html in the run's folder
# shows the curves. Exits 0 when all steps are done, 2 on a wrong option, 3 when the machine failed, 130 on Ctrl-C.
set -euo pipefail
unset PYTHONHOME # of another Python; .venv's would not start
cd "$(dirname "${BASH_SOURCE[0]}")"

./scripts/setup --for train

exec .venv/bin/python -m rtl_agent_gym.demo.jobs looking "$@"
