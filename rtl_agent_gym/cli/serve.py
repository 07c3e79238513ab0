"""``rtl-agent-gym serve``: episodes over the network, with OpenEnv."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from ..episodes.rules import EpisodeConfig
from ..errors import importing
from ..options import EpisodeRules
from ..problems import Problem
from ..scoring import RewardWeights
from ..scoring.scorer import scorable
from ..visible import plural
from .options import PLAY, ProblemsOption, WeightsOption, options_as, parameters_of, with_problems, writable_folder
from .show import print_line, stderr_console


@with_problems
@options_as("rules", EpisodeConfig, parameters_of(EpisodeRules, *PLAY))
def serve_command(
    problems: list[Problem],
    rules: EpisodeConfig,
    source: ProblemsOption = "bundled",
    host: Annotated[str, typer.Option(help="Address to listen on; any except a loopback address needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Limit on concurrent episodes; more are refused.")] = 64,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="RTL_GYM_SERVER_TOKEN",
            help="Bearer token that clients must send; the environment variable is safer than the option.",
        ),
    ] = None,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds without a message after which a connection is closed; 0: never.")
    ] = 3600.0,
    weights: WeightsOption = "default",
    transcript_dir: Annotated[
        Path | None, typer.Option(help="Folder for transcripts; without it, none are written.")
    ] = None,
) -> None:
    """Serve episodes to trainers on this or other machines, over OpenEnv's protocol. Ctrl-C stops the server."""
    with importing("serve needs OpenEnv: pip install 'rtl-agent-gym[openenv]'", why=True):
        from ..integrations.openenv_server import ServerConfig, serve
    console = stderr_console()
    kept, left = scorable(problems, source, texts=False)
    if left:
        print_line(console, f"left out: {plural(len(left), 'problem')} that cannot be scored here")
    if transcript_dir is not None:
        writable_folder(transcript_dir, "--transcript-dir")
    config = ServerConfig(
        kept,
        rules.with_options(transcript_dir=transcript_dir),
        RewardWeights.preset(weights),
        host=host,
        port=port,
        max_sessions=max_sessions,
        token=token,
        idle=idle_seconds,
    )

    def ready(url: str) -> None:
        print_line(console, f"{plural(len(kept), 'problem')} at {url} (Ctrl-C to stop)")

    asyncio.run(serve(config, ready))
