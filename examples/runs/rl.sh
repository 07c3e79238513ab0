#!/usr/bin/env bash
# Reinforcement learning without a teacher: eight episodes of each problem, each compared with the others (as in GRPO).
# Problems that are always or never solved are sampled rarely; the reward includes the share of hidden tests that pass.
#
#   TINKER_API_KEY=... examples/runs/rl.sh [name=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_rl.py \
    student_model?=Qwen/Qwen3-8B \
    batch_size?=8 \
    group_size?=8 \
    baseline?=group \
    reward?=dense \
    curriculum?=pass_rate \
    num_steps?=200 \
    log_path?=runs/rl \
    "$@"
