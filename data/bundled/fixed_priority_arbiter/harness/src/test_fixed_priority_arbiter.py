import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer


def model(req, override):
    """(grant, valid, grant_index) for one decision."""
    active = override or req
    if not active:
        return 0, 0, 0
    winner = active & -active
    return winner, 1, winner.bit_length() - 1


def outputs(dut):
    values = []
    for port in (dut.grant, dut.valid, dut.grant_index):
        assert port.value.is_resolvable, f"{port._name} is {port.value}"
        values.append(int(port.value))
    return tuple(values)


async def start(dut):
    """Start the clock with reset asserted and busy inputs; returns after a falling edge."""
    dut.clk.value = 0
    dut.reset.value = 1
    dut.req.value = 0xFF
    dut.priority_override.value = 0xFF
    await Timer(5, unit="ns")
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)


async def decide(dut, req, override, reset=0):
    """Apply inputs for one rising edge and check what follows it, at once and half a cycle later."""
    dut.reset.value = reset
    dut.req.value = req
    dut.priority_override.value = override
    expected = (0, 0, 0) if reset else model(req, override)
    await RisingEdge(dut.clk)
    await Timer(2, unit="ns")
    what = f"reset={reset} req={req:08b} override={override:08b}"
    assert outputs(dut) == expected, f"{what}: {outputs(dut)} after the edge, expected {expected}"
    await FallingEdge(dut.clk)
    assert outputs(dut) == expected, f"{what}: {outputs(dut)} half a cycle later, expected {expected}"


@cocotb.test()
async def test_widths(dut):
    assert (len(dut.req), len(dut.priority_override)) == (8, 8)
    assert (len(dut.grant), len(dut.grant_index)) == (8, 3)


@cocotb.test()
async def test_reset_clears(dut):
    await start(dut)
    assert outputs(dut) == (0, 0, 0), "outputs are not zero in reset"
    for req, override in ((0xFF, 0), (0, 0xFF), (0x80, 0x01)):
        await decide(dut, req, override)
        await decide(dut, req, override, reset=1)
    await decide(dut, 0x10, 0)


@cocotb.test()
async def test_reset_is_synchronous(dut):
    await start(dut)
    await decide(dut, 0b0110_0000, 0)
    dut.reset.value = 1
    await Timer(2, unit="ns")
    assert outputs(dut) == (0b0010_0000, 1, 5), "reset acted before a rising edge"
    dut.reset.value = 0
    await RisingEdge(dut.clk)
    await Timer(2, unit="ns")
    assert outputs(dut) == (0b0010_0000, 1, 5), "a reset pulse between two edges had an effect"
    await FallingEdge(dut.clk)


@cocotb.test()
async def test_every_request(dut):
    await start(dut)
    for req in range(256):
        await decide(dut, req, 0)


@cocotb.test()
async def test_every_override(dut):
    await start(dut)
    generator = random.Random(8)
    for override in range(256):
        await decide(dut, generator.randrange(256), override)


@cocotb.test()
async def test_outputs_are_registered(dut):
    await start(dut)
    await decide(dut, 0b0000_1000, 0)
    dut.req.value = 0b0000_0001
    dut.priority_override.value = 0b1000_0000
    await Timer(2, unit="ns")
    assert outputs(dut) == (0b0000_1000, 1, 3), "outputs moved between two rising edges"
    await RisingEdge(dut.clk)
    await Timer(2, unit="ns")
    before = outputs(dut)
    dut.req.value, dut.priority_override.value, dut.reset.value = 0, 2, 1
    await Timer(2, unit="ns")
    assert outputs(dut) == before, "outputs moved while the clock was high"


@cocotb.test()
async def test_random(dut):
    await start(dut)
    generator = random.Random(20240817)
    for _ in range(600):
        req = generator.randrange(256) & generator.randrange(256)
        override = generator.choice((0, 0, 1 << generator.randrange(8), generator.randrange(256)))
        await decide(dut, req, override, reset=int(generator.random() < 0.05))
