import os
import random
from dataclasses import dataclass

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

SEED = int(os.environ["UART_SEED"])


@dataclass(frozen=True)
class Frame:
    data: int
    div: int
    parity_mode: int = 0
    two_stop: int = 0

    def line(self):
        """The levels of `tx` after each edge of the frame, from the edge of acceptance on."""
        bits = [0] + [self.data >> k & 1 for k in range(8)]
        ones = self.data.bit_count()
        if self.parity_mode == 1:
            bits.append(1 - ones % 2)
        elif self.parity_mode == 2:
            bits.append(ones % 2)
        bits += [1] * (1 + self.two_stop)
        return [bit for bit in bits for _ in range(max(self.div, 1))]


def outputs(dut):
    values = []
    for port in (dut.tx, dut.tx_ready):
        assert port.value.is_resolvable, f"{port._name} is {port.value}"
        values.append(int(port.value))
    return tuple(values)


async def edge(dut, expected, when):
    """One rising edge; (tx, tx_ready) must hold `expected` from it to the falling edge."""
    await RisingEdge(dut.clk)
    await Timer(2, unit="ns")
    assert outputs(dut) == expected, f"{when}: (tx, tx_ready) is {outputs(dut)}, expected {expected}"
    await FallingEdge(dut.clk)
    assert outputs(dut) == expected, f"{when}: (tx, tx_ready) moved to {outputs(dut)} between two edges"


def drive(dut, frame, valid):
    dut.tx_data.value = frame.data
    dut.baud_div.value = frame.div
    dut.parity_mode.value = frame.parity_mode
    dut.two_stop.value = frame.two_stop
    dut.tx_valid.value = int(valid)


async def start(dut):
    """Two cycles of reset while a byte is offered; returns after a falling edge, idle."""
    dut.clk.value = 0
    drive(dut, Frame(0x00, 2), valid=True)
    dut.rst.value = 1
    await Timer(5, unit="ns")
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    await edge(dut, (1, 1), "first edge in reset")
    await edge(dut, (1, 1), "second edge in reset")
    dut.rst.value = 0
    dut.tx_valid.value = 0
    await edge(dut, (1, 1), "idle after reset")


async def send(dut, frame, disturb=None, stop_at=None):
    """Send one frame and check each cycle of it; `disturb` is a generator that scrambles the inputs meanwhile."""
    drive(dut, frame, valid=True)
    for number, level in enumerate(frame.line()[:stop_at]):
        await edge(dut, (level, 0), f"{frame}, after edge {number}")
        if disturb is None:
            dut.tx_valid.value = 0
        else:
            other = Frame(disturb.randrange(256), disturb.randrange(6), disturb.randrange(4), disturb.randrange(2))
            drive(dut, other, valid=disturb.random() < 0.5)
    if stop_at is None:
        await edge(dut, (1, 1), f"{frame}, at its end")


@cocotb.test()
async def test_widths(dut):
    assert (len(dut.baud_div), len(dut.parity_mode), len(dut.tx_data)) == (16, 2, 8)


@cocotb.test()
async def test_idle(dut):
    await start(dut)
    for number in range(50):
        drive(dut, Frame(number, number % 4, number % 4, number % 2), valid=False)
        await edge(dut, (1, 1), "idle")


@cocotb.test()
async def test_formats(dut):
    await start(dut)
    for data in (0x00, 0xFF, 0x01, 0x80, 0xA7):
        for parity_mode in range(4):
            for two_stop in range(2):
                await send(dut, Frame(data, 3, parity_mode, two_stop))


@cocotb.test()
async def test_dividers(dut):
    await start(dut)
    for div in (0, 1, 2, 5, 16, 300):
        await send(dut, Frame(0x4D, div, 2))
        await send(dut, Frame(0x4D, div, 0, 1))
        await edge(dut, (1, 1), "idle between frames")


@cocotb.test()
async def test_divider_uses_all_bits(dut):
    await start(dut)
    drive(dut, Frame(0xFF, 0x8003), valid=True)
    for number in range(100):
        await edge(dut, (0, 0), f"start bit of 32771 cycles, after edge {number}")
        dut.tx_valid.value = 0


@cocotb.test()
async def test_inputs_do_not_matter_during_a_frame(dut):
    await start(dut)
    generator = random.Random(SEED)
    for _ in range(12):
        frame = Frame(
            generator.randrange(256), generator.randrange(1, 5), generator.randrange(4), generator.randrange(2)
        )
        await send(dut, frame, disturb=generator)
        drive(dut, frame, valid=False)
        await edge(dut, (1, 1), "idle between frames")


@cocotb.test()
async def test_back_to_back(dut):
    await start(dut)
    generator = random.Random(SEED + 1)
    for _ in range(25):
        div = generator.choice((0, 1, 2, 7))
        await send(dut, Frame(generator.randrange(256), div, generator.randrange(4), generator.randrange(2)))
        for _ in range(generator.choice((0, 0, 0, 1, 4))):
            dut.tx_valid.value = 0
            await edge(dut, (1, 1), "idle between frames")


@cocotb.test()
async def test_reset_abandons_the_frame(dut):
    await start(dut)
    for stop_at in (1, 2, 9, 17, 26, 31):
        await send(dut, Frame(0x00, 3, 1), stop_at=stop_at)
        dut.rst.value = 1
        drive(dut, Frame(0x00, 1), valid=True)
        before = outputs(dut)
        await Timer(2, unit="ns")
        assert outputs(dut) == before, "reset acted before a rising edge"
        await edge(dut, (1, 1), f"reset {stop_at} edges into a frame")
        await edge(dut, (1, 1), "reset held while a byte is offered")
        dut.rst.value = 0
        await send(dut, Frame(0x53, 2, 2))
