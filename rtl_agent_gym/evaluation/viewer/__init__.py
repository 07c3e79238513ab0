"""Looking at recorded episodes: as one self-contained HTML page, or in the terminal."""

from .page import render_page, write_page
from .serve import ViewerServer, serving
from .sources import each_readable, each_transcript, read_all, transcript_files
from .text import print_episode, print_list

__all__ = [
    "ViewerServer",
    "each_readable",
    "each_transcript",
    "print_episode",
    "print_list",
    "read_all",
    "render_page",
    "serving",
    "transcript_files",
    "write_page",
]
