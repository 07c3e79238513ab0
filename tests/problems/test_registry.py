"""Sources of other packages are found by their entry points, and read like this package's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import load_problems, scan_problems
from rtl_agent_gym.problems.registry import OWN, split_source, split_whole

PLUG_IN = """\
from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.rows import Place

def read(source):
    if source == "my-suite:":
        raise UsageError("give a folder")
    for number, name in enumerate(source.removeprefix("my-suite:").split(","), 1):
        place = Place(source, number)
        problem = Problem(id=name, category=3, difficulty="easy", prompt="Do it.")
        yield (place.error("broken") if name == "broken" else problem), place

def harder(source):
    for number, problem in enumerate(load_problems(source.rpartition("+harder")[0]), 1):
        yield problem.model_copy(update={"id": problem.id + "_harder", "difficulty": "hard"}), Place(source, number)
"""
ENTRY_POINTS = """\
[rtl_agent_gym.sources]
my-suite = my_plug_in:read
+harder = my_plug_in:harder
absent = my_plug_in:nothing
family = my_plug_in:read
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another distribution with plug-ins, on the path."""
    (tmp_path / "my_plug_in.py").write_text(PLUG_IN)
    info = tmp_path / "my_plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_plug_in", raising=False)


@pytest.mark.usefixtures("_installed")
def test_another_package_adds_sources() -> None:
    assert [problem.id for problem in load_problems("my-suite:a,b")] == ["a", "b"]
    (harder,) = load_problems("my-suite:a+harder")
    assert (harder.id, harder.difficulty) == ("a_harder", "hard")
    *_, last = load_problems("family:timers?count=2+harder")
    assert last.difficulty == "hard"
    first, error = scan_problems("my-suite:a,broken")
    assert not isinstance(first, ProblemError)
    assert isinstance(error, ProblemError)
    assert (error.source, error.line) == ("my-suite:a,broken", 2)
    with pytest.raises(UsageError, match="give a folder"):
        load_problems("my-suite:")
    with pytest.raises(UsageError, match=r"plug-in absent = my_plug_in:nothing cannot be loaded"):
        load_problems("absent:x")


@pytest.mark.usefixtures("_installed")
def test_a_plug_in_cannot_replace_the_packages_own() -> None:
    assert len(load_problems("family:registers?count=3")) == 3


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("bundled", ("", "bundled", "")),
        ("rows+old.jsonl", ("", "rows+old.jsonl", "")),
        ("owner/name:file.jsonl", ("", "owner/name:file.jsonl", "")),
        ("unknown:x+unknown", ("", "unknown:x+unknown", "")),
        ("family:timers?count=3", ("family:", "timers?count=3", "")),
        ("rtllm:a/b+mutants?count=1&seed=2", ("rtllm:", "a/b", "+mutants?count=1&seed=2")),
        ("bundled+mutants", ("", "bundled", "+mutants")),
        ("bundled+mutants?count=1+mutants", ("", "bundled+mutants?count=1", "+mutants")),
    ],
)
def test_the_parts_of_a_name(source: str, parts: tuple[str, str, str]) -> None:
    assert split_source(source) == parts
    assert "".join(split_source(source)) == source


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("family:timers?count=3", ("family:", "timers?count=3", "")),
        ("bundled+mutants?count=1", ("", "bundled", "+mutants?count=1")),
        ("rtllm:a+b+mutants?count=1+verify?kind=cocotb", ("rtllm:", "a+b", "+mutants?count=1+verify?kind=cocotb")),
        ("rows.jsonl+mutants+ppa+verify", ("", "rows.jsonl", "+mutants+ppa+verify")),
    ],
)
def test_the_parts_of_a_name_with_all_suffixes(source: str, parts: tuple[str, str, str]) -> None:
    assert split_whole(source) == parts


def test_the_core_imports_no_plug_in() -> None:
    program = (
        "import sys; from rtl_agent_gym.problems import load_problems; load_problems('bundled');"
        "import rtl_agent_gym.evaluation, rtl_agent_gym.envs.gym_env;"
        "print([name for name in sys.modules if name.startswith('rtl_agent_gym.sources')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert all(value.startswith("rtl_agent_gym.sources.") for value in OWN.values())
