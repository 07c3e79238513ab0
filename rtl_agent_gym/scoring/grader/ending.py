"""Ends an interpreter of a grading without its last collections of garbage.

These go over all that was imported, several times, which takes a sixth of a short simulation's time. What a harness can
see of them is that open files which only garbage refers to are written; that is done here. Finalizers of objects in
cycles do not run, which Python does not promise either.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from _io import _IOBase  # that of C: for io.IOBase, an abstract base class, each check takes ten times as long
from io import TextIOBase


def flush_all() -> None:
    """Flush every open file, as the end of an interpreter does."""
    streams = [thing for thing in gc.get_objects() if isinstance(thing, _IOBase)]
    texts = [stream for stream in streams if isinstance(stream, TextIOBase)]
    for stream in [*texts, sys.stdout, sys.stderr, *streams]:  # a text stream's buffer is another stream
        with contextlib.suppress(BaseException):
            stream.flush()


def leave_garbage() -> None:
    """To be called as the interpreter ends: flush every open file, and hide all objects from the collections."""
    flush_all()
    gc.freeze()
