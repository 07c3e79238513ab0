import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

PATTERN = "10110"
CNT_W = int(os.environ["EXPECTED_CNT_W"])


class Model:
    """Works on the stream as text, so that it shares nothing with a state machine."""

    def __init__(self):
        self.stream, self.match_q, self.count = "", 0, 0

    @property
    def progress(self):
        return max(length for length in range(5) if self.stream.endswith(PATTERN[:length]))

    def match(self, rst, valid, bit):
        return int(not rst and valid and (self.stream + str(bit)).endswith(PATTERN))

    def edge(self, rst, valid, bit, overlap, clear):
        match = self.match(rst, valid, bit)
        if rst:
            self.stream, self.match_q, self.count = "", 0, 0
            return
        if valid:
            self.stream = (self.stream + str(bit))[-8:]
            if match and not overlap:
                self.stream = ""
        self.match_q = match
        self.count = match if clear else min(self.count + match, (1 << CNT_W) - 1)


def read(port):
    assert port.value.is_resolvable, f"{port._name} is {port.value}"
    return int(port.value)


class Bench:
    def __init__(self, dut):
        self.dut, self.model, self.cycle = dut, Model(), 0

    def check_registers(self):
        model, dut = self.model, self.dut
        got = (read(dut.progress), read(dut.match_q), read(dut.match_count))
        want = (model.progress, model.match_q, model.count)
        assert got == want, f"cycle {self.cycle}: (progress, match_q, match_count) is {got}, expected {want}"

    async def start(self):
        dut = self.dut
        dut.rst.value, dut.bit_valid.value, dut.bit_in.value, dut.overlap.value, dut.clear.value = 1, 1, 1, 1, 0
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        await FallingEdge(dut.clk)
        await FallingEdge(dut.clk)
        self.check_registers()

    async def step(self, bit, valid=1, overlap=1, clear=0, rst=0):
        """One clock cycle; returns what `match` was in it."""
        dut, model = self.dut, self.model
        dut.rst.value, dut.bit_valid.value, dut.bit_in.value = rst, valid, bit
        dut.overlap.value, dut.clear.value = overlap, clear
        await Timer(2, unit="ns")
        self.check_registers()
        match = model.match(rst, valid, bit)
        assert read(dut.match) == match, f"cycle {self.cycle}: match is {dut.match.value}, expected {match}"
        model.edge(rst, valid, bit, overlap, clear)
        await FallingEdge(dut.clk)
        self.cycle += 1
        self.check_registers()
        return match

    async def send(self, bits, **inputs):
        return [await self.step(int(bit), **inputs) for bit in bits]


@cocotb.test()
async def port_widths(dut):
    assert len(dut.match_count) == CNT_W
    assert len(dut.progress) == 3


@cocotb.test()
async def overlapping_and_not(dut):
    bench = Bench(dut)
    await bench.start()
    assert sum(await bench.send("10110110110", overlap=1)) == 3
    await bench.step(0, rst=1)
    assert sum(await bench.send("1011011011010110", overlap=0)) == 3


@cocotb.test()
async def every_stream_of_seven_bits(dut):
    bench = Bench(dut)
    await bench.start()
    for word in range(128):
        await bench.step(1, rst=1)
        await bench.send(f"{word:07b}", overlap=word & 1)


@cocotb.test()
async def match_follows_inputs_within_the_cycle(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.send("1011")
    for rst, valid, bit in ((0, 1, 0), (0, 1, 1), (0, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (0, 1, 0)):
        dut.rst.value, dut.bit_valid.value, dut.bit_in.value = rst, valid, bit
        await Timer(250, unit="ps")
        assert read(dut.match) == bench.model.match(rst, valid, bit), f"rst {rst}, valid {valid}, bit {bit}"
        bench.check_registers()
    await bench.step(0)
    await bench.step(1)


@cocotb.test()
async def gaps_do_not_advance(dut):
    bench = Bench(dut)
    await bench.start()
    for bit in "1011011010110":
        for idle in (1, 0, 1):
            await bench.step(idle, valid=0)
        await bench.step(int(bit))


@cocotb.test()
async def reset_in_the_middle(dut):
    bench = Bench(dut)
    await bench.start()
    for length in range(1, 6):
        await bench.send(PATTERN[:length])
        await bench.step(int(PATTERN[length % 5]), rst=1)
        await bench.send(PATTERN[length:] + "0")
    await bench.send("1011")
    await bench.step(0, rst=1)
    await bench.step(0)


@cocotb.test()
async def reset_is_synchronous(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.send("10110101")
    dut.rst.value = 1
    await Timer(2, unit="ns")
    bench.check_registers()
    dut.rst.value = 0
    await bench.step(1)


@cocotb.test()
async def counter_saturates_and_clears(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.send("10")
    for _ in range((1 << CNT_W) + 3):
        await bench.send("110")
    assert read(dut.match_count) == (1 << CNT_W) - 1
    await bench.send("11")
    await bench.step(0, clear=1)
    await bench.step(1, clear=1)
    await bench.send("10110")
    await bench.send("1011", clear=1)
    await bench.send("0110", clear=0)


@cocotb.test()
async def random_streams(dut):
    bench = Bench(dut)
    await bench.start()
    rng = random.Random(20260 + CNT_W)
    pending = []
    for _ in range(1000):
        if not pending:
            pending = [int(b) for b in rng.choice((PATTERN, "110", "1010", "111", "0", "1", "1011"))]
        valid = int(rng.random() < 0.8)
        bit = pending.pop(0) if valid else rng.randint(0, 1)
        await bench.step(bit, valid, rng.randint(0, 1), int(rng.random() < 0.1), int(rng.random() < 0.01))
