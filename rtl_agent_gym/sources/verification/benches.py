"""Generates the texts of benches: random stimuli, and a reference that compares the design with a model of it.

Stimuli change at the falling edge of the clock, so that benches can sample before and after the rising edge. They
consist of phases. In each phase, every input has its own pattern, such as rare changes, small values, or mostly 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..derivation import Device, with_prefix
from ..suites.common import DesignPort

MODEL = "model_"
"""The prefix of the names of the model's modules."""
_UNIT = "`timescale 1ns / 1ps"


def stimuli(device: Device, top: str, instances: Sequence[str], *, cycles: int, seed: int, dut: str = "dut") -> str:
    """A module `top` that drives a design, its instance `dut`, and ends the simulation after at least `cycles` cycles.

    Each of `instances` (``module instance``) is connected to all ports. `seed`, at least 0, is for the random numbers.
    """
    own = [*_OWN, dut, *(instance.split()[1] for instance in instances)]
    own += [f"{name}_{number}" for name in _OWN_OF_INPUTS for number in range(len(device.inputs))]
    of_design = device.ports
    prefix = _prefix([port.name for port in of_design], own)
    ports = tuple(port._replace(name=f"{prefix}{port.name}") for port in of_design)
    reset = device.reset and f"{prefix}{device.reset}"
    device = replace(device, ports=ports, clock=f"{prefix}{device.clock}", reset=reset)
    lines = [_UNIT, f"module {top};", f"    reg {device.clock} = 0;"]
    if device.reset:
        lines.append(f"    reg {device.reset} = {device.reset_level};")
    lines += [f"    reg {_bits(port)}{port.name} = 0;" for port in device.inputs]
    lines += [f"    wire {_bits(port)}{port.name};" for port in device.outputs]
    pairs = zip(of_design, device.ports, strict=True)
    connections = ", ".join(f".{port.name}({signal.name})" for port, signal in pairs)
    lines += [f"    {instance} ({connections});" for instance in (f"{device.name} {dut}", *instances)]
    lines += [
        f"    integer seed = {seed}, cycle = 0, left = 0, resets = 0, pulse = 0;",
        *(f"    integer hold_{number}, style_{number};" for number in range(len(device.inputs))),
        *(f"    reg {_bits(port)}mask_{number};" for number, port in enumerate(device.inputs)),
        "",
        "    function automatic integer below(input integer limit);",
        "        begin seed = seed * 1103515245 + 12345; below = ((seed >> 12) & 32'h7ffff) % limit; end",
        "    endfunction",
        "    function automatic [31:0] word(input integer unused);",
        "        begin word = below(65536); word = (word << 16) | below(65536); end",
        "    endfunction",
        "",
        f"    always #5 {device.clock} = ~{device.clock};",
        "",
        "    // The habits of the inputs in the next phase.",
        "    task choose;",
        "        begin",
        "            case (below(8)) 0, 1, 2: left = 20; 3, 4, 5: left = 60; 6: left = 150;",
        "                default: left = 400; endcase",
        "            resets = below(4) == 0;",
    ]
    for number, port in enumerate(device.inputs):
        lines += [
            f"            case (below(8)) 0: hold_{number} = 2; 1: hold_{number} = 6; 2: hold_{number} = 1000;",
            f"                default: hold_{number} = 1; endcase",
            f"            style_{number} = below({10 if port.width == 1 else 8});",
            f"            mask_{number} = {_random(port)} >> below({port.width});",
            f"            if (below(3) == 0) mask_{number} = mask_{number} & {_random(port)};",
            f"            drive_{number};",
        ]
    lines += ["        end", "    endtask"]
    for number, port in enumerate(device.inputs):
        lines += [f"    task drive_{number};", *_drive(number, port), "    endtask"]
    lines += ["", "    initial begin"]
    idle = f"{device.reset} = {1 - device.reset_level};" if device.reset else ""
    active = f"{device.reset} = {device.reset_level};" if device.reset else ""
    lines += [
        f"        repeat (3) @(negedge {device.clock});",
        f"        while (cycle < {cycles}) begin",
        f"            @(negedge {device.clock});",
        "            cycle = cycle + 1;",
        f"            {idle}",
        "            if (left == 0) begin",
        "                choose;",
        f"                if (below(2) == 0) begin {active} end",
        "            end else left = left - 1;",
        *(f"            if (below(hold_{number}) == 0) drive_{number};" for number in range(len(device.inputs))),
        f"            if (resets != 0 && below(12) == 0) begin {active} pulse = below(2); end else pulse = 0;",
        "            #2;",
        f"            if (pulse != 0) begin {idle} end",
        "        end",
        "        $finish;",
        "    end",
        "endmodule",
    ]
    return "\n".join(line.rstrip() for line in lines if line.strip() or not line) + "\n"


