import json
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer
from harness_library import FirModel, known

PARAMETERS = json.loads(os.environ["DUT_PARAMETERS"])
TAPS, DATA_W, COEF_W = PARAMETERS["N_TAPS"], PARAMETERS["DATA_W"], PARAMETERS["COEF_W"]
DATA_LOW, DATA_HIGH = -(1 << (DATA_W - 1)), (1 << (DATA_W - 1)) - 1
COEF_LOW, COEF_HIGH = -(1 << (COEF_W - 1)), (1 << (COEF_W - 1)) - 1
ADDRESSES = 1 << (TAPS - 1).bit_length()
LATENCY = TAPS + 3


class Bench:
    def __init__(self, dut, seed):
        self.dut, self.model, self.rng, self.cycle = dut, FirModel(**PARAMETERS), random.Random(seed), 0

    def check(self, when):
        dut, model = self.dut, self.model
        got = (known(dut.busy), known(dut.out_valid), known(dut.out_data, signed=True), known(dut.out_sat))
        want = (model.busy, model.out_valid, model.out_data, model.out_sat)
        assert got == want, (
            f"cycle {self.cycle}, {when}: (busy, out_valid, out_data, out_sat) is {got}, expected {want}"
        )

    async def step(self, sample=None, write=None, flush=0, rst=0):
        """One cycle. Without a sample or a write, noise is on their data inputs."""
        dut, rng = self.dut, self.rng
        dut.rst.value, dut.flush.value = rst, flush
        dut.in_valid.value = int(sample is not None)
        dut.in_data.value = rng.randint(DATA_LOW, DATA_HIGH) if sample is None else sample
        dut.coef_we.value = int(write is not None)
        dut.coef_addr.value, dut.coef_data.value = write or (rng.randrange(ADDRESSES), rng.randint(COEF_LOW, COEF_HIGH))
        await Timer(2, unit="ns")
        if self.cycle:
            self.check("before the edge")
            want = self.model.in_ready(flush)
            assert known(dut.in_ready) == want, f"cycle {self.cycle}: in_ready is {dut.in_ready.value}, expected {want}"
        if rst:
            self.model.reset()
        else:
            self.model.edge(flush, write, sample)
        await RisingEdge(dut.clk)
        await Timer(2, unit="ns")
        self.cycle += 1
        self.check("after the edge")
        await FallingEdge(dut.clk)

    async def start(self):
        cocotb.start_soon(Clock(self.dut.clk, 10, unit="ns").start())
        await FallingEdge(self.dut.clk)
        await self.step(rst=1, sample=DATA_HIGH, write=(0, COEF_HIGH))
        await self.step(rst=1)

    async def load(self, coefficients):
        for address, value in enumerate(coefficients):
            await self.step(write=(address, value))

    async def result(self, sample):
        """Sends a sample and waits until its result has been checked."""
        await self.step(sample=sample)
        for _ in range(LATENCY):
            await self.step()

    def random_sample(self):
        return self.rng.choice((DATA_LOW, DATA_HIGH, self.rng.randint(DATA_LOW, DATA_HIGH)))

    def random_coefficient(self):
        return self.rng.choice((COEF_LOW, COEF_HIGH, self.rng.randint(COEF_LOW, COEF_HIGH), 0, 1))


@cocotb.test()
async def port_widths(dut):
    assert len(dut.in_data) == DATA_W
    assert len(dut.coef_data) == COEF_W
    assert len(dut.out_data) == PARAMETERS["OUT_W"]
    assert len(dut.coef_addr) == (TAPS - 1).bit_length()


@cocotb.test()
async def impulse_response(dut):
    bench = Bench(dut, 1)
    await bench.start()
    await bench.result(DATA_HIGH)
    await bench.step(flush=1)
    await bench.load([(7 * tap + 3) % COEF_HIGH * (-1) ** tap for tap in range(TAPS)])
    for sample in [DATA_HIGH] + [0] * TAPS + [DATA_LOW] + [0] * TAPS:
        await bench.result(sample)


@cocotb.test()
async def rounding(dut):
    bench = Bench(dut, 2)
    await bench.start()
    await bench.load([1])
    for sample in range(-9, 10):
        await bench.result(sample)


@cocotb.test()
async def extremes(dut):
    bench = Bench(dut, 3)
    await bench.start()
    for coefficient in (COEF_LOW, COEF_HIGH):
        await bench.load([coefficient] * TAPS)
        for sample in [DATA_LOW] * TAPS + [DATA_HIGH] * TAPS:
            await bench.result(sample)


@cocotb.test()
async def samples_without_pause(dut):
    bench = Bench(dut, 4)
    await bench.start()
    await bench.load([bench.random_coefficient() for _ in range(TAPS)])
    for _ in range(6 * (LATENCY + 1)):
        await bench.step(sample=bench.random_sample())


@cocotb.test()
async def coefficient_writes(dut):
    bench = Bench(dut, 5)
    await bench.start()
    await bench.load([bench.random_coefficient() for _ in range(TAPS)])
    for _ in range(3):
        await bench.step(sample=bench.random_sample(), write=(0, bench.random_coefficient()))
        for cycle in range(LATENCY):
            await bench.step(write=(cycle % ADDRESSES, bench.random_coefficient()))
        await bench.step(write=(TAPS - 1, bench.random_coefficient()), flush=1)
    for address in range(ADDRESSES):
        await bench.step(write=(address, 2 * address + 1))
    for _ in range(TAPS):
        await bench.result(3)


@cocotb.test()
async def flush_at_every_point(dut):
    bench = Bench(dut, 6)
    await bench.start()
    await bench.load([bench.random_coefficient() for _ in range(TAPS)])
    for wait in range(LATENCY + 1):
        await bench.result(DATA_HIGH)
        await bench.step(sample=bench.random_sample())
        for _ in range(wait):
            await bench.step(sample=bench.random_sample())
        await bench.step(sample=bench.random_sample(), flush=1)
        await bench.result(bench.random_sample())


@cocotb.test()
async def reset_in_the_middle(dut):
    bench = Bench(dut, 7)
    await bench.start()
    for wait in (0, 2, LATENCY - 1):
        await bench.load([COEF_HIGH] * TAPS)
        await bench.result(DATA_HIGH)
        await bench.step(sample=DATA_HIGH)
        for _ in range(wait):
            await bench.step()
        await bench.step(sample=1, write=(0, 1), flush=1, rst=1)
        await bench.result(DATA_HIGH)


@cocotb.test()
async def random_use(dut):
    bench = Bench(dut, 8)
    await bench.start()
    for _ in range(600):
        rng = bench.rng
        write = (rng.randrange(ADDRESSES), bench.random_coefficient()) if rng.random() < 0.4 else None
        sample = bench.random_sample() if rng.random() < 0.6 else None
        await bench.step(sample=sample, write=write, flush=int(rng.random() < 0.02))
