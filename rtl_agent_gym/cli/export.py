"""``rtl-agent-gym export``: recorded episodes as training data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from ..errors import cannot_write
from ..evaluation.export import ExportConfig, Left, export_rows
from ..evaluation.viewer import each_readable, transcript_files
from .show import print_left_out, refuse_source, stderr_console


class Format(StrEnum):
    """What is written."""

    sft = "sft"
    tokens = "tokens"
    dpo = "dpo"


class StyleName(StrEnum):
    """How turns are written."""

    tools = "tools"
    dialect = "dialect"


def export_command(
    sources: Annotated[list[Path], typer.Argument(metavar="FILE|RUN…", help="Transcripts, folders of them, or runs.")],
    format: Annotated[
        Format,
        typer.Option(help="sft: chats; tokens: sampled ids with logprobs; dpo: passed and failed siblings in pairs."),
    ] = Format.sft,
    style: Annotated[
        StyleName, typer.Option(help="tools: calls as in OpenAI's chat format; dialect: the text the model wrote.")
    ] = StyleName.tools,
    out: Annotated[Path | None, typer.Option(help="File to write; stdout without it.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="sft and tokens: also episodes that did not pass.")] = False,
    min_reward: Annotated[float | None, typer.Option(help="sft and tokens: leave out what earned less.")] = None,
    keep_malformed: Annotated[
        bool, typer.Option("--keep-malformed", help="Also episodes with malformed turns.")
    ] = False,
    keep_violations: Annotated[
        bool, typer.Option("--keep-violations", help="Also episodes that tried something against the grader.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=1, help="dpo: pairs of one problem, at most.")] = 4,
) -> None:
    """Write episodes as JSON Lines for training. Exits 1 when none was fit."""
    config = ExportConfig(
        style=style.value,
        passed_only=not all_,
        min_reward=min_reward,
        keep_malformed=keep_malformed,
        keep_violations=keep_violations,
        pairs=pairs,
    )
    left, unreadable = Left(), list[str]()
    files = [path for source in sources for path in transcript_files(source)]
    rows = export_rows(format.value, each_readable(files, unreadable), config, left)
    if out is None:
        written = _write(rows, None)
    else:
        refuse_source(out, files)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("w", encoding="utf-8") as file:
                written = _write(rows, file)
        except OSError as error:
            raise cannot_write("--out", out, error) from error
    reasons = ", ".join(f"{count} {reason}" for reason, count in left.reasons.most_common())
    note = f"{written} lines of {format.value}" + (f" in {out}" if out is not None else "")
    stderr_console().print(note + (f"; left out: {reasons}" if reasons else ""), markup=False, soft_wrap=True)
    print_left_out(unreadable)
    raise typer.Exit(0 if written else 1)


def _write(rows: Iterable[dict[str, Any]], file: TextIO | None) -> int:
    """Write rows, to stdout without a file; gives how many."""
    written = 0
    for row in rows:
        print(json.dumps(row), file=file)
        written += 1
    return written
