#!/usr/bin/env bash
# Distil on the easy problems of a CVDP file. Steps have many problems, so the baseline is each problem's running mean.
#
#   TINKER_API_KEY=... examples/runs/easy_problems.sh cvdp_jsonl_path=data/cvdp.jsonl [name=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python scripts/train_distillation_agentic.py \
    difficulties?=easy \
    batch_size?=8 \
    group_size?=2 \
    baseline?=running \
    num_steps?=200 \
    log_path?=runs/easy_problems \
    "$@"
