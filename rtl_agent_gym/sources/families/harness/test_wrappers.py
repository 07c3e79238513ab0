import cocotb
from bench import LARGEST, OPERANDS, OPERATIONS, VALUES, Bench, port_tests

WIDTH, ACTIVE, LATENCY, OFFSET = (VALUES[key] for key in ("width", "enable_level", "latency", "offset"))
INITIAL = {"zero": 0, "ones": LARGEST}[VALUES["initial"]]
FUNCTIONS = {
    "sub": lambda first, second: first - second,
    "floor": lambda first, second: max(first - second, 0),
    "and": lambda first, second: first & (LARGEST - second),
    "or": lambda first, second: first | (LARGEST - second),
    "twice": lambda first, second: first + 2 * second,
    "half": lambda first, second: first ^ (second >> 1),
}


class Model:
    def reset(self):
        self.value, self.waiting = INITIAL, [None] * LATENCY

    def step(self, enable, left, right):
        result = FUNCTIONS[VALUES["function"]](OPERANDS[VALUES["operand"]](left), right) + OFFSET & LARGEST
        self.waiting.append(result if enable == ACTIVE else None)
        used = self.waiting.pop(0)
        if used is not None:
            self.value = OPERATIONS[VALUES["operation"]](self.value, used)

    def outputs(self):
        return {"output": self.value}


def some_data(bench):
    numbers = bench.numbers()
    return {"left": bench.generator.choice(numbers), "right": bench.generator.choice(numbers)}


async def started(dut, seed=0):
    return await Bench(dut, Model(), seed).start(enable=ACTIVE, left=LARGEST, right=1)


globals().update(port_tests(enable=1, left=WIDTH, right=WIDTH, output=WIDTH))


@cocotb.test()
async def test_reset(dut):
    """Also of results that are on their way."""
    bench = await Bench(dut, Model(), 1).start_at_any_level("enable", "left", "right")
    for cycles in (*range(1, LATENCY + 3), 1, 2 * LATENCY):
        for _ in range(cycles):
            await bench.cycle(enable=ACTIVE, **some_data(bench))
        await bench.cycle(True, enable=ACTIVE, **some_data(bench))
        for _ in range(LATENCY + 1):
            await bench.cycle(enable=1 - ACTIVE, **some_data(bench))


@cocotb.test()
async def test_kind_of_reset(dut):
    """Also of results that are on their way."""
    bench = await started(dut, 2)
    for _ in range(8):
        while bench.model.value == INITIAL:
            await bench.cycle(enable=ACTIVE, **some_data(bench))
        await bench.check_reset_kind()
        for _ in range(LATENCY + 1):
            await bench.cycle(enable=1 - ACTIVE, **some_data(bench))


@cocotb.test()
async def test_enable(dut):
    bench = await started(dut, 3)
    for enable in (1 - ACTIVE, 1 - ACTIVE, ACTIVE, 1 - ACTIVE, ACTIVE, 1 - ACTIVE, 1 - ACTIVE, 1 - ACTIVE) * 8:
        await bench.cycle(enable=enable, **some_data(bench))


@cocotb.test()
async def test_first(dut):
    """Few results after each reset, as some operations lead to a value that never changes."""
    bench = await started(dut, 4)
    for _ in range(100):
        for enable in (ACTIVE, *[1 - ACTIVE] * (LATENCY - 1), ACTIVE, *[1 - ACTIVE] * LATENCY):
            await bench.cycle(enable=enable, **some_data(bench))
        await bench.cycle(True, enable=ACTIVE, **some_data(bench))


@cocotb.test()
async def test_random(dut):
    bench = await started(dut, 5)
    for _ in range(300):
        reset, enable = bench.generator.random() < 0.1, bench.generator.randrange(2)
        await bench.cycle(reset, enable=enable, **some_data(bench))
