"""cocotb 1's name of what cocotb 2 calls `cocotb_tools.runner`."""

from cocotb_tools.runner import *  # noqa: F403
from cocotb_tools.runner import get_runner  # noqa: F401
