from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.problems.compose import instructions
from rtl_agent_gym.scoring.images import needs_build


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("FROM __OSS_SIM_IMAGE__\n", False),
        ("from hdlc/sim:osvb\n# RUN make\nRUN pip3 install cocotb_bus", False),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install --no-cache-dir cocotb-bus \\\n  scapy cocotb==2.0.1", False),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install cocotb==1.9.2", True),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install cocotb_bus && rm -rf /", True),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install numpy", True),
        ("FROM __OSS_SIM_IMAGE__\nENV A=1", True),
        ("FROM debian\n", True),
    ],
)
def test_only_a_dockerfile_that_does_something_is_built(text: str, built: bool) -> None:
    assert needs_build(text) is built


def test_instructions_know_comments_and_continuations() -> None:
    assert instructions("# x\nFROM a\n\nRUN b \\\n  # y\n  c\n") == [("FROM", "a"), ("RUN", "b    c")]


def test_no_row_of_the_benchmark_needs_an_image_of_its_own(cvdp_data: Path) -> None:
    rows = load_problems(cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl")
    files = [row.harness["Dockerfile"] for row in rows if "Dockerfile" in row.harness]
    assert len(files) == 24
    assert not any(map(needs_build, files))
