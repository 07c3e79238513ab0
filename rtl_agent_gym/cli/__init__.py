"""The command line: parse, call, print.

Exit codes: 0 success; 1 the work failed; 2 wrong usage or invalid data; 3 the machine failed; 130 Ctrl-C.

Importing this package is cheap: `main` imports only the requested command, and `app`, with all commands, is created at
first use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..starting import INTERRUPTED, is_command_line, quiet_interrupts, usual_interrupts

if TYPE_CHECKING:
    import typer

    app: typer.Typer


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. An error of this package is printed as one line on stderr, without a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    quiet_interrupts()
    try:
        from ..engines.threads import end_process
        from .commands import make_app, run_to_exit_code

        made = make_app(given)
    finally:
        usual_interrupts()
    try:
        code = run_to_exit_code(made, given)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(end_process(code) if is_command_line() else code)


def __getattr__(name: str) -> Any:
    if name == "app":
        from .commands import make_app

        globals()["app"] = made = make_app()
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
