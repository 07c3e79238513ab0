#!/usr/bin/env bash
# A warm start: a student imitates the passing episodes of a stronger model, which plays them first:
#
#   rtl-agent-gym eval --policy tinker:Qwen/Qwen3.6-27B -n 4 --out runs/teacher
#   TINKER_API_KEY=... examples/runs/sft.sh [name=value ...]
#
# Then distil or reinforce from the last checkpoint: load_checkpoint_path=STATE_PATH, taken from checkpoints.jsonl.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/rtl-agent-gym train sft \
    episodes?=runs/teacher \
    batch_size?=16 \
    epochs?=2 \
    learning_rate?=2e-4 \
    lr_schedule?=linear \
    warmup_steps?=5 \
    log_path?=runs/sft \
    "$@"
