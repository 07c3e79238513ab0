"""What the nodes of a cluster are and do, seen without using them: no sandbox and no grading is started."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from ..errors import RTLGymError
from .machine import Facts, RunReport
from .machines import NAME, NAMESPACE
from .node import facts_here
from .node_client import difference
from .ray_cluster import SLOTS, first_line, free_slots, name_of, nodes_with_slots, on_node

REPORT_SECONDS = 10.0
"""Time in which a machine has to report."""
DESCRIBE_SECONDS = 60.0
"""Time in which a node has to describe itself, for which Ray may have to start a process there."""


@dataclass(frozen=True)
class NodeState:
    """A node that reports slots."""

    machine: str
    """Its host and address."""
    slots: int
    free: int
    """Slots that no run has reserved."""
    facts: Facts | None = None
    """Its own description; None without an answer."""
    why: str = ""
    """Why it cannot be used; empty if it can."""
    runs: list[RunReport] = field(default_factory=list)
    """What its machines have done, one for each run that uses it."""


async def look() -> list[NodeState]:
    """All nodes that report slots. Connect to the cluster before."""
    running, free, nodes = await reports(), free_slots(), nodes_with_slots()
    found = await asyncio.gather(*(_facts(node) for node in nodes))
    digest = next((facts.digest for facts in found if isinstance(facts, Facts)), "")
    states = []
    for (node, described), facts in zip(nodes.items(), found, strict=True):
        slots, runs = int(described["Resources"][SLOTS]), running.get(node[:8], [])
        known, why = (None, facts) if isinstance(facts, str) else (facts, difference(facts, digest))
        states.append(NodeState(name_of(described), slots, free.get(node, slots), known, why, runs))
    return states


async def _facts(node: str) -> Facts | str:
    """A node's facts, or why there are none."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    asked: Any = ray.remote(facts_here).options(num_cpus=0, max_retries=0, scheduling_strategy=on_node(node)).remote()
    try:
        async with asyncio.timeout(DESCRIBE_SECONDS):
            facts: Facts = await asked
            return facts
    except TimeoutError:
        ray.cancel(asked, force=True)
        return f"it has not answered for {DESCRIBE_SECONDS:.0f} s"
    except RayTaskError as error:
        return str(error.cause) if isinstance(error.cause, RTLGymError) else str(error).splitlines()[-1]
    except RayError as error:
        return first_line(error)


async def reports() -> dict[str, list[RunReport]]:
    """What the machines of all runs have done so far, by the first digits of their nodes' ids."""
    import ray
    from ray.exceptions import RayError

    found: dict[str, list[RunReport]] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(NAME):
            with contextlib.suppress(RayError, ValueError, TimeoutError):  # it has just ended, or does not answer
                report: Any = ray.get_actor(actor["name"], NAMESPACE).report.remote()
                node = actor["name"].removeprefix(NAME).partition("-")[0]
                found.setdefault(node, []).append(await asyncio.wait_for(report, REPORT_SECONDS))
    return found
