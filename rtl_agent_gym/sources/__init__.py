"""Sources of problems other than files: generated families, problems derived from others, and other benchmarks.

They are plug-ins of the registry in `rtl_agent_gym.problems.registry`, and nothing on a lower floor imports them.
"""
