import cocotb
from bench import VALUES, Bench, port_tests

WIDTH, MODE, ACTIVE = VALUES["width"], VALUES["mode"], VALUES["valid_level"]
ALL = 2**WIDTH - 1
OVERRIDES = ALL + 1 if MODE in ("vector", "mask") else 2


def winner(request, override):
    """The number of the granted requester, or None."""
    active = {
        "vector": override or request,
        "flag": 1 if override else request,
        "mask": request & ~override,
        "lock": 0 if override else request,
    }[MODE]
    bits = [bit for bit in range(WIDTH) if active >> bit & 1]
    if not bits:
        return None
    return min(bits) if VALUES["order"] == "lowest" else max(bits)


class Model:
    def reset(self):
        self.index = None

    def step(self, request, override):
        self.index = winner(request, override)

    def outputs(self):
        if self.index is None:
            return {"grant": 0, "valid": 1 - ACTIVE, "index": 0}
        return {"grant": 1 << self.index, "valid": ACTIVE, "index": self.index}


class ArbiterBench(Bench):
    async def cycle(self, reset=False, **inputs):
        """One clock cycle. Whether a flag grants requester 0 without any request is not said, so it is not tested."""
        if MODE == "flag" and inputs["override"] and not inputs["request"]:
            inputs["request"] = ALL
        await super().cycle(reset, **inputs)


async def started(dut, seed=0):
    return await ArbiterBench(dut, Model(), seed).start(request=ALL, override=0)


globals().update(
    port_tests(
        request=WIDTH,
        override=(OVERRIDES - 1).bit_length(),
        grant=WIDTH,
        valid=1,
        index=(WIDTH - 1).bit_length(),
    )
)


@cocotb.test()
async def test_reset(dut):
    bench = await ArbiterBench(dut, Model(), 0).start_at_any_level("request", "override")
    for request in (1, ALL, 1 << (WIDTH - 1), 0):
        for reset in (False, True):
            await bench.cycle(reset, request=request, override=0)


@cocotb.test()
async def test_kind_of_reset(dut):
    bench = await started(dut)
    await bench.cycle(request=ALL, override=0)
    await bench.check_reset_kind()


@cocotb.test()
async def test_order(dut):
    bench = await started(dut)
    for bit in range(WIDTH):
        for request in (1 << bit, ALL >> bit << bit, ALL >> bit, ALL ^ 1 << bit, 0):
            await bench.cycle(request=request, override=0)


@cocotb.test()
async def test_override(dut):
    bench = await started(dut)
    for bit in range(WIDTH):
        override = min(1 << bit, OVERRIDES - 1)
        for request in (0, 1 << bit, ALL ^ 1 << bit, ALL):
            await bench.cycle(request=request, override=override)


@cocotb.test()
async def test_random(dut):
    bench = await started(dut, 3)
    for _ in range(300):
        request = bench.generator.randrange(ALL + 1) & bench.generator.randrange(ALL + 1)
        override = bench.generator.choice((0, bench.generator.randrange(OVERRIDES)))
        await bench.cycle(bench.generator.random() < 0.1, request=request, override=override)
