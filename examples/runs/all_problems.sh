#!/usr/bin/env bash
# Distil on every problem of a CVDP file, from easy to hard, sampling the next batch while training on the current one.
#
#   TINKER_API_KEY=... examples/runs/all_problems.sh cvdp_jsonl_path=data/cvdp.jsonl [name=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    batch_size?=16 \
    group_size?=2 \
    baseline?=running \
    curriculum?=difficulty \
    pipeline?=true \
    num_steps?=500 \
    log_path?=runs/all_problems \
    "$@"
