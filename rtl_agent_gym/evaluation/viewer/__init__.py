"""Recorded episodes as one self-contained HTML page, or in the terminal."""

from .page import ViewerServer, render_page, serving, write_page
from .text import command_status, first_lines, print_episode, print_list

__all__ = [
    "ViewerServer",
    "command_status",
    "first_lines",
    "print_episode",
    "print_list",
    "render_page",
    "serving",
    "write_page",
]
