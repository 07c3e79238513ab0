"""The viewer's page over HTTP, for this machine alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ...errors import UsageError
from .page import Kept, render_page
from .sources import transcript_files

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class ViewerServer(ThreadingHTTPServer):
    """Serves one page at ``/``, made anew for each request, so that reloading shows the episodes that came since.

    Owns its listening socket from the start to `server_close`.
    """

    daemon_threads = True

    def __init__(self, source: Path, port: int) -> None:
        self.source = source
        self.kept: Kept = {}
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer

    def do_GET(self) -> None:
        """The page, for a browser that asks for this host by this host's name."""
        # A name that a stranger's page made to point here would otherwise let that page read the transcripts.
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in (LOOPBACK, "localhost"):
            return self.send_error(403, "Only this machine may look")
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
        try:
            for piece in render_page(files, title=self.server.source.name, kept=self.server.kept):
                self.wfile.write(piece.encode(errors="replace"))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser went away

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal belongs to the command."""


@contextmanager
def serving(source: Path, port: int = 0) -> Iterator[ViewerServer]:
    """A server whose socket is closed at the end. Call its `serve_forever`.

    Args:
        source: As `transcript_files` takes it.
        port: 0 for one that is free.

    Raises:
        UsageError: There is no transcript, or the port is taken.
    """
    transcript_files(source)
    try:
        server = ViewerServer(source, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} of {LOOPBACK} cannot be had: {error}; choose another with --port") from error
    try:
        yield server
    finally:
        server.server_close()
