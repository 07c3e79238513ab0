"""Typical kinds of waste: each turns a correct design into one that behaves the same at a higher cost.

A waste is a function of a design's text and its device that yields changed texts. Here it only has to be likely that a
text behaves the same and costs more; synthesis and a proof decide later (`making`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

from ..derivation import Device
from ..mutants.operators import Design, Edit, children
from ..suites.common import rename

Waste = Callable[[str, Device, Random], Iterator[str]]

_FUNCTIONS = {
    "duplicated_arithmetic": """\
    // The sum of each four bits for both values of the carry.
    function automatic [31:0] sum_of(input [31:0] x, input [31:0] y);
        reg carry;
        reg [4:0] without, with_carry;
        begin
            carry = 0;
            for (int at = 0; at < 32; at += 4) begin
                without = x[at+:4] + y[at+:4];
                with_carry = x[at+:4] + y[at+:4] + 1;
                sum_of[at+:4] = carry ? with_carry[3:0] : without[3:0];
                carry = carry ? with_carry[4] : without[4];
            end
        end
    endfunction
""",
    "ripple_adder": """\
    function automatic [31:0] sum_of(input [31:0] x, input [31:0] y);
        reg carry;
        begin
            carry = 0;
            for (int at = 0; at < 32; at++) begin
                sum_of[at] = x[at] ^ y[at] ^ carry;
                carry = x[at] & y[at] | carry & (x[at] ^ y[at]);
            end
        end
    endfunction
""",
    "priority_chain": """\
    // The highest bit that differs decides.
    function automatic is_less(input [31:0] x, input [31:0] y);
        reg decided;
        begin
            is_less = 0;
            decided = 0;
            for (int at = 31; at >= 0; at--)
                if (!decided && x[at] != y[at]) begin
                    is_less = y[at];
                    decided = 1;
                end
        end
    endfunction
""",
}
_LESS = {"LessThanExpression": "is_less({x}, {y})", "GreaterThanExpression": "is_less({y}, {x})"}
_LESS |= {"LessThanEqualExpression": "!is_less({y}, {x})", "GreaterThanEqualExpression": "!is_less({x}, {y})"}
_CALLS = {
    "duplicated_arithmetic": {"AddExpression": "sum_of({x}, {y})", "SubtractExpression": "sum_of({x}, -({y}))"},
    "ripple_adder": {"AddExpression": "sum_of({x}, {y})", "SubtractExpression": "sum_of({x}, ~({y})) + 32'd1"},
    "priority_chain": _LESS,
}


def _expressions(name: str) -> Waste:
    """A waste that replaces all expressions of certain kinds by calls of a function."""

    def operate(text: str, device: Device, rng: Random) -> Iterator[str]:
        design, calls, edits = Design({"rtl/design.sv": text}, "rtl/design.sv"), _CALLS[name], list[Edit]()
        if design.broken:
            return
        for node, scope in design.nodes():
            span = design.span(node)
            form = calls.get(node.kind.name)
            # In the head of a loop or in a bound, an expression is not hardware.
            if not form or span is None or scope.dimension or scope.loop or scope.port:
                continue
            if any(edit.start <= span[0] and span[1] <= edit.end for edit in edits):
                continue
            x, y = (design.text(part) for part in children(node)[:2])
            if x and y and re.search(r"[A-Za-z_]\w*", f"{x} {y}"):
                edits.append(Edit(*span, form.format(x=x, y=y)))
        if edits:  # the function is declared in each module that calls it
            called = "is_less(" if name == "priority_chain" else "sum_of("
            modules = design.apply(tuple(edits)).split("endmodule")
            yield "endmodule".join(f"{part}\n{_FUNCTIONS[name]}" if called in part else part for part in modules)

    return operate


def _module(text: str, name: str) -> tuple[int, int, int] | None:
    """Offsets of a module's begin, of the end of its head, and of ``endmodule``; None if it is not found."""
    begin = re.search(rf"\bmodule\s+{re.escape(name)}\b", text)
    end = text.find("endmodule", begin.end()) if begin else -1
    head = text.find(");", begin.end()) + 2 if begin else 1
    return (begin.start(), head, end) if begin and 1 < head < end else None


