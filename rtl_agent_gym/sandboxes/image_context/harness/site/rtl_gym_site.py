"""Imported by every Python of the image at its start: extends a few modules of cocotb when they are imported.

It adds only what harnesses written for cocotb 1 need of cocotb 2: conversions of `Logic`, which cocotb 2 uses for
one-bit signals; `TestFailure`, which was removed; and defines without a value, which cocotb 2 writes as the text
``None``. In a grading, the grader's witness extends modules as well. This module imports only what Python has imported
already, so it does not slow down the start.
"""

import importlib
import sys


def _logic(module):
    logic = module.Logic
    if not hasattr(logic, "to_unsigned"):
        logic.to_unsigned = lambda self: int(self)
        logic.to_signed = lambda self: -int(self)
        logic.integer = property(int)
        logic.signed_integer = property(lambda self: -int(self))
        logic.binstr = property(str)


def _result(module):
    class TestFailure(AssertionError):
        """The test failed."""

        __test__ = False

    module.TestFailure = TestFailure


def _runner(module):
    def get_define_options(self, defines):
        return [
            f"-D{name}" if value is None else f"-D{name}={module._as_sv_literal(value)}"
            for name, value in defines.items()
        ]

    module.Icarus._get_define_options = get_define_options
    _witness(module)


def _witness(module):
    """Let the grader's witness observe the module; only a scoring sandbox has a witness."""
    try:
        witness = importlib.import_module("rtl_gym_grader.witness")
    except ModuleNotFoundError:
        return
    witness.complete(module)


COMPLETED = {
    "cocotb.types._logic": _logic,
    "cocotb.result": _result,
    "cocotb_tools.runner": _runner,
    "cocotb.regression": _witness,
}
"""The function that extends each module once it is loaded."""


class Finder:
    """Finds the modules to extend with the other finders, and extends them once they are loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """The usual spec of a module to extend, with its loader wrapped."""
        if name not in COMPLETED:
            return None
        for finder in sys.meta_path:
            if finder is not cls and (spec := finder.find_spec(name, path, target)) is not None:
                spec.loader = Loader(spec.loader, COMPLETED[name])
                return spec
        return None


class Loader:
    """Loads a module with its own loader, then extends it."""

    def __init__(self, loader, complete):
        self.loader, self.complete = loader, complete

    def create_module(self, spec):
        """As the wrapped loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """As the wrapped loader; then extend the module."""
        self.loader.exec_module(module)
        self.complete(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


sys.meta_path.insert(0, Finder)
