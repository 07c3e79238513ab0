from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.problems import Problem, editable, is_allowed_path, path_fault
from rtl_agent_gym.problems.paths import text_of_option, tree_fault


@pytest.mark.parametrize(
    "path", ["rtl/x.sv", "docs/a/b.md", "verif/tb.v", "src/.env", "Dockerfile", "rtl/ä x.sv", "a..b"]
)
def test_plain_paths_are_right(path: str) -> None:
    assert path_fault(path) is None


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("C:/x", "absolute"),
        ("..", ".."),
        ("rtl/../../x", ".."),
        ("rtl/./x", "component"),
        ("./rtl/x", "component"),
        ("rtl//x", "component"),
        ("rtl/", "component"),
        ("rtl\\..\\x", "backslash"),
        ("rtl/x\0.sv", "control character"),
        ("rtl/x\n.sv", "control character"),
        ("rtl/" + "x" * 256, "too long"),
        ("d/" * 2500 + "x", "too long"),
    ],
)
def test_a_wrong_path_is_named_with_its_fault(path: str, word: str) -> None:
    fault = path_fault(path)
    assert fault is not None
    assert word in fault


@given(st.text(alphabet="./\\ab\0:~ \n", max_size=12))
def test_a_right_path_stays_below_its_folder_and_has_one_spelling(path: str) -> None:
    if path_fault(path) is None:
        assert os.path.normpath(path) == path
        assert os.path.normpath(os.path.join("/code", path)).startswith("/code/")


def test_a_file_that_is_also_a_folder() -> None:
    assert tree_fault(["rtl/x", "rtl/y"]) is None
    assert "'rtl/x' is a file" in str(tree_fault(["rtl/x/y.sv", "rtl/x"]))


@pytest.mark.parametrize("path", ["rtl/x.sv", "verif/a/tb.sv", "docs/x.md"])
def test_an_agent_may_change_files_below_its_folders(path: str) -> None:
    assert is_allowed_path(path)


@pytest.mark.parametrize(
    "path",
    ["rtl", "rtl/", "src/test_x.py", "rundir/sim_build/x", "x.sv", "rtl/../src/x", "RTL/x.sv", "/rtl/x", "rtlx/y"],
)
def test_an_agent_may_not_change_anything_else(path: str) -> None:
    assert not is_allowed_path(path)


def test_editable_depends_on_the_kind_of_problem() -> None:
    agentic = Problem(id="a", category=3, difficulty="easy", prompt="p", targets=("rtl/x.sv",))
    other = agentic.model_copy(update={"agentic": False})
    assert editable(agentic, "rtl/helper.sv")
    assert not editable(agentic, "src/test_x.py")
    assert editable(other, "rtl/x.sv")
    assert not editable(other, "rtl/helper.sv")


def test_a_target_of_a_nonagentic_problem_cannot_leave_the_work_folder() -> None:
    problem = Problem(id="a", category=3, difficulty="easy", prompt="p", targets=("../x.sv",), agentic=False)
    assert not editable(problem, "../x.sv")


def test_a_text_in_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("\ufeffYou design hardware.\n", encoding="utf-8")
    assert text_of_option("system_prompt", f"@{tmp_path}/prompt.txt") == "You design hardware.\n"
