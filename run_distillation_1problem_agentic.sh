#!/usr/bin/env bash
# One problem from end to end, on this machine, with nothing prepared:
#
#   ./run_distillation_1problem_agentic.sh
#
# Sets up what is missing (the Python environment, the Docker daemon, the simulation image), then plays two episodes of the
# bundled 8-bit fixed-priority arbiter through a real shell and scores each with the problem's hidden cocotb tests:
#
#   1. the reference solution, which earns the full reward of 1.4;
#   2. a scripted agent that first gets it wrong, sees in the shell that it is wrong, and repairs the design.
#
# Both are shown live and end with their score table. Arguments go to both runs, such as --transcript-dir runs/first;
# what is possible: .venv/bin/rtl-agent-gym run --help. Exits with 0 when both designs passed.
# The first run on a machine takes some minutes (the image); later ones start at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly PROBLEM=cvdp_agentic_rtlgym_fixed_priority_arbiter_0001
readonly REPAIR=examples/policies/arbiter_repair.yaml

./scripts/setup

.venv/bin/rtl-agent-gym run --problem "$PROBLEM" --policy golden "$@"
.venv/bin/rtl-agent-gym run --problem "$PROBLEM" --policy "scripted $REPAIR" "$@"
