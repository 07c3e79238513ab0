"""Machines that are called as Ray calls its actors, without Ray's processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rtl_agent_gym.cluster.canaries import Confirmations
from rtl_agent_gym.cluster.machine import Facts
from rtl_agent_gym.cluster.machines import Cluster
from rtl_agent_gym.cluster.node_client import NodeClient
from rtl_agent_gym.scoring import rules_digest
from rtl_agent_gym.scoring.score import Score

exceptions = pytest.importorskip("ray.exceptions")

FACTS = Facts("", 2.0, rules=rules_digest())


class Actor:
    """A machine with Ray's way of calling its methods. `fails` makes every later call raise."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.fails = machine, None

    def __getattr__(self, name: str) -> Any:
        async def remote(*arguments: Any) -> Any:
            if self.fails is not None:
                raise self.fails
            try:
                return await getattr(self.machine, name)(*arguments)
            except Exception as error:
                raise exceptions.RayTaskError(name, "a traceback", error) from error

        return type("Method", (), {"remote": staticmethod(remote)})


def cluster_of(*actors: Actor, slots: int = 2) -> Cluster:
    cluster = Cluster()
    for number, actor in enumerate(actors):
        machine = NodeClient(str(number), f"machine {number}", slots, actor, FACTS)
        cluster.machines[machine.node] = machine
        cluster._admitted[machine] = Confirmations(machine, cluster._canary_seconds)
    cluster._slots.resize(slots * len(actors))
    cluster._open = True
    return cluster


class Grades:
    """A machine that judges designs by a word in them; from `lies_from` gradings on it passes everything."""

    def __init__(self, lies_from: float = float("inf")) -> None:
        self.lies_from, self.gradings = lies_from, 0
        self.called: list[str] = []

    async def score(self, problem: Any, files: Any, *_: Any) -> Any:
        self.gradings += 1
        lies = self.gradings > self.lies_from
        await asyncio.sleep(0.01)
        passed = lies or "valid <= ~" not in "".join(files.values())
        return Score(passed=passed, reason="because")

    def __getattr__(self, name: str) -> Any:
        async def noted() -> None:
            self.called.append(name)

        if name in ("seal", "keep", "drop"):
            return noted
        raise AttributeError(name)


class Stub:
    """A machine that grades as it is told."""

    async def seal(self) -> None: ...

    async def drop(self) -> None: ...

    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)

    async def score(self, *_: Any) -> Any:
        verdict = self.verdicts.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return Score(passed=verdict, reason="because")
