#!/usr/bin/env bash
# Distil Qwen3.6-27B into Qwen3.5-9B, the default pair, on one problem, four episodes a step.
#
#   TINKER_API_KEY=... examples/runs/one_problem.sh [name=value ...]
#
# Without a key the same command trains the shipped small model on this machine; see run_distillation_1problem_agentic.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    problem_ids?=cvdp_agentic_rtlgym_fixed_priority_arbiter_0001 \
    group_size?=4 \
    num_steps?=50 \
    log_path?=runs/one_problem \
    "$@"
