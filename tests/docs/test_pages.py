"""What these pages show is true: their programs run, and print what stands below them.

- A ```` ```python ```` block is run; a ```` ```text ```` block right behind it is all that it prints.
- In a ```` ```console ```` block each ``$ command`` is run; the lines below it come in this order among those printed.
- ``…`` stands for any text; a line of it alone for any lines.
- ``<!-- slow: reason -->`` before a block leaves it to the slow tests, of the first two pages.
- ```` ```bash ```` blocks are for reading.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [
    "tutorial.md",
    "choose.md",
    "howto/problems.md",
    "howto/reward.md",
    "howto/failures.md",
    "howto/agents.md",
    "howto/verification.md",
    "families.md",
]
LONG = {"howto/verification.md"}
"""Pages whose programs take long: they make problems."""
_BLOCK = re.compile(
    r"(?P<slow><!-- slow: .*? -->\n+)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    body: str
    slow: bool = False


COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
"""A command, its continued lines included, and what stands below it."""


def blocks(page: str) -> list[Block]:
    found = _BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))
    return [Block(block["language"], block["body"], block["slow"] is not None) for block in found]


def pattern(shown: str) -> str:
    """A regular expression of a line in which … is any text."""
    return ".*".join(re.escape(part) for part in shown.rstrip().split("…"))


def assert_in_order(shown: str, printed: str) -> None:
    lines = iter(printed.splitlines())
    for wanted in shown.splitlines():
        if wanted.strip() in ("", "…"):
            continue
        assert any(re.fullmatch(pattern(wanted), line.rstrip()) for line in lines), (
            f"not printed: {wanted}\n---\n{printed}"
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a page's commands run: an empty folder in which the checkout's examples are to be found."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "COLUMNS": "100", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


def run(command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode in (0, 1), done.stdout  # a design that failed is 1
    return done.stdout


@pytest.mark.docker
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("page", "slow"),
    [
        *(pytest.param(page, False, marks=pytest.mark.slow if page in LONG else ()) for page in PAGES[1:]),
        *(pytest.param(page, True, marks=pytest.mark.slow) for page in PAGES[:2]),
    ],
)
def test_a_page_shows_what_happens(page: str, slow: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = blocks(page)
    names: dict[str, Any] = {"__name__": "page"}  # the blocks of a page are one program
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.slow and not slow:
            continue
        if block.language == "console":
            for command, shown in COMMAND.findall(block.body):
                assert_in_order(shown, run(command, folder))
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block.body, page, "exec"), names)
            if after is not None and after.language == "text":
                assert re.fullmatch(pattern(after.body), printed.getvalue().rstrip(), re.DOTALL), printed.getvalue()


def test_every_page_with_a_program_is_run() -> None:
    """A page that is left out above has nothing that a reader would copy into Python and expect to work as it is."""
    with_programs = {
        str(path.relative_to(DOCS))
        for path in [DOCS / "tutorial.md", DOCS / "choose.md", DOCS / "families.md", *(DOCS / "howto").glob("*.md")]
        if any(block.language in ("python", "console") for block in blocks(str(path.relative_to(DOCS))))
    }
    needs_a_server = {"howto/own_gpus.md"}  # run in tests/policies/test_served.py
    assert with_programs == {*PAGES} | needs_a_server


@pytest.mark.docker
@pytest.mark.parametrize(
    ("final", "stop"), [pytest.param("All done.", "completed", marks=pytest.mark.slow), ("", "parse_error")]
)
def test_the_programme_of_the_readme_runs_as_it_is_written(final: str, stop: str) -> None:
    """With a model that lists the files and then says `final`; the second one is cut off."""
    (block,) = _README_BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    heard: list[list[dict[str, str]]] = []

    def my_model(messages: list[dict[str, str]]) -> str:
        heard.append(list(messages))
        call = '<tool_call>{"name": "execute_bash", "arguments": {"command": "ls"}}</tool_call>'
        return call if len(heard) == 1 else final

    names: dict[str, Any] = {"my_model": my_model}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block, "README.md", "exec"), names)
    assert names["info"]["stop_reason"] == stop
    assert "'passed': False" in printed.getvalue()
    assert [message["role"] for message in heard[1]] == ["system", "user", "assistant", "user"]
    assert "<tool_response>" in heard[1][-1]["content"]


_README_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
