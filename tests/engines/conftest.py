"""A model of a few thousand random weights, in the architecture of Qwen3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def make_model(folder: Path, seed: int = 0, **options: object) -> Path:
    """Save a random model and a tokenizer of bytes."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    library: Any = transformers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: id_ for id_, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    settings: dict[str, object] = {
        "vocab_size": len(fast),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": fast.eos_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library.Qwen3ForCausalLM(library.Qwen3Config(**(settings | options)))
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model."""
    return make_model(tmp_path_factory.mktemp("model"))
