"""Adapters for other frameworks, one module each, on top of `ToolSession`.

A framework is imported only by its own module. All adapters play the same `Episode` with the same grader, so a verdict
does not depend on the framework.

All adapters treat machine faults alike: they catch `SandboxError`, and no other exception, and turn it into something
that their framework excludes or retries, never into a reward.
"""
