"""The row formats of the benchmark's files.

Agentic rows (`AgenticRow`), agentic rows that start from a whole repository (`HeavyRow`), and non-agentic rows
(`NonAgenticRow`), some of which ask for text instead of files.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.categories import category_name, parse_category, parse_difficulty
from rtl_agent_gym.problems.model import Difficulty
from rtl_agent_gym.problems.paths import path_fault, tree_fault

ROW_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}")
"""Ids become names of files and folders, so they contain only characters that are safe in paths."""


def _check_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is a lone surrogate, which cannot be written to a file") from error
    return value


def _check_id(value: str) -> str:
    if not ROW_ID.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is not an id; expected letters, digits and _ . + -, at most 200 of them")
    return value


def _check_categories(value: list[str]) -> list[str]:
    if len(value) != 2:
        raise ValueError(f'expected a category and a difficulty such as ["cid003", "easy"], got {len(value)} entries')
    try:
        if not value[0].startswith("cid"):
            raise ValueError(f"unknown category {value[0]!r}; expected a form such as cid003")
        return [category_name(parse_category(value[0])), parse_difficulty(value[1])]
    except UsageError as error:
        raise ValueError(str(error)) from error


def _check_prompt(value: str) -> str:
    if not value.strip():
        raise ValueError("the prompt is empty; expected the task's text")
    return value


def _check_path(value: str) -> str:
    if fault := path_fault(_check_text(value)):
        raise ValueError(fault)
    return value


def _check_tree(value: dict[str, str]) -> dict[str, str]:
    if fault := tree_fault(value):
        raise ValueError(fault)
    return value


Text = Annotated[str, AfterValidator(_check_text)]
RowId = Annotated[str, AfterValidator(_check_id)]
Categories = Annotated[list[str], AfterValidator(_check_categories)]
Prompt = Annotated[Text, AfterValidator(_check_prompt)]
Files = Annotated[dict[Annotated[str, AfterValidator(_check_path)], Text], AfterValidator(_check_tree)]


class Part(BaseModel):
    """A part of a row. Unknown fields are ignored, since newer releases add some."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class BaseRow(Part):
    """The fields of every row."""

    id: RowId
    categories: Categories
    harness: Files

    @property
    def category(self) -> int:
        """The category's number."""
        return parse_category(self.categories[0])

    @property
    def difficulty(self) -> Difficulty:
        """The difficulty's name."""
        return parse_difficulty(self.categories[1])


class AgenticRow(BaseRow):
    """A row whose task is solved in a folder of files."""

    system_message: Text = ""
    prompt: Prompt
    context: Files
    patch: Files
    """The body of a unified diff by target file; empty if the solution was withheld."""


class Checkout(Part):
    """The repository of a heavy row."""

    repo: Text
    commit: Text


class HeavyRow(BaseRow):
    """An agentic row that starts from a whole repository."""

    system_message: Text = ""
    prompt: Prompt
    context: Checkout
    patch: Files = {}


class RowInput(Part):
    """The input of a non-agentic row."""

    prompt: Prompt
    context: Files


class RowOutput(Part):
    """The reference of a non-agentic row: text, or complete files (empty if the solution was withheld)."""

    response: Text = ""
    context: Files = {}


class NonAgenticRow(BaseRow):
    """A row that is answered in one completion."""

    input: RowInput
    output: RowOutput


AnyRow = AgenticRow | HeavyRow | NonAgenticRow
