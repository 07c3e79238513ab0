"""Attention for sampling: a step of many sequences without copies of the shared keys and values.

With grouped queries, several heads read the same keys and values. transformers copies these once per head if there is a
mask, which is most of the work of a step: one token each for many sequences. Here the heads of a group become the
queries of one head instead, which is the same sum.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "rtl_agent_gym"
"""The name of this implementation, for ``attn_implementation``."""


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Like transformers' ``sdpa``.

    Args:
        module: The attention layer.
        query: sequences × heads × tokens × size.
        key: sequences × groups × length × size.
        value: Like `key`.
        attention_mask: Added to the scores; sequences × 1 × tokens × length.
        options: Further ones of transformers.

    Returns:
        sequences × tokens × heads × size.
    """
    rows, heads, tokens, size = query.shape
    groups = key.shape[1]
    if tokens > 1 or groups == heads or attention_mask is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
    together = query.reshape(rows, groups, heads // groups, size)
    mask = attention_mask.expand(rows, 1, heads // groups, -1)
    found = functional.scaled_dot_product_attention(together, key, value, attn_mask=mask, scale=options.get("scaling"))
    return found.reshape(rows, 1, heads, size), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
