import json
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer
from harness_library import Chain

PARAMETERS = json.loads(os.environ["DUT_PARAMETERS"])
WIDTH = PARAMETERS["WIDTH"]
DEPTH = PARAMETERS.get("DEPTH", 1)
MASK = (1 << WIDTH) - 1


class Bench:
    def __init__(self, dut, seed):
        self.dut, self.model, self.rng = dut, Chain(DEPTH), random.Random(seed)
        self.cycle = self.sent = self.received = 0

    def check(self, when):
        for name in ("in_ready", "out_valid", "occupancy", "out_data"):
            want = getattr(self.model, name)
            if want is None:
                continue
            value = getattr(self.dut, name).value
            assert value.is_resolvable, f"cycle {self.cycle}, {when}: {name} is {value}"
            assert int(value) == want, f"cycle {self.cycle}, {when}: {name} is {int(value)}, expected {want}"

    def drive(self, flush, in_valid, in_data, out_ready):
        dut = self.dut
        dut.flush.value, dut.in_valid.value, dut.in_data.value, dut.out_ready.value = (
            flush,
            in_valid,
            in_data,
            out_ready,
        )

    async def start(self):
        self.dut.rst_n.value = 0
        self.drive(0, 1, MASK, 1)
        cocotb.start_soon(Clock(self.dut.clk, 10, unit="ns").start())
        for _ in range(2):
            await FallingEdge(self.dut.clk)
            self.check("in reset")
        self.dut.rst_n.value = 1
        await Timer(2, unit="ns")
        self.check("after reset, before a clock edge")
        await self.step(1, 1)

    async def step(self, in_valid, out_ready, flush=0, word=None):
        """One cycle, entered and left at a falling edge."""
        word = self.rng.randint(0, MASK) if word is None else word
        self.drive(flush, in_valid, word, out_ready)
        await Timer(2, unit="ns")
        self.check("before the edge")
        self.sent += int(in_valid and self.model.in_ready)
        self.received += int(out_ready and self.model.out_valid)
        self.model.edge(flush, in_valid, word, out_ready)
        await RisingEdge(self.dut.clk)
        await Timer(2, unit="ns")
        self.cycle += 1
        self.check("after the edge")
        await FallingEdge(self.dut.clk)


@cocotb.test()
async def port_widths(dut):
    assert len(dut.in_data) == len(dut.out_data) == WIDTH
    assert len(dut.occupancy) == (2 * DEPTH).bit_length()


@cocotb.test()
async def full_throughput(dut):
    bench = Bench(dut, 1)
    await bench.start()
    for _ in range(40):
        await bench.step(1, 1)
    assert bench.sent == 40
    assert bench.received == 40 - DEPTH


@cocotb.test()
async def stopped_receiver(dut):
    bench = Bench(dut, 2)
    await bench.start()
    for _ in range(3 * DEPTH + 4):
        await bench.step(1, 0)
    assert bench.sent == 2 * DEPTH
    for _ in range(3 * DEPTH + 4):
        await bench.step(0, 1)
    assert bench.received == 2 * DEPTH


@cocotb.test()
async def one_word_at_a_time(dut):
    bench = Bench(dut, 3)
    await bench.start()
    for _ in range(4):
        await bench.step(1, 0)
        for _ in range(DEPTH + 1):
            await bench.step(0, 0)
        await bench.step(0, 1)
        await bench.step(0, 1)


@cocotb.test()
async def alternating_receiver(dut):
    bench = Bench(dut, 4)
    await bench.start()
    for index in range(40):
        await bench.step(1, index & 1)
    for index in range(40):
        await bench.step(int(index % 3 != 0), int(index % 4 < 2))


@cocotb.test()
async def outputs_stand_still_between_edges(dut):
    bench = Bench(dut, 5)
    await bench.start()
    for _ in range(40):
        for _ in range(4):
            bench.drive(
                *(bench.rng.randint(0, 1) for _ in range(2)), bench.rng.randint(0, MASK), bench.rng.randint(0, 1)
            )
            await Timer(400, unit="ps")
            bench.check("inputs change within a cycle")
        await bench.step(int(bench.rng.random() < 0.7), int(bench.rng.random() < 0.5))


@cocotb.test()
async def flush_at_every_fill(dut):
    bench = Bench(dut, 6)
    await bench.start()
    for fill in range(2 * DEPTH + 1):
        for in_valid, out_ready in ((0, 0), (1, 0), (0, 1), (1, 1)):
            for _ in range(fill):
                await bench.step(1, 0)
            await bench.step(in_valid, out_ready, flush=1)
            await bench.step(0, 1)
            await bench.step(1, 1)
            await bench.step(0, 1, flush=1)


@cocotb.test()
async def reset_between_edges(dut):
    bench = Bench(dut, 7)
    await bench.start()
    for _ in range(3):
        for _ in range(2 * DEPTH + 1):
            await bench.step(1, 0, word=MASK)
        dut.rst_n.value = 0
        bench.model.reset()
        await Timer(2, unit="ns")
        bench.check("asynchronous reset")
        await FallingEdge(dut.clk)
        bench.check("reset over an edge")
        dut.rst_n.value = 1
        await bench.step(1, 1)
        await bench.step(1, 1)


@cocotb.test()
async def random_traffic(dut):
    bench = Bench(dut, 8)
    await bench.start()
    for offered, taken, flushed in (
        (0.9, 0.9, 0.0),
        (0.9, 0.3, 0.0),
        (0.3, 0.9, 0.0),
        (0.5, 0.5, 0.05),
        (0.9, 0.5, 0.1),
    ):
        for _ in range(90):
            rng = bench.rng
            await bench.step(int(rng.random() < offered), int(rng.random() < taken), int(rng.random() < flushed))
