"""What the tests of families share: ports by role, reset, one clock cycle against a model, and operations."""

import json
import os
import random
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

CASE = json.loads(Path(__file__).with_name("case.json").read_text())
NAMES, VALUES = CASE["names"], CASE["values"]
PORTS = json.loads(os.environ["PORTS"])
"""The directions of the design's ports by name."""
LARGEST = 2 ** VALUES.get("width", 0) - 1
"""The largest number of the design's width, if it has one."""
OPERANDS = {
    "plain": lambda data: data,
    "invert": lambda data: LARGEST - data,
    "negate": lambda data: -data & LARGEST,
    "left": lambda data: data << 1 & LARGEST,
    "right": lambda data: data >> 1,
    "next": lambda data: data + 1 & LARGEST,
}
OPERATIONS = {
    "load": lambda value, operand: operand,
    "invert": lambda value, operand: LARGEST - operand,
    "add": lambda value, operand: (value + operand) & LARGEST,
    "add_sat": lambda value, operand: min(value + operand, LARGEST),
    "sub": lambda value, operand: (value - operand) & LARGEST,
    "sub_sat": lambda value, operand: max(value - operand, 0),
    "xor": lambda value, operand: value ^ operand,
    "and": lambda value, operand: value & operand,
    "or": lambda value, operand: value | operand,
    "max": max,
    "min": min,
}


class Bench:
    """The design beside its model, which has `reset`, `step` (inputs by role) and `outputs` (by role)."""

    def __init__(self, dut, model, seed):
        self.dut, self.model, self.generator = dut, model, random.Random(seed)
        self.known = False  # from the first reset on

    def numbers(self):
        """Numbers to choose from: any, but often a small or a large one."""
        return 0, 1, LARGEST, self.generator.randrange(LARGEST + 1), self.generator.randrange(LARGEST + 1)

    def port(self, role):
        return getattr(self.dut, NAMES[role])

    def check(self, when):
        if not self.known:
            return
        for role, expected in self.model.outputs().items():
            value = self.port(role).value
            assert value.is_resolvable, f"{NAMES[role]} is {value} {when}"
            assert int(value) == expected, f"{NAMES[role]} is {int(value)} {when}, expected {expected}"

    def set_reset(self, active):
        self.port("reset").value = VALUES["reset_level"] if active else 1 - VALUES["reset_level"]

    def reset_model(self):
        self.model.reset()
        self.known = True

    async def start_clock(self):
        self.port("clock").value = 0
        await Timer(5, unit="ns")
        Clock(self.port("clock"), 10, unit="ns").start()
        await FallingEdge(self.port("clock"))

    async def start_at_any_level(self, *roles):
        """Three hundred cycles in which no input, the reset included, tells by its order which level is active.

        The first test that drives the design begins like this. In the other ones the reset and most inputs are active
        first, so a design could find their levels there. It fails here, where it must guess.
        """
        drawn = self.generator
        inputs = dict.fromkeys(roles, 0)
        for cycle in range(300):
            if not cycle or drawn.random() < 0.1:
                reset = drawn.randrange(2)
            for role in roles:
                largest = (1 << len(self.port(role))) - 1
                if largest > 1:
                    some = drawn.randrange(largest + 1)
                    inputs[role] = drawn.choice((0, largest, some, some))
                elif drawn.random() < 0.3:
                    inputs[role] = 1 - inputs[role]
            if not cycle:
                self.set_reset(reset == VALUES["reset_level"])
                self.drive(inputs)
                await self.start_clock()
            await self.cycle(reset == VALUES["reset_level"], **inputs)
        return self

    async def start(self, **inputs):
        """Two cycles in reset, with these inputs; ends after a falling edge, and returns the bench."""
        self.set_reset(True)
        self.drive(inputs)
        await self.start_clock()
        await FallingEdge(self.port("clock"))
        self.reset_model()
        self.check("in reset")
        self.set_reset(False)
        return self

    def drive(self, inputs):
        for role, value in inputs.items():
            self.port(role).value = value

    async def cycle(self, reset=False, **inputs):
        """One clock cycle: the outputs change at the rising edge alone, or at once in an asynchronous reset.

        While the clock is high the inputs are inverted, also a synchronous reset, which a latch shows, and a flip-flop
        of the other edge or of both.
        """
        what = "in reset" if reset else "with " + ", ".join(f"{NAMES[role]}={value}" for role, value in inputs.items())
        self.set_reset(reset)
        self.drive(inputs)
        if reset and VALUES["reset_kind"] == "async":
            self.reset_model()
        await Timer(1, unit="ns")
        self.check(f"before the clock edge {what}")
        await RisingEdge(self.port("clock"))
        await Timer(1, unit="ns")
        if reset:
            self.reset_model()
        elif self.known:
            self.model.step(**inputs)
        self.check(f"after the clock edge {what}")
        if VALUES["reset_kind"] == "sync":
            self.set_reset(not reset)
        self.drive({role: (1 << len(self.port(role))) - 1 - value for role, value in inputs.items()})
        await FallingEdge(self.port("clock"))
        self.check(f"half a cycle after the clock edge {what}, when the inputs are inverted")

    async def check_reset_kind(self):
        """A pulse of the reset between two clock edges; the outputs must not show the reset values before."""
        self.set_reset(False)
        await Timer(1, unit="ns")
        before = self.model.outputs()
        self.set_reset(True)
        if VALUES["reset_kind"] == "async":
            self.model.reset()
            assert self.model.outputs() != before
        await Timer(1, unit="ns")
        self.check("in a reset between two clock edges")
        self.set_reset(False)
        await Timer(1, unit="ns")
        self.check("after a reset between two clock edges")


def port_tests(**widths):
    """A test of each port's name, direction and width, so that what fails says which port is wrong."""

    def make(role, width):
        direction = "OUTPUT" if role in CASE["outputs"] else "INPUT"

        async def test(dut):
            assert PORTS.get(NAMES[role]) == direction, f"{NAMES[role]} is no port of the direction {direction}"
            port = getattr(dut, NAMES[role])
            assert len(port) == width, f"{NAMES[role]} has {len(port)} bits, expected {width}"

        test.__module__ = "test_design"
        return cocotb.test(name=f"test_{role}_port")(test)

    return {f"test_{role}_port": make(role, width) for role, width in {"clock": 1, "reset": 1, **widths}.items()}
