"""On-policy distillation and reinforcement learning: the loop, its advantages, its teachers, its report.

Import from the modules: most of them need the extra ``train``, and this file needs nothing.
"""
