"""What the tests of training share: folders of runs, weights, and models without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.run_folder import RunFolder

DEFAULTS: dict[str, Any] = TrainOptions().model_dump(mode="json")
"""The record of a run with default options."""


def begun(path: Path, record: Mapping[str, Any] = DEFAULTS, *, steps: int = 0) -> RunFolder:
    """The folder of a run that was started or resumed, and has ended again; with a checkpoint of so many `steps`."""
    folder = RunFolder(path)
    try:
        folder.open(record, "resume")
    finally:
        folder.close()
    if steps:
        folder.add_checkpoint({"batch": steps, "state_path": "x"}, [{"step": steps - 1, "loss": 0.5}])
    return folder


def weights_of(folder: Path | str) -> dict[str, Any]:
    """The weights of a model's folder, or of a checkpoint of all weights."""
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(Path(folder) / "model.safetensors")
    return found


def differs(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference between two models' weights."""
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def answer(ids: Sequence[int], logprobs: Sequence[float]) -> Any:
    """One sampled sequence, as a service gives it."""
    import numpy as np
    import tinker

    sequence = tinker.SampledSequence(
        stop_reason="stop",
        sequence_id="0",
        tokens_np=np.array(ids),
        logprobs_np=np.array(logprobs, dtype=np.float32),
    )
    return tinker.SampleResponse(sequences=[sequence])


@dataclass
class Certain:
    """A model that gives every token the same probability, and records what it reads."""

    logprob: float = -1.25
    read: list[list[int]] = field(default_factory=list)

    async def compute_logprobs(self, prompt: Any) -> list[float | None]:
        self.read.append(prompt.to_ints())
        return [None, *[self.logprob] * (prompt.length - 1)]


@dataclass
class Published:
    """An engine with such a model for each name."""

    models: dict[str, Certain] = field(default_factory=dict)

    async def published(self, option: str, model: str) -> Certain:
        return self.models.setdefault(model, Certain())
