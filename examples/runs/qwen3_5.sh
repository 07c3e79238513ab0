#!/usr/bin/env bash
# Qwen3.6-27B teaches Qwen3.5-9B, the default pair: same vocabulary, tool calls as XML (dialect qwen3_5), both thinking.
#
#   TINKER_API_KEY=... examples/runs/qwen3_5.sh [name=value ...]
#   TINKER_API_KEY=... examples/runs/qwen3_5.sh --dry-run            # models, prompts, limits, tokens and cost
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    student_model?=Qwen/Qwen3.5-9B \
    renderer_name?=qwen3_5 \
    teacher_model?=Qwen/Qwen3.6-27B \
    max_turns?=50 \
    max_tokens?=4096 \
    max_trajectory_tokens?=32768 \
    batch_size?=4 \
    group_size?=2 \
    num_steps?=100 \
    log_path?=runs/qwen3_5 \
    "$@"
