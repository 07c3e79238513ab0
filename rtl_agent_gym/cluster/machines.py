"""The machines of a Ray cluster, as the driver sees them: which exist, which have free slots, which are lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..errors import DaemonError, RTLGymError, SandboxError, SandboxLost
from ..retries import NODE
from ..sandboxes.admission import Permits
from .canaries import Confirmations, canary
from .machine import Facts, Machine
from .node_client import NodeClient, ObjectCache, difference
from .ray_cluster import SLOTS, connect, free_slots, name_of, nodes_with_slots, on_node, reserve

CANARY_SECONDS = 15.0
"""Default time for which a verdict waits for others, so that one canary confirms many."""
REFRESH = 10.0
"""Seconds between two listings of the cluster's nodes."""
POLL_SECONDS = 1.0
"""Seconds between two checks whether a machine without new work has finished."""
NAMESPACE, NAME = "rtl_agent_gym", "machine-"
"""Ray namespace and name prefix of all machines, by which other processes find them."""
CONCURRENCY = 10_000
"""Maximum calls of a machine at the same time; its budget limits their work."""

logger = logging.getLogger(__name__)


@dataclass
class Refusal:
    """Why a node is not used at present."""

    why: str
    times: int = 0
    """Number of consecutive times that it could not be used."""
    until: float = float("inf")
    """When it is tried again, by the event loop's clock."""
    taken: bool = False
    """Whether the only reason is that it has no free slots."""


