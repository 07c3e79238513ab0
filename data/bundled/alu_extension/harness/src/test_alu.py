import os
import random

import cocotb
from alu_model import OPCODES, AluModel
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

WIDTH = int(os.environ["ALU_WIDTH"])
SEED = int(os.environ["ALU_SEED"])
MASK = (1 << WIDTH) - 1
TOP = 1 << (WIDTH - 1)
CORNERS = sorted(
    {0, 1, 2, TOP - 1, TOP, TOP + 1, MASK - 1, MASK, WIDTH - 1, WIDTH, 0x55555555 & MASK, 0xAAAAAAAA & MASK}
)


class Bench:
    def __init__(self, dut):
        self.dut, self.model, self.last = dut, AluModel(WIDTH), "reset"

    def check(self):
        for port in AluModel.PORTS:
            value = getattr(self.dut, port).value
            assert value.is_resolvable, f"{port} is {value} after {self.last}"
            want = getattr(self.model, port)
            assert int(value) == want, f"{port} is {int(value):#x}, expected {want:#x}, after {self.last}"

    def drive(self, in_valid, opcode, a, b, set_flags, clear_sticky):
        dut = self.dut
        dut.in_valid.value, dut.opcode.value, dut.a.value, dut.b.value = in_valid, opcode, a, b
        dut.set_flags.value, dut.clear_sticky.value = set_flags, clear_sticky

    async def start(self):
        self.dut.rst_n.value = 0
        self.drive(1, 0, MASK, MASK, 1, 0)
        cocotb.start_soon(Clock(self.dut.clk, 10, unit="ns").start())
        for _ in range(2):
            await FallingEdge(self.dut.clk)
            self.check()
        self.dut.rst_n.value = 1

    async def step(self, opcode, a, b, in_valid=1, set_flags=1, clear_sticky=0):
        inputs = (in_valid, opcode, a, b, set_flags, clear_sticky)
        self.drive(*inputs)
        await Timer(2, unit="ns")
        self.check()
        self.model.edge(*inputs)
        self.last = (
            f"opcode {opcode}, a {a:#x}, b {b:#x}, in_valid {in_valid}, set_flags {set_flags}, "
            f"clear_sticky {clear_sticky}, WIDTH {WIDTH}"
        )
        await RisingEdge(self.dut.clk)
        await Timer(2, unit="ns")
        self.check()
        await FallingEdge(self.dut.clk)


@cocotb.test()
async def port_widths(dut):
    assert (len(dut.a), len(dut.b), len(dut.result), len(dut.opcode)) == (WIDTH, WIDTH, WIDTH, 4)


@cocotb.test()
async def corner_operands(dut):
    bench = Bench(dut)
    await bench.start()
    for opcode in range(OPCODES):
        for a in CORNERS:
            for b in [*random.Random(SEED + a).sample(CORNERS, 4), a]:
                await bench.step(opcode, a, b)


@cocotb.test()
async def every_amount(dut):
    bench = Bench(dut)
    await bench.start()
    for opcode in (6, 7, 10, 11):
        for amount in range(WIDTH):
            await bench.step(opcode, 0x93C5A61D & MASK, amount | (MASK & ~(WIDTH - 1)))


@cocotb.test()
async def flags_hold(dut):
    bench = Bench(dut)
    await bench.start()
    for opcode in range(OPCODES):
        await bench.step(0, MASK, MASK)
        await bench.step(opcode, TOP, 1, set_flags=0)
        await bench.step(opcode, 1, TOP, in_valid=0)
        await bench.step(2, 0, 0)
        await bench.step(opcode, MASK, TOP, set_flags=0)


@cocotb.test()
async def sticky_saturation(dut):
    bench = Bench(dut)
    await bench.start()
    await bench.step(0, TOP, TOP)
    await bench.step(1, TOP, 1)
    await bench.step(8, TOP, TOP, in_valid=0)
    await bench.step(8, TOP, TOP, set_flags=0)
    await bench.step(2, 0, 0)
    await bench.step(9, TOP, 1, clear_sticky=1)
    await bench.step(0, 0, 0, in_valid=0, clear_sticky=1)
    await bench.step(9, TOP - 1, MASK)
    await bench.step(8, 1, 1, clear_sticky=1)
    await bench.step(9, TOP, 1, in_valid=0, clear_sticky=1)


@cocotb.test()
async def undefined_opcodes(dut):
    bench = Bench(dut)
    await bench.start()
    for opcode in (14, 0, 15, 13, 15):
        await bench.step(opcode, MASK, MASK)
        await bench.step(3, 1, 1, in_valid=0)


@cocotb.test()
async def reset_between_edges(dut):
    bench = Bench(dut)
    await bench.start()
    for opcode, a, b, set_flags in ((15, 1, 1, 0), (0, MASK, 1, 1), (3, MASK, 0, 1)):
        await bench.step(8, TOP, TOP)
        await bench.step(opcode, a, b, set_flags=set_flags)
        dut.rst_n.value = 0
        bench.model.reset()
        bench.last = "asynchronous reset"
        await Timer(2, unit="ns")
        bench.check()
        await FallingEdge(dut.clk)
        bench.check()
        dut.rst_n.value = 1
        await bench.step(0, 1, 1, in_valid=0)
        await bench.step(0, 1, 1)


@cocotb.test()
async def random_operations(dut):
    bench = Bench(dut)
    await bench.start()
    rng = random.Random(SEED)
    for _ in range(800):
        a = rng.choice(CORNERS) if rng.random() < 0.3 else rng.randint(0, MASK)
        b = rng.choice(CORNERS) if rng.random() < 0.3 else rng.randint(0, MASK)
        await bench.step(
            rng.randrange(OPCODES),
            a,
            b,
            in_valid=int(rng.random() < 0.8),
            set_flags=int(rng.random() < 0.7),
            clear_sticky=int(rng.random() < 0.3),
        )
