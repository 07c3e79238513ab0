"""Imported by every Python of the image at its start: completes a few modules of cocotb when somebody imports them.

What harnesses written for cocotb 1 ask of cocotb 2, and nothing more than that: cocotb 2 gives a one-bit signal as a
`Logic`, which lacks the conversions that wider ones have; `TestFailure` is gone; and a define without a value is
written as the text ``None``. In a grading, the grader's witness completes modules, too. Nothing is imported here that
Python has not imported already, so a start costs no time.
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
    """Let the grader's witness see what the module does; only a scoring sandbox has one."""
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
"""What is called with a module, once that has been loaded."""


class Finder:
    """Finds the modules to complete where everybody else would, and adds to them once they are loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """The usual spec of a module to complete, with its loader wrapped."""
        if name not in COMPLETED:
            return None
        for finder in sys.meta_path:
            if finder is not cls and (spec := finder.find_spec(name, path, target)) is not None:
                spec.loader = Loader(spec.loader, COMPLETED[name])
                return spec
        return None


class Loader:
    """Loads a module as its own loader does, then completes it."""

    def __init__(self, loader, complete):
        self.loader, self.complete = loader, complete

    def create_module(self, spec):
        """As the wrapped loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """As the wrapped loader; then what is missing is added."""
        self.loader.exec_module(module)
        self.complete(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


sys.meta_path.insert(0, Finder)