class Cluster:
    """The machines of a Ray cluster.

    Args:
        limits: What sandboxes may use of each node; see `sandboxes.admission.read_limits`.
        canary_seconds: Maximum time for which a verdict waits until its machine grades a canary; see `canaries`.
        slots: Maximum number of slots to reserve on each node; 0 for all that are free.
        address: Address of the cluster's head, such as ``10.0.0.1:6379``; ``auto`` for the cluster of this machine, or
            the cluster to which this process is connected.
    """

    def __init__(
        self,
        limits: str = "",
        canary_seconds: float = CANARY_SECONDS,
        slots: int = 0,
        address: str = "auto",
    ) -> None:
        self._limits, self._canary_seconds, self._most = limits, canary_seconds, slots
        self._address, self._opening, self._open = address, asyncio.Lock(), False
        self.sent = ObjectCache()
        """Objects that are sent to many sandboxes and gradings."""
        self.machines: dict[str, NodeClient] = {}
        self._admitted: dict[NodeClient, Confirmations] = {}
        """Includes machines that get no more work: the current work of a quarantined machine continues."""
        self._refused: dict[str, Refusal] = {}
        self._digest: str | None = None
        """Image digest of the first admitted machine; machines with a different one are not admitted."""
        self._slots = Permits(0)
        self._refreshing = asyncio.Lock()
        self._admitting: dict[str, asyncio.Task[None]] = {}
        """By node. Waiting for all of them needs a time limit, since a faulty node may never answer."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, admit the nodes that report slots, and keep watching for changes. Idempotent.

        Returns at most `REFRESH` seconds after the first node is used; the others join later. Waits while other runs
        have reserved all slots.

        Raises:
            UsageError: There is no cluster.
            SandboxError: No node can be used; the message names each and why.
        """
        async with self._opening:
            if self._open:
                return
            await asyncio.to_thread(connect, self._address)
            await self.refresh()
            pause = 1.0
            while not self.working and (self._admitting or self._any_taken()):
                await self._wait_for_one(min(pause, REFRESH))
                if not self.working:
                    await self.refresh()
                pause *= 2
            if not self.working:
                raise SandboxError(f"no node of the Ray cluster can be used: {self._why_none()}")
            if self._admitting:  # most join at about the same time, and the first should not get all the work
                await asyncio.wait(self._admitting.values(), timeout=REFRESH)
            self._watching = asyncio.ensure_future(self._watch())
            self._open = True

    async def close(self) -> None:
        """End every container on every node."""
        tasks = [*self._retiring, *self._admitting.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for machine in list(self._admitted):
            await self._end(machine)

    async def _end(self, machine: NodeClient) -> None:
        if not machine.gone:
            with contextlib.suppress(SandboxError):
                await machine.call("close")
        machine.end()  # if it is only unreachable, its containers end with its actor
        await self._admitted.pop(machine).close()

    def abandon(self) -> None:
        """End every container without the event loop: the machines end with their actors."""
        for machine in self._admitted:
            machine.end()

    @property
    def working(self) -> list[NodeClient]:
        """The machines that get work."""
        return [machine for machine in self.machines.values() if not machine.lost]

    async def refresh(self) -> None:
        """Begin to admit new nodes, and drop those that are gone."""
        async with self._refreshing:
            failures = self._failures()
            alive = await asyncio.to_thread(nodes_with_slots)
            free = await asyncio.to_thread(free_slots)
            for machine in list(self.machines.values()):
                if machine.node not in alive and not machine.lost:
                    machine.lose("its node has left the cluster")
                if machine.lost:
                    self._drop(machine, forever=machine.wrong or machine.node not in alive)
                else:
                    await self._reserve_more(machine, free.get(machine.node, 0))
            now = asyncio.get_running_loop().time()
            for node, refusal in list(self._refused.items()):
                if refusal.taken and node not in alive:
                    del self._refused[node]
            known = self.machines.keys() | self._admitting.keys()
            for node, found in alive.items():
                if node not in known and (node not in self._refused or self._refused[node].until <= now):
                    slots = free.get(node, int(found["Resources"][SLOTS]))
                    self._admitting[node] = asyncio.ensure_future(self._admit(node, found, slots))
            self._count_slots()
            for error in failures:
                raise error

    def _failures(self) -> list[BaseException]:
        """Unexpected exceptions of the admissions that have ended, which are removed from `_admitting`."""
        ended = [self._admitting.pop(node) for node, task in [*self._admitting.items()] if task.done()]
        return [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]

    async def _wait_for_one(self, seconds: float) -> None:
        """Return when a machine is used or the time is up; immediately if no node can be used for now."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while not self.working and (left := end - clock()) > 0:
            for error in self._failures():
                raise error
            if self._admitting:
                await asyncio.wait(self._admitting.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            elif self._any_taken():
                await asyncio.sleep(left)
            else:
                return

    async def _watch(self) -> None:
        from ray.exceptions import RayError

        while True:
            await asyncio.sleep(REFRESH)
            try:
                await self.refresh()
            except (SandboxError, RayError) as error:
                logger.warning("the cluster's nodes could not be listed: %s", error)

    def _any_taken(self) -> bool:
        return any(refusal.taken for refusal in self._refused.values())

    def _count_slots(self) -> None:
        self._slots.resize(sum(machine.slots for machine in self.working))

    async def _reserve_more(self, machine: NodeClient, free: int) -> None:
        """Reserve slots that other runs have released in the meantime."""
        more = min(free, (self._most or machine.capacity) - machine.slots)
        if more > 0 and (group := await reserve(machine.node, more)) is not None:
            machine.reserved.append(group)
            machine.slots += more
            logger.info("machine %s is now used with %d slots", machine.name, machine.slots)

    def _drop(self, machine: NodeClient, *, forever: bool) -> None:
        """Give a lost machine no more work, and end it once its current work has ended."""
        del self.machines[machine.node]
        task = asyncio.ensure_future(self._retire(machine))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        self._refuse(machine.node, machine.lost, forever=forever)
        if not machine.wrong:  # otherwise its canary has reported it
            logger.info("machine %s gets no more work: %s", machine.name, machine.lost)

    async def _retire(self, machine: NodeClient) -> None:
        while (machine.live or machine.grading) and not machine.gone:
            await asyncio.sleep(POLL_SECONDS)
        await self._end(machine)

    def _refuse(self, node: str, why: str, *, forever: bool = False) -> None:
        """Do not use a node, for a time that grows with each refusal, or `forever`."""
        before = self._refused.get(node)
        times = before.times + 1 if before is not None and not before.taken else 1
        until = float("inf") if forever else asyncio.get_running_loop().time() + NODE.pause(times)
        self._refused[node] = Refusal(why, times, until)

    def _wait_for_slots(self, node: str, name: str, slots: int) -> None:
        """All slots of a node are reserved: check again soon, and log a warning at the second check."""
        before, why = self._refused.get(node), f"all of its {slots} slots are reserved"
        times = before.times + 1 if before is not None and before.taken else 0
        if times == 1:  # at the first check, Ray's number of free slots may be outdated
            logger.warning(
                "machine %s is not used yet: %s, by other runs or by runs that are still ending; it is used once some "
                "of them are free (rtl-agent-gym cluster status shows its runs)",
                name, why,
            )  # fmt: skip
        self._refused[node] = Refusal(why, times, 0.0, taken=True)

    async def _admit(self, node: str, found: dict[str, Any], free: int) -> None:
        """Reserve slots of a node, start a machine there, and use it if it grades a canary correctly."""
        slots, name = int(found["Resources"][SLOTS]), name_of(found)
        wanted = min(free, self._most or slots)
        reserved = await reserve(node, wanted) if wanted > 0 else None
        if reserved is None:
            self._wait_for_slots(node, name, slots)
            return
        machine = NodeClient(node, name, wanted, None, Facts("", 1.0), slots, [reserved])
        try:
            await self._start(machine)
        finally:  # also if the cluster is closed in the meantime: this machine is not in any list yet
            if self.machines.get(node) is not machine:
                machine.end()

    async def _start(self, machine: NodeClient) -> None:
        import ray
        from ray.exceptions import RayError

        node, name = machine.node, machine.name
        made = ray.remote(Machine).options(
            num_cpus=0, max_concurrency=CONCURRENCY, scheduling_strategy=on_node(node), max_restarts=0,
            name=f"{NAME}{node[:8]}-{secrets.token_hex(4)}", namespace=NAMESPACE,
        )  # fmt: skip
        machine.actor = made.remote(self._limits, logs=True)
        try:
            machine.facts = await machine.call("facts")
            self._compare(machine.facts)
            if wrong := await canary(machine.call):
                machine.wrong = True
                raise SandboxError(wrong)
            await machine.call("keep")
            self._compare(machine.facts)  # another machine may have become the first since
        except (RTLGymError, RayError) as error:  # also if the node has another version of this package or bad limits
            self._refuse(node, str(error), forever=machine.wrong)
            again = "" if machine.wrong else "; it is tried again later"
            logger.info("machine %s is not used: %s%s", name, error, again)
            return
        self._digest = machine.facts.digest
        self.machines[node] = machine
        self._admitted[machine] = Confirmations(machine, self._canary_seconds)
        self._count_slots()
        if node in self._refused:
            self._refused[node].until, self._refused[node].taken = 0.0, False
        of = "" if machine.slots == machine.capacity else f" of {machine.capacity}"
        logger.info("machine %s is used, with %d%s slots", name, machine.slots, of)

    def _compare(self, facts: Facts) -> None:
        if why := difference(facts, self._digest or ""):
            raise SandboxError(why)

    async def confirm(self, machine: NodeClient) -> None:
        """Return when a machine has correctly graded a canary that began after this call; see `canaries`.

        Raises `SandboxLost` otherwise: the machine's verdict must then not be used.
        """
        if machine not in self._admitted:
            raise SandboxLost(f"a verdict of machine {machine.name} cannot be confirmed: {machine.lost}")
        await self._admitted[machine].confirm()

    @contextlib.asynccontextmanager
    async def placed(self) -> AsyncIterator[NodeClient]:
        """The machine with the largest share of free slots, one of which is taken in the context; waits for a slot.

        Raises:
            DaemonError: No machine can be used for the moment; some are tried again.
            SandboxLost: No machine can be used any more.
        """
        async with self._slots.held(1):
            self._count_slots()  # without those of machines that have been lost since
            while (machine := self._best(lambda machine: machine.live / machine.slots)).live >= machine.slots:
                await asyncio.sleep(POLL_SECONDS)
            machine.live += 1
            try:
                yield machine
            finally:
                machine.live -= 1

    @contextlib.asynccontextmanager
    async def grading(self, tried: Collection[str] = ()) -> AsyncIterator[NodeClient]:
        """The machine with the fewest gradings per CPU; a node in `tried` only if there is no other.

        Raises like `placed`.
        """
        machine = self._best(lambda machine: (machine.node in tried, machine.grading / machine.facts.cpus))
        machine.grading += 1
        try:
            yield machine
        finally:
            machine.grading -= 1

    def _best(self, load: Callable[[NodeClient], Any]) -> NodeClient:
        if not self.working:
            lost = [machine for machine in self.machines.values() if not machine.wrong]
            if lost or self._admitting or any(refusal.until < float("inf") for refusal in self._refused.values()):
                raise DaemonError(f"no node of the Ray cluster can be used for the moment: {self._why_none()}")
            raise SandboxLost(f"no node of the Ray cluster can be used any more: {self._why_none()}")
        return min(self.working, key=load)

    def _why_none(self) -> str:
        refused = [refusal.why for node, refusal in self._refused.items() if node not in self.machines]
        lost = [machine.lost for machine in self.machines.values() if machine.lost]
        return "; ".join(refused + lost) or (
            f"none reports the resource {SLOTS}; prepare nodes with `rtl-agent-gym cluster up`"
        )
