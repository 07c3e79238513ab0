"""A mapped netlist: what it costs, and whether it behaves like another one.

What is measured is what is proved: both read the same list of library cells, which nothing of a design's text reaches
but through here.
"""

import itertools
import json
import re
from collections import namedtuple
from functools import cache
from pathlib import Path

CELLS = Path(__file__).with_name("cells.genlib")
_GATE = re.compile(r"GATE (\w+) +([\d.]+) Y=([^;]+);(?: +PIN \* \w+ \d+ \d+ ([\d.]+))?")
FLOPS = {
    "$_DFF_P_": ("DFFPOSX1", 96, 0.174),
    "$_DFF_N_": ("DFFNEGX1", 96, 0.191),
    "$_DFFSR_PNN_": ("DFFSR", 176, 0.366),
}
"""Flip-flops as Yosys names them: the cell, its area, and its delay from the clock in ns (of DFFSR at 0.1 pF)."""
FLOP_PINS = {"$_DFFSR_PNN_": "CDRS"}
"""R and S are active low, and R wins."""
MOST_CELLS = 40_000
RESET_STEPS = 8
"""Steps in which a reset must have had its effect."""
X = 2
"""An unknown bit, beside 0 and 1."""

Cell = namedtuple("Cell", "kind inputs output")
"""One of the library or of `FLOPS`; its nets in the order of its pins, and the net that it drives."""
Gate = namedtuple("Gate", "area pins table delay")
"""A combinational cell; `table` is its output for each combination of its inputs, the first one as the lowest bit."""
Proof = namedtuple("Proof", "found detail")
"""``proved``, ``bounded``, ``differs`` or ``unknown``; with the number of cycles or the reason."""


class Unfit(Exception):
    """Why a design earns nothing."""


@cache
def library():
    """The combinational cells by name."""
    found = {}
    for name, area, function, delay in _GATE.findall(CELLS.read_text(encoding="utf-8")):
        pins = sorted(set(re.findall(r"\b[A-DS]\b", function)))
        term = re.sub(r"!\s*", " 1-", function.replace("CONST", "")).replace("*", "&").replace("+", "|")
        table = [
            bool(eval(term, {pin: at >> place & 1 for place, pin in enumerate(pins)})) + 0
            for at in range(2 ** len(pins))
        ]
        found[name] = Gate(float(area), pins, table, float(delay or 0))
    return found


