"""``rtl-agent-gym cluster``: the nodes of a Ray cluster that have the sandboxes."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..cluster import Cluster
from ..cluster.admitted import RemoteMachine
from ..cluster.connecting import connect
from ..cluster.machine import METRICS_PORTS, Report
from ..cluster.machines import reports
from ..cluster.node import prepare, slots_here, start_node, stop_node
from .options import JsonOption

cluster_app = typer.Typer(
    help="The nodes of a Ray cluster that have the sandboxes: make this machine one, show them, end it.",
    no_args_is_help=True,
)

AddressArgument = Annotated[str, typer.Argument(metavar="[ADDRESS]", help="Of the cluster's head, such as HOST:6379.")]


def _print(line: str) -> None:
    print(line, file=sys.stderr)


@cluster_app.command("up")
def up(
    address: AddressArgument = "",
    slots: Annotated[
        int, typer.Option(min=0, help="Agent sandboxes that this node can have at once; 0: what its memory allows.")
    ] = 0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of a head that is started here.")] = 6379,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535 - METRICS_PORTS,
            help="Port that serves this node's metrics for Prometheus while a run uses it; 0: none. Each further run "
            "takes the next free port.",
        ),
    ] = 0,
) -> None:
    """Make this machine a node, or the head of a new cluster if no address is given.

    It needs a Docker daemon, which is installed and started where that is possible, and the simulation image.
    """
    prepare(_print)
    head = start_node(address, slots or slots_here(), _print, port, metrics_port)
    print(f"other machines join with: rtl-agent-gym cluster up {head}")
    print(f"use it with: rtl-agent-gym eval --ray {head} …, or rtl-agent-gym train distill ray_address={head} …")


@cluster_app.command("status")
def status(address: AddressArgument = "auto", json_: JsonOption = False) -> None:
    """Show the nodes: daemon, image, slots, what the canaries say, and the work and faults of the runs that use them.

    Exits 3 if none can be used.
    """
    lines: list[str] = []

    async def look() -> list[dict[str, Any]]:
        running = await reports()
        cluster = Cluster(on_event=lines.append, metrics=False)
        try:
            await cluster.open()
            return [_described(machine, running.get(machine.node[:8], [])) for machine in cluster.working]
        finally:
            await cluster.close()

    connect(address)
    found = asyncio.run(look())
    if json_:
        print(json.dumps({"nodes": found, "events": lines}))
        return
    print("\n".join(lines))
    for node in found:
        print(f"{node['machine']}: {node['slots']} slots, {node['gradings']:g} gradings at once")
        print(f"  daemon {node['daemon']}, image {node['image'][:19]}")
        for run in node["runs"]:
            faults = ", ".join(f"{name} {count}" for name, count in sorted(run["faults"].items())) or "none"
            served = f", metrics at port {run['metrics_port']}" if run["metrics_port"] else ""
            work = f"{run['sandboxes']} sandboxes, {run['gradings']} gradings"
            print(f"  process {run['process']}: {work}, faults: {faults}{served}")


def _described(machine: RemoteMachine, running: list[Report]) -> dict[str, Any]:
    """A node, with the runs that use it."""
    return {
        "machine": machine.name,
        "slots": machine.slots,
        "gradings": machine.facts.cpus,
        "image": machine.facts.digest,
        "daemon": machine.facts.daemon,
        "runs": [asdict(report) for report in running],
    }


@cluster_app.command("down")
def down() -> None:
    """End the node that ``cluster up`` made of this machine, with its containers."""
    print("this machine is no node any more" if stop_node() else "this machine is no node")
