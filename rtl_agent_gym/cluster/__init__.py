"""Sandboxes and gradings on many machines, through Ray.

::

    this process                                 every node
    Episode ──► RemoteSandbox ──┐            ┌── Machine (an actor) ──► Docker daemon
    policy      RemoteGrader ───┴─ Cluster ──┴──                   └──► Scorer

Episodes are played in this process, beside their policy or engine: only commands, files and scores travel. A `Machine`
owns its run's containers, budget and scorers on a node, where the run has reserved slots. If a machine is lost, each of
its episodes gets a `SandboxLost` and is played again on another machine, under the same key.
"""

from .machines import CANARY_SECONDS, Cluster
from .remote import ClusterRuntime, RemoteGrader, RemoteSandboxes, runtime_at

__all__ = ["CANARY_SECONDS", "Cluster", "ClusterRuntime", "RemoteGrader", "RemoteSandboxes", "runtime_at"]
