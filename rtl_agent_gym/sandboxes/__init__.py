"""Isolated machines with a persistent shell."""

from .container import DockerSandbox
from .pool import WaitingSandboxes
from .process import WORK_DIR, CommandResult, Process
from .protocol import FoundFiles, OutputSink, Reading, Sandbox, SandboxProvider, SandboxSpec
from .provider import DockerSandboxes

__all__ = [
    "WORK_DIR",
    "CommandResult",
    "DockerSandbox",
    "DockerSandboxes",
    "FoundFiles",
    "OutputSink",
    "Process",
    "Reading",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "WaitingSandboxes",
]
