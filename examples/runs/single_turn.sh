#!/usr/bin/env bash
# One completion instead of a shell: the code is taken from its fenced blocks and scored by the same hidden tests.
#
#   TINKER_API_KEY=... examples/runs/single_turn.sh [name=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    env?=single_turn \
    batch_size?=8 \
    group_size?=4 \
    max_tokens?=8192 \
    num_steps?=100 \
    log_path?=runs/single_turn \
    "$@"
