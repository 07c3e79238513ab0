import os
import random
from collections import deque

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

DATA_WIDTH = int(os.environ["FIFO_DATA_WIDTH"])
DEPTH = int(os.environ["FIFO_DEPTH"])
ALMOST_FULL = int(os.environ["FIFO_ALMOST_FULL"])
ALMOST_EMPTY = int(os.environ["FIFO_ALMOST_EMPTY"])


class Fifo:
    """The device and its model, advanced together one clock cycle at a time."""

    OUTPUTS = ("rd_data", "count", "full", "empty", "almost_full", "almost_empty", "overflow", "underflow")

    def __init__(self, dut):
        self.dut = dut
        self.clear()

    def clear(self):
        self.words, self.rd_data, self.overflow, self.underflow = deque(), 0, 0, 0

    def check(self, when):
        count = len(self.words)
        expected = {
            "rd_data": self.rd_data,
            "count": count,
            "full": int(count == DEPTH),
            "empty": int(count == 0),
            "almost_full": int(count >= ALMOST_FULL),
            "almost_empty": int(count <= ALMOST_EMPTY),
            "overflow": self.overflow,
            "underflow": self.underflow,
        }
        for name in self.OUTPUTS:
            value = getattr(self.dut, name).value
            assert value.is_resolvable, f"{when}: {name} is {value}"
            assert int(value) == expected[name], f"{when}: {name} is {int(value)}, expected {expected[name]}"

    async def start(self):
        """Reset, checked without a clock; then the clock. Returns after a falling edge, out of reset."""
        dut = self.dut
        dut.clk.value = 0
        dut.rst_n.value = 1
        dut.wr_en.value = dut.rd_en.value = 1
        dut.wr_data.value = 1
        await Timer(5, unit="ns")
        dut.rst_n.value = 0
        await Timer(5, unit="ns")
        self.clear()
        self.check("in reset before any clock edge")
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        for _ in range(3):
            await FallingEdge(dut.clk)
            self.check("in reset with the clock running")
        dut.wr_en.value = dut.rd_en.value = 0
        dut.rst_n.value = 1

    async def cycle(self, write=None, read=False):
        """One rising edge with the given requests; checks the outputs after it and half a cycle later."""
        dut = self.dut
        dut.wr_en.value = int(write is not None)
        dut.wr_data.value = write if write is not None else (1 << DATA_WIDTH) - 1
        dut.rd_en.value = int(read)
        full, empty = len(self.words) == DEPTH, not self.words
        when = f"count {len(self.words)}, write {write}, read {read}"
        await Timer(2, unit="ns")
        self.check(f"{when}, before the edge")
        if read and not empty:
            self.rd_data = self.words.popleft()
        if write is not None and not full:
            self.words.append(write)
        self.overflow, self.underflow = int(write is not None and full), int(read and empty)
        await RisingEdge(dut.clk)
        await Timer(2, unit="ns")
        self.check(f"{when}, after the edge")
        await FallingEdge(dut.clk)
        self.check(f"{when}, half a cycle after the edge")


@cocotb.test()
async def test_widths(dut):
    assert len(dut.wr_data) == len(dut.rd_data) == DATA_WIDTH
    assert len(dut.count) == DEPTH.bit_length()


@cocotb.test()
async def test_fill_and_drain(dut):
    fifo = Fifo(dut)
    await fifo.start()
    generator = random.Random(1)
    for _ in range(3):
        for _ in range(DEPTH + 2):
            await fifo.cycle(write=generator.randrange(1 << DATA_WIDTH))
        await fifo.cycle()
        for _ in range(DEPTH + 2):
            await fifo.cycle(read=True)
        await fifo.cycle()


@cocotb.test()
async def test_both_sides_at_once(dut):
    fifo = Fifo(dut)
    await fifo.start()
    generator = random.Random(2)
    await fifo.cycle(write=1, read=True)
    for _ in range(2 * DEPTH + 3):
        await fifo.cycle(write=generator.randrange(1 << DATA_WIDTH), read=True)
    while len(fifo.words) < DEPTH:
        await fifo.cycle(write=generator.randrange(1 << DATA_WIDTH))
    for _ in range(2 * DEPTH + 3):
        await fifo.cycle(write=generator.randrange(1 << DATA_WIDTH), read=True)


@cocotb.test()
async def test_reset_in_operation(dut):
    fifo = Fifo(dut)
    await fifo.start()
    for level in range(1, DEPTH + 2):
        for word in range(level):
            await fifo.cycle(write=(word + 1) % (1 << DATA_WIDTH), read=word == 1)
        dut.rst_n.value = 0
        await Timer(2, unit="ns")
        fifo.clear()
        fifo.check("reset between two clock edges")
        if level % 2:
            await FallingEdge(dut.clk)
            fifo.check("reset held over a clock edge")
        dut.rst_n.value = 1
        await fifo.cycle(write=1)
        await fifo.cycle(read=True)
        await fifo.cycle(read=True)


@cocotb.test()
async def test_random(dut):
    fifo = Fifo(dut)
    await fifo.start()
    generator = random.Random(2024)
    for _ in range(12):
        write_rate, read_rate = generator.choice(((0.9, 0.3), (0.3, 0.9), (0.6, 0.6), (1.0, 0.5), (0.5, 1.0)))
        for _ in range(5 * DEPTH):
            word = generator.randrange(1 << DATA_WIDTH) if generator.random() < write_rate else None
            await fifo.cycle(write=word, read=generator.random() < read_rate)