class Netlist:
    """The cells of one flat module.

    Nets are numbers from 2 up; 0 and 1 are constants. Raises `Unfit` where anything but library cells is there.
    """

    def __init__(self, text, top):
        modules = json.loads(text)["modules"]
        module = modules.get(top)
        if module is None or len(modules) != 1:
            raise Unfit("synthesis leaves a module without content")
        self.ports = {name: (port["direction"], port["bits"]) for name, port in module["ports"].items()}
        self.inputs = [bit for way, bits in self.ports.values() if way == "input" for bit in bits]
        self.cells = [self._cell(cell) for cell in module["cells"].values()]
        if len(self.cells) > MOST_CELLS:
            raise Unfit(f"it has more than {MOST_CELLS} cells")
        self.flops = [cell for cell in self.cells if cell.kind in FLOPS]
        self.outputs = {
            f"{name}[{at}]": _net(bit)
            for name, (way, bits) in sorted(self.ports.items())
            if way == "output"
            for at, bit in enumerate(bits)
        }
        self.gates = self._sorted()

    def _cell(self, cell):
        kind, nets = cell["type"], cell["connections"]
        gate = library().get(kind)
        pins, out = (gate.pins, "Y") if gate else (FLOP_PINS.get(kind, "CD"), "Q")
        if not gate and kind not in FLOPS:
            raise Unfit(f"synthesis leaves a cell of another kind: {kind.lstrip('$_').strip('_') or kind}")
        if set(nets) != {*pins, out} or any(len(bits) != 1 for bits in nets.values()) or cell.get("parameters"):
            raise Unfit(f"the cell {kind} has other pins")
        output = nets[out][0]
        if not isinstance(output, int):
            raise Unfit("a cell drives a constant")
        return Cell(kind, [_net(nets[pin][0]) for pin in pins], output)

    def _sorted(self):
        """The combinational cells, each behind those that drive it. Also checks that each net has one driver."""
        driver = dict.fromkeys([*self.inputs, 0, 1])
        for cell in self.cells:
            if cell.output in driver:
                raise Unfit("a net has two drivers")
            driver[cell.output] = cell
        for net in [net for cell in self.cells for net in cell.inputs] + list(self.outputs.values()):
            if net not in driver:
                raise Unfit("a net has no driver")
        done, order = {*self.inputs, 0, 1, *(cell.output for cell in self.flops)}, []
        for last in self.cells:
            stack, waiting = ([] if last.kind in FLOPS else [last]), set()
            while stack:
                cell = stack[-1]
                missing = [net for net in cell.inputs if net not in done]
                if cell.output in done:
                    stack.pop()
                elif not missing:
                    done.add(cell.output)
                    order.append(stack.pop())
                elif cell.output in waiting:
                    raise Unfit("it has a combinational loop")
                else:
                    waiting.add(cell.output)
                    stack += [driver[net] for net in missing]
        return order

    def check_clock(self, clock, reset):
        """Every flip-flop must be clocked by this port itself, and all at one edge; only the reset may set or reset it.

        Otherwise a flip-flop could be a wire, or hold a value for less than a cycle, and would cut the longest path.
        """
        wanted = self.ports[clock][1] if clock in self.ports else []
        if any(flop.inputs[:1] != wanted for flop in self.flops):
            raise Unfit("a flip-flop is not clocked by the clock itself")
        if len({flop.kind == "$_DFF_N_" for flop in self.flops}) > 1:
            raise Unfit("it has flip-flops of both edges of the clock")
        steady = {0, 1, *self.ports.get(reset, ("", []))[1]}
        for cell in self.gates:
            if steady.issuperset(cell.inputs):
                steady.add(cell.output)
        if any(net not in steady for flop in self.flops for net in flop.inputs[2:]):
            raise Unfit("a flip-flop is set or reset by something else than the reset")

    def costs(self):
        """Area, flip-flops, and the longest path in ns: from an input or a flip-flop to an output or a flip-flop."""
        at = dict.fromkeys([*self.inputs, 0, 1], 0.0)
        at |= {flop.output: FLOPS[flop.kind][2] for flop in self.flops}
        area = sum(FLOPS[flop.kind][1] for flop in self.flops)
        for cell in self.gates:
            gate = library()[cell.kind]
            at[cell.output] = max((at[net] for net in cell.inputs), default=0.0) + gate.delay
            area += gate.area
        ends = [*self.outputs.values(), *(flop.inputs[1] for flop in self.flops)]
        return {
            "area": area,
            "flops": float(len(self.flops)),
            "delay": round(max((at[net] for net in ends), default=0.0), 3),
        }

    def two_phases(self):
        """Whether what happens between the clock's rising edges matters."""
        return any(flop.kind != "$_DFF_P_" for flop in self.flops)

    def reset_state(self, reset, level, phased):
        """The flip-flops' values after the reset was active, whatever the other inputs are."""
        state, quiet = dict.fromkeys((flop.output for flop in self.flops), X), 0
        held = {self.ports[reset][1][0]: level} if reset in self.ports else {}
        for step in range(RESET_STEPS if held else 0):
            values = {0: 0, 1: 1} | dict.fromkeys(self.inputs, X) | held
            after = {}
            for flop, value in zip(self.flops, self._settled(values, state), strict=True):
                edge = not phased or (flop.kind == "$_DFF_N_") == step % 2
                after[flop.output] = _overridden(flop, values, values[flop.inputs[1]]) if edge else value
            quiet = quiet + 1 if after == state else 0
            state = after
            if quiet > phased:
                break
        return state

    def _settled(self, values, state):
        """Fill in the nets' values; those of the flip-flops are the state's, unless set or reset."""
        pending = dict(state)
        for _ in range(len(self.flops) + 1):
            for net, value in pending.items():
                values[net] = value
            for cell in self.gates:
                values[cell.output] = _value(library()[cell.kind].table, [values[net] for net in cell.inputs])
            now = {flop.output: _overridden(flop, values, state[flop.output]) for flop in self.flops}
            if now == pending:
                break
            pending = now
        return [values[flop.output] for flop in self.flops]

    def blif(self, prefix, shared, init, phase):
        """Its cells as BLIF, with the names of nets behind a prefix.

        Inputs are called like the ports in `shared`. The first values of flip-flops are those of `init`, and where it
        has none, those of more inputs, which are returned beside the lines.
        """
        names = {net: shared[net] for net in self.inputs}

        def name(net):
            return names.get(net, f"{prefix}{net}" if net > 1 else f"const{net}")

        lines, free = [], []
        for cell in self.gates:
            table = library()[cell.kind].table
            lines += [f".names {' '.join(map(name, [*cell.inputs, cell.output]))}"]
            rows = (f"{at:0{len(cell.inputs)}b}"[::-1] if cell.inputs else "" for at in range(len(table)))
            lines += [f"{row} 1".strip() for row, value in zip(rows, table, strict=True) if value]
        for flop in self.flops:
            q, d = name(flop.output), name(flop.inputs[1])
            first, kept, new = f"{prefix}first{flop.output}", f"{prefix}kept{flop.output}", f"{prefix}new{flop.output}"
            lines.append(f".latch {new} {kept} {init[flop.output] if init[flop.output] != X else 0}")
            if init[flop.output] == X:
                free.append(first)
                value = f"{prefix}value{flop.output}"
                lines += [f".names begun {first} {kept} {value}", "01- 1", "1-1 1"]
            else:
                value = kept
            if flop.kind == "$_DFFSR_PNN_":  # overrides both what it holds and what it takes at an edge
                over = [name(net) for net in flop.inputs[2:]]
                lines += [f".names {value} {' '.join(over)} {q}", "11- 1", "-10 1"]
                lines += [f".names {d} {' '.join(over)} {prefix}taken{flop.output}", "11- 1", "-10 1"]
                d = f"{prefix}taken{flop.output}"
            else:
                lines += [f".names {value} {q}", "1 1"]
            if phase:
                rows = ["1-1 1", "01- 1"] if flop.kind == "$_DFF_N_" else ["0-1 1", "11- 1"]
                lines += [f".names phase {q} {d} {new}", *rows]
            else:
                lines += [f".names {d} {new}", "1 1"]
        outputs = {port: name(net) for port, net in self.outputs.items()}
        return lines, free, outputs


