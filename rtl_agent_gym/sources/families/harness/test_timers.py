import cocotb
from bench import VALUES, Bench, port_tests

PERIOD, UP = VALUES["period"], VALUES["direction"] == "up"
FIRST, LAST = (1, PERIOD) if UP else (PERIOD, 1)


class Model:
    def reset(self):
        self.count, self.stopped = 0, False

    def step(self, start, pause):
        starts = start == VALUES["start_level"]
        self.stopped = (self.stopped and not starts) or (starts and bool(self.count) and VALUES["again"] == "stop")
        if starts and self.count == 0:
            self.count = FIRST
        elif starts and VALUES["again"] != "ignore":
            self.count = FIRST if VALUES["again"] == "restart" else 0
        elif pause != VALUES["pause_level"] and self.count:
            self.count = 0 if self.count == LAST else self.count + (1 if UP else -1)

    def outputs(self):
        """The count after a stop is not said, so it is not tested."""
        busy = {"busy": VALUES["busy_level"] if self.count else 1 - VALUES["busy_level"]}
        return busy if self.stopped else {"count": self.count, **busy}


class TimerBench(Bench):
    async def run(self, start=False, pause=False, reset=False, cycles=1):
        for _ in range(cycles):
            await self.cycle(reset, **levels(start, pause))


def levels(start, pause):
    return {"start": int(start == VALUES["start_level"]), "pause": int(pause == VALUES["pause_level"])}


async def started(dut, seed=0):
    return await TimerBench(dut, Model(), seed).start(**levels(start=True, pause=False))


globals().update(port_tests(start=1, pause=1, busy=1, count=VALUES["width"]))


@cocotb.test()
async def test_reset(dut):
    bench = await TimerBench(dut, Model(), 0).start_at_any_level("start", "pause")
    for _ in range(2):
        await bench.run(start=True)
        await bench.run(cycles=2)
        await bench.run(start=True, reset=True, cycles=2)
        await bench.run(cycles=2)
        await bench.run(start=True)
        await bench.run(pause=True, reset=True)


@cocotb.test()
async def test_kind_of_reset(dut):
    """Also of how long it has run, which the next start shows."""
    bench = await started(dut)
    await bench.run(start=True)
    await bench.run(cycles=2)
    await bench.check_reset_kind()
    await bench.run(start=True)
    await bench.run(cycles=PERIOD)


@cocotb.test()
async def test_period(dut):
    bench = await started(dut)
    for _ in range(2):
        await bench.run(start=True)
        await bench.run(cycles=PERIOD + 2)


@cocotb.test()
async def test_start_while_running(dut):
    bench = await started(dut)
    await bench.run(start=True)
    for later in (1, 2, PERIOD - 1, PERIOD):
        await bench.run(cycles=later)
        await bench.run(start=True)
    await bench.run(start=True, cycles=PERIOD + 2)


@cocotb.test()
async def test_pause(dut):
    bench = await started(dut)
    await bench.run(pause=True)
    await bench.run(start=True, pause=True)
    for _ in range(PERIOD):
        await bench.run(pause=True, cycles=2)
        await bench.run()
    await bench.run(pause=True, cycles=2)


@cocotb.test()
async def test_random(dut):
    bench = await started(dut, 3)
    for _ in range(400):
        chances = (bench.generator.random() for _ in range(3))
        await bench.run(*(chance < limit for chance, limit in zip(chances, (0.08, 0.25, 0.02), strict=True)))
