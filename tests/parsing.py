"""Syntax trees of Python files, for tests that read code."""

from __future__ import annotations

import ast
import gc


def parsed(text: str) -> ast.Module:
    """The text's syntax tree, made while the garbage collector is off.

    Before 3.11.8, CPython keeps the depth of the tree under construction in one place for all threads. The collector
    may let another thread or a finalizer parse meanwhile (printing a traceback does), and the first call then ends in
    "SystemError: AST constructor recursion depth mismatch" (https://github.com/python/cpython/issues/106905).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collecting:
            gc.enable()
