import cocotb
from bench import LARGEST, VALUES, Bench, port_tests

WIDTH, DEPTH, THRESHOLD, ACTIVE, READS = (
    VALUES[key] for key in ("width", "depth", "threshold", "enable_level", "pop_level")
)
MISSING = {
    "zero": lambda last: 0,
    "ones": lambda last: LARGEST,
    "last": lambda last: last,
    "inverted": lambda last: LARGEST - last,
    "next": lambda last: last + 1 & LARGEST,
}
OVERFLOW = {
    "drop": lambda words, data: words,
    "oldest": lambda words, data: [*words[1:], data],
    "newest": lambda words, data: [*words[:-1], data],
    "only": lambda words, data: [data],
    "clear": lambda words, data: [],
}


class Model:
    def reset(self):
        self.words, self.last, self.given = [], 0, 0

    def oldest(self):
        return self.words[0] if self.words else MISSING[VALUES["missing"]](self.last)

    def step(self, enable, pop, data):
        if pop == READS:
            self.given = self.oldest()
            if self.words:
                self.last = self.words.pop(0)
        if enable == ACTIVE:
            full = len(self.words) == DEPTH
            self.words = OVERFLOW[VALUES["overflow"]](self.words, data) if full else [*self.words, data]

    def outputs(self):
        level = len(self.words)
        almost = level >= THRESHOLD if VALUES["almost"] == "almost_full" else level <= THRESHOLD
        return {
            "output": self.oldest() if VALUES["style"] == "ahead" else self.given,
            "full_flag": level == DEPTH,
            "empty_flag": level == 0,
            "almost_flag": almost,
        }


class FifoBench(Bench):
    async def run(self, write=False, read=False, reset=False, cycles=1):
        for _ in range(cycles):
            data = self.generator.choice((0, LARGEST, *(self.generator.randrange(LARGEST + 1) for _ in range(4))))
            enable, pop = ACTIVE if write else 1 - ACTIVE, READS if read else 1 - READS
            await self.cycle(reset, enable=enable, pop=pop, data=data)


async def started(dut, seed):
    return await FifoBench(dut, Model(), seed).start(enable=ACTIVE, pop=READS, data=LARGEST)


globals().update(
    port_tests(enable=1, pop=1, data=WIDTH, output=WIDTH, full_flag=1, empty_flag=1, almost_flag=1),
)


@cocotb.test()
async def test_reset(dut):
    bench = await FifoBench(dut, Model(), 1).start_at_any_level("enable", "pop", "data")
    for words in (1, 2, DEPTH, DEPTH + 1):
        for read in (False, True):
            await bench.run(write=True, cycles=words)
            await bench.run(write=True, read=True)
            await bench.run(write=not read, read=read, reset=True)
            await bench.run(read=True, cycles=2)


@cocotb.test()
async def test_kind_of_reset(dut):
    """Also of the word read last, and of places in the memory."""
    bench = await started(dut, 2)
    for words in (1, 2) * 4:
        await bench.run(write=True)
        await bench.check_reset_kind()
        await bench.run(read=True)
        await bench.run(write=True, cycles=words)
        await bench.run(read=True, cycles=words)


@cocotb.test()
async def test_order(dut):
    """Some words at a time, at every place of the memory."""
    bench = await started(dut, 3)
    for words in (*range(1, DEPTH + 1), 1, DEPTH):
        await bench.run(write=True, cycles=words)
        await bench.run()
        await bench.run(read=True, cycles=words)
        await bench.run()


@cocotb.test()
async def test_full(dut):
    bench = await started(dut, 4)
    for extra in (1, 2, 3, DEPTH + 1):
        await bench.run(write=True, cycles=DEPTH)
        await bench.run(write=True, read=True, cycles=2)
        await bench.run(write=True, cycles=extra)
        await bench.run(read=True, cycles=DEPTH + 2)


@cocotb.test()
async def test_empty(dut):
    bench = await started(dut, 5)
    for words in (0, 1, 2):
        await bench.run(read=True, cycles=2)
        await bench.run(write=True, cycles=words)
        await bench.run(read=True, cycles=words + 2)
        await bench.run(write=True, read=True, cycles=3)
        await bench.run(cycles=2)


@cocotb.test()
async def test_random(dut):
    """Rather full at some times, and rather empty at others."""
    bench = await started(dut, 6)
    chances = bench.generator
    for _ in range(6):
        for writes in (0.9, 0.5, 0.2):
            for _ in range(2 * DEPTH):
                write, read, reset = (chances.random() < limit for limit in (writes, 1 - writes, 0.01))
                await bench.run(write, read, reset)
