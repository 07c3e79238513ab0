"""What a public report says of the tests of five rows, tried with right designs that have other default parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.scoring import Scorer

from .test_compatibility import design

pytestmark = pytest.mark.docker

ROWS = "cvdp_v1.1.0_agentic_code_generation_no_commercial.jsonl"


@pytest.mark.parametrize(
    ("row", "parameter", "default", "passes"),
    [
        pytest.param("queue_0001", "DEPTH = 4", 2, True, marks=pytest.mark.slow),
        ("queue_0001", "DEPTH = 4", 8, False),
        pytest.param("axis_to_uart_0001", "PARITY_BIT = 0", 1, True, marks=pytest.mark.slow),
        pytest.param("axis_to_uart_0001", "PARITY_BIT = 0", 2, True, marks=pytest.mark.slow),
        pytest.param("axis_to_uart_0004", "PARITY_BIT = 0", 1, True, marks=pytest.mark.slow),
        pytest.param("low_power_channel_0001", "DEPTH = 8", 4, False, marks=pytest.mark.slow),
        pytest.param("low_power_channel_0001", "DEPTH = 8", 16, False, marks=pytest.mark.slow),
        pytest.param("traffic_light_controller_0001", "LONG_COUNT = 20", 30, False, marks=pytest.mark.slow),
        pytest.param("traffic_light_controller_0001", "SHORT_COUNT = 10", 5, False, marks=pytest.mark.slow),
    ],
)  # slow: the same kind of run as the second; test_compatibility.py has a design of that row that passes
async def test_default_parameters(
    scorer: Scorer, cvdp_data: Path, row: str, parameter: str, default: int, passes: bool
) -> None:
    [problem] = load_problems(cvdp_data / ROWS, ids=f"cvdp_agentic_{row}")
    other = f"{parameter.partition(' = ')[0]} = {default}"
    files = {path: text.replace(f"parameter {parameter}", f"parameter {other}") for path, text in design(row).items()}
    assert any(other in text for text in files.values())
    score = await scorer.score(problem, files)
    assert score.compile == 1
    assert score.passed == passes