_OWN = ("seed", "cycle", "left", "resets", "pulse", "below", "word", "choose")
_OWN_OF_INPUTS = ("hold", "style", "mask", "drive")
"""Names that the module of the stimuli declares besides signals with the names of the design's ports."""


def _prefix(names: Iterable[str], taken: Iterable[str]) -> str:
    """A prefix for `names` that makes none of them equal to a taken name; empty if no prefix is needed."""
    prefix, names, taken = "", list(names), set(taken)
    while any(f"{prefix}{name}" in taken for name in names):
        prefix += "bench_"
    return prefix


def _drive(number: int, port: DesignPort) -> list[str]:
    name, style = port.name, f"style_{number}"
    if port.width == 1:
        values = ["0", "1", "below(8) == 0", "below(8) != 0", f"~{name}", "below(2)"]
    else:
        ones = f"below(2) ? {{{port.width}{{1'b1}}}} : 0"
        values = [_random(port), ones, f"{name} + 1", f"1 << below({port.width})", "below(4)"]
        values.append(f"{_random(port)} & mask_{number}")
    labels = ("0, 1", "2", "3", "4", "5", "default")
    items = [f"            {label}: {name} = {value};" for label, value in zip(labels, values, strict=True)]
    return [f"        case ({style})", *items, "        endcase"]


