"""Exported weights give the engine's log-probabilities in transformers and peft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import tinker
import torch
import transformers

from rtl_agent_gym.cli.export import export_model_command
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.export import export_checkpoint
from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient
from rtl_agent_gym.engines.training import is_disk_full
from rtl_agent_gym.errors import SandboxError, UsageError

from .conftest import datum, make_model

pytestmark = pytest.mark.filterwarnings("ignore:.*tie")  # peft's, on adapters of a tied output layer, as intended

IDS = [(7 * place) % 250 for place in range(40)]


def trained(folder: Path, model: Path, rank: int) -> tuple[str, list[float]]:
    """The checkpoint of a trained model, and its log-probabilities of `IDS`."""
    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=folder)) as service:
        trainer = service.create_lora_training_client(str(model), rank).result()
        for _ in range(3):
            trainer.forward_backward([datum(IDS)], "cross_entropy").result()
            trainer.optim_step(tinker.AdamParams(learning_rate=0.02)).result()
        path = trainer.save_state("last").result().path
        sampler = service.create_sampling_client(model_path=path).result()
        found = scored(sampler)
        old = scored(service.create_sampling_client(base_model=str(model)).result())
    assert max(abs(a - b) for a, b in zip(found, old, strict=True)) > 0.5  # it has learned something
    return path, found


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> tuple[str, list[float]]:
    """A trained adapter and its log-probabilities."""
    return trained(tmp_path_factory.mktemp("adapter"), model_path, rank=4)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> tuple[str, list[float]]:
    """A model of which all weights were trained."""
    return trained(tmp_path_factory.mktemp("full"), model_path, rank=0)


def scored(sampler: LocalSamplingClient) -> list[float]:
    _, *rest = sampler.compute_logprobs(tinker.ModelInput.from_ints(IDS)).result()
    found = [value for value in rest if value is not None]
    assert len(found) == len(rest)
    return found


def logprobs(model: Any) -> list[float]:
    ids = torch.tensor([IDS])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits.float().log_softmax(-1)
    return logits[0, :-1].gather(-1, ids[0, 1:, None])[:, 0].tolist()


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_an_adapter_in_peft(tmp_path: Path, model_path: Path, adapter: tuple[str, list[float]]) -> None:
    from peft import PeftConfig, PeftModel

    path, expected = adapter
    assert export_checkpoint(path, tmp_path / "out") == "adapter"
    config = PeftConfig.from_pretrained(str(tmp_path / "out"))
    assert config.base_model_name_or_path == str(model_path)
    base = load(Path(config.base_model_name_or_path))
    assert logprobs(base) != pytest.approx(expected, abs=0.1)
    assert logprobs(PeftModel.from_pretrained(base, tmp_path / "out")) == pytest.approx(expected, abs=1e-4)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").encode("ab")
    fields = json.loads((tmp_path / "out" / "adapter_config.json").read_text())  # those that vLLM requires
    assert (fields["r"], fields["lora_alpha"], fields["bias"]) == (4, 32, "none")
    assert not any(fields[name] for name in ("modules_to_save", "use_dora", "use_rslora"))
    layers = ["down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert fields["target_modules"] == layers
    assert isinstance(fields["lora_alpha"], int)


@pytest.mark.parametrize(("tied", "settings"), [(True, {}), (False, {}), (True, {"temperature": 0.6})])
def test_a_merged_model_in_transformers(tmp_path: Path, tied: bool, settings: dict[str, float]) -> None:
    """Also of a base model with settings that transformers reads and does not write: without ``do_sample``."""
    model = make_model(tmp_path / "base", tie_word_embeddings=tied)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 7], **settings}))
    path, expected = trained(tmp_path, model, rank=4)
    assert export_checkpoint(path, tmp_path / "out", merge=True) == "model"
    merged = load(tmp_path / "out")
    assert logprobs(merged) == pytest.approx(expected, abs=1e-4)
    assert merged.generation_config.eos_token_id == [256, 7]
    embedding = merged.get_input_embeddings().weight
    assert torch.equal(embedding, load(model).get_input_embeddings().weight)  # only the output layer has an adapter
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").encode("ab")


def test_a_merged_model_has_the_type_of_its_base(tmp_path: Path) -> None:
    model = make_model(tmp_path / "base", dtype="bfloat16")
    transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(model)
    path, expected = trained(tmp_path, model, rank=4)
    export_checkpoint(path, tmp_path / "out", merge=True)
    merged: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert merged.dtype == torch.bfloat16
    assert logprobs(merged.float()) == pytest.approx(expected, abs=0.3)


def test_all_weights(tmp_path: Path, full: tuple[str, list[float]]) -> None:
    path, expected = full
    assert export_checkpoint(path, tmp_path / "out") == "model"
    assert logprobs(load(tmp_path / "out")) == pytest.approx(expected, abs=1e-4)
    assert {"engine.json", "optimizer.pt"}.isdisjoint(file.name for file in (tmp_path / "out").iterdir())


def test_an_adapter_without_its_base_model_says_so(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    path, _ = trained(tmp_path, base, rank=4)
    shutil.rmtree(base)
    for merge in (False, True):
        with pytest.raises(UsageError, match=f"the model that was trained, {base}, is needed and cannot be loaded"):
            export_checkpoint(path, tmp_path / "out", merge=merge)


def test_what_cannot_be_exported(tmp_path: Path, model_path: Path, full: tuple[str, list[float]]) -> None:
    with pytest.raises(UsageError, match="not a checkpoint of the local engine"):
        export_checkpoint(str(model_path), tmp_path / "out")
    with pytest.raises(UsageError, match="nope: no such folder; give a run or a checkpoint of one"):
        export_model_command(str(tmp_path / "nope"), tmp_path / "out")
    state, sampler = "tinker://a/weights/final", "tinker://a/sampler_weights/final"
    (tmp_path / "run").mkdir()
    line = {"batch": 1, "state_path": state, "sampler_path": sampler}
    (tmp_path / "run" / "checkpoints.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UsageError, match=f"^{state} is on Tinker's service; download it with"):
        export_model_command(str(tmp_path / "run"), tmp_path / "out")
    with pytest.raises(UsageError, match=f"^{sampler} is on .* download the state_path of the same line"):
        export_model_command(sampler, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UsageError, match="exists and is not an empty folder"):
        export_checkpoint(full[0], tmp_path / "full")


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(
    ("message", "raised", "says"),
    [
        ("No space left on device (os error 28)", SandboxError, "^--out: .*/out cannot be written: the disk is full"),
        ("another", ValueError, "^another$"),
    ],
)
def test_a_full_disk_is_no_traceback(
    tmp_path: Path, adapter: tuple[str, list[float]], merge: bool, message: str, raised: type[Exception], says: str
) -> None:
    """What writes the tokenizer and the weights raises exceptions of its own."""
    library: Any = transformers
    written = library.PreTrainedModel if merge else library.PreTrainedTokenizerBase
    fails = patch.object(written, "save_pretrained", side_effect=ValueError(message))
    with fails, pytest.raises(raised, match=says):
        export_checkpoint(adapter[0], tmp_path / "out", merge=merge)


@pytest.mark.parametrize("text", ["[enforce fail at inline_container.cc:664]", "basic_ios::clear: iostream error"])
def test_torch_does_not_say_that_a_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for free, full in ((4096, True), (1 << 30, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert is_disk_full(RuntimeError(text), tmp_path / "weights" / "000001") == full
