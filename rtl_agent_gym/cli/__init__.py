"""The command line: parse, call, print.

Exit codes: 0 fine; 1 the work failed; 2 wrong usage or wrong data; 3 the machine failed; 130 Ctrl-C.

Importing this package is cheap: `main` imports the one command that is asked for, and `app`, which has them all, is
made when it is first looked at.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..starting import quiet_interrupts

if TYPE_CHECKING:
    import typer

    app: typer.Typer


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. Errors of ours are one line on stderr, without a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    with quiet_interrupts():
        from .commands import make_app
        from .ending import run_to_exit_code

        made = make_app(given)
    sys.exit(run_to_exit_code(made, given))


def __getattr__(name: str) -> Any:
    if name == "app":
        from .commands import make_app

        globals()["app"] = made = make_app()
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
