"""Convert a row of the benchmark's files to a `Problem`."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems.categories import category_name
from rtl_agent_gym.problems.compose import (
    COMPOSE_FILE,
    check_templates,
    external_networks,
    find_templates,
    is_templated,
    parse_services,
)
from rtl_agent_gym.problems.model import Problem
from rtl_agent_gym.problems.patches import apply_patch
from rtl_agent_gym.problems.reading import Place, json_kind
from rtl_agent_gym.problems.row_formats import ROW_ID, AgenticRow, AnyRow, HeavyRow, NonAgenticRow

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


def problem_from_row(row: dict[str, Any], place: Place) -> Problem:
    """Check a row and convert it to a problem.

    Raises:
        ProblemError: With the place, the field, and what was expected.
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
        return _build(parsed)
    except ProblemError as error:
        raise place.error(error.message, field=error.field, problem_id=parsed.id) from error


def _model_for(row: dict[str, Any]) -> type[AnyRow]:
    if "input" in row or "output" in row:
        return NonAgenticRow
    context = row.get("context")
    # Context files have a suffix or a folder, so "repo" and "commit" are not context files.
    if isinstance(context, dict) and {"repo", "commit"} & context.keys():
        return HeavyRow
    if isinstance(row.get("id"), str) and _HEAVY in row["id"]:
        return HeavyRow
    return AgenticRow


def _describe(error: ValidationError, harness_field: str) -> tuple[str, str]:
    """The field of the first fault, and a message about all faults."""
    faults = error.errors(include_url=False)
    fields = [_field(fault["loc"], harness_field) for fault in faults]
    first = faults[0]
    expected = _EXPECTED.get(re.sub(r"\[\d+\]", "[]", fields[0]), "a string")
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


def _build(row: AnyRow) -> Problem:
    common: dict[str, Any] = {
        "id": row.id,
        "category": row.category,
        "difficulty": row.difficulty,
        "harness": row.harness,
        "unscorable": _unscorable(row),
    }
    if isinstance(row, NonAgenticRow):
        files = row.output.context
        return Problem(
            **common,
            prompt=row.input.prompt,
            context=row.input.context,
            targets=tuple(files),
            golden=files if any(text.strip() for text in files.values()) else None,
            reference_response=row.output.response,
            agentic=False,
        )
    common |= {"prompt": row.prompt, "system_message": row.system_message, "targets": tuple(row.patch)}
    if isinstance(row, HeavyRow):
        return Problem(**common)
    return Problem(**common, context=row.context, golden=_golden(row))


def _golden(row: AgenticRow) -> dict[str, str] | None:
    golden: dict[str, str] = {}
    for path, body in row.patch.items():
        if not body.strip():
            continue
        try:
            golden[path] = apply_patch(row.context.get(path, ""), body)
        except ProblemError as error:
            raise ProblemError(error.message, field=f"patch.{path}") from error
    return golden or None


def _unscorable(row: AnyRow) -> str | None:
    """Why no available harness can score the row, or None."""
    if isinstance(row, HeavyRow):
        return (
            f"it starts from a checkout of the repository {row.context.repo} at {row.context.commit}, "
            "which is not part of the data set's row and is not downloaded"
        )
    if not row.harness:
        if row.category in (6, 8):
            return f"answers of category {category_name(row.category)} are text, compared with a reference by BLEU"
        if row.category in (9, 10):
            return f"answers of category {category_name(row.category)} are text, judged by a language model"
        return "the row has no harness, so nothing can score it"
    words = set[str]().union(*(find_templates(text) for name, text in row.harness.items() if is_templated(name)))
    if "__VERIF_EDA_IMAGE__" in words:
        return "its harness needs a commercial simulator (the image __VERIF_EDA_IMAGE__)"
    if "__LICENSE_NETWORK__" in words:
        return "its harness needs the licence server of a commercial simulator (the network __LICENSE_NETWORK__)"
    networks = external_networks(row.harness[COMPOSE_FILE])
    if networks:
        return f"its harness needs the external network {networks[0]}, such as a commercial simulator's licence server"
    return None
