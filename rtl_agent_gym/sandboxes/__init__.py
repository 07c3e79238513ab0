"""Isolated machines with a persistent shell."""

from .container import DockerSandbox, DockerSandboxes
from .pool import WaitingSandboxes
from .protocol import WORK_DIR, CommandResult, FoundFiles, OutputSink, Process, Sandbox, SandboxProvider, SandboxSpec

__all__ = [
    "WORK_DIR",
    "CommandResult",
    "DockerSandbox",
    "DockerSandboxes",
    "FoundFiles",
    "OutputSink",
    "Process",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "WaitingSandboxes",
]
