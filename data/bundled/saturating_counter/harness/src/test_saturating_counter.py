import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

WIDTH = int(os.environ["COUNTER_WIDTH"])
MAX = int(os.environ["COUNTER_MAX"])
TOP = 2**WIDTH - 1


class Counter:
    """The device and its model, side by side."""

    def __init__(self, dut):
        self.dut, self.count, self.saturated = dut, 0, 0

    def check(self, when):
        expected = {
            "count": self.count,
            "saturated": self.saturated,
            "at_max": int(self.count == MAX),
            "at_min": int(self.count == 0),
        }
        for name, want in expected.items():
            value = getattr(self.dut, name).value
            assert value.is_resolvable, f"{when}: {name} is {value}"
            assert int(value) == want, f"{when}: {name} is {int(value)}, expected {want}"

    def drive(self, en=0, up=0, load=0, load_value=0):
        dut = self.dut
        dut.en.value, dut.up.value, dut.load.value, dut.load_value.value = en, up, load, load_value

    async def start(self):
        """Reset, checked without a clock; then the clock. Returns after a falling edge, out of reset."""
        dut = self.dut
        dut.clk.value = 0
        dut.rst_n.value = 1
        self.drive(1, 1, 1, 1)
        await Timer(5, unit="ns")
        dut.rst_n.value = 0
        await Timer(5, unit="ns")
        self.check("in reset before any clock edge")
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        for _ in range(3):
            await FallingEdge(dut.clk)
            self.check("in reset with the clock running")
        self.drive()
        dut.rst_n.value = 1

    def predict(self, en, up, load, load_value):
        if load:
            self.count, self.saturated = min(load_value, MAX), int(load_value > MAX)
        elif en:
            wanted = self.count + (1 if up else -1)
            self.count, self.saturated = min(max(wanted, 0), MAX), int(not 0 <= wanted <= MAX)
        else:
            self.saturated = 0

    async def cycle(self, en=0, up=0, load=0, load_value=0):
        when = f"en={en} up={up} load={load} load_value={load_value} at count {self.count}"
        self.drive(en, up, load, load_value)
        await Timer(2, unit="ns")
        self.check(f"{when}, before the edge")
        self.predict(en, up, load, load_value)
        await RisingEdge(self.dut.clk)
        await Timer(2, unit="ns")
        self.check(f"{when}, after the edge")
        await FallingEdge(self.dut.clk)


@cocotb.test()
async def test_widths(dut):
    assert len(dut.count) == len(dut.load_value) == WIDTH


@cocotb.test()
async def test_both_ends(dut):
    counter = Counter(dut)
    await counter.start()
    for _ in range(2):
        await counter.cycle(load=1, load_value=max(MAX - 3, 0))
        for _ in range(6):
            await counter.cycle(en=1, up=1)
        await counter.cycle(up=1)
        await counter.cycle(en=1, up=0)
        await counter.cycle(load=1, load_value=min(3, MAX))
        for _ in range(6):
            await counter.cycle(en=1, up=0)
        await counter.cycle(up=0)
        await counter.cycle(en=1, up=1)


@cocotb.test()
async def test_full_range(dut):
    counter = Counter(dut)
    await counter.start()
    steps = min(MAX, 300) + 2
    for up in (1, 0):
        for _ in range(steps):
            await counter.cycle(en=1, up=up)


@cocotb.test()
async def test_load(dut):
    counter = Counter(dut)
    await counter.start()
    for value in sorted({0, 1, MAX - 1, MAX, min(MAX + 1, TOP), TOP}):
        for en in (0, 1):
            for up in (0, 1):
                await counter.cycle(en, up, load=1, load_value=value)
                await counter.cycle(load_value=TOP - value)


@cocotb.test()
async def test_asynchronous_reset(dut):
    counter = Counter(dut)
    await counter.start()
    await counter.cycle(load=1, load_value=MAX)
    await counter.cycle(en=1, up=1)
    dut.rst_n.value = 0
    await Timer(2, unit="ns")
    counter.count = counter.saturated = 0
    counter.check("reset between two edges")
    counter.drive(load=1, load_value=MAX)
    await FallingEdge(dut.clk)
    counter.check("load in reset")
    dut.rst_n.value = 1
    await counter.cycle(en=1, up=1)


@cocotb.test()
async def test_random(dut):
    counter = Counter(dut)
    await counter.start()
    generator = random.Random(77)
    for _ in range(400):
        load = int(generator.random() < 0.15)
        value = generator.choice((0, 1, MAX - 1, MAX, TOP, generator.randrange(TOP + 1)))
        await counter.cycle(int(generator.random() < 0.8), generator.randrange(2), load, value)
