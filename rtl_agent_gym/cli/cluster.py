"""``rtl-agent-gym cluster``: start, show and stop the nodes of a Ray cluster that run the sandboxes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from ..cluster.node import NodeState, look, prepare, slots_here, start_node, stop_node
from ..cluster.ray_cluster import SLOTS, connect
from ..cluster.slurm import become_part, in_job, start_job
from ..errors import SandboxError
from .options import JsonOption

cluster_app = typer.Typer(
    help="Nodes of a Ray cluster that run the sandboxes: make this machine a node, show all nodes, stop this one.",
    no_args_is_help=True,
)

HEAD_PORT = 6379
AddressArgument = Annotated[str, typer.Argument(metavar="[ADDRESS]", help="The cluster's head, such as HOST:6379.")]
_print = partial(typer.echo, err=True)


@cluster_app.command("up")
def up(
    address: AddressArgument = "",
    slots: Annotated[
        int, typer.Option(min=0, help="Maximum number of agent sandboxes here; 0: as many as the memory allows.")
    ] = 0,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of a head that is started here; 0: port 6379, or in a Slurm job any free port."
        ),
    ] = 0,
) -> None:
    """Make this machine a node, or the head of a new cluster if no address is given.

    A node needs the simulation image and sandboxes; if none can be made, Docker is installed and started if possible.
    In a Slurm job without an address, all nodes of the job become a cluster, which ends with the job.
    """
    if in_job() and not address:
        head = start_job(slots, _print, port)
        print(f"the head is at {head}")
        print("use it in this job with: rtl-agent-gym eval --ray auto …, or rtl-agent-gym train … ray_address=auto")
        return
    prepare(_print)
    head = start_node(address, slots or slots_here(), _print, port or HEAD_PORT)
    print(f"other machines join with: rtl-agent-gym cluster up {head}")
    print(f"use it with: rtl-agent-gym eval --ray {head} …, or rtl-agent-gym train distill ray_address={head} …")


@cluster_app.command("part", hidden=True)
def part(head: str, first: str, slots: int = 0) -> None:
    """Started by ``cluster up`` on each node of a Slurm job."""
    become_part(head, first, slots, _print)


@cluster_app.command("status")
def status(address: AddressArgument = "auto", json_: JsonOption = False) -> None:
    """Show each node's daemon, image and slots, and the canaries, work and faults of each run that uses it.

    No container is started. Exits 3 if no node can be used.
    """
    connect(address)
    found = asyncio.run(look())
    if json_:
        print(json.dumps({"nodes": [_described(node) for node in found]}))
    else:
        for node in found:
            _show(node)
    if all(node.why for node in found):
        raise SandboxError(
            "no node of the Ray cluster can be used"
            + ("" if found else f": none reports the resource {SLOTS}; prepare nodes with `rtl-agent-gym cluster up`")
        )


def _described(node: NodeState) -> dict[str, Any]:
    facts = node.facts
    return {
        "machine": node.machine,
        "slots": node.slots,
        "free": node.free,
        "gradings": facts.cpus if facts else 0.0,
        "image": facts.digest if facts else "",
        "daemon": facts.daemon if facts else "",
        "unusable": node.why,
        "runs": [asdict(report) for report in node.runs],
    }


def _show(node: NodeState) -> None:
    print(f"{node.machine}: {node.slots} slots, {node.free} free" + (f"; not used: {node.why}" if node.why else ""))
    if node.facts:
        print(f"  daemon {node.facts.daemon}, image {node.facts.digest[:19]}, {node.facts.cpus:g} gradings at once")
    for run in node.runs:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(run.faults.items())) or "none"
        ago = "" if run.last_canary is None else f", the last {run.last_canary:.0f} s ago"
        canaries = f"canaries: {run.canaries.get('right', 0)} right{ago}, {run.canaries.get('wrong', 0)} wrong"
        work = f"{run.sandboxes} sandboxes, {run.gradings} gradings"
        print(f"  process {run.process}: {work}, {canaries}, faults: {faults}")
    if not node.runs and not node.why:
        print("  no run uses it; each run begins with canaries")


@cluster_app.command("down")
def down() -> None:
    """Stop what ``cluster up`` started here, including its sandboxes: this node, or all nodes of a Slurm job."""
    print("this machine is no longer a node" if stop_node() else "this machine is not a node")
