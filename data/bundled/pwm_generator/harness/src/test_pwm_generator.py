import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer
from harness_library import PwmModel, known

WIDTH = int(os.environ["PWM_WIDTH"])
LIMIT = (1 << WIDTH) - 1


class Bench:
    """Drives at falling edges and compares the outputs with the model once per cycle."""

    def __init__(self, dut):
        self.dut, self.model, self.cycles = dut, PwmModel(), 0

    def check(self, when):
        for name in ("pwm_out", "period_start"):
            got, want = known(getattr(self.dut, name), name), getattr(self.model, name)
            assert got == want, f"{when}: {name} is {got}, expected {want} (cycle {self.cycles}, WIDTH {WIDTH})"

    async def start(self):
        dut = self.dut
        dut.rst_n.value, dut.enable.value, dut.top.value, dut.duty.value = 0, 1, LIMIT, LIMIT
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        for _ in range(3):
            await FallingEdge(dut.clk)
            self.check("in reset")
        dut.enable.value = 0
        dut.rst_n.value = 1
        await FallingEdge(dut.clk)
        self.check("after reset")

    async def step(self, enable, top, duty, when):
        self.dut.enable.value, self.dut.top.value, self.dut.duty.value = enable, top, duty
        await Timer(2, unit="ns")
        self.check(f"{when}, before the edge")
        self.model.edge(enable, top, duty)
        await FallingEdge(self.dut.clk)
        self.cycles += 1
        self.check(when)


@cocotb.test()
async def port_widths(dut):
    assert (len(dut.top), len(dut.duty)) == (WIDTH, WIDTH)
    assert (len(dut.pwm_out), len(dut.period_start)) == (1, 1)


@cocotb.test()
async def constant_settings(dut):
    bench = Bench(dut)
    await bench.start()
    tops = sorted({0, 1, min(LIMIT, 6), min(LIMIT, 15)})
    for top in tops:
        for duty in sorted({0, 1, top, min(top + 1, LIMIT), LIMIT}):
            for _ in range(2 * (top + 1) + 2):
                await bench.step(1, top, duty, f"top {top}, duty {duty}")
            await bench.step(0, top, duty, "stopped")


@cocotb.test()
async def longest_period(dut):
    bench = Bench(dut)
    await bench.start()
    for _ in range(LIMIT + 4):
        await bench.step(1, LIMIT, LIMIT, "longest period")


@cocotb.test()
async def settings_change_inside_periods(dut):
    bench = Bench(dut)
    await bench.start()
    rng = random.Random(0x50A1 + WIDTH)
    for _ in range(800):
        top = rng.randint(0, min(LIMIT, 20))
        await bench.step(1, top, rng.randint(0, min(LIMIT, top + 2)), "settings change every cycle")


@cocotb.test()
async def enable_at_random(dut):
    bench = Bench(dut)
    await bench.start()
    rng = random.Random(0x50A2 + WIDTH)
    top = duty = 0
    for _ in range(800):
        if rng.random() < 0.2:
            top = rng.randint(0, min(LIMIT, 9))
            duty = rng.randint(0, min(LIMIT, 10))
        await bench.step(int(rng.random() < 0.85), top, duty, "random enable")


@cocotb.test()
async def asynchronous_reset(dut):
    bench = Bench(dut)
    await bench.start()
    for number in range(4):
        for _ in range(2):
            await bench.step(1, LIMIT, LIMIT, "before reset")
        dut.rst_n.value = 0
        bench.model.reset()
        await Timer(2, unit="ns")
        bench.check("reset between clock edges")
        if number % 2:
            await FallingEdge(dut.clk)
            bench.check("reset over a clock edge")
        dut.rst_n.value = 1
        await bench.step(1, 0, LIMIT, "first edge after reset")
