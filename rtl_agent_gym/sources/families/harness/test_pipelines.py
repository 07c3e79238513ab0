import cocotb
from bench import LARGEST, VALUES, Bench, port_tests

WIDTH, STAGES, ACTIVE, READY, VALID = (
    VALUES[key] for key in ("width", "stages", "enable_level", "ready_level", "valid_level")
)
OPERATIONS = {
    "add": lambda value, constant: value + constant & LARGEST,
    "add_sat": lambda value, constant: min(value + constant, LARGEST),
    "sub": lambda value, constant: value - constant & LARGEST,
    "sub_sat": lambda value, constant: max(value - constant, 0),
    "from": lambda value, constant: constant - value & LARGEST,
    "xor": lambda value, constant: value ^ constant,
    "mul": lambda value, constant: value * constant & LARGEST,
    "max": max,
}


class Model:
    def reset(self):
        self.waiting, self.result, self.last = [None] * (STAGES - 1), None, 0

    def step(self, enable, ready, data):
        control, goes = VALUES["control"], ready == READY
        if control == "stall" and not goes:
            return
        value = None
        if enable == ACTIVE and goes:
            value = data
            for name in ("first", "second"):
                value = OPERATIONS[VALUES[name]](value, VALUES[f"{name}_constant"])
        if control == "flush" and not goes:
            self.waiting = [None] * (STAGES - 1)
        self.waiting.append(value)
        self.result = self.waiting.pop(0)
        if self.result is not None:
            self.last = self.result

    def outputs(self):
        idle = {"hold": self.last, "zero": 0, "ones": LARGEST}[VALUES["idle"]]
        shown = self.result is not None
        return {"output": self.result if shown else idle, "valid": VALID if shown else 1 - VALID}


class PipelineBench(Bench):
    async def run(self, enable=True, ready=True, reset=False, cycles=1):
        """Any data, but often small or large numbers."""
        for _ in range(cycles):
            data = self.generator.choice((0, 1, LARGEST, *(self.generator.randrange(LARGEST + 1) for _ in range(5))))
            levels = ACTIVE if enable else 1 - ACTIVE, READY if ready else 1 - READY
            await self.cycle(reset, enable=levels[0], ready=levels[1], data=data)


async def started(dut, seed):
    return await PipelineBench(dut, Model(), seed).start(enable=ACTIVE, ready=READY, data=LARGEST)


globals().update(port_tests(enable=1, ready=1, data=WIDTH, output=WIDTH, valid=1))


@cocotb.test()
async def test_reset(dut):
    """Also of results that are on their way."""
    bench = await PipelineBench(dut, Model(), 1).start_at_any_level("enable", "ready", "data")
    for cycles in (*range(1, STAGES + 2), 1, 2 * STAGES):
        for level in (False, True):
            await bench.run(cycles=cycles)
            await bench.run(enable=level, ready=level, reset=True)
            await bench.run(enable=False, cycles=STAGES + 1)


@cocotb.test()
async def test_kind_of_reset(dut):
    bench = await started(dut, 2)
    await bench.run(cycles=STAGES + 1)
    await bench.check_reset_kind()
    await bench.run(enable=False, cycles=STAGES)


@cocotb.test()
async def test_single_results(dut):
    bench = await started(dut, 3)
    for gap in (STAGES - 2, STAGES - 1, STAGES, STAGES + 2) * 3:
        await bench.run()
        await bench.run(enable=False, cycles=gap)


@cocotb.test()
async def test_results(dut):
    bench = await started(dut, 4)
    await bench.run(cycles=150)
    await bench.run(enable=False, cycles=STAGES + 2)


@cocotb.test()
async def test_ready(dut):
    """Not ready before, with and after each of the stages."""
    bench = await started(dut, 5)
    for after in range(STAGES + 2):
        for enable in (False, True):
            await bench.run(cycles=2)
            await bench.run(enable=False, cycles=after)
            await bench.run(enable=enable, ready=False, cycles=1 + after % 2)
            await bench.run(enable=False, cycles=STAGES + 1)


@cocotb.test()
async def test_random(dut):
    bench = await started(dut, 6)
    chances = bench.generator
    for _ in range(300):
        await bench.run(*(chances.random() < limit for limit in (0.6, 0.85, 0.03)))
