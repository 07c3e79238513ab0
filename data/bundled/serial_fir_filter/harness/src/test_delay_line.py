import json
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer
from harness_library import known

PARAMETERS = json.loads(os.environ["DUT_PARAMETERS"])
DEPTH, WIDTH = PARAMETERS["DEPTH"], PARAMETERS["WIDTH"]
ADDRESSES = 1 << (DEPTH - 1).bit_length()


async def check(dut, samples, step):
    """Reads every address within the low half of one clock period."""
    for address in range(ADDRESSES):
        dut.raddr.value = address
        await Timer(100, unit="ps")
        want = samples[address] if address < DEPTH else 0
        assert known(dut.dout, signed=True) == want, (
            f"step {step}: sample {address} is {dut.dout.value}, expected {want}"
        )


@cocotb.test()
async def port_widths(dut):
    assert len(dut.din) == len(dut.dout) == WIDTH
    assert len(dut.raddr) == (DEPTH - 1).bit_length()


@cocotb.test()
async def random_operations(dut):
    rng = random.Random(17 * DEPTH + WIDTH)
    samples = [0] * DEPTH
    dut.rst.value, dut.clear.value, dut.shift.value, dut.din.value, dut.raddr.value = 1, 0, 1, 1, 0
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)
    await check(dut, samples, "reset")
    for step in range(150):
        rst, clear, shift = int(rng.random() < 0.03), int(rng.random() < 0.05), int(rng.random() < 0.7)
        din = rng.randint(-(1 << (WIDTH - 1)), (1 << (WIDTH - 1)) - 1)
        dut.rst.value, dut.clear.value, dut.shift.value, dut.din.value = rst, clear, shift, din
        await check(dut, samples, f"{step}, before the edge")
        if rst or clear:
            samples = [0] * DEPTH
        elif shift:
            samples = [din, *samples[:-1]]
        await FallingEdge(dut.clk)
        await check(dut, samples, step)
