"""On-policy distillation and reinforcement learning.

Import from the modules; most of them need the extra ``train``.
"""
