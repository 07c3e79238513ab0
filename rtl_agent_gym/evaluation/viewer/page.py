"""The viewer's page: one HTML file that needs nothing beside it and asks nothing of any network.

What models and shells wrote is data of the page, never markup. It stands in JSON blocks, which browsers do not run,
with ``<``, ``>`` and ``&`` escaped, so that no block can be left. The page's script puts it on the screen as text nodes
only. The page's content security policy allows exactly that one script and style, and no address at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ...errors import TranscriptError, cannot_write
from ...transcripts import Transcript
from .model import Data, episode, summary
from .sources import read_episode

SCRIPTS = ("dom.js", "highlight.js", "diff.js", "list.js", "episode.js", "main.js")

Kept = dict[Path, tuple[tuple[int, int], tuple[Data, Markup]]]
"""By file its time of change and size, and its line of the list and block, for a page that is made again and again."""


def write_page(
    transcripts: Iterable[Path | Transcript],
    out: Path,
    *,
    title: str = "episodes",
    progress: Callable[[int], None] | None = None,
    unreadable: list[str] | None = None,
) -> Path:
    """Write episodes as one HTML page. Transcripts are read one at a time, so thousands need little memory.

    Args:
        transcripts: The episodes, as files or read already; files that cannot be read are named on the page.
        out: The page. Folders are made.
        title: Its title.
        progress: Told after each episode how many are done.
        unreadable: Told why files cannot be read, a sentence a file, as the page says it too.

    Raises:
        UsageError: No file can be written there.
        SandboxError: The disk is full.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", encoding="utf-8", errors="replace") as page:
            page.writelines(render_page(transcripts, title=title, progress=progress, unreadable=unreadable))
    except OSError as error:
        raise cannot_write("the page", out, error) from error
    return out


def render_page(
    transcripts: Iterable[Path | Transcript],
    *,
    title: str = "episodes",
    progress: Callable[[int], None] | None = None,
    kept: Kept | None = None,
    unreadable: list[str] | None = None,
) -> Iterator[str]:
    """The page of `write_page` in pieces. What `kept` holds of unchanged files is not read again."""
    rows: list[Data] = []
    unreadable = [] if unreadable is None else unreadable

    def episodes() -> Iterator[Markup]:
        for number, source in enumerate(transcripts, 1):
            try:
                row, block = _row_and_block(source, kept)
            except TranscriptError as error:
                unreadable.append(str(error))
            else:
                rows.append(row)
                yield block
            if progress is not None:
                progress(number)

    style, script = asset("page.css"), "\n".join(["'use strict';", *(asset(name) for name in SCRIPTS)])
    template = _environment().from_string(asset("page.html.j2"))
    yield from template.generate(
        title=title,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(script, style),
        episodes=episodes(),
        index=lambda: json_block({"episodes": rows, "unreadable": unreadable}),  # called after the episodes are read
    )


def _row_and_block(source: Path | Transcript, kept: Kept | None) -> tuple[Data, Markup]:
    if isinstance(source, Transcript):
        return summary(source, run=run_name(source.path)), json_block(episode(source))
    try:
        status = source.stat()
    except OSError as error:
        raise TranscriptError(f"{source}: cannot be read: {error.strerror}") from error
    state = (status.st_mtime_ns, status.st_size)
    known = kept.get(source) if kept is not None else None
    if known is not None and known[0] == state:
        return known[1]
    made = _row_and_block(read_episode(source), None)
    if kept is not None:
        kept[source] = state, made
    return made


def run_name(path: Path) -> str:
    """The folder that holds a transcript's ``transcripts`` folder; empty elsewhere."""
    parents = [parent for parent in path.parents if parent.name == "transcripts"]
    return parents[0].parent.name if parents else ""


def json_block(data: object) -> Markup:
    """Data as JSON that may stand between ``<script type="application/json">`` and its end."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number that JSON has no word for, which Python reads and browsers do not
        text = json.dumps(_finite(data), separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _finite(data: object) -> object:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def content_policy(script: str, style: str) -> str:
    """A policy that lets one script and one style run, named by their digests, and nothing be fetched."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def asset(name: str) -> str:
    """A file of the page."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(autoescape=True, undefined=StrictUndefined)


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
