"""``rtl-agent-gym export-model``: the weights of a run in the format of transformers or peft."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..training.run_folder import CHECKPOINTS, RunFolder
from .show import stderr_console


def export_model_command(
    source: Annotated[
        str, typer.Argument(metavar="RUN|CHECKPOINT", help="A run on the local engine, or a checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist, or be empty.")],
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Add LoRA adapters to the base model's weights, which gives a complete model."),
    ] = False,
) -> None:
    """Export trained weights for transformers, peft or vLLM. Of a run, its last kept checkpoint.

    All weights, or LoRA with --merge, give a model of transformers; LoRA without it gives an adapter of peft.
    """
    path = _checkpoint(source)
    try:
        from ..engines.export import export_checkpoint
    except ImportError as error:
        raise UsageError(f"packages are missing; pip install 'rtl-agent-gym[train,local]' ({error})") from error
    what = export_checkpoint(path, out, merge=merge)
    stderr_console().print(f"{what} of {path} in {out}", markup=False, soft_wrap=True)


def _checkpoint(source: str) -> str:
    """The path of the weights to export. Raises `UsageError` if there are none on this machine."""
    if (Path(source) / CHECKPOINTS).is_file():
        records = RunFolder(source).checkpoints()
        kept = [record for record in records if record.get("sampler_path")] or records
        if not kept:
            raise UsageError(f"{source}: the run has no checkpoint yet")
        source = str(kept[-1].get("sampler_path") or kept[-1]["state_path"])
    if source.startswith("tinker://"):
        raise UsageError(
            f"{source} is on Tinker's service; download it with tinker_cookbook.weights.download (docs/howto/tinker.md)"
        )
    return source