def _inner(text: str, device: Device, port: str, core: str) -> tuple[str, str, str] | None:
    """Rename an output inside the module: the text up to and after the declaration of the new name, and its range."""
    if (place := _module(text, device.name)) is None:
        return None
    begin, head, end = place
    pattern = rf"\boutput\s+(?P<kind>reg|wire|logic)\b(?P<bits>\s*(?:signed\s*)?(?:\[[^;]*?\])?)\s*(?={port}\b)"
    found = re.search(pattern, text[begin:head])
    if found is None or "," in found["bits"]:
        return None
    new_head = text[begin:head].replace(found[0], f"output wire{found['bits']} ", 1)
    body = re.sub(rf"(?<![\w$.]){port}(?![\w$])", core, text[head:end])
    declared = f"\n    {found['kind']}{found['bits']} {core};"
    return text[:begin] + new_head + declared, body + text[end:], found["bits"].strip()


def _clocked(device: Device, text: str, reset: str, body: str) -> str:
    """An always block with the design's clock edge and kind of reset."""
    edge = "negedge" if re.search(rf"\bnegedge\s+{device.clock}\b", text) else "posedge"
    asynchronous = re.search(rf"\b(?:pos|neg)edge\s+{device.reset}\b", text)
    events = f"{edge} {device.clock}" + (f" or {asynchronous[0]}" if asynchronous else "")
    active = device.reset if device.reset_level else f"!{device.reset}"
    return f"\n    always @({events})\n        if ({active}) {reset}\n        else {body}\n"


def _outputs(
    text: str, device: Device, rng: Random, suffix: str, least: int = 1
) -> Iterator[tuple[str, str, str, str]]:
    """The outputs with at least `least` bits, in random order: each name, with the result of `_inner` for it."""
    names = [port.name for port in device.outputs if port.width >= least]
    for port in rng.sample(names, len(names)):
        if made := _inner(text, device, port, f"{port}_{suffix}"):
            yield port, *made


def _wide_counter(text: str, device: Device, rng: Random) -> Iterator[str]:
    """A register with 16 bits more than it needs."""
    if place := _module(text, device.name):
        found = list(re.finditer(r"\b(reg|logic)\s*\[([\w\s$()*+-]+?):0\]\s*(\w+)\s*;", text[place[1] :]))
        for match in rng.sample(found, len(found)):
            start, stop = place[1] + match.start(), place[1] + match.end()
            yield f"{text[:start]}{match[1]} [{match[2]}+16:0] {match[3]};{text[stop:]}"
    for port, head, body, bits in _outputs(text, device, rng, "count", 2):
        if ":0]" in bits:
            wide = head.replace(f"{bits} {port}_count;", f"{bits.replace(':0]', '+16:0]')} {port}_count;")
            yield f"{wide}\n    assign {port} = {port}_count;{body}"


def _lockstep_copy(text: str, device: Device, rng: Random) -> Iterator[str]:
    """A second register that always holds the same value, and a comparison of both."""
    for port, head, body, bits in _outputs(text, device, rng, "main", 2):
        if not (blocks := _always(body, f"{port}_main")):
            continue
        copies, declared = "".join(rename(block, f"{port}_main", f"{port}_copy") for block in blocks), ""
        others = [name for name in _assigned(blocks) if name != f"{port}_main"]
        if any(f"{other}_copy" in text for other in others):
            continue
        for other in others:
            copies = rename(copies, other, f"{other}_copy")
            found = re.search(rf"\b(?:reg|logic)\s*(\[[^\]]*\])?\s*{other}\b", text)
            declared += f"\n    reg {(found and found[1]) or ''} {other}_copy;"
        vote = f"({port}_main == {port}_copy) ? {port}_main : {port}_main | {port}_copy"
        body = body.replace("endmodule", f"{copies}endmodule", 1)
        yield f"{head}\n    reg {bits} {port}_copy;{declared}\n    assign {port} = {vote};{body}"


