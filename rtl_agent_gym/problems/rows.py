"""Rows of the benchmark's files: reading them from JSON Lines, and converting them to a `Problem` and back.

There are agentic rows (`AgenticRow`), agentic rows that start from a complete repository (`HeavyRow`), and non-agentic
rows (`NonAgenticRow`), some of which ask for text instead of files.
"""

from __future__ import annotations

import difflib
import functools
import gzip
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchSet

from ..errors import ProblemError, UsageError
from .checkouts import heavy_context
from .compose import COMPOSE_FILE, check_templates, is_templated, parse_services
from .model import COMPARED, JUDGED, Problem, category_name, parse_category, parse_difficulty
from .paths import path_fault, text_fault, tree_fault
from .validation import without_harness


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
    """The hunks that turn `before` into `after`, from the first ``@@`` on, without the file header lines."""
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


SUFFIXES = (".jsonl", ".jsonl.gz")

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Place(NamedTuple):
    """Where a problem comes from, for messages."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def error(self, message: str, **named: str | None) -> ProblemError:
        """An error at this place; `named` is its field and its problem's id."""
        return ProblemError(message, source=self.source, line=self.line, **named)


def read_rows(path: Path, label: str) -> Iterator[tuple[Place, dict[str, Any] | ProblemError]]:
    """The JSON object of each line that is not blank, or the error if it has none.

    Gzip is detected by content, not by name. Messages call the file `label`. Raises `UsageError` if it cannot be opened
    or read, `ProblemError` if gzip data is damaged, truncated, or missing in a ``.gz`` file.
    """
    number, offset = 0, 0
    try:
        with _open_rows(path, label) as stream:
            for number, line in enumerate(stream, 1):
                data = line.removeprefix(_BOM) if number == 1 else line
                if data.strip():
                    place = Place(label, number)
                    yield place, _parse_row(data, offset + len(line) - len(data), place)
                offset += len(line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"damaged gzip data after line {number}: {error}; fetch the file again"
        raise Place(label, number or None).error(message) from error
    except OSError as error:
        raise UsageError(f"{label}: cannot be read: {error.strerror or error}") from error


def _open_rows(path: Path, label: str) -> IO[bytes]:
    stream = path.open("rb")
    magic = stream.peek(2)[:2]
    if magic != _GZIP_MAGIC and path.suffix != ".gz":
        return stream
    stream.close()
    if magic != _GZIP_MAGIC:
        raise Place(label).error("expected gzip data because of the file's name; rename the file or compress it again")
    return cast(IO[bytes], gzip.open(path, "rb"))


def _parse_row(data: bytes, offset: int, place: Place) -> dict[str, Any] | ProblemError:
    try:
        row = json.loads(data.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        at = f"byte {offset + error.start} of the file (byte {error.start} of the line)"
        return place.error(f"not UTF-8: {error.reason} at {at}")
    except json.JSONDecodeError as error:
        return place.error(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}")
    except ProblemError as error:  # a repeated key
        return place.error(error.message)
    except (ValueError, RecursionError) as error:
        return place.error(f"not JSON that can be read: {error}")
    return row if isinstance(row, dict) else place.error(f"expected a JSON object, got {json_kind(row)}")


def json_kind(value: object) -> str:
    """The JSON type of a value, with an article."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without nulls, which Hugging Face's `datasets` writes for keys that only other rows have."""
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the key {repeated!r} is repeated in one object")
    return {name: value for name, value in pairs if value is not None}


ROW_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}")
"""Ids become names of files and folders, so they contain only characters that are safe in paths."""


def _without(find_fault: Callable[[Any], str | None]) -> AfterValidator:
    """A validator that refuses a value in which `find_fault` finds a fault."""

    def check(value: Any) -> Any:
        if fault := find_fault(value):
            raise ValueError(fault)
        return value

    return AfterValidator(check)


def id_fault(value: str) -> str | None:
    """Why a text is not a valid id of a row; None if it is."""
    if ROW_ID.fullmatch(value):
        return None
    return f"{value[:80]!r} is not an id; expected letters, digits and _ . + -, at most 200 of them"


def _check_categories(value: list[str]) -> list[str]:
    if len(value) != 2:
        raise ValueError(f'expected a category and a difficulty such as ["cid003", "easy"], got {len(value)} entries')
    try:
        if not value[0].startswith("cid"):
            raise ValueError(f"unknown category {value[0]!r}; expected a form such as cid003")
        return [category_name(parse_category(value[0])), parse_difficulty(value[1])]
    except UsageError as error:
        raise ValueError(str(error)) from error


Text = Annotated[str, _without(text_fault)]
RowId = Annotated[str, _without(id_fault)]
Categories = Annotated[list[str], AfterValidator(_check_categories)]
Prompt = Annotated[
    Text, _without(lambda text: None if text.strip() else "the prompt is empty; expected the task's text")
]
Files = Annotated[dict[Annotated[Text, _without(path_fault)], Text], _without(tree_fault)]


class RowModel(BaseModel):
    """A part of a row. Unknown fields are ignored, since newer releases may add fields."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class BaseRow(RowModel):
    """The fields of every row."""

    id: RowId
    categories: Categories
    harness: Files


class AgenticRow(BaseRow):
    """A row whose task is solved in a folder of files."""

    system_message: Text = ""
    prompt: Prompt
    context: Files
    patch: Files
    """The body of a unified diff by target file; empty if the solution was withheld."""


class Checkout(RowModel):
    """The repository of a heavy row."""

    repo: Text
    commit: Text


class HeavyRow(BaseRow):
    """An agentic row that starts from a complete repository."""

    system_message: Text = ""
    prompt: Prompt
    context: Checkout
    patch: Files = {}


class RowInput(RowModel):
    """The input of a non-agentic row."""

    prompt: Prompt
    context: Files


class RowOutput(RowModel):
    """The reference of a non-agentic row: text, or complete files (empty if the solution was withheld)."""

    response: Text = ""
    context: Files = {}


class NonAgenticRow(BaseRow):
    """A row that is answered in one completion."""

    input: RowInput
    output: RowOutput


AnyRow = AgenticRow | HeavyRow | NonAgenticRow

_log = logging.getLogger(__name__)

_HEAVY = "agentic_heavy"
_FILES = "an object of file path to text"
_EXPECTED = {
    "categories": 'an array such as ["cid003", "easy"]',
    "context": _FILES,
    "patch": "an object of file path to diff body",
    "harness": _FILES,
    "harness.files": _FILES,
    "input": "an object with prompt and context",
    "input.context": _FILES,
    "output": "an object with response and context",
    "output.context": _FILES,
}
"""The expected values of fields that are not strings."""
_SHAPE_FAULTS = {"string_type", "dict_type", "list_type", "model_type", "model_attributes_type"}


def problem_from_row(row: dict[str, Any], place: Place, folder: Path | None = None) -> Problem:
    """Check a row and convert it to a problem. `folder` is searched for git bundles of heavy rows; see `heavy_context`.

    Raises `ProblemError`, with the place, the field, and what was expected.
    """
    problem_id = row["id"] if isinstance(row.get("id"), str) and ROW_ID.fullmatch(row["id"]) else None
    fields = dict(row)
    harness_field = "harness"
    if isinstance(row.get("harness"), dict) and isinstance(row["harness"].get("files"), dict):
        fields["harness"], harness_field = row["harness"]["files"], "harness.files"
    try:
        parsed = _model_for(fields).model_validate(fields)
    except ValidationError as error:
        field, message = _describe(error, harness_field)
        raise place.error(message, field=field, problem_id=problem_id) from error
    try:
        _check_harness(parsed.harness, harness_field)
        return _build(parsed, folder)
    except ProblemError as error:
        raise place.error(error.message, field=error.field, problem_id=parsed.id) from error


def _model_for(row: dict[str, Any]) -> type[AnyRow]:
    if "input" in row or "output" in row:
        return NonAgenticRow
    context = row.get("context")
    # Context files have a suffix or a folder, so "repo" and "commit" are not context files.
    names_checkout = isinstance(context, dict) and {"repo", "commit"} & context.keys()
    is_called_heavy = isinstance(row.get("id"), str) and _HEAVY in row["id"]
    return HeavyRow if names_checkout or is_called_heavy else AgenticRow


def _describe(error: ValidationError, harness_field: str) -> tuple[str, str]:
    """The field of the first fault, and a message about all faults."""
    faults = error.errors(include_url=False)
    fields = [_field(fault["loc"], harness_field) for fault in faults]
    first = faults[0]
    expected = _EXPECTED.get(fields[0], "a string")
    if first["type"] == "missing":
        message = f"the field is missing; expected {expected}"
    elif first["type"] in _SHAPE_FAULTS:
        message = f"expected {expected}, got {json_kind(first['input'])}"
    else:
        message = str(first.get("ctx", {}).get("error", first["msg"]))
    others = [field for field in dict.fromkeys(fields) if field != fields[0]]
    if others:
        message += f" (and more faults in {', '.join(others[:5])}{' …' if len(others) > 5 else ''})"
    return fields[0], message


def _field(loc: tuple[int | str, ...], harness_field: str) -> str:
    """``("context", "rtl/x.sv", "[key]")`` as ``context.rtl/x.sv``."""
    names = [part for part in loc if part != "[key]"]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names)[1:]
    return harness_field + field.removeprefix("harness") if names[0] == "harness" else field


def _check_harness(harness: dict[str, str], field: str) -> None:
    if not harness:
        return
    if COMPOSE_FILE not in harness:
        raise ProblemError(f"the file {COMPOSE_FILE} is missing; it defines how the tests run", field=field)
    checks = [(COMPOSE_FILE, parse_services), *((name, check_templates) for name in harness if is_templated(name))]
    for name, check in checks:
        try:
            check(harness[name])
        except ProblemError as error:
            raise ProblemError(error.message, field=f"{field}.{name}") from error


def _build(row: AnyRow, folder: Path | None) -> Problem:
    category, difficulty = parse_category(row.categories[0]), parse_difficulty(row.categories[1])
    common: dict[str, Any] = {"id": row.id, "category": category, "difficulty": difficulty, "harness": row.harness}
    if isinstance(row, NonAgenticRow):
        text = not row.harness and category in (*COMPARED, *JUDGED)
        files = {} if text else row.output.context
        return Problem(
            **common,
            prompt=row.input.prompt,
            context=row.input.context,
            targets=tuple(files),
            golden=files if any(text.strip() for text in files.values()) else None,
            reference_response=row.output.response,
            agentic=False,
            unscorable=None if row.harness else without_harness(category, row.output.response),
        )
    common |= {"prompt": row.prompt, "system_message": row.system_message, "targets": tuple(row.patch)}
    context, checkout, missing = row.context, "", None
    if isinstance(context, Checkout):
        checkout = f"{context.repo}@{context.commit}"
        context, missing = heavy_context(context.repo, context.commit, folder)
    if missing is None and not row.harness:
        missing = without_harness(category, "")
    golden = _golden(row.patch, context) if not checkout or context else None
    if checkout and golden:
        _warn_of_patches()
    return Problem(**common, context=context, golden=golden, checkout=checkout, unscorable=missing)


@functools.cache
def _warn_of_patches() -> None:
    """Warn once that the official runner handles the patch of a heavy row differently."""
    _log.warning(
        "heavy rows with a patch: the patch is used as the reference solution here, but the official runner applies it "
        "before the agent starts, so results may differ (docs/rows.md)"
    )


def _golden(patches: dict[str, str], context: dict[str, str]) -> dict[str, str] | None:
    golden: dict[str, str] = {}
    for path, body in patches.items():
        if not body.strip():
            continue
        try:
            golden[path] = apply_patch(context.get(path, ""), body)
        except ProblemError as error:
            raise ProblemError(error.message, field=f"patch.{path}") from error
    return golden or None


def problem_row(problem: Problem) -> dict[str, Any]:
    """The agentic row of a problem, in the official runner's format.

    Raises `UsageError` if the problem is not agentic, has no hidden tests, or its row names a repository, not files.
    """
    if not problem.agentic or not problem.harness or problem.checkout:
        raise UsageError(f"{problem.id} is not an agentic problem with files and hidden tests")
    given, golden = problem.context, problem.golden or {}
    patch = {path: diff_body(given.get(path, ""), golden[path]) if path in golden else "" for path in problem.targets}
    return {
        "id": problem.id,
        "categories": [category_name(problem.category), problem.difficulty],
        "system_message": problem.system_message,
        "prompt": problem.prompt,
        "context": given,
        "patch": patch,
        "harness": problem.harness,
    }
