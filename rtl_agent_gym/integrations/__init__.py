"""The environment inside other frameworks: one module for each, on top of `ToolSession`.

A framework is imported only by its own module. All of them play the same `Episode` with the same grader, so a verdict
does not depend on the framework.

One rule for machine faults: an adapter catches `SandboxError` alone, and turns it into what its framework excludes or
retries. It is never a reward, and no other exception is caught.
"""
