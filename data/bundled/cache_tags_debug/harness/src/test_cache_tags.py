import os
import random

import cocotb
from cache_model import FLUSH, INVALIDATE, NOTHING, READ, WRITE, CacheModel
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

SETS, TAG_W = int(os.environ["SETS"]), int(os.environ["TAG_W"])
TAGS = 1 << TAG_W


class Bench:
    def __init__(self, dut, seed):
        self.dut, self.model, self.rng, self.cycle = dut, CacheModel(SETS), random.Random(seed), 0

    def read(self, port):
        value = getattr(self.dut, port).value
        assert value.is_resolvable, f"cycle {self.cycle}: {port} is {value}"
        return int(value)

    def check(self, when):
        valid = self.read("resp_valid")
        want = int(self.model.response is not None)
        assert valid == want, f"cycle {self.cycle}, {when}: resp_valid is {valid}, expected {want}"
        expected = self.model.response or (NOTHING if self.model.after_reset else {})
        got = {port: self.read(port) for port in expected}
        assert got == expected, f"cycle {self.cycle}, {when}: {got}, expected {expected}"

    async def start(self):
        dut = self.dut
        dut.rst.value, dut.req_valid.value, dut.resp_ready.value = 1, 1, 1
        dut.req_op.value, dut.req_set.value, dut.req_tag.value = WRITE, 0, 0
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        await FallingEdge(dut.clk)
        await FallingEdge(dut.clk)
        self.check("reset")

    async def step(self, request=None, resp_ready=1, rst=0):
        """One cycle; returns whether the request was taken. Without one, its inputs carry noise."""
        dut, rng = self.dut, self.rng
        op, index, tag = request or (rng.randrange(4), rng.randrange(SETS), rng.randrange(TAGS))
        dut.rst.value, dut.req_valid.value, dut.resp_ready.value = rst, int(request is not None), resp_ready
        dut.req_op.value, dut.req_set.value, dut.req_tag.value = op, index, tag
        await Timer(2, unit="ns")
        self.check("before the edge")
        ready = self.model.req_ready(resp_ready)
        assert self.read("req_ready") == ready, (
            f"cycle {self.cycle}: req_ready is {dut.req_ready.value}, expected {ready}"
        )
        if rst:
            self.model.reset()
        else:
            self.model.edge(request, resp_ready)
        await RisingEdge(dut.clk)
        await Timer(2, unit="ns")
        self.cycle += 1
        self.check("after the edge")
        await FallingEdge(dut.clk)
        return bool(ready and request is not None and not rst)

    async def send(self, op, index=0, tag=0, resp_ready=1):
        while not await self.step((op, index, tag), resp_ready):
            pass

    async def drain(self):
        for _ in range(SETS + 3):
            await self.step()


@cocotb.test()
async def port_widths(dut):
    assert len(dut.req_set) == (SETS - 1).bit_length()
    assert len(dut.req_tag) == len(dut.evict_tag) == TAG_W
    assert len(dut.resp_way) == len(dut.req_op) == 2


@cocotb.test()
async def tag_zero_is_not_there_after_reset(dut):
    bench = Bench(dut, 1)
    await bench.start()
    for index in range(SETS):
        await bench.send(INVALIDATE, index, 0)
        await bench.send(READ, index, 0)
    await bench.drain()


@cocotb.test()
async def replacement_order(dut):
    bench = Bench(dut, 2)
    await bench.start()
    for index in (0, SETS - 1):
        for tag in (0, 1, 2, 3, 1, 0, 3, 4, 5, 1, 6, 4, 7, 0, 2):
            await bench.send(READ, index, tag)
            await bench.step()
    await bench.drain()


@cocotb.test()
async def dirty_bits(dut):
    bench = Bench(dut, 3)
    await bench.start()
    for tag in range(4):
        await bench.send(WRITE, 1, tag)
    for tag in (4, 5, 6, 7, 4, 0, 1, 2):
        await bench.send(READ, 1, tag)
    await bench.send(READ, 1, 2)
    await bench.send(WRITE, 1, 1)
    await bench.send(INVALIDATE, 1, 1)
    await bench.send(READ, 1, 3)
    await bench.send(INVALIDATE, 1, 3)
    await bench.send(INVALIDATE, 1, 3)
    await bench.drain()


@cocotb.test()
async def invalid_ways_are_filled_first(dut):
    bench = Bench(dut, 4)
    await bench.start()
    for pair in ((3, 1), (0, 2), (2, 3), (1, 0)):
        for tag in range(4):
            await bench.send(WRITE, 0, tag)
        for tag in pair:
            await bench.send(INVALIDATE, 0, tag)
        for tag in (5, 6, 7):
            await bench.send(READ, 0, tag)
        await bench.send(FLUSH)
    await bench.drain()


@cocotb.test()
async def slow_receiver(dut):
    bench = Bench(dut, 5)
    await bench.start()
    for tag in (0, 1, 2, 3, 4, 5, 0, 1):
        await bench.send(WRITE if tag & 1 else READ, 1, tag)
        for _ in range(3):
            await bench.step((READ, 1, tag), resp_ready=0)
        await bench.step()
    await bench.drain()


@cocotb.test()
async def flush_reaches_every_set(dut):
    bench = Bench(dut, 6)
    await bench.start()
    for dirty_set in (0, SETS - 1, None):
        for index in range(SETS):
            await bench.send(WRITE if index == dirty_set else READ, index, index % TAGS)
        await bench.send(FLUSH)
        for index in range(SETS):
            await bench.send(READ, index, index % TAGS)
        await bench.send(FLUSH, SETS - 1, 3)
        for _ in range(2 * SETS):
            await bench.step((READ, 0, 0), resp_ready=bench.rng.randint(0, 1))
        await bench.drain()


@cocotb.test()
async def reset_in_the_middle(dut):
    bench = Bench(dut, 7)
    await bench.start()
    for blocked in (0, 1):
        for tag in range(5):
            await bench.send(WRITE, 0, tag)
        await bench.send(FLUSH)
        await bench.step(resp_ready=blocked)
        await bench.step((READ, 0, 3), rst=1)
        await bench.send(READ, 0, 3)
        await bench.send(READ, 0, 4)
        await bench.drain()


@cocotb.test()
async def reset_is_synchronous(dut):
    bench = Bench(dut, 8)
    await bench.start()
    await bench.send(WRITE, 0, 1)
    await bench.step(resp_ready=0)
    dut.rst.value = 1
    await Timer(2, unit="ns")
    bench.check("rst between edges")
    dut.rst.value = 0
    await bench.send(READ, 0, 1)
    await bench.drain()


@cocotb.test()
async def random_requests(dut):
    bench = Bench(dut, 9)
    await bench.start()
    operations = [READ] * 10 + [WRITE] * 7 + [INVALIDATE] * 4
    for readiness in (1.0, 0.7, 0.3):
        request = None
        for _ in range(350):
            rng = bench.rng
            if request is None and rng.random() < 0.85:
                op = FLUSH if rng.random() < 0.01 else rng.choice(operations)
                request = (op, rng.randrange(min(SETS, 3)), rng.randrange(min(TAGS, 7)))
            if await bench.step(request, int(rng.random() < readiness)):
                request = None
