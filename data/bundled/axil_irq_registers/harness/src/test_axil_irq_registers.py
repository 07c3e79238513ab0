import os
import random
from pathlib import Path

import cocotb
from harness_library import Bench

SEED = int(Path("/opt/harness/seed").read_text())
CYCLES = int(os.environ["AXIL_CYCLES"])
IMPLEMENTED = tuple(range(0x00, 0x18, 4))


@cocotb.test()
async def test_widths(dut):
    assert [len(port) for port in (dut.awaddr, dut.araddr, dut.ctrl, dut.events)] == [8, 8, 8, 8]
    assert [len(port) for port in (dut.wdata, dut.rdata, dut.wstrb, dut.bresp, dut.rresp)] == [32, 32, 4, 2, 2]


@cocotb.test()
async def test_reset_values(dut):
    bench = Bench(dut)
    await bench.start()
    for address in IMPLEMENTED:
        bench.read(address)
        await bench.drain()


@cocotb.test()
async def test_strobes(dut):
    bench = Bench(dut)
    await bench.start()
    generator = random.Random(SEED)
    for address in (0x04, 0x08, 0x10):
        for strobe in range(16):
            bench.write(address, generator.randrange(2**32), strobe)
            await bench.drain()
            bench.read(address)
            await bench.drain()


@cocotb.test()
async def test_many_writes(dut):
    bench = Bench(dut)
    await bench.start()
    for number in range(300):
        bench.write(0x04, number)
    await bench.drain()
    bench.read(0x14)
    await bench.drain()


@cocotb.test()
async def test_errors(dut):
    bench = Bench(dut)
    await bench.start()
    for address in [0x00, 0x14, *range(0x18, 0x100, 4)]:
        bench.write(address, 0xFFFFFFFF)
        bench.read(address)
        await bench.drain()
    for address in IMPLEMENTED:
        bench.read(address)
    await bench.drain()


@cocotb.test()
async def test_low_address_bits(dut):
    bench = Bench(dut)
    await bench.start()
    for low in range(4):
        for address in (0x04, 0x08, 0x10, 0x18):
            bench.write(address + low, 0x01010101 * (address + low))
            await bench.drain()
            bench.read(address + 3 - low)
            await bench.drain()


@cocotb.test()
async def test_order_of_address_and_data(dut):
    bench = Bench(dut)
    await bench.start()
    for gap in (0, 1, 2, 3, 7, 20):
        bench.write(0x08, 0xA0 + gap, address_delay=gap)
        await bench.drain()
        bench.write(0x04, 0x50 + gap, data_delay=gap)
        await bench.drain()
        bench.read(0x08)
        bench.read(0x14)
        await bench.drain()


@cocotb.test()
async def test_response_waits(dut):
    bench = Bench(dut)
    await bench.start()
    bench.ready["b"] = lambda: 0
    for number in range(3):
        bench.write(0x08, number + 1)
    bench.write(0x20, 0)
    for _ in range(6):
        bench.read(0x08)
        bench.read(0x14)
    for _ in range(200):
        await bench.step()
    held_up = bench.reads or bench.ar.todo
    assert not held_up, "reads were held up by a waiting write response"
    bench.ready["b"] = lambda: 1
    await bench.drain()
    bench.ready["r"] = lambda: 0
    for address in (0x08, 0x14, 0xFC):
        bench.read(address)
    for number in range(6):
        bench.write(0x04, number + 7)
    for _ in range(200):
        await bench.step()
    held_up = bench.addresses or bench.aw.todo
    assert not held_up, "writes were held up by a waiting read response"
    bench.ready["r"] = lambda: 1
    await bench.drain()


@cocotb.test()
async def test_interrupt(dut):
    bench = Bench(dut)
    await bench.start()
    bench.write(0x10, 0x0F)
    await bench.drain()
    for bit in range(8):
        pulse = iter([1 << bit])
        bench.events = lambda pulse=pulse: next(pulse, 0)
        await bench.step()
        await bench.step()
        bench.read(0x0C)
        await bench.drain()
    bench.write(0x0C, 0xFFFFFF03)
    await bench.drain()
    bench.write(0x0C, 0x0000000C, 0b1110)
    await bench.drain()
    bench.write(0x0C, 0x0000000C)
    await bench.drain()
    bench.write(0x10, 0xF0)
    await bench.drain()
    bench.write(0x0C, 0x000000F0)
    await bench.drain()


@cocotb.test()
async def test_event_meets_clear(dut):
    bench = Bench(dut)
    await bench.start()
    bench.write(0x10, 0xFF)
    await bench.drain()
    for position in range(10):
        for before in (0x00, 0xFF):
            script = iter([before] + [0] * position + [0x5A])
            bench.events = lambda script=script: next(script, 0)
            await bench.step()
            bench.write(0x0C, 0x3C)
            await bench.drain()
            for _ in range(position + 1):
                await bench.step()
            bench.read(0x0C)
            bench.write(0x0C, 0xFF)
            await bench.drain()


@cocotb.test()
async def test_read_meets_write(dut):
    bench = Bench(dut)
    await bench.start()
    for delay in range(8):
        for address, data in ((0x08, 0xC0DE0000 + delay), (0x14, 0), (0x04, 0x30 + delay)):
            bench.write(address if address != 0x14 else 0x10, data)
            for _ in range(3):
                bench.read(address, delay)
            await bench.drain()


@cocotb.test()
async def test_reset_in_operation(dut):
    bench = Bench(dut)
    await bench.start()
    for cycles in range(6):
        for only in ("address", "data", "both"):
            bench.ready["b"] = bench.ready["r"] = lambda: 0
            bench.events = lambda: 0x81
            bench.write(0x10, 0xFF)
            bench.write(0x04, 0x77, address_delay=99 * (only == "data"), data_delay=99 * (only == "address"))
            bench.read(0x0C)
            for _ in range(cycles):
                await bench.step()
            bench.ready["b"] = bench.ready["r"] = lambda: 1
            for _ in range(4 * (cycles % 2)):
                await bench.step()
            await bench.reset()
            bench.events = lambda: 0
            for _ in range(5):
                await bench.step()
            bench.write(0x08, 0x12345678)
            for address in IMPLEMENTED:
                bench.read(address)
            await bench.drain()


@cocotb.test()
async def test_random(dut):
    bench = Bench(dut)
    await bench.start()
    generator = random.Random(SEED + 1)
    while bench.edge < CYCLES:
        slow = generator.choice((0, 0, 2, 6))
        for name in "br":
            rate = generator.choice((0.2, 0.6, 1.0))
            bench.ready[name] = lambda rate=rate: int(generator.random() < rate)
        rate = generator.choice((0.0, 0.05, 0.5))
        bench.events = lambda rate=rate: generator.randrange(256) if generator.random() < rate else 0
        for _ in range(12):
            address = generator.choice((*IMPLEMENTED, *IMPLEMENTED, generator.randrange(256)))
            strobe = generator.choice((0xF, 0xF, generator.randrange(16)))
            delays = (generator.randint(0, slow), generator.randint(0, slow))
            bench.write(address, generator.randrange(2**32), strobe, *delays)
            bench.read(
                generator.choice((*IMPLEMENTED, *IMPLEMENTED, generator.randrange(256))), generator.randint(0, slow)
            )
        await bench.drain()
        if generator.random() < 0.1:
            await bench.reset()