def _random(port: DesignPort) -> str:
    words = ", ".join(["word(0)"] * -(-port.width // 32))
    return f"{{{words}}}"


def _bits(port: DesignPort) -> str:
    return f"[{port.width - 1}:0] " if port.width > 1 else ""


_SAMPLES = [
    "    always @(posedge {clock}) #1 {own}compare;",
    "    always @(negedge {clock}) begin #1 {own}compare; #2 {own}compare; end",
]
"""When outputs are compared: once settled after each clock edge, and after a pulse of an asynchronous reset."""


def _own(device: Device, others: int = 0) -> str:
    """A prefix for internal names in a checking module with `others` other designs, so that no port has such a name."""
    names = ["model", "compare", "seen", *(f"expected_{port.name}" for port in device.outputs)]
    for number in range(others):
        names += [f"other_{number}", *(f"of_{number}_{port.name}" for port in device.ports)]
    return _prefix(names, [port.name for port in device.ports])


def _checking(device: Device, name: str, own: str, known: Sequence[str], compare: Sequence[str]) -> str:
    """A module with all ports of a design as inputs, and a model of the design; its other names begin with `own`."""
    head = ", ".join(f"input wire {_bits(port)}{port.name}" for port in device.ports)
    ways = {port.name: port.name for port in device.ports}
    ways |= {port.name: f"{own}expected_{port.name}" for port in device.outputs}
    inside = ", ".join(f".{name}({signal})" for name, signal in ways.items())
    lines = [_UNIT, f"module {name} ({head});"]
    lines += [f"    wire {_bits(port)}{own}expected_{port.name};" for port in device.outputs]
    lines += [f"    {MODEL}{device.name} {own}model ({inside});", *known, f"    task {own}compare;", "        begin"]
    lines += [*compare, "        end", "    endtask"]
    lines += [*(line.format(clock=device.clock, own=own) for line in _SAMPLES), "endmodule"]
    return "\n".join(lines) + "\n"


def reference_checker(device: Device, name: str, design: str, *, asserts: bool = False) -> str:
    """A module that compares the outputs with those of a model (the correct design's text) where the latter are known.

    With `asserts`, each comparison is an immediate assertion.
    """
    compare, own = list[str](), _own(device)
    for port in device.outputs:
        expected = f"{own}expected_{port.name}"
        says = f'$error("{port.name} is %b, expected %b", {port.name}, {expected});'
        if asserts:
            condition, says = f"assert (^{expected} === 1'bx || {port.name} === {expected})", f"else {says}"
        else:
            condition = f"if (^{expected} !== 1'bx && {port.name} !== {expected})"
        compare += [f"            {condition}", f"                {says}"]
    return f"{with_prefix(design, MODEL)}\n{_checking(device, name, own, [], compare)}"


_IN_PYTHON = '''"""Drives random inputs, and compares the outputs with those of a simulation of the right design."""

import subprocess
import tempfile

import cocotb
from cocotb.triggers import ReadOnly, Timer

INPUTS = {inputs}
OUTPUTS = {outputs}
MODEL = r"""
{model}
"""


def expected():
    """The time, the inputs and the outputs whenever one of them changes."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{{folder}}/model.sv", "w") as file:
            file.write(MODEL)
        build = ["iverilog", "-g2012", "-s", "stimuli", "-o", "model.vvp", "model.sv"]
        subprocess.run(build, cwd=folder, check=True)
        run = subprocess.run(["vvp", "-n", "model.vvp"], cwd=folder, check=True, capture_output=True, text=True)
    for line in filter(lambda line: line[:1].isdigit(), run.stdout.splitlines()):
        time, *values = line.split()
        yield int(time), values[: len(INPUTS)], values[len(INPUTS) :]


@cocotb.test()
async def test_outputs(dut):
    now, driven = 0, [None] * len(INPUTS)
    for time, inputs, outputs in expected():
        if time > now:
            await Timer(time - now, unit="ns")
        now = time
        for name, value, last in zip(INPUTS, inputs, driven):
            if value != last:
                getattr(dut, name).value = int(value, 2)
        driven = inputs
        await ReadOnly()
        for name, value in zip(OUTPUTS, outputs):
            found = str(getattr(dut, name).value).lower()
            assert "x" in value or found == value, f"{{name}} is {{found}} at {{now}} ns, not {{value}}"
'''


def reference_in_python(device: Device, design: str, *, cycles: int, seed: int) -> str:
    """A cocotb bench that drives inputs as `stimuli` does, and compares the outputs with those of a correct design."""
    head = ", ".join(f"input wire {_bits(port)}{port.name}" for port in device.ports)
    inputs = [port.name for port in device.ports if port.direction == "input"]
    outputs = [port.name for port in device.outputs]
    values = " ".join("%b" for _ in device.ports)
    own = _prefix(["last", "show"], inputs + outputs)
    show = f"{own}last = $time; {own}show;"
    log = [
        f"module port_log ({head});",
        f"    reg [63:0] {own}last = 0;",
        f'    task {own}show; $strobe("%0d {values}", $time, {", ".join(inputs + outputs)}); endtask',
        f"    initial {own}show;",
        f"    always @({' or '.join(inputs + outputs)}) if ($time !== {own}last) begin {show} end",
        "endmodule",
    ]
    around = stimuli(device, "stimuli", ["port_log port_logged"], cycles=cycles, seed=seed)
    model = "\n".join([design, _UNIT, *log, around])
    return _IN_PYTHON.format(inputs=inputs, outputs=outputs, model=model)


def comparison(device: Device, design: str, others: Sequence[str], *, cycles: int, seed: int) -> str:
    """A simulation of a correct design beside others, which prints ``DIFFERS n`` once for each that differs."""
    own = _own(device, len(others))
    known, compare = [f"    reg [{max(len(others) - 1, 0)}:0] {own}seen = 0;"], list[str]()
    texts = [design, with_prefix(design, MODEL)]
    driven = {port.name for port in device.ports if port.direction == "input"}
    for number, text in enumerate(others):
        texts.append(with_prefix(text, f"other_{number}_"))
        # Each design has separate wires, even for its inputs, since a mutant may drive them.
        names = {port.name: f"{own}of_{number}_{port.name}" for port in device.ports}
        known += [f"    wire {_bits(port)}{names[port.name]};" for port in device.ports]
        known += [f"    assign {name} = {port};" for port, name in names.items() if port in driven]
        inside = ", ".join(f".{port}({name})" for port, name in names.items())
        known.append(f"    other_{number}_{device.name} {own}other_{number} ({inside});")
        wrong = " || ".join(
            f"(^{own}expected_{port.name} !== 1'bx && {names[port.name]} !== {own}expected_{port.name})"
            for port in device.outputs
        )
        compare += [
            f"            if (!{own}seen[{number}] && ({wrong})) begin",
            f'                {own}seen[{number}] = 1; $display("DIFFERS {number}");',
            "            end",
        ]
    around = stimuli(device, "testbench", ["comparison compared"], cycles=cycles, seed=seed)
    return "\n".join([*texts, _checking(device, "comparison", own, known, compare), around])
