#!/usr/bin/env bash
# Qwen3-235B-A22B-Instruct teaches Qwen3-30B-A3B-Instruct. Neither thinks (dialect qwen3_instruct), so turns are short and
# episodes have room for more of them.
#
#   TINKER_API_KEY=... examples/runs/qwen3_30b.sh [name=value ...]
#   TINKER_API_KEY=... examples/runs/qwen3_30b.sh --dry-run           # models, prompts, limits, tokens and cost
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    student_model?=Qwen/Qwen3-30B-A3B-Instruct-2507 \
    renderer_name?=qwen3_instruct \
    teacher_model?=Qwen/Qwen3-235B-A22B-Instruct-2507 \
    max_turns?=50 \
    max_tokens?=2048 \
    max_trajectory_tokens?=32768 \
    batch_size?=4 \
    group_size?=2 \
    num_steps?=100 \
    log_path?=runs/qwen3_30b \
    "$@"
