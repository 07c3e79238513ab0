"""Isolated machines with a persistent shell."""

from .channel import Process
from .container import DockerSandbox, DockerSandboxes
from .namespaces import ApptainerSandboxes, NamespaceSandbox, NamespaceSandboxes
from .pool import WaitingSandboxes
from .protocol import OutputSink, Sandbox, SandboxProvider, SandboxSpec
from .results import WORK_DIR, CommandResult, FoundFiles, ReadRequest

__all__ = [
    "WORK_DIR",
    "ApptainerSandboxes",
    "CommandResult",
    "DockerSandbox",
    "DockerSandboxes",
    "FoundFiles",
    "NamespaceSandbox",
    "NamespaceSandboxes",
    "OutputSink",
    "Process",
    "ReadRequest",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "WaitingSandboxes",
]
