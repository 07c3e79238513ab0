"""``rtl-agent-gym image``: build, show, verify, move and prune the simulation image."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..sandboxes import image, image_build, root_folder
from ..sandboxes.daemon import ensure_daemon
from .options import JsonOption

image_app = typer.Typer(help="The Docker image with the simulators, for agents and hidden tests.")


@image_app.command("build")
def build_command(
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Repeat every build step instead of using cached ones.")
    ] = False,
    start_daemon: Annotated[
        bool, typer.Option("--start-daemon", help="If no Docker daemon is running, install and start one.")
    ] = False,
) -> None:
    """Build the image of this version if it does not exist."""
    console = Console()
    started = time.monotonic()

    def report(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.0f} s[/]  {escape(line)}", highlight=False, soft_wrap=True)

    if start_daemon:
        daemon = ensure_daemon(report)
        console.print(f"Docker {escape(daemon.version)} at {escape(daemon.host)}", highlight=False)
    image_build.ensure_image(report, rebuild=no_cache)
    console.print(f"image {image.image_tag()} is ready", highlight=False)


@image_app.command("show")
def show_command(as_json: JsonOption = False) -> None:
    """Show the image's name, content digest, id, age and size."""
    facts = image.inspect()
    _print(facts, facts | {"size": f"{facts['size'] / 1e9:.2f} GB"}, as_json)


@image_app.command("verify")
def verify_command(as_json: JsonOption = False) -> None:
    """Run every tool of the image in a container and show the versions."""
    versions = image_build.verify()
    _print(versions, versions, as_json)


def _print(facts: Mapping[str, object], shown: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table(show_header=False)
    for name, value in shown.items():
        table.add_row(name, str(value))
    Console().print(table)


FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]
DigestOption = Annotated[
    str | None, typer.Option("--digest", metavar="SHA256", help="Refuse an image whose content has another digest.")
]
RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPOSITORY", help="In a registry, such as registry.example:5000/rtl; without a tag.")
]


@image_app.command("save")
def save_command(file: FileArgument) -> None:
    """Write the image to a file, for other machines. Prints the digest of its content."""
    typer.echo(f"{file}: {image.save_image(file)}")


@image_app.command("load")
def load_command(file: FileArgument, digest: DigestOption = None) -> None:
    """Read the image from a file, and check its content."""
    typer.echo(f"{image.image_tag()}: {image.load_image(file, digest)}")


@image_app.command("unpack")
def unpack_command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="From `image save`; without it, the Docker image is unpacked."),
    ] = None,
    digest: DigestOption = None,
) -> None:
    """Unpack the image into a folder, for sandboxes without Docker. Prints the folder and the digest of its content."""
    console = Console(stderr=True)
    root = root_folder.unpack(file, lambda line: console.print(line, style="dim", soft_wrap=True), digest=digest)
    typer.echo(f"{root.folder}: {root.digest}")


@image_app.command("push")
def push_command(repository: RepositoryArgument) -> None:
    """Push the image to a registry. Prints the digest of its content."""
    reference, digest = image.push_image(repository)
    typer.echo(f"{reference}: {digest}")


@image_app.command("pull")
def pull_command(repository: RepositoryArgument, digest: DigestOption = None) -> None:
    """Pull the image of this version from a registry, and check its content."""
    typer.echo(f"{image.image_tag()}: {image.pull_image(repository, digest)}")


@image_app.command("prune")
def prune_command() -> None:
    """Remove images of earlier versions and leftovers of builds; keep the current image."""
    removed = image_build.prune()
    typer.echo("\n".join(removed) if removed else "nothing to remove")
