"""What all families have: module, clock and reset, in words and in SystemVerilog."""

from __future__ import annotations

from rtl_agent_gym.problems.families.family import Change, Fields, Line

AXES: dict[str, tuple[str | int, ...]] = {"reset_level": (0, 1), "reset_kind": ("sync", "async")}

RESET_HABIT: dict[str, Change] = {"reset": "rst_n", "reset_level": 0, "reset_kind": "async"}
"""The textbook's reset."""

LINES = {
    "module": Line(
        ("The module is called `{module}`.", "Name the module `{module}`.", "The module has the name `{module}`."),
        ("Call it `{module}`.", "`{module}` is the module's name."),
        ("module | `{module}`", "module name | `{module}`"),
        ("name of the module | `{module}`",),
    ),
    "clock": Line(
        ("The clock is `{clock}`.", "It is clocked by the rising edge of `{clock}`.", "`{clock}` is the clock."),
        ("It has the clock `{clock}`.", "Its clock is the rising edge of `{clock}`."),
        ("clock | `{clock}`", "clock input | `{clock}`, rising edge"),
        ("rising edge of the clock | `{clock}`",),
    ),
    "reset": Line(
        (
            "The reset is `{reset}`, active {reset_word}, {kind}.",
            "The {kind} reset `{reset}` is active {reset_word}.",
            "When `{reset}` is {reset_level}, it is reset ({kind}).",
        ),
        (
            "It has an active {reset_word} reset `{reset}`, which is {kind}.",
            "Reset is {kind}: `{reset}` is {reset_level}.",
        ),
        ("reset | `{reset}`, active {reset_word}, {kind}", "{kind} reset | `{reset}`, active {reset_word}"),
        ("active {reset_word} reset | `{reset}` ({kind})",),
    ),
}


def reset_phrases(fields: Fields) -> dict[str, str | int]:
    """The words for the kind of reset."""
    return {"kind": "asynchronous" if fields["reset_kind"] == "async" else "synchronous"}


def asserted(fields: Fields, role: str) -> str:
    """The condition that the input of a role is at its active level."""
    return f"{fields[role]}" if fields[f"{role}_level"] else f"!{fields[role]}"


def idle(fields: Fields, role: str) -> str:
    """The opposite of `asserted`."""
    return f"!{fields[role]}" if fields[f"{role}_level"] else f"{fields[role]}"


def always(fields: Fields) -> str:
    """The first line of the block that holds the state."""
    edge = f" or {'posedge' if fields['reset_level'] else 'negedge'} {fields['reset']}"
    return f"always @(posedge {fields['clock']}{edge if fields['reset_kind'] == 'async' else ''})"


def bits(width: str | int) -> str:
    """A range of some width, with the space after it."""
    return f"[{int(width) - 1}:0] "


def module(fields: Fields, ports: list[str], body: str) -> str:
    """A module with clock, reset and some more ports."""
    header = [f"input wire {fields['clock']}", f"input wire {fields['reset']}", *ports]
    return f"module {fields['module']} (\n    " + ",\n    ".join(header) + f"\n);\n{body}endmodule\n"
