"""Timers that count cycles after a start; they vary in period, direction, effect of a restart, levels and reset."""

from __future__ import annotations

from .family import Family, Fields, SpecificationLine, always, asserted, bit_range, idle, level_line

_AGAIN = {
    "ignore": ("is ignored", "ignored"),
    "restart": ("starts it again", "starts again"),
    "stop": ("stops it", "stops"),
}
"""What a start does while the timer runs, in a sentence and in a table."""

_LINES = {
    "start": level_line("start", "start", "starts"),
    "pause": level_line("pause", "pause", "pauses"),
    "busy": SpecificationLine(
        (
            "The busy output is `{busy}`, active {busy_word}.",
            "The output `{busy}` is active {busy_word} and shows that it runs.",
            "When it runs, `{busy}` is {busy_level}.",
        ),
        ("It has an active {busy_word} busy output `{busy}`.", "`{busy}` is {busy_level} when it runs."),
        ("busy | `{busy}`, active {busy_word}", "busy output | `{busy}`, active {busy_word}"),
        ("active {busy_word} busy output | `{busy}`",),
    ),
    "count": SpecificationLine(
        ("The count is `{count}`.", "The count goes out on `{count}`.", "`{count}` is the count."),
        ("It has the count `{count}`.", "As output of the count it has `{count}`."),
        ("count | `{count}`", "count output | `{count}`"),
        ("output of the count | `{count}`",),
    ),
    "width": SpecificationLine(
        ("The count has {width} bits.", "The width is {width}.", "The count is {width} bits wide."),
        ("{width} bits is the width.", "The width of the count is {width} bits."),
        ("width | {width}", "count width | {width} bits"),
        ("bits | {width}",),
    ),
    "period": SpecificationLine(
        ("It runs for {period} cycles.", "The period is {period} cycles.", "Its period is {period}."),
        ("{period} cycles is the period.", "It runs for a period of {period}."),
        ("period | {period}", "runs for | {period} cycles"),
        ("period of cycles | {period}",),
    ),
    "direction": SpecificationLine(
        ("It counts {path}.", "The count goes {path}.", "The direction is {direction}."),
        ("The count's direction is {direction}.", "When it runs, it counts {path}."),
        ("direction | {direction}", "counts | {path}"),
        ("direction of the count | {direction}",),
    ),
    "again": SpecificationLine(
        (
            "A start while it runs {again_verb}.",
            "When it runs, a start {again_verb}.",
            "Another start while it runs {again_verb}.",
        ),
        ("While it runs, another start {again_verb}.", "A start {again_verb} when it runs."),
        ("start while it runs | {again_noun}", "another start | {again_noun}"),
        ("another start while it runs | {again_noun}",),
    ),
}


class Timers(Family):
    """The family of timers."""

    name = "timers"
    heading = (
        "# Timer\n\nIt runs after a start. Up, the count goes from 1 to the period; down, from the period to 1; then "
        "to 0. Reset wins over start, start over pause. In a pause it is still busy, and the count stays. A start that "
        "is ignored does not end a pause."
    )
    inputs = ("start", "pause")
    outputs = ("busy", "count")
    axes = Family.axes | {
        "start_level": (0, 1),
        "pause_level": (0, 1),
        "busy_level": (0, 1),
        "width": tuple(range(5, 17)),
        "period": tuple(range(3, 31)),
        "direction": ("up", "down"),
        "again": tuple(_AGAIN),
    }
    lines = Family.lines | _LINES
    habits = Family.habits | {
        "start": {"start_level": 1},
        "width": {"width": 8},
        "busy": {"busy": "done", "busy_level": 1},
        "direction": {"direction": "down"},
        "again": {"again": "restart"},
    }

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        verb, noun = _AGAIN[fields["again"]]
        period = fields["period"]
        path = f"down from {period} to 1" if fields["direction"] == "down" else f"up from 1 to {period}"
        return {"again_verb": verb, "again_noun": noun, "path": path}

    def write(self, fields: Fields) -> str:
        count, period, start = fields["count"], fields["period"], asserted(fields, "start")
        down = fields["direction"] == "down"
        first = period if down else 1
        started = {
            "ignore": f"if ({start} && {count} == 0) {count} <= {first};",
            "restart": f"if ({start}) {count} <= {first};",
            "stop": f"if ({start}) {count} <= {count} == 0 ? {first} : 0;",
        }[fields["again"]]
        following = f"{count} - 1" if down else f"{count} == {period} ? 0 : {count} + 1"
        return self.module(
            fields,
            {"count": f"reg {bit_range(fields['width'])}"},
            f"    assign {fields['busy']} = {count} {'!=' if fields['busy_level'] else '=='} 0;\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) {count} <= 0;\n"
            f"        else {started}\n"
            f"        else if ({idle(fields, 'pause')} && {count} != 0) {count} <= {following};\n",
        )
