import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer
from spi_model import SpiModel

WIDTH = int(os.environ["SPI_WIDTH"])
MASK = (1 << WIDTH) - 1


class Bench:
    def __init__(self, dut, seed):
        self.dut, self.model, self.rng, self.cycle = dut, SpiModel(WIDTH), random.Random(seed), 0

    def check(self, when):
        for port in SpiModel.PORTS:
            value = getattr(self.dut, port).value
            assert value.is_resolvable, f"cycle {self.cycle}, {when}: {port} is {value}"
            want = getattr(self.model, port)
            assert int(value) == want, f"cycle {self.cycle}, {when}: {port} is {int(value):#x}, expected {want:#x}"

    async def begin(self):
        dut = self.dut
        dut.rst_n.value, dut.start.value, dut.tx_data.value, dut.cpol.value = 0, 1, MASK, 1
        dut.cpha.value, dut.clk_div.value, dut.miso.value = 0, 0, 1
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        for _ in range(2):
            await FallingEdge(dut.clk)
            self.check("in reset")
        dut.rst_n.value = 1

    async def step(self, start=0, tx_data=None, cpol=0, cpha=0, clk_div=0):
        """One cycle with a random `miso`; entered and left at a falling edge."""
        dut, rng = self.dut, self.rng
        tx_data = rng.randint(0, MASK) if tx_data is None else tx_data
        miso = rng.randint(0, 1)
        dut.start.value, dut.tx_data.value, dut.miso.value = start, tx_data, miso
        dut.cpol.value, dut.cpha.value, dut.clk_div.value = cpol, cpha, clk_div
        await Timer(2, unit="ns")
        self.check("before the edge")
        self.model.edge(start, tx_data, cpol, cpha, clk_div, miso)
        await RisingEdge(dut.clk)
        await Timer(2, unit="ns")
        self.cycle += 1
        self.check("after the edge")
        await FallingEdge(dut.clk)

    async def transfer(self, word, cpol, cpha, clk_div, idle=2):
        """A transfer with its settings kept steady, then some cycles of rest."""
        settings = {"cpol": cpol, "cpha": cpha, "clk_div": clk_div}
        await self.step(1, word, **settings)
        for _ in range((2 * WIDTH + 1) * (clk_div + 1) + idle):
            await self.step(0, word, **settings)


@cocotb.test()
async def waveforms_port_widths(dut):
    assert len(dut.tx_data) == len(dut.rx_data) == WIDTH
    assert len(dut.clk_div) == 8


@cocotb.test()
async def waveforms_of_all_modes(dut):
    bench = Bench(dut, 100 + WIDTH)
    await bench.begin()
    for mode in range(4):
        for clk_div in (0, 2):
            for word in (bench.rng.randint(0, MASK), 1):
                await bench.transfer(word, mode >> 1, mode & 1, clk_div)


@cocotb.test()
async def waveforms_with_slow_clock(dut):
    bench = Bench(dut, 200 + WIDTH)
    await bench.begin()
    await bench.transfer(MASK >> 1, 1, 1, 13)
    await bench.step(1, MASK, 0, 0, 255)
    for _ in range(256 + 2):
        await bench.step(0, 0, 0, 0, 255)


@cocotb.test()
async def waveforms_at_rest(dut):
    bench = Bench(dut, 300 + WIDTH)
    await bench.begin()
    for _ in range(30):
        await bench.step(0, cpol=bench.rng.randint(0, 1), cpha=bench.rng.randint(0, 1))


@cocotb.test()
async def disturbances_settings_change_during_transfer(dut):
    bench = Bench(dut, 400 + WIDTH)
    await bench.begin()
    for mode in range(4):
        for clk_div in (0, 2):
            await bench.step(1, None, mode >> 1, mode & 1, clk_div)
            for _ in range((2 * WIDTH + 1) * (clk_div + 1) + 1):
                rng = bench.rng
                await bench.step(0, None, rng.randint(0, 1), rng.randint(0, 1), rng.randint(0, 5))


@cocotb.test()
async def disturbances_start_held_high(dut):
    bench = Bench(dut, 500 + WIDTH)
    await bench.begin()
    for mode in range(4):
        for _ in range(2 * (2 * WIDTH + 2)):
            await bench.step(1, None, mode >> 1, mode & 1, 0)


@cocotb.test()
async def disturbances_random(dut):
    bench = Bench(dut, 600 + WIDTH)
    await bench.begin()
    for _ in range(500):
        rng = bench.rng
        await bench.step(int(rng.random() < 0.1), None, rng.randint(0, 1), rng.randint(0, 1), rng.randint(0, 2))


@cocotb.test()
async def disturbances_reset_between_edges(dut):
    bench = Bench(dut, 700 + WIDTH)
    await bench.begin()
    for wait in (1, 4, 2 * WIDTH, 2 * WIDTH + 2):
        await bench.transfer(MASK, 1, 0, 0)
        await bench.step(1, MASK, 1, 0, 1)
        for _ in range(wait):
            await bench.step(0, 0, 1, 0, 1)
        dut.rst_n.value = 0
        bench.model.reset()
        await Timer(2, unit="ns")
        bench.check("asynchronous reset")
        await FallingEdge(dut.clk)
        bench.check("reset over an edge")
        dut.rst_n.value = 1
