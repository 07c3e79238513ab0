"""Apply and write the benchmark's patches: unified diffs of one file without headers, from the first ``@@`` line."""

from __future__ import annotations

import difflib

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchSet

from rtl_agent_gym.errors import ProblemError


def apply_patch(original: str, body: str) -> str:
    r"""Return `original` with the hunks of `body` applied.

    Strict, without offset or fuzz: every line that the patch keeps or removes must be where its hunk says. The one
    exception is a missing newline at the end of the file, which is ignored in comparisons, because published patches
    sometimes omit its marker. An added last line ends in a newline unless ``\ No newline at end of file`` follows.

    Args:
        original: The file's text; empty for a new file.
        body: The diff body; blank text changes nothing.

    Raises:
        ProblemError: `body` is not a diff body, or does not apply to `original`.
    """
    if not body.strip():
        return original
    source = _lines(original)
    output: list[str] = []
    cursor = 0
    for number, hunk in enumerate(_parse(body), start=1):
        start = _start(hunk, number, cursor, len(source))
        output += source[cursor:start]
        cursor, origin = start, ""
        for line in hunk:
            if line.line_type == "\\" and origin == "+":
                output[-1] = output[-1].removesuffix("\n")
            if line.line_type not in ("+", "-", " "):
                continue  # a blank line after the hunk, or the marker of a missing newline in `original`
            origin, text = line.line_type, line.value.removesuffix("\n")
            if line.is_added:
                output.append(text + "\n")
                continue
            found = source[cursor]
            if found.removesuffix("\n") != text:
                raise ProblemError(
                    f"{_name(hunk, number)} does not apply: line {cursor + 1} of the file is {_quote(found)}, "
                    f"the patch expects {_quote(text)}"
                )
            if line.is_context:
                output.append(found)
            cursor += 1
    output += source[cursor:]
    # Only the last line may lack its newline.
    return "".join(line.removesuffix("\n") + "\n" for line in output[:-1]) + "".join(output[-1:])


def diff_body(before: str, after: str) -> str:
    """The hunks that turn `before` into `after`, from the first ``@@`` on, without the lines that name the files."""
    lines = list(difflib.unified_diff(_lines(before), _lines(after)))[2:]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """The lines of `text` with their newlines, split at newlines only."""
    return [line + "\n" for line in text.split("\n")[:-1]] + [last for last in text.split("\n")[-1:] if last]


def _parse(body: str) -> list[Hunk]:
    lines = [line.removesuffix("\n") + "\n" for line in _lines(body)]
    if not lines[0].startswith("@@"):
        raise ProblemError(f"expected a unified diff body that starts with @@, got {_quote(lines[0])}")
    try:
        files = PatchSet(["--- a\n", "+++ b\n", *lines])
    except (UnidiffParseError, ValueError) as error:
        raise ProblemError(f"not a unified diff body: {str(error).strip()}") from error
    if len(files) != 1:
        raise ProblemError("the patch contains headers of further files; expected the hunks of one file")
    hunks = list(files[0])
    # The parser ignores unknown lines as text around the diff, which is not allowed here.
    if sum(1 + len(hunk) for hunk in hunks) != len(lines):
        raise ProblemError("the patch contains lines that belong to no hunk")
    return hunks


def _start(hunk: Hunk, number: int, cursor: int, length: int) -> int:
    """The 0-based first line of `hunk`; a hunk without source lines gives the line before it."""
    start = hunk.source_start - 1 if hunk.source_length else hunk.source_start
    if start < cursor:
        raise ProblemError(f"{_name(hunk, number)} overlaps the hunk before it or starts before the file")
    if start + hunk.source_length > length:
        raise ProblemError(
            f"{_name(hunk, number)} reaches to line {start + hunk.source_length}, but the file has {length} lines"
        )
    return start


def _name(hunk: Hunk, number: int) -> str:
    return f"hunk {number} (@@ -{hunk.source_start},{hunk.source_length} +{hunk.target_start},{hunk.target_length} @@)"


def _quote(line: str) -> str:
    line = line.removesuffix("\n")
    return repr(line if len(line) <= 80 else line[:77] + "...")
