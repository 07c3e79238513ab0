"""Looking at recorded episodes: as one self-contained HTML page, or in the terminal."""

from .page import render_page, write_page
from .sources import each_transcript, read_all, transcript_files

__all__ = ["each_transcript", "read_all", "render_page", "transcript_files", "write_page"]
