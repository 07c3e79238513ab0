import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer
from harness_library import ButtonCounter

STABLE_CYCLES = int(os.environ["BUTTON_STABLE_CYCLES"])
MODULUS = int(os.environ["BUTTON_MODULUS"])
SETTLE = STABLE_CYCLES + 3


class Bench:
    """The device and its model, side by side."""

    def __init__(self, dut):
        self.dut, self.model = dut, ButtonCounter(STABLE_CYCLES, MODULUS)

    def check(self, when):
        found = []
        for name in ("tens", "ones", "wrapped"):
            value = getattr(self.dut, name).value
            assert value.is_resolvable, f"{when}: {name} is {value}"
            found.append(int(value))
        expected = self.model.outputs()
        assert tuple(found) == expected, f"{when}: (tens, ones, wrapped) is {tuple(found)}, expected {expected}"

    async def start(self):
        dut = self.dut
        dut.clk.value = 0
        dut.reset.value = 0
        dut.btn_up.value = dut.btn_down.value = dut.btn_clear.value = 0
        await Timer(2, unit="ns")
        dut.reset.value = 1
        await Timer(3, unit="ns")
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        await FallingEdge(dut.clk)
        self.check("after an edge in reset")
        await self.cycles(2, reset=1)

    async def cycle(self, up=0, down=0, clear=0, reset=0):
        dut = self.dut
        dut.btn_up.value, dut.btn_down.value, dut.btn_clear.value, dut.reset.value = up, down, clear, reset
        await RisingEdge(dut.clk)
        self.model.clock(up, down, clear, reset)
        await Timer(2, unit="ns")
        self.check(f"up={up} down={down} clear={clear} reset={reset}")
        await FallingEdge(dut.clk)
        self.check("half a cycle after the edge")

    async def cycles(self, count, **inputs):
        for _ in range(count):
            await self.cycle(**inputs)

    async def press(self, **inputs):
        await self.cycles(SETTLE, **inputs)
        await self.cycles(SETTLE)


@cocotb.test()
async def test_ports(dut):
    assert len(dut.ones) == len(dut.tens) == 4


@cocotb.test()
async def test_count_up_and_wrap(dut):
    bench = Bench(dut)
    await bench.start()
    for _ in range(MODULUS + 2):
        await bench.press(up=1)
    assert bench.model.outputs()[0] == 1


@cocotb.test()
async def test_wraps_both_ways(dut):
    bench = Bench(dut)
    await bench.start()
    for _ in range(2):
        await bench.press(down=1)
    for _ in range(3):
        await bench.press(up=1)
    await bench.press(clear=1)
    await bench.press(down=1)
    await bench.press(clear=1)
    await bench.press(up=1)


@cocotb.test()
async def test_long_presses_count_once(dut):
    bench = Bench(dut)
    await bench.start()
    for inputs in ({"up": 1}, {"up": 1}, {"up": 1}, {"down": 1}):
        await bench.cycles(4 * SETTLE, **inputs)
        await bench.cycles(4 * SETTLE)


@cocotb.test()
async def test_bounces_are_ignored(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.press(up=1)
    for length in range(1, STABLE_CYCLES + 1):
        await bench.cycles(length, up=1, down=1, clear=1)
        await bench.cycles(2 * SETTLE)


@cocotb.test()
async def test_up_and_down_together(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.press(up=1)
    await bench.cycles(SETTLE, down=1)
    await bench.cycles(SETTLE, up=1)
    await bench.cycles(SETTLE)
    assert bench.model.outputs()[:2] == (0, 1)


@cocotb.test()
async def test_clear(dut):
    bench = Bench(dut)
    await bench.start()
    for _ in range(3):
        await bench.press(up=1)
    await bench.press(up=1, clear=1)
    await bench.press(up=1)
    await bench.cycles(SETTLE, clear=1)
    for _ in range(2):
        await bench.cycles(SETTLE, clear=1, up=1)
        await bench.cycles(SETTLE, clear=1)
    await bench.cycles(SETTLE)
    await bench.press(clear=1)
    await bench.cycles(SETTLE, down=1)
    await bench.cycles(SETTLE, clear=1)
    await bench.cycles(SETTLE)


@cocotb.test()
async def test_reset_while_held(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.press(up=1)
    await bench.cycles(SETTLE, up=1)
    await bench.cycles(2, up=1, reset=1)
    await bench.cycles(2 * SETTLE, up=1)
    await bench.cycles(SETTLE)
    await bench.press(clear=1)
    await bench.cycles(SETTLE, down=1)
    await bench.cycle(reset=1)
    await bench.cycles(2 * SETTLE)


@cocotb.test()
async def test_random(dut):
    bench = Bench(dut)
    await bench.start()
    generator = random.Random(31)
    levels = {"up": 0, "down": 0, "clear": 0}
    for _ in range(150):
        for name, rate in (("up", 0.6), ("down", 0.4), ("clear", 0.15)):
            if generator.random() < rate:
                levels[name] ^= 1
        length = generator.choice((1, STABLE_CYCLES, STABLE_CYCLES + 1, SETTLE))
        await bench.cycles(length, **levels)
        if generator.random() < 0.02:
            await bench.cycle(**levels, reset=1)
