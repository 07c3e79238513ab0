"""Fixed-priority arbiters that vary in names, width, order, override (a flag or a vector), outputs and reset."""

from __future__ import annotations

from .family import Family, Fields, SpecificationLine, always, asserted, bit_range

_OVERRIDES = {
    "vector": ("is a vector that replaces the requests when it is not 0", "a vector; replaces the requests when not 0"),
    "flag": ("is a flag that grants requester 0 when it is 1", "a flag; grants requester 0 when 1"),
    "mask": ("is a vector whose bits block their requesters", "a vector; its bits block their requesters"),
    "lock": ("is a flag that blocks all requesters when it is 1", "a flag; blocks all requesters when 1"),
}
"""What the override does, in a sentence and in a table."""

_LINES = {
    "request": SpecificationLine(
        ("The requests are `{request}`.", "The requesters ask with `{request}`.", "`{request}` has the requests."),
        ("It has the requests `{request}`.", "Requests come with `{request}`."),
        ("requests | `{request}`", "request vector | `{request}`"),
        ("vector of requests | `{request}`",),
    ),
    "override": SpecificationLine(
        (
            "The override is `{override}`, which {override_verb}.",
            "`{override}` {override_verb}.",
            "The input `{override}` {override_verb}.",
        ),
        ("As override it has `{override}`, which {override_verb}.", "The override `{override}` {override_verb}."),
        ("override | `{override}`, {override_noun}", "override input | `{override}`: {override_noun}"),
        ("input to override | `{override}` ({override_noun})",),
    ),
    "grant": SpecificationLine(
        ("The grants are `{grant}`.", "It grants with the one-hot `{grant}`.", "`{grant}` has the one-hot grant."),
        ("It has the grants `{grant}`.", "The one-hot grant is `{grant}`."),
        ("grants | `{grant}`", "one-hot grant | `{grant}`"),
        ("vector of grants | `{grant}`",),
    ),
    "valid": SpecificationLine(
        (
            "The output `{valid}` is {valid_level} when something is granted.",
            "`{valid}` is active {valid_word} and shows that there is a grant.",
            "When there is a grant, `{valid}` is {valid_level}.",
        ),
        ("`{valid}` is {valid_level} when there is a grant.", "The active {valid_word} `{valid}` shows a grant."),
        ("valid | `{valid}`, active {valid_word}", "shows a grant | `{valid}`, active {valid_word}"),
        ("active {valid_word} valid | `{valid}`",),
    ),
    "index": SpecificationLine(
        (
            "The index of the grant is `{index}`, with {index_width} bits.",
            "`{index}` has {index_width} bits and is the number of the grant.",
            "The {index_width} bits of `{index}` are the number of the grant.",
        ),
        (
            "It has the index `{index}`, with {index_width} bits.",
            "The grant has the number `{index}`, of {index_width} bits.",
        ),
        ("index | `{index}`, {index_width} bits", "number of the grant | `{index}`, {index_width} bits"),
        ("index of the grant | `{index}` ({index_width} bits)",),
    ),
    "width": SpecificationLine(
        ("There are {width} requesters.", "It has {width} requesters.", "The number of requesters is {width}."),
        ("Requests come from {width} requesters.", "{width} is the number of requesters."),
        ("requesters | {width}", "number of requesters | {width}"),
        ("number of requests | {width}",),
    ),
    "order": SpecificationLine(
        ("The {order} bit wins.", "Of two requests the {order} wins.", "The {order} request has priority."),
        ("Priority has the {order} bit.", "The {order} of the requests wins."),
        ("priority | {order} bit", "winner | {order} request"),
        ("request with priority | {order}",),
    ),
}


class Arbiters(Family):
    """The family of arbiters."""

    name = "arbiters"
    heading = (
        "# Arbiter\n\nAt each clock edge it grants one request. In reset, or without a request, nothing is granted and "
        "the index is 0. Bit 0 is requester 0."
    )
    inputs = ("request", "override")
    outputs = ("grant", "valid", "index")
    axes = Family.axes | {
        "width": tuple(range(3, 17)),
        "order": ("lowest", "highest"),
        "mode": tuple(_OVERRIDES),
        "valid_level": (0, 1),
    }
    lines = Family.lines | _LINES
    habits = Family.habits | {
        "width": {"width": 4},
        "order": {"order": "highest"},
        "flag": {"mode": {"vector": "flag", "mask": "lock"}},
        "valid": {"valid": "grant_valid", "valid_level": 1},
    }

    def phrases(self, fields: Fields) -> dict[str, str | int]:
        verb, noun = _OVERRIDES[fields["mode"]]
        return {
            "override_verb": verb,
            "override_noun": noun,
            "index_width": (fields["width"] - 1).bit_length(),
        }

    def write(self, fields: Fields) -> str:
        width, level = fields["width"], fields["valid_level"]
        bits, number = bit_range(width), bit_range((width - 1).bit_length())
        request, override = fields["request"], fields["override"]
        outputs = "{{{grant}, {index}, {valid}}}".format_map(fields)
        loop = f"{width - 1}; i >= 0; i--" if fields["order"] == "lowest" else f"0; i < {width}; i++"
        active = {
            "vector": f"{override} != 0 ? {override} : {request}",
            "flag": f"{override} ? 1 : {request}",
            "mask": f"{request} & ~{override}",
            "lock": f"{override} ? 0 : {request}",
        }[fields["mode"]]
        return self.module(
            fields,
            {
                "request": bits,
                "override": bits if fields["mode"] in ("vector", "mask") else "",
                "grant": f"reg {bits}",
                "valid": "reg ",
                "index": f"reg {number}",
            },
            f"    wire {bits}active = {active};\n"
            f"    {always(fields)}\n"
            f"        if ({asserted(fields, 'reset')}) {outputs} <= {1 - level};\n"
            f"        else begin\n"
            f"            {outputs} <= {1 - level};\n"
            f"            for (int i = {loop})\n"
            f"                if (active[i]) {outputs} <= {{{width}'d1 << i, i{number.strip()}, 1'd{level}}};\n"
            f"        end\n",
        )
