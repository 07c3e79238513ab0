import cocotb
from bench import LARGEST, OPERANDS, OPERATIONS, VALUES, Bench, port_tests

WIDTH, ACTIVE = VALUES["width"], VALUES["enable_level"]
OPERAND = OPERANDS[VALUES.get("operand", "plain")]


class Model:
    def reset(self):
        self.value = VALUES["value"]

    def step(self, enable, data):
        if enable == ACTIVE:
            self.value = OPERATIONS[VALUES["operation"]](self.value, OPERAND(data))

    def outputs(self):
        return {"output": self.value}


def some_data(bench):
    return bench.generator.choice(bench.numbers())


async def started(dut, seed=0):
    return await Bench(dut, Model(), seed).start(enable=ACTIVE, data=LARGEST)


globals().update(port_tests(enable=1, data=WIDTH, output=WIDTH))


@cocotb.test()
async def test_reset(dut):
    bench = await Bench(dut, Model(), 0).start_at_any_level("enable", "data")
    for data in (0, 1, 5, LARGEST - 1, LARGEST):
        for reset in (False, True):
            await bench.cycle(reset, enable=ACTIVE, data=data)


@cocotb.test()
async def test_kind_of_reset(dut):
    bench = await started(dut, 1)
    while bench.model.value == VALUES["value"]:
        await bench.cycle(enable=ACTIVE, data=some_data(bench))
    await bench.check_reset_kind()


@cocotb.test()
async def test_enable(dut):
    bench = await started(dut, 2)
    for enable in (1 - ACTIVE, 1 - ACTIVE, ACTIVE, 1 - ACTIVE, ACTIVE, 1 - ACTIVE, 1 - ACTIVE, 1 - ACTIVE) * 4:
        await bench.cycle(enable=enable, data=some_data(bench))


@cocotb.test()
async def test_limits(dut):
    bench = await started(dut)
    for data in (0, LARGEST, LARGEST, 1, 1, 0, LARGEST - 1, 2, LARGEST // 2, LARGEST // 2 + 1, 3, LARGEST):
        for _ in range(3):
            await bench.cycle(enable=ACTIVE, data=data)
        await bench.cycle(True, enable=ACTIVE, data=data)
        await bench.cycle(enable=ACTIVE, data=data)


if "operand" in VALUES:

    @cocotb.test()
    async def test_first(dut):
        """Much of the data on the reset value itself, from which some operations lead to a value that never changes."""
        bench = await started(dut, 4)
        for _ in range(150):
            await bench.cycle(enable=ACTIVE, data=some_data(bench))
            await bench.cycle(True, enable=ACTIVE, data=some_data(bench))


@cocotb.test()
async def test_random(dut):
    bench = await started(dut, 3)
    for _ in range(300):
        reset, enable = bench.generator.random() < 0.1, bench.generator.randrange(2)
        data = some_data(bench) >> bench.generator.choice((0, 0, WIDTH // 2))
        await bench.cycle(reset, enable=enable, data=data)
