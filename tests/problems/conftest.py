"""Rows to start from, and files of them."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMPOSE = """\
services:
  direct:
    image: __OSS_SIM_IMAGE__
    volumes:
      - ./src/:/src/:ro
    env_file: ./src/.env
    command: pytest /src/test_runner.py -v
"""

Row = dict[str, Any]
WriteRows = Callable[..., Path]


def changed(row: Row, *keys: str, value: Any) -> Row:
    """A copy of `row` with the field at `keys` set."""
    row = copy.deepcopy(row)
    place = row
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return row


def with_files(row: Row, **parts: dict[str, str]) -> Row:
    """A copy of `row` with more files in some of its parts, such as its harness."""
    return row | {part: row[part] | files for part, files in parts.items()}


@pytest.fixture
def agentic_row() -> Row:
    """A small, right agentic row with its solution."""
    return {
        "id": "cvdp_agentic_tiny_0001",
        "categories": ["cid004", "easy"],
        "system_message": "Work carefully.",
        "prompt": "Invert the output of rtl/tiny.sv.",
        "context": {
            "rtl/tiny.sv": "module tiny(input a, output y);\n  assign y = a;\nendmodule\n",
            "docs/spec.md": "# Tiny\n",
        },
        "patch": {
            "rtl/tiny.sv": "@@ -1,3 +1,3 @@\n module tiny(input a, output y);\n"
            "-  assign y = a;\n+  assign y = ~a;\n endmodule"
        },
        "harness": {
            "docker-compose.yml": COMPOSE,
            "src/.env": "SIM = icarus\nVERILOG_SOURCES = /code/rtl/tiny.sv\nTOPLEVEL = tiny\nMODULE = test_tiny\n",
            "src/test_runner.py": "def test_runner():\n    pass\n",
        },
    }


@pytest.fixture
def nonagentic_row() -> Row:
    """A small, right non-agentic row with its solution."""
    return {
        "id": "cvdp_copilot_tiny_0001",
        "categories": ["cid003", "medium"],
        "input": {"prompt": "Write an inverter.", "context": {}},
        "output": {"response": "", "context": {"rtl/tiny.sv": "module tiny;\nendmodule\n"}},
        "harness": {
            "files": {
                "docker-compose.yml": COMPOSE.replace("image: __OSS_SIM_IMAGE__", "build: ."),
                "Dockerfile": "FROM __OSS_SIM_IMAGE__\n",
                "src/.env": "VERILOG_SOURCES = /code/rtl/tiny.sv\n",
                "src/test_runner.py": "",
            }
        },
    }


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Write rows (objects, or lines as they are) to a JSON Lines file below the test's own folder."""

    def write(*rows: Row | str, name: str = "rows.jsonl") -> Path:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        data = "".join(line + "\n" for line in lines).encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write
