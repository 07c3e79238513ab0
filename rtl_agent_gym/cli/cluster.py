"""``rtl-agent-gym cluster``: the nodes of a Ray cluster that have the sandboxes."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import typer

from ..cluster import Cluster
from ..cluster.machines import connect
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
) -> None:
    """Make this machine a node, or the head of a new cluster if no address is given.

    It needs a Docker daemon, which is installed and started where that is possible, and the simulation image.
    """
    prepare(_print)
    head = start_node(address, slots or slots_here(), _print, port)
    print(f"other machines join with: rtl-agent-gym cluster up {head}")
    print(f"use it with: rtl-agent-gym eval --ray {head} …, or rtl-agent-gym train ray_address={head} …")


@cluster_app.command("status")
def status(address: AddressArgument = "auto", json_: JsonOption = False) -> None:
    """Show the nodes: slots, image and what the canaries say. Exits 3 if none can be used."""
    lines: list[str] = []

    async def look() -> list[dict[str, Any]]:
        cluster = Cluster(on_event=lines.append)
        try:
            await cluster.open()
            return [
                {
                    "machine": machine.name,
                    "slots": machine.slots,
                    "gradings": machine.facts.cpus,
                    "image": machine.facts.image,
                    "daemon": machine.facts.daemon or "the default",
                }
                for machine in cluster.working
            ]
        finally:
            await cluster.close()

    connect(address)
    found = asyncio.run(look())
    if json_:
        print(json.dumps({"nodes": found, "events": lines}))
        return
    print("\n".join(lines))
    for node in found:
        print(
            f"  {node['machine']}: gradings {node['gradings']:g}, image {node['image'][:19]}, daemon {node['daemon']}"
        )


@cluster_app.command("down")
def down() -> None:
    """End this machine's node, with its containers."""
    stop_node()
    print("this machine is no node any more")
