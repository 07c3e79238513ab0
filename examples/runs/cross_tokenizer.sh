#!/usr/bin/env bash
# A teacher with another tokenizer and another dialect: Qwen3.6-35B-A3B teaches gpt-oss-20b. Each episode is translated
# to the teacher's dialect, and its log-probabilities are mapped back to the student's tokens by their common bytes.
#
#   TINKER_API_KEY=... examples/runs/cross_tokenizer.sh [name=value ...]
#   TINKER_API_KEY=... examples/runs/cross_tokenizer.sh --dry-run     # models, prompts, limits, tokens and cost
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    student_model?=openai/gpt-oss-20b \
    renderer_name?=gpt_oss_medium_reasoning \
    teacher_model?=Qwen/Qwen3.6-35B-A3B \
    max_turns?=50 \
    max_tokens?=4096 \
    max_trajectory_tokens?=32768 \
    batch_size?=4 \
    group_size?=2 \
    num_steps?=100 \
    log_path?=runs/cross_tokenizer \
    "$@"
