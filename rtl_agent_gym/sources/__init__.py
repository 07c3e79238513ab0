"""Sources of problems beyond files: generated families, mutants, and other benchmarks.

They are plug-ins of the registry in `rtl_agent_gym.problems.registry`, and nothing on a lower floor imports them.
"""
