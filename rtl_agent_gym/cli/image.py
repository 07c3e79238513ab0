"""``rtl-agent-gym image``: build, show, verify, move and prune the simulation image, for Docker or for namespaces."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import ImageError, UsageError
from ..options import SandboxKind
from ..sandboxes import image, image_build, root_folder, root_image
from ..sandboxes.choice import image_kind
from ..sandboxes.daemon import ensure_daemon
from ..sandboxes.programs import PROGRAMS, install_programs
from .options import JsonOption
from .show import stderr_console

image_app = typer.Typer(help="The image with the simulators, for agents and hidden tests.")
KindOption = Annotated[
    SandboxKind,
    typer.Option("--sandbox", help="Which image: Docker's, or the root folder of sandboxes without a daemon."),
]


def _without_docker(sandbox: str) -> bool:
    return image_kind(sandbox) == "namespaces"


@image_app.command("build")
def build_command(
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Repeat every build step instead of using cached ones.")
    ] = False,
    start_daemon: Annotated[
        bool, typer.Option("--start-daemon", help="If no Docker daemon is running, install and start one.")
    ] = False,
    agents: Annotated[
        str | None,
        typer.Option(
            "--agents",
            metavar="NAMES",
            help="Instead of building the image, install agents that run in sandboxes, from npm: "
            f"{', '.join(PROGRAMS)} (separated by commas), or all.",
        ),
    ] = None,
    sandbox: KindOption = "auto",
) -> None:
    """Build this version's image if it does not exist; without Docker, as a root folder. Needs no root privileges."""
    console = Console()
    started = time.monotonic()
    names = PROGRAMS if agents == "all" else tuple((agents or "").split(",")) if agents is not None else ()
    if wrong := [name for name in names if name not in PROGRAMS]:
        raise UsageError(f"--agents: there is no agent {wrong[0]!r}; choose from {', '.join(PROGRAMS)}, or all")

    def report(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.0f} s[/]  {escape(line)}", highlight=False, soft_wrap=True)

    if names:
        for name in names:
            folder = escape(str(install_programs(name, report)))
            console.print(f"{name} is ready in {folder}", highlight=False, soft_wrap=True)
        return
    if start_daemon:
        daemon = ensure_daemon(report)
        console.print(f"Docker {escape(daemon.version)} at {escape(daemon.host)}", highlight=False)
    where = ""
    if not start_daemon and _without_docker(sandbox):
        where = f" in {root_image.build_image(report, rebuild=no_cache).folder.parent}"
    else:
        image_build.ensure_image(report, rebuild=no_cache)
    console.print(f"image {image.image_tag()} is ready{escape(where)}", highlight=False, soft_wrap=True)


@image_app.command("show")
def show_command(as_json: JsonOption = False, sandbox: KindOption = "auto") -> None:
    """Show the image's name, content digest, id, age and size; of a root folder, its name, digest and path."""
    if _without_docker(sandbox):
        root = root_folder.find_root()
        found = {"tag": root.tag, "digest": root.digest, "remark": root.remark, "folder": str(root.folder)}
        _print(found, found, as_json)
        return
    facts = image.inspect()
    _print(facts, facts | {"size": f"{facts['size'] / 1e9:.2f} GB"}, as_json)


@image_app.command("verify")
def verify_command(as_json: JsonOption = False, sandbox: KindOption = "auto") -> None:
    """Run every tool of the image in a container and show the versions."""
    versions = root_image.verify() if _without_docker(sandbox) else image_build.verify()
    _print(versions, versions, as_json)


def _print(facts: Mapping[str, object], shown: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table("", "", show_header=False)
    table.columns[1].overflow = "fold"  # a truncated digest is useless
    for name, value in shown.items():
        table.add_row(name, escape(str(value)))
    Console().print(table)


FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]
DigestOption = Annotated[
    str | None,
    typer.Option(
        "--digest",
        metavar="SHA256",
        help="Refuse an image whose content has another digest, such as another build. A malicious image can "
        "still pass, since its own Python computes the digest.",
    ),
]
RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPOSITORY", help="In a registry, without a tag, such as registry.example:5000/rtl.")
]


@image_app.command("save")
def save_command(file: FileArgument, sandbox: KindOption = "auto") -> None:
    """Write the image to a file, for other machines with or without Docker. Prints the digest of its content."""
    typer.echo(f"{file}: {root_image.save_root(file) if _without_docker(sandbox) else image.save_image(file)}")


@image_app.command("load")
def load_command(file: FileArgument, digest: DigestOption = None, sandbox: KindOption = "auto") -> None:
    """Read the image from a file, and check its content. Without Docker, the same as `unpack`."""
    if _without_docker(sandbox):
        unpack_command(file, digest)
        return
    typer.echo(f"{image.image_tag()}: {image.load_image(file, digest)}")


@image_app.command("export")
def export_command(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A folder, or a file whose name ends with .sqsh or .squashfs.")
    ],
) -> None:
    """Copy the unpacked image: into a folder for RTL_GYM_ROOTS, or into a squashfs file. Prints its digest."""
    try:
        root_folder.find_root()
    except ImageError:
        if _without_docker("auto"):
            raise
        unpack_command()
    typer.echo(f"{target}: {root_image.export_root(target).digest}")


@image_app.command("unpack")
def unpack_command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="From `save` or `export`; by default, Docker's image is unpacked."),
    ] = None,
    digest: DigestOption = None,
) -> None:
    """Unpack the image into a folder, for sandboxes without Docker. Prints the folder and the digest of its content."""
    console = stderr_console()
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
def prune_command(sandbox: KindOption = "auto") -> None:
    """Remove images and root folders of earlier versions and leftovers of builds; keep the current ones."""
    # The daemon is used first: if it does not answer, nothing is removed.
    removed = [] if _without_docker(sandbox) else image_build.prune(partial(typer.echo, err=True))
    removed += root_folder.prune()
    typer.echo("\n".join(removed) if removed else "nothing to remove")