def _net(bit):
    return bit if isinstance(bit, int) else int(bit == "1")  # a net without a driver is 0


@cache
def _combined(table, values):
    outs = {
        table[sum(bit << place for place, bit in enumerate(bits))]
        for bits in itertools.product(*[(0, 1) if value == X else (value,) for value in values])
    }
    return outs.pop() if len(outs) == 1 else X


def _value(table, values):
    return _combined(tuple(table), tuple(values))


def _overridden(flop, values, state):
    if flop.kind != "$_DFFSR_PNN_":
        return state
    reset, preset = values[flop.inputs[2]], values[flop.inputs[3]]
    if reset == 0:
        return 0
    kept = 1 if preset == 0 else state if preset == 1 or state == 1 else X
    return kept if reset == 1 or kept == 0 else X


def miter(gold, gate, reset, level):
    """BLIF of a circuit whose output is 1 where the two differ after the reset."""
    phased = gold.two_phases() or gate.two_phases()
    shared, lines = {}, []
    inputs = []
    for name, (way, bits) in sorted(gold.ports.items()):
        if way == "input":
            for at, bit in enumerate(bits):
                inputs.append(f"in_{name}_{at}")
                shared[bit] = (inputs[-1], gate.ports[name][1][at])
    parts = [
        gold.blif(
            "a", {bit: name for bit, (name, _) in shared.items()}, gold.reset_state(reset, level, phased), phased
        ),
        gate.blif("b", {bit: name for name, bit in shared.values()}, gate.reset_state(reset, level, phased), phased),
    ]
    lines += [".names const0", ".names const1", "1", ".latch const1 begun 0"]
    if phased:
        lines += [".latch next phase 0", ".names phase next", "0 1"]
    differ = []
    for at, port in enumerate(gold.outputs):
        differ.append(f"differ{at}")
        lines += [f".names {parts[0][2][port]} {parts[1][2][port]} differ{at}", "01 1", "10 1"]
    lines += [f".names {' '.join(differ)} bad"]
    lines += ["-" * at + "1" + "-" * (len(differ) - at - 1) + " 1" for at in range(len(differ))]
    free = parts[0][1] + parts[1][1]
    head = [".model miter", f".inputs {' '.join([*inputs, *free])}", ".outputs bad"]
    return "\n".join([*head, *lines, *parts[0][0], *parts[1][0], ".end"]) + "\n"
