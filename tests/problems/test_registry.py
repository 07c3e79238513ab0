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
    names = source.partition(":")[2]
    if not names:
        raise UsageError("give a folder")
    for number, name in enumerate(names.split(","), 1):
        place = Place(source, number)
        problem = Problem(id=name, category=3, difficulty="easy", prompt="Do it.")
        yield (place.error("broken") if name == "broken" else problem), place

def alone(source):
    for problem, _ in read(source):
        yield problem

def rows(source):
    for problem, place in read(source):
        yield dict(problem), place

def harder(source):
    for number, problem in enumerate(load_problems(source.rpartition("+")[0]), 1):
        yield problem.model_copy(update={"id": problem.id + "_harder", "difficulty": "hard"}), Place(source, number)
"""
ENTRY_POINTS = """\
[rtl_agent_gym.sources]
my-suite = my_plug_in:read
My_suite2 = my_plug_in:read
+harder = my_plug_in:harder
+My_harder = my_plug_in:harder
absent = my_plug_in:nothing
alone = my_plug_in:alone
rows = my_plug_in:rows
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
@pytest.mark.parametrize(("suite", "suffix"), [("my-suite", "+harder"), ("My_suite2", "+My_harder")])
def test_another_package_adds_sources(suite: str, suffix: str) -> None:
    assert [problem.id for problem in load_problems(f"{suite}:a,b")] == ["a", "b"]
    (harder,) = load_problems(f"{suite}:a{suffix}")
    assert (harder.id, harder.difficulty) == ("a_harder", "hard")
    *_, last = load_problems(f"family:timers?count=2{suffix}")
    assert last.difficulty == "hard"
    first, error = scan_problems(f"{suite}:a,broken")
    assert not isinstance(first, ProblemError)
    assert isinstance(error, ProblemError)
    assert (error.source, error.line) == (f"{suite}:a,broken", 2)
    with pytest.raises(UsageError, match="give a folder"):
        load_problems(f"{suite}:")
    with pytest.raises(UsageError, match=r"plug-in absent = my_plug_in:nothing cannot be loaded"):
        load_problems("absent:x")


@pytest.mark.usefixtures("_installed")
def test_what_a_plug_in_yields_is_checked() -> None:
    for suite, got in (("alone", "Problem"), ("rows", "dict")):
        with pytest.raises(UsageError, match=rf"^'{suite}:a': its plug-in yields {got}; expected pairs of Problem"):
            load_problems(f"{suite}:a")
    first, second = scan_problems("my-suite:a,../b")  # ids become names of files
    assert not isinstance(first, ProblemError)
    assert str(second).startswith("my-suite:a,../b:2: id: '../b' is not an id")
    with pytest.raises(ProblemError, match=r"^entry 0: id: 'a/b' is not an id"):
        load_problems([first.model_copy(update={"id": "a/b"})])


@pytest.mark.usefixtures("_installed")
def test_a_plug_in_cannot_replace_the_packages_own() -> None:
    assert len(load_problems("family:registers?count=3")) == 3


@pytest.mark.parametrize(
    "parts",
    [
        ("", "bundled", ""),
        ("", "rows+old.jsonl", ""),
        ("", "owner/name:file.jsonl", ""),
        ("", "unknown:x+unknown", ""),
        ("", r"C:\rows.jsonl", ""),
        ("family:", "timers?count=3", ""),
        ("rtllm:", "a/b", "+mutants?count=1&seed=2"),
        ("", "bundled", "+mutants"),
        ("", "bundled+mutants?count=1", "+mutants"),
    ],
)
def test_the_parts_of_a_name(parts: tuple[str, str, str]) -> None:
    assert split_source("".join(parts)) == parts


@pytest.mark.parametrize(
    "parts",
    [
        ("family:", "timers?count=3", ""),
        ("", "bundled", "+mutants?count=1"),
        ("rtllm:", "a+b", "+mutants?count=1+verify?kind=cocotb"),
        ("", "rows.jsonl", "+mutants+ppa+verify"),
    ],
)
def test_the_parts_of_a_name_with_all_suffixes(parts: tuple[str, str, str]) -> None:
    assert split_whole("".join(parts)) == parts


def test_the_core_imports_no_plug_in() -> None:
    program = (
        "import sys; from rtl_agent_gym.problems import load_problems; load_problems('bundled');"
        "import rtl_agent_gym.evaluation, rtl_agent_gym.envs.gym_env;"
        "print([name for name in sys.modules if name.startswith('rtl_agent_gym.sources')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert all(value.startswith("rtl_agent_gym.sources.") for value in OWN.values())
