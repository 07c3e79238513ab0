import os
import random

import cocotb
from cocotb.triggers import Timer

WIDTH = int(os.environ["GRAY_WIDTH"])


@cocotb.test()
async def test_every_code(dut):
    assert len(dut.gray) == len(dut.binary) == WIDTH
    numbers = list(range(2**WIDTH))
    random.Random(3).shuffle(numbers)
    for number in numbers:
        dut.gray.value = number ^ (number >> 1)
        await Timer(2, unit="ns")
        value = dut.binary.value
        assert value.is_resolvable, f"binary is {value} for gray {number ^ (number >> 1):b}"
        assert int(value) == number, f"binary is {int(value)} for gray {number ^ (number >> 1):b}, expected {number}"
