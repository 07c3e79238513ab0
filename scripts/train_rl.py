#!/usr/bin/env python
"""Reinforcement learning on RTL problems in a real shell, without a teacher (GRPO-style).

    python scripts/train_rl.py student_model=Qwen/Qwen3-8B batch_size=4 group_size=8 reward=dense

Without TINKER_API_KEY and base_url, it trains the shipped small model on this machine. ``--help`` lists the options;
``env=single_turn`` trains on single completions without a shell. The same command resumes a stopped run.
"""

import sys

from rtl_agent_gym.demo.jobs import run_script

if __name__ == "__main__":
    sys.exit(run_script(rl=True))