def _assigned(blocks: list[str]) -> list[str]:
    names: list[str] = []
    for block in blocks:
        names += re.findall(r"(?:^|\bbegin\b|\belse\b|;|\)|:)\s*(\w+)\s*<=", block)
        for group in re.findall(r"\{([\w\s,]+)\}\s*<=", block):
            names += [name.strip() for name in group.split(",")]
    return list(dict.fromkeys(names))


def _always(body: str, name: str) -> list[str]:
    """The clocked blocks that assign a register, each with the text up to the next item of the module."""
    items = re.split(
        r"(?m)^(?=\s{0,4}(?:always|assign|wire|reg|logic|endmodule|localparam|initial|function|genvar|generate|integer|\w+\s+#?\(|\w+\s+\w+\s*\())",
        body,
    )
    return [
        item
        for item in items
        if re.match(r"\s*always", item) and "edge" in item and re.search(rf"\b{name}\b[^;]*<=", item)
    ]


def _watchdog(text: str, device: Device, rng: Random) -> Iterator[str]:
    """A counter that guards an output, but never reaches the value with which it is compared."""
    top = rng.choice([20, 48, 100, 200])
    for port, head, body, _ in _outputs(text, device, rng, "raw"):
        count = _clocked(device, text, "idle_time <= 0;", f"idle_time <= idle_time == {top} ? 0 : idle_time + 1;")
        watch = f"\n    reg [11:0] idle_time;\n    assign {port} = idle_time > {top + 9} ? 0 : {port}_raw;{count}"
        yield head + watch + body


def _dead_mode(text: str, device: Device, rng: Random) -> Iterator[str]:
    """A mode that no input can enable, with an additional multiplier."""
    inputs = [port.name for port in device.inputs if port.width > 1] or [port.name for port in device.inputs]
    for port, head, body, _ in _outputs(text, device, rng, "normal", 2):
        if inputs:
            other, factor = rng.choice(inputs), rng.choice([3, 5, 11, 13])
            mode = _clocked(device, text, "test_mode <= 0;", f"test_mode <= test_mode & ~{port}_normal[0];")
            scaled = f"{port}_normal * {other} + {port}_normal * {factor}"
            yield f"{head}\n    reg test_mode;\n    assign {port} = test_mode ? {scaled} : {port}_normal;{mode}{body}"


def _needless_registers(text: str, device: Device, rng: Random) -> Iterator[str]:
    """An input's history, stored as bits and as their sum, which are only compared with each other."""
    for port, head, body, _ in _outputs(text, device, rng, "now"):
        if device.inputs:
            source, depth = rng.choice(device.inputs), rng.choice([3, 4, 6])
            bit = f"{source.name}[0]" if source.width > 1 else source.name
            keep = f"begin history <= {{history, {bit}}}; total <= total + {bit} - history[{depth - 1}]; end"
            block = _clocked(device, text, "begin history <= 0; total <= 0; end", keep)
            watch = f"total == $countones(history) ? {port}_now : 0"
            registers = f"\n    reg [{depth - 1}:0] history;\n    reg [3:0] total;"
            yield f"{head}{registers}\n    assign {port} = {watch};{block}{body}"


WASTES: dict[str, Waste] = {
    "wide_counter": _wide_counter,
    **{name: _expressions(name) for name in _FUNCTIONS},
    "lockstep_copy": _lockstep_copy,
    "watchdog": _watchdog,
    "unshared_multiplier": _dead_mode,
    "needless_registers": _needless_registers,
}
