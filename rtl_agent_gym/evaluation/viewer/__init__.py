"""Recorded episodes as one self-contained HTML page, or in the terminal."""

from .page import render_page, write_page
from .serve import ViewerServer, serving
from .sources import each_readable, transcript_files
from .text import print_episode, print_list

__all__ = [
    "ViewerServer",
    "each_readable",
    "print_episode",
    "print_list",
    "render_page",
    "serving",
    "transcript_files",
    "write_page",
]
