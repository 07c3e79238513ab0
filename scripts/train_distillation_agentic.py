#!/usr/bin/env python
"""On-policy distillation on RTL problems in a real shell.

    python scripts/train_distillation_agentic.py student_model=Qwen/Qwen3.5-9B teacher_model=Qwen/Qwen3.6-27B

Without TINKER_API_KEY and base_url, it trains the shipped small model on this machine. ``--help`` lists the options;
``env=single_turn`` trains on single completions without a shell. The same command resumes a stopped run.
"""

import sys

from rtl_agent_gym.demo.jobs import run_script

if __name__ == "__main__":
    sys.exit(run_script())
