"""The slots of the cluster's nodes, which a run reserves through Ray before it puts sandboxes there.

A node reports its slots as a custom resource. A run reserves some with a placement group, so that no other run, and no
task of a `RayExecutor`, gets them too. Ray ends a placement group with the process that made it, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

SLOTS = "rtl_gym_slots"
"""The custom resource of a node: agent sandboxes that it can have at the same time."""
NODE_LABEL = "ray.io/node-id"
"""The label that Ray itself gives each node."""
RESERVE_SECONDS = 5.0
"""Time in which free slots are reserved; Ray needs milliseconds, unless another run was faster."""


def free_slots() -> dict[str, int]:
    """The slots that nobody has reserved, by Ray's ids of the nodes. May be some tenths of a second old."""
    from ray._private import state

    untyped: Any = state
    return {node: int(found.get(SLOTS, 0)) for node, found in untyped.available_resources_per_node().items()}


async def reserve(node: str, slots: int) -> Any | None:
    """Reserve slots of a node, for `release`; None if they are not free."""
    from ray.util.placement_group import placement_group

    group = placement_group([{SLOTS: slots}], bundle_label_selector=[{NODE_LABEL: node}])
    reserved = False
    try:
        reserved = await asyncio.to_thread(group.wait, RESERVE_SECONDS)
    finally:
        if not reserved:
            release(group)
    return group if reserved else None


def release(group: Any) -> None:
    """Give reserved slots back."""
    from ray.exceptions import RayError
    from ray.util.placement_group import remove_placement_group

    with contextlib.suppress(RayError, ValueError):  # Ray may be gone already
        remove_placement_group(group)
