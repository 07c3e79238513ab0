"""Imported by every Python of the image at its start: completes a few modules when somebody imports them.

Nothing is imported here that Python has not imported already, so a start costs no time.
"""

import sys

COMPLETED = {
    "cocotb.types._logic": "rtl_gym_compat",
    "cocotb.result": "rtl_gym_compat",
    "cocotb_tools.runner": "rtl_gym_compat",
    "cocotb.regression": "rtl_gym_witness",
}
"""Modules that get something added, and the module here whose `complete` adds it."""


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

    def __init__(self, loader, helper):
        self.loader, self.helper = loader, helper

    def create_module(self, spec):
        """As the wrapped loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """As the wrapped loader; then the helper adds what is missing."""
        self.loader.exec_module(module)
        __import__(self.helper).complete(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


sys.meta_path.insert(0, Finder)
