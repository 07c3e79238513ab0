import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

WIDTH = int(os.environ["GRAY_WIDTH"])


class Counter:
    """The device and its model, side by side."""

    def __init__(self, dut):
        self.dut, self.count = dut, 0

    def check(self, when):
        for name, want in (("gray", self.count ^ (self.count >> 1)), ("binary", self.count)):
            value = getattr(self.dut, name).value
            assert value.is_resolvable, f"{when}: {name} is {value}"
            assert int(value) == want, f"{when}: {name} is {int(value):0{WIDTH}b}, expected {want:0{WIDTH}b}"

    async def start(self):
        """One edge in reset with every other input busy; returns after a falling edge."""
        dut = self.dut
        dut.clk.value = 0
        dut.rst.value, dut.en.value, dut.down.value = 1, 1, 1
        await Timer(5, unit="ns")
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        await FallingEdge(dut.clk)
        self.check("after an edge in reset")

    async def cycle(self, en=1, down=0, rst=0):
        dut = self.dut
        when = f"count {self.count}, en={en} down={down} rst={rst}"
        dut.en.value, dut.down.value, dut.rst.value = en, down, rst
        await Timer(2, unit="ns")
        self.check(f"{when}, before the edge")
        if rst:
            self.count = 0
        elif en:
            self.count = (self.count + (-1 if down else 1)) % 2**WIDTH
        await RisingEdge(dut.clk)
        await Timer(2, unit="ns")
        self.check(f"{when}, after the edge")
        await FallingEdge(dut.clk)


@cocotb.test()
async def test_once_around(dut):
    assert len(dut.gray) == len(dut.binary) == WIDTH
    counter = Counter(dut)
    await counter.start()
    for down in (0, 1):
        for _ in range(2**WIDTH + 3):
            await counter.cycle(down=down)


@cocotb.test()
async def test_enable(dut):
    counter = Counter(dut)
    await counter.start()
    for number in range(20):
        await counter.cycle(en=1)
        await counter.cycle(en=0, down=number % 2)
        await counter.cycle(en=0)
    await RisingEdge(dut.clk)
    await Timer(2, unit="ns")
    dut.en.value = 1
    await Timer(2, unit="ns")
    counter.check("enabled while the clock is high")


@cocotb.test()
async def test_reset(dut):
    counter = Counter(dut)
    await counter.start()
    for en in (0, 1):
        for down in (0, 1):
            for _ in range(5):
                await counter.cycle()
            await counter.cycle(en, down, rst=1)
            await counter.cycle(en, down, rst=1)
    for _ in range(3):
        await counter.cycle()
    dut.rst.value = 1
    await Timer(2, unit="ns")
    counter.check("reset between two edges")


@cocotb.test()
async def test_random(dut):
    counter = Counter(dut)
    await counter.start()
    generator = random.Random(5150)
    for _ in range(400):
        await counter.cycle(int(generator.random() < 0.8), generator.randrange(2), int(generator.random() < 0.03))
