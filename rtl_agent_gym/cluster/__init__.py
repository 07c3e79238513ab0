"""Sandboxes and gradings on many machines, through Ray.

::

    this process                                 every node
    Episode ──► RemoteSandbox ──┐            ┌── Machine (an actor) ──► Docker daemon
    policy      RemoteGrader ───┴─ Cluster ──┴──                   └──► Scorer

Episodes are played here, where their policy or engine is: what travels are commands, files and scores. A `Machine` owns
its run's containers, budget and scorers on a node, of whose slots the run has reserved some. A machine that
is lost is a `SandboxLost` of each of its episodes, which are played again on others, under the same keys.
"""

from .machines import CANARY_SECONDS, Cluster
from .remote import ClusterRuntime, RemoteGrader, RemoteSandboxes, runtime_at

__all__ = ["CANARY_SECONDS", "Cluster", "ClusterRuntime", "RemoteGrader", "RemoteSandboxes", "runtime_at"]
