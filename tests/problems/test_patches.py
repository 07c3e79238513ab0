from __future__ import annotations

import difflib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems import apply_patch

NO_NEWLINE = "\\ No newline at end of file\n"
FIVE = "one\ntwo\nthree\nfour\nfive\n"

lines = st.text(alphabet="ab-+ @\\\t\r\x0c\x85\u2028ä", max_size=5)
texts = st.builds(
    lambda parts, end: "\n".join(parts) + ("\n" if end and parts else ""), st.lists(lines, max_size=14), st.booleans()
)


def keep_ends(text: str) -> list[str]:
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def diff_body(before: str, after: str, context: int) -> str:
    """What a version control system would print below the file headers."""
    diff = difflib.unified_diff(keep_ends(before), keep_ends(after), n=context)
    body = list(diff)[2:]
    return "".join(line if line.endswith("\n") else line + "\n" + NO_NEWLINE for line in body)


@given(texts, texts, st.integers(0, 4), st.booleans())
def test_a_diff_applied_gives_the_new_text(before: str, after: str, context: int, stripped: bool) -> None:
    body = diff_body(before, after, context)
    # Published bodies lack their own last newline.
    assert apply_patch(before, body.removesuffix("\n") if stripped else body) == after


@given(texts, texts, texts)
def test_a_patch_for_another_text_applies_rightly_or_is_refused(before: str, after: str, other: str) -> None:
    body = diff_body(before, after, 3)
    try:
        result = apply_patch(other, body)
    except ProblemError:
        return
    # As many lines were added and removed as between before and after.
    changes = [line.rstrip("\n") for line in body.split("\n") if line[:1] in ("+", "-")]
    assert len(keep_ends(result)) - len(keep_ends(other)) == sum(1 if line[0] == "+" else -1 for line in changes)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts, texts)
def test_gits_own_diffs_apply(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "a").write_bytes(before.encode())
    (tmp_path / "b").write_bytes(after.encode())
    command = ["git", "diff", "--no-index", "--text", "--no-color", "a", "b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    printed = done.stdout.decode()
    body = printed[printed.index("@@") :] if "@@ -" in printed else ""
    assert apply_patch(before, body) == after


def test_an_empty_body_changes_nothing() -> None:
    assert apply_patch(FIVE, "") == FIVE
    assert apply_patch(FIVE, " \n") == FIVE


def test_a_new_file_ends_in_a_newline_unless_the_patch_says_otherwise() -> None:
    assert apply_patch("", "@@ -0,0 +1,2 @@\n+a\n+b") == "a\nb\n"
    assert apply_patch("", "@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file") == "a\nb"


def test_a_file_may_become_empty() -> None:
    assert apply_patch("a\n", "@@ -1 +0,0 @@\n-a\n") == ""


def test_a_missing_newline_at_the_end_of_the_file_is_forgiven() -> None:
    assert apply_patch("a\nb", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n") == "A\nb"
    assert apply_patch("a\nb", "@@ -2,1 +2,2 @@\n b\n+c\n") == "a\nb\nc\n"


def test_a_context_line_whose_blank_was_stripped_counts_as_an_empty_line() -> None:
    assert apply_patch("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+B\n") == "a\n\nB\n"


def test_carriage_returns_are_part_of_a_line() -> None:
    assert apply_patch("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n") == "a\r\nc\r\n"
    with pytest.raises(ProblemError, match="line 1 of the file"):
        apply_patch("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@@ -1,2 +1,2 @@\n one\n-TWO\n+2\n", r"hunk 1 .*line 2 of the file is 'two', the patch expects 'TWO'"),
        ("@@ -2,2 +2,2 @@\n one\n-two\n+2\n", "line 2 of the file is 'two'"),  # right text, one line off
        ("@@ -5,2 +5,2 @@\n five\n-six\n+6\n", "reaches to line 6, but the file has 5 lines"),
        ("@@ -3 +3 @@\n-three\n+3\n@@ -1 +1 @@\n-one\n+1\n", "hunk 2 .*overlaps"),
        ("@@ -1,3 +1,3 @@\n one\n-two\n+2\n", "shorter than expected"),
        ("@@ -1,1 +1,1 @@\n one\n-two\n+2\n", "belong to no hunk|longer than expected"),
        ("@@ -1 +1 @@\n-one\n+1\nand more\n", "belong to no hunk"),
        ("@@ -1 +1 @@\n-one\n+1\n--- x\n+++ y\n@@ -1 +1 @@\n-a\n+b\n", "headers of further files"),
        ("@@ -1 +1 @@\n*one\n", "not a unified diff body"),
        ("@@ one @@\n-one\n", "not a unified diff body|no hunk|further files"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\n+1\n", "starts with @@"),
        ("module tiny;\nendmodule\n", "starts with @@, got 'module tiny;'"),
        ("@@ -" + "9" * 5000 + " +1 @@\n-one\n", "not a unified diff body"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(body: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        apply_patch(FIVE, body)
