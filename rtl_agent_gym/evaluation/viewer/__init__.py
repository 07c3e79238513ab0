"""Recorded episodes as one self-contained HTML page, or in the terminal."""

from .page import ViewerServer, serving, write_page
from .text import command_status, first_lines, plain, print_episode, print_list

__all__ = [
    "ViewerServer",
    "command_status",
    "first_lines",
    "plain",
    "print_episode",
    "print_list",
    "serving",
    "write_page",
]
