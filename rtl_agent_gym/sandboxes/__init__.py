"""Isolated machines with a persistent shell."""

from .container import DockerSandbox
from .pool import WaitingSandboxes
from .process import WORK_DIR, CommandResult, Process
from .protocol import FoundFiles, OutputSink, Sandbox, SandboxProvider, SandboxSpec
from .provider import DockerSandboxes

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
