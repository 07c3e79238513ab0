"""The viewer's page: one self-contained HTML file that makes no network requests, written or served on this machine.

Text from models and shells is data, never markup. It is in JSON blocks, which browsers do not run, with ``<``, ``>``
and ``&`` escaped, so that no text can end a block. The page's script displays it only as text nodes. The page's content
security policy allows exactly one script and one style, and no network address.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pydantic_core import to_jsonable_python

from ...errors import TranscriptError, UsageError, writing
from ..recorded import Data, episode, read_episode, summary, transcript_files

SCRIPTS = ("dom.js", "highlight.js", "diff.js", "list.js", "episode.js", "main.js")

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}

_HOST = re.compile(r"(?:\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]*)\]|([A-Za-z0-9.-]+))(?::([0-9]{1,5}))?")

PageCache = dict[Path, tuple[tuple[int, int], tuple[Data, Markup]]]
"""For each file its modification time and size, and its list row and JSON block, so that unchanged files are not read
again."""


def write_page(
    transcripts: Iterable[Path],
    out: Path,
    *,
    title: str = "episodes",
    unreadable: list[str] | None = None,
) -> Path:
    """Write episodes as one HTML page. Transcripts are read one at a time, so thousands need little memory.

    Args:
        transcripts: The files of the episodes; the page names those that cannot be read.
        out: The page. Missing folders are created.
        unreadable: Receives an error message for each file that cannot be read.

    Raises:
        UsageError: The file cannot be written.
        SandboxError: The disk is full.
    """
    with writing("the page", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", encoding="utf-8", errors="replace") as page:
            page.writelines(render_page(transcripts, title=title, unreadable=unreadable))
    return out


def render_page(
    transcripts: Iterable[Path],
    *,
    title: str = "episodes",
    cache: PageCache | None = None,
    unreadable: list[str] | None = None,
) -> Iterator[str]:
    """The page of `write_page`, in pieces. `cache` is read and updated."""
    rows: list[Data] = []
    unreadable = [] if unreadable is None else unreadable

    def episodes() -> Iterator[Markup]:
        for path in transcripts:
            try:
                row, block = _row_and_block(path, cache)
            except TranscriptError as error:
                unreadable.append(str(error))
            else:
                rows.append(row)
                yield block

    style, script = asset("page.css"), "\n".join(["'use strict';", *(asset(name) for name in SCRIPTS)])
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(asset("page.html.j2"))
    yield from template.generate(
        title=title,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(script, style),
        episodes=episodes(),
        index=lambda: json_block({"episodes": rows, "unreadable": unreadable}),  # called after all episodes are read
    )


def _row_and_block(path: Path, cache: PageCache | None) -> tuple[Data, Markup]:
    try:
        status = path.stat()
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be read: {error.strerror}") from error
    state = (status.st_mtime_ns, status.st_size)
    if cache is not None and path in cache and cache[path][0] == state:
        return cache[path][1]
    transcript = read_episode(path)
    above = Path(os.path.abspath(path)).parents
    run = next((folder.parent.name for folder in above if folder.name == "transcripts"), "")
    built = summary(transcript, run=run), json_block(episode(transcript))
    if cache is not None:
        cache[path] = state, built
    return built


def json_block(data: object) -> Markup:
    """Data as JSON that is safe inside ``<script type="application/json">``."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # NaN or infinity, which browsers cannot parse
        text = json.dumps(to_jsonable_python(data, inf_nan_mode="null"), separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def content_policy(script: str, style: str) -> str:
    """A content security policy that allows one script and one style by digest, and no requests."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def asset(name: str) -> str:
    """The text of one of the files that the page consists of."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def names_this_machine(*hosts: str) -> bool:
    """Whether a request has a single ``Host`` header, which names this machine, with or without a port.

    The port is not compared: a tunnel may have another port.
    """
    found = _HOST.fullmatch(hosts[0].strip(" \t")) if len(hosts) == 1 else None
    return found is not None and is_loopback(found[1] or found[2]) and int(found[3] or 1) in range(1, 1 << 16)


def is_loopback(host: str) -> bool:
    """Whether a host is ``localhost`` or an address that only this machine reaches."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ViewerServer(ThreadingHTTPServer):
    """Serves one page at ``/``, rendered for each request, so that reloading shows new episodes.

    Owns its listening socket until `server_close`.
    """

    daemon_threads = True

    def __init__(self, source: Path, port: int) -> None:
        self.source = Path(os.path.abspath(source))  # `.` has no name that could be the title
        self.cache: PageCache = {}
        super().__init__((LOOPBACK, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a bug; nothing if the browser has disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer

    def do_GET(self) -> None:
        """Send the page, if the request names this host."""
        # Otherwise a foreign page whose host name resolves to this address could read the transcripts (DNS rebinding).
        if not names_this_machine(*self.headers.get_all("Host", [])):
            return self.send_error(403, "Only this machine has access")
        if self.path.partition("?")[0] != "/":
            return self.send_error(404)
        try:
            files = transcript_files(self.server.source)
        except UsageError as error:
            return self.send_error(404, "No transcripts", str(error))
        self.send_response(200)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in render_page(files, title=self.server.source.name, cache=self.server.cache):
            self.wfile.write(piece.encode(errors="replace"))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the command."""


def serving(source: Path, port: int = 0) -> ViewerServer:
    """A server whose socket is closed at the end of its ``with`` block. Call its `serve_forever`.

    Args:
        source: A source for `transcript_files`.
        port: 0 for any free port.

    Raises:
        UsageError: There is no transcript, or the port is not available.
    """
    transcript_files(source)
    try:
        return ViewerServer(source, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} of {LOOPBACK} is not available: {error}; choose another with --port") from error
