"""Recorded episodes as one self-contained HTML page, or in the terminal."""

from .page import ViewerServer, serving, write_page
from .text import print_episode, print_list

__all__ = ["ViewerServer", "print_episode", "print_list", "serving", "write_page"]
