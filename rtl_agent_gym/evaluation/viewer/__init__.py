"""Recorded episodes as one self-contained HTML page, or in the terminal."""

from .page import ViewerServer, serving, write_page
from .text import command_status, first_lines, plain, print_episode, print_list, score_parts

__all__ = [
    "ViewerServer",
    "command_status",
    "first_lines",
    "plain",
    "print_episode",
    "print_list",
    "score_parts",
    "serving",
    "write_page",
]
