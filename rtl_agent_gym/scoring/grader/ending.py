"""Ends an interpreter of a grading without Python's final garbage collections.

These traverse everything that was imported, several times. The only effect that a harness can notice is that open files
in garbage are flushed; that is done here. Finalizers of objects in cycles do not run, which Python does not promise.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from _io import _IOBase, _TextIOBase  # not io's abstract base classes, whose checks are slow


def flush_all() -> None:
    """Flush every open file, as the end of an interpreter does."""
    # Not `isinstance`, which reads `__class__`: that raises an error for a weakref.proxy whose object is gone.
    streams = [thing for thing in gc.get_objects() if issubclass(type(thing), _IOBase)]
    texts = [stream for stream in streams if issubclass(type(stream), _TextIOBase)]
    for stream in [*texts, sys.stdout, sys.stderr, *streams]:  # a text stream's buffer is another stream
        with contextlib.suppress(BaseException):
            stream.flush()


def leave_garbage() -> None:
    """Call this as the interpreter ends: flushes every open file, and hides all objects from garbage collection."""
    flush_all()
    gc.freeze()
