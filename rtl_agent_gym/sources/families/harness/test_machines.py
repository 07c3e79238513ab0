import cocotb
from bench import VALUES, Bench, port_tests

TABLE, OUTPUTS = VALUES["table"].split(), VALUES["outputs"].split()
ACTIVE, START, BITS = VALUES["enable_level"], VALUES["start"], VALUES["bits"]
SYMBOLS, LARGEST = range(len(TABLE[0])), 2**BITS - 1
WIDTH = len(SYMBOLS).bit_length() - 1
READ = {
    "plain": lambda data, seen: data,
    "inverted": lambda data, seen: SYMBOLS[-1] - data,
    "late": lambda data, seen: seen,
    "late_inverted": lambda data, seen: SYMBOLS[-1] - seen,
    "changed": lambda data, seen: data ^ seen,
}
SHOWN = {
    "plain": lambda output, last: output,
    "inverted": lambda output, last: LARGEST - output,
    "late": lambda output, last: last,
    "late_inverted": lambda output, last: LARGEST - last,
    "changed": lambda output, last: output ^ last,
}


def cell(state, seen, data):
    """The next state and the table's output."""
    symbol = READ[VALUES["symbol"]](data, seen)
    following = TABLE[state][symbol]
    missing = state if VALUES["missing"] == "stay" else START
    output = OUTPUTS[state][symbol if VALUES["style"] == "mealy" else 0]
    return missing if following == "-" else int(following), int(output, 16)


class Model:
    def reset(self):
        self.state, self.seen, self.last = START, 0, 0

    def step(self, enable, data):
        if enable == ACTIVE:
            (self.state, self.last), self.seen = cell(self.state, self.seen, data), data

    def outputs(self):
        _, output = cell(self.state, self.seen, self.data)
        return {"output": SHOWN[VALUES["shown"]](output, self.last)}


class MachineBench(Bench):
    def drive(self, inputs):
        """The model knows what is driven, as a design can write to its own input."""
        super().drive(inputs)
        self.model.data = inputs["data"]


async def started(dut, seed=0):
    return await MachineBench(dut, Model(), seed).start(enable=ACTIVE, data=SYMBOLS[-1])


def way_to(steps, state, seen):
    """The shortest inputs that end with one of these steps, each a state, the input before and an input."""
    ways, known = [((state, seen), [])], {(state, seen)}
    for (state, seen), inputs in ways:
        for data in SYMBOLS:
            if (state, seen, data) in steps:
                return [*inputs, data]
            following = cell(state, seen, data)[0], data
            if following not in known:
                known.add(following)
                ways.append((following, [*inputs, data]))
    return None


globals().update(port_tests(enable=1, data=WIDTH, output=BITS))


@cocotb.test()
async def test_reset(dut):
    bench = await MachineBench(dut, Model(), 0).start_at_any_level("enable", "data")
    for data in SYMBOLS:
        for reset in (False, False, True, True, False, True, False):
            await bench.cycle(reset, enable=ACTIVE, data=data)


@cocotb.test()
async def test_kind_of_reset(dut):
    """At some of the times at which the output shows it; the next cycles show the rest of what is stored."""
    bench = await started(dut, 1)
    fresh = Model()
    fresh.reset()
    for _ in range(100):
        await bench.cycle(enable=ACTIVE, data=bench.generator.choice(SYMBOLS))
        fresh.data = bench.model.data
        if bench.model.outputs() != fresh.outputs() and bench.generator.random() < 0.5:
            await bench.check_reset_kind()


@cocotb.test()
async def test_enable(dut):
    bench = await started(dut, 2)
    for enable in (1 - ACTIVE, 1 - ACTIVE, ACTIVE, 1 - ACTIVE, ACTIVE, 1 - ACTIVE, 1 - ACTIVE, 1 - ACTIVE) * 8:
        await bench.cycle(enable=enable, data=bench.generator.choice(SYMBOLS))


@cocotb.test()
async def test_every_transition(dut):
    """All that can follow one another: each state, with each input before, with each input."""
    bench = await started(dut)
    model = bench.model
    steps = {(state, seen, data) for state in range(len(TABLE)) for seen in SYMBOLS for data in SYMBOLS}
    while way := way_to(steps, model.state, model.seen):
        for data in way:
            steps.discard((model.state, model.seen, data))
            await bench.cycle(enable=ACTIVE, data=data)
    for data in SYMBOLS:
        await bench.cycle(enable=ACTIVE, data=data)


@cocotb.test()
async def test_random(dut):
    bench = await started(dut, 3)
    for _ in range(300):
        reset, enable = bench.generator.random() < 0.1, bench.generator.randrange(2)
        await bench.cycle(reset, enable=enable, data=bench.generator.choice(SYMBOLS))
