#!/usr/bin/env bash
# Qwen3.5-9B with verl on CVDP's agentic rows: GRPO on one node with 8 GPUs, on which the sandboxes also run.
#
#   pip install "verl[vllm,fsdp]==0.9.1" "rtl-agent-gym"      # in a separate environment, Python 3.11 or 3.12
#   rtl-agent-gym doctor                                       # checks whether sandboxes can run here
#   examples/verl/run.sh [name=value ...]                      # more overrides, such as data.train_batch_size=8
#   PROBLEMS=bundled ROWS=all examples/verl/run.sh             # other problems
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python examples/verl/make_data.py --problems "${PROBLEMS:-cvdp}" --rows "${ROWS:-fair}" --out runs/verl
exec python -m verl.trainer.main_ppo --config-path "$PWD/examples/verl" --config-name qwen3_5_9b \
    data.train_files="$PWD/runs/verl/train.jsonl" \
    data.val_files="$PWD/runs/verl/val.jsonl" \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$PWD/examples/verl/agent_loop.yaml" \
    "$@"
