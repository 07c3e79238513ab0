"""The viewer's page over HTTP, for this machine only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ...errors import UsageError
from .page import PageCache, render_page
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
    """Serves one page at ``/``, rendered for each request, so that reloading shows new episodes.

    Owns its listening socket until `server_close`.
    """

    daemon_threads = True

    def __init__(self, source: Path, port: int) -> None:
        self.source = source
        self.cache: PageCache = {}
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer

    def do_GET(self) -> None:
        """Send the page, if the request names this host."""
        # Otherwise a foreign page whose host name resolves to this address could read the transcripts (DNS rebinding).
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in (LOOPBACK, "localhost"):
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
        try:
            for piece in render_page(files, title=self.server.source.name, cache=self.server.cache):
                self.wfile.write(piece.encode(errors="replace"))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser disconnected

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the command."""


@contextmanager
def serving(source: Path, port: int = 0) -> Iterator[ViewerServer]:
    """A server whose socket is closed at the end of the block. Call its `serve_forever`.

    Args:
        source: A source for `transcript_files`.
        port: 0 for any free port.

    Raises:
        UsageError: There is no transcript, or the port is not available.
    """
    transcript_files(source)
    try:
        server = ViewerServer(source, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} of {LOOPBACK} is not available: {error}; choose another with --port") from error
    try:
        yield server
    finally:
        server.server_close()
