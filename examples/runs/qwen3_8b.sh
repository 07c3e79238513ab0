#!/usr/bin/env bash
# Qwen3-8B is its own teacher: as the teacher, it also reads the reference solution. It thinks (dialect qwen3).
#
#   TINKER_API_KEY=... examples/runs/qwen3_8b.sh [name=value ...]
#   TINKER_API_KEY=... examples/runs/qwen3_8b.sh --dry-run            # models, prompts, limits, tokens and cost
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    student_model?=Qwen/Qwen3-8B \
    renderer_name?=qwen3 \
    teacher_model?=self \
    teacher_context?=reference \
    max_turns?=50 \
    max_tokens?=4096 \
    max_trajectory_tokens?=32768 \
    batch_size?=4 \
    group_size?=2 \
    num_steps?=100 \
    log_path?=runs/qwen3_8b \
    "$@"
