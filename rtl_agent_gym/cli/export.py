"""``rtl-agent-gym export`` and ``export-model``: episodes as training data, and a run's weights for other programs."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from ..errors import UsageError, importing, writing
from ..evaluation.export import ExportConfig, export_rows
from ..evaluation.recorded import each_readable, require_readable, transcript_files
from ..visible import plural
from .options import options_as, parameters_of
from .problems import export_command as problems_export
from .show import print_left_out, print_line, refuse_source, stderr_console


@options_as("config", ExportConfig, parameters_of(ExportConfig))
def export_command(
    sources: Annotated[list[Path], typer.Argument(metavar="FILE|RUN…", help="Transcripts, their folders, or runs.")],
    config: ExportConfig,
    format: Annotated[
        Literal["sft", "tokens", "dpo"],
        typer.Option(
            help="sft: chats; tokens: sampled ids with logprobs; dpo: pairs of a passed and a failed episode."
        ),
    ] = "sft",
    out: Annotated[Path | None, typer.Option(help="File to write; by default stdout.")] = None,
) -> None:
    """Write episodes as JSON Lines for training. When no episode meets the conditions, writes no file and exits 1.

    `export harbor SOURCE --out FOLDER` is an alias of `problems export SOURCE --out FOLDER`.
    """
    if sources[0] == Path("harbor") and not sources[0].exists():
        if out is None or len(sources) != 2:
            raise UsageError("expected: rtl-agent-gym export harbor SOURCE --out FOLDER")
        problems_export(source=str(sources[1]), out=out)
    left_out, unreadable = Counter[str](), list[str]()
    named = [path for source in sources for path in transcript_files(source, evaluations=False)]
    files = list({os.path.realpath(path): path for path in named}.values())  # `Path.resolve` fails at a loop of links
    require_readable(files)
    rows = export_rows(format, each_readable(files, unreadable), config, left_out)
    if out is None:
        written = _write(rows, None)
    else:
        refuse_source(out, files)
        with writing("--out", out):
            out.parent.mkdir(parents=True, exist_ok=True)
            written = _replace_file(rows, out)
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    note = f"{plural(written, 'line')} of {format}" + (f" in {out}" if out is not None and written else "")
    print_line(stderr_console(), note + (f"; left out: {reasons}" if reasons else ""))
    print_left_out(unreadable)
    raise typer.Exit(0 if written else 1)


def _replace_file(rows: Iterable[dict[str, Any]], out: Path) -> int:
    """Replace a file with rows; if that fails or there are none, it stays unchanged. Returns the number of rows."""
    if out.exists() and not out.is_file():  # such as a pipe
        with out.open("w", encoding="utf-8") as file:
            return _write(rows, file)
    out = Path(os.path.realpath(out))  # a link such as /dev/stdout is not replaced
    new = out.with_name(f".{out.name}.{secrets.token_hex(4)}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            written = _write(rows, file)
        if written:
            new.replace(out)
    finally:
        new.unlink(missing_ok=True)
    return written


def _write(rows: Iterable[dict[str, Any]], file: TextIO | None) -> int:
    """Write rows to a file, or to stdout if it is None. Returns the number of rows."""
    written = 0
    for row in rows:
        print(json.dumps(row), file=file)
        written += 1
    print(end="", file=file, flush=True)  # a full disk must raise before success is reported
    return written


def export_model_command(
    source: Annotated[
        str, typer.Argument(metavar="RUN|CHECKPOINT", help="A run on the local engine, or a checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; must be new or empty.")],
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Merge LoRA adapters into the base model's weights, giving a complete model."),
    ] = False,
) -> None:
    """Export trained weights for transformers, peft or vLLM. For a run, the last kept checkpoint is used.

    Full fine-tuning, or LoRA with --merge, gives a transformers model; LoRA without --merge gives a peft adapter.
    """
    path = _checkpoint(source)
    with importing("packages are missing; pip install 'rtl-agent-gym[train,local]'", why=True):
        from ..engines.export import export_checkpoint
    what = export_checkpoint(path, out, merge=merge)
    print_line(stderr_console(), f"{what} of {path} in {out}")


def _checkpoint(source: str) -> str:
    """The path of the weights to export. Raises `UsageError` if there are none on this machine."""
    from ..training.run_folder import CHECKPOINTS, RunFolder

    if (Path(source) / CHECKPOINTS).is_file():
        records = RunFolder(source).checkpoints()
        # Weights of rolling checkpoints are deleted as the run continues.
        kept = [record for record in records if record.get("sampler_path") and not record.get("rolling")] or records
        if not kept:
            raise UsageError(f"{source}: the run has no checkpoint yet")
        source = str(kept[-1]["state_path"])
        if not source.startswith("tinker://"):
            source = str(kept[-1].get("sampler_path") or source)
    if source.startswith("tinker://"):
        # Weights that were saved for sampling cannot be downloaded from the service.
        what = "the state_path of the same line of checkpoints.jsonl" if "/sampler_weights/" in source else "it"
        raise UsageError(
            f"{source} is on Tinker's service; download {what} with tinker_cookbook.weights.download "
            "(docs/howto/tinker.md)"
        )
    if not Path(source).is_dir():
        raise UsageError(f"{source}: no such folder; give a run or a checkpoint of one")
    return source
