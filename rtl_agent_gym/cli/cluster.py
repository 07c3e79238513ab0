"""``rtl-agent-gym cluster``: the nodes of a Ray cluster that have the sandboxes."""

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
    help="The nodes of a Ray cluster that have the sandboxes: make this machine one, show them, end it.",
    no_args_is_help=True,
)

HEAD_PORT = 6379
AddressArgument = Annotated[str, typer.Argument(metavar="[ADDRESS]", help="Of the cluster's head, such as HOST:6379.")]
_print = partial(typer.echo, err=True)


@cluster_app.command("up")
def up(
    address: AddressArgument = "",
    slots: Annotated[
        int, typer.Option(min=0, help="Agent sandboxes that this node can have at once; 0: what its memory allows.")
    ] = 0,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of a head that is started here; 0: 6379, and in a Slurm job a free one."
        ),
    ] = 0,
) -> None:
    """Make this machine a node, or the head of a new cluster if no address is given.

    It needs sandboxes, whose Docker daemon is installed and started where that is possible, and the simulation image.
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
    """What ``cluster up`` starts on each node of a Slurm job."""
    become_part(head, first, slots, _print)


@cluster_app.command("status")
def status(address: AddressArgument = "auto", json_: JsonOption = False) -> None:
    """Show the nodes: daemon, image, slots, and for each run that uses them its canaries, work and faults.

    No container is started. Exits 3 if none can be used.
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
    """End what ``cluster up`` started here, with its sandboxes: this node, or in a Slurm job all of its nodes."""
    print("this machine is no longer a node" if stop_node() else "this machine is not a node")
