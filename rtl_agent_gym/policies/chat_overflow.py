"""How services word that a conversation does not fit into the model's context.

Few services give a code for it, and none gives the same one as the next, so the wording decides. `WORDINGS` holds each
with its source; the tests send every example through a real server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """One way to say it."""

    pattern: str
    """A regular expression, without regard to case."""
    example: str
    """The message as a service sends it."""
    source: str
    """The service, and where its message is written or reported."""


WORDINGS = (
    # vLLM
    Wording(
        r"maximum context length",
        "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your "
        "prompt contains at least 769 input tokens, for a total of at least 32769 tokens. Please reduce the length of "
        "the input prompt or the number of requested output tokens. (parameter=input_tokens, value=769)",
        "vLLM 0.20, vllm/renderers/params.py; github.com/vllm-project/vllm/issues/42474",
    ),
    Wording(
        r"maximum context length",
        "This model's maximum context length is 16384 tokens. However, your request has 19427 input tokens. Please "
        "reduce the length of the input messages. (parameter=input_tokens, value=19427)",
        "vLLM 0.15; github.com/vllm-project/vllm/pull/33425 and github.com/agent0ai/agent-zero/issues/1102",
    ),
    Wording(
        r"maximum context length",
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 40960 "
        "tokens and your request has 39000 input tokens (4096 > 40960 - 39000).",
        "vLLM of 2025, vllm/entrypoints/openai/serving_engine.py; github.com/stepfun-ai/Step-Audio-R1/issues/3",
    ),
    Wording(
        r"model'?s context (?:length|window|limit)",
        "You passed 40970 input tokens and requested 4096 output tokens. However, the model's context length is only "
        "40960 tokens, resulting in a maximum input length of 36864 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=40970)",
        "vLLM at commit 017638d, vllm/renderers/params.py, TokenizeParams._token_len_check",
    ),
    Wording(
        r"maximum model length|maximum input length",
        "The decoder prompt (length 40970) is longer than the maximum model length of 40960. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        "vLLM, vllm/v1/engine/input_processor.py",
    ),
    Wording(
        r"maximum model length",
        "The decoder prompt (length 2048) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 2048.",
        "vLLM, vllm/v1/engine/processor.py, as its tests/v1/e2e/test_context_length.py expects it",
    ),
    Wording(
        r"max_(?:completion_)?tokens must be at least 1, got -",
        "max_tokens must be at least 1, got -186.",
        "vLLM of 2024, where nothing is left for an answer; github.com/vllm-project/vllm/issues/4667",
    ),
    # SGLang
    Wording(
        r"model'?s context (?:length|window|limit)",
        "The input (40970 tokens) is longer than the model's context length (40960 tokens).",
        "SGLang 0.5.23, srt/managers/tokenizer_manager.py; Together has the same",
    ),
    Wording(
        r"maximum context length",
        "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total of "
        "45066 tokens: 40970 tokens from the input messages and 4096 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit.",
        "SGLang 0.5.23, srt/managers/tokenizer_manager.py",
    ),
    Wording(
        r"maximum allowed (?:input )?length",
        "Input length (131393 tokens) exceeds the maximum allowed length (131040 tokens). Use a shorter input or "
        "enable --allow-auto-truncate.",
        "SGLang 0.5.23, srt/managers/utils.py",
    ),
    # OpenAI
    Wording(
        r"maximum context length",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (904 in the messages, "
        "4096 in the completion). Please reduce the length of the messages or completion.",
        "OpenAI, 400 with code context_length_exceeded; github.com/langchain-ai/langchain/issues/24058. vLLM had the "
        "same: github.com/vllm-project/vllm/issues/20409",
    ),
    Wording(
        r"exceeds? (?:the |this )?(?:model'?s? )?(?:available )?context (?:length|limit|size|window)",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "OpenAI, 400 with code context_length_exceeded; github.com/maximhq/bifrost/issues/4413",
    ),
    Wording(
        r"input tokens exceed the configured limit|exceeded model token limit",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. Please "
        "reduce the length of the messages.",
        "OpenAI; litellm 1.106, litellm_core_utils/exception_mapping_utils.py. The second form: Moonshot",
    ),
    Wording(
        r"context_length_exceeded|context_window_exceeded|exceed_context_size",
        "context_length_exceeded",
        "the code, where it stands in the message: OpenAI and OpenRouter, litellm, llama.cpp",
    ),
    # Anthropic: its own protocol, its OpenAI-compatible endpoint, and Bedrock
    Wording(
        r"prompt\b.{0,40}\bis too long|input is too long for",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Anthropic, 400 invalid_request_error, in both of its protocols; github.com/OpenHands/OpenHands/issues/4894. "
        "The second form: Bedrock",
    ),
    Wording(
        r"exceeds? (?:the |this )?(?:model'?s? )?(?:available )?context (?:length|limit|size|window)",
        "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length or "
        "`max_tokens` and try again",
        "Anthropic, 400 invalid_request_error; github.com/strands-agents/sdk-python/pull/1078",
    ),
    Wording(
        r"request exceeds the maximum (?:allowed number of bytes|size)|request_too_large",
        "Request exceeds the maximum allowed number of bytes.",
        "Anthropic, 413 request_too_large above 32 MB; docs.claude.com/en/api/errors",
    ),
    # litellm's proxy, which puts its own class before the provider's words
    Wording(
        r"ContextWindowExceededError",
        "litellm.ContextWindowExceededError: litellm.BadRequestError: the provider's words. Received Model Group=m",
        "litellm 1.106, litellm/exceptions.py",
    ),
    # others
    Wording(
        r"exceeds? (?:the |this )?(?:model'?s? )?(?:available )?context (?:length|limit|size|window)",
        "the request exceeds the available context size, try increasing it",
        "llama.cpp; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    Wording(
        r"context size has been exceeded",
        "Context size has been exceeded.",
        "llama.cpp, tools/server/server.cpp, in update_slots, with status 500 and type server_error",
    ),
    Wording(
        r"input token count.{0,60}exceeds|maximum number of tokens allowed",
        "The input token count (1048580) exceeds the maximum number of tokens allowed (1048576).",
        "Gemini; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    Wording(
        r"reduce the length of the (?:messages|input)",
        "Please reduce the length of the messages or completion.",
        "Groq; not checked at the source, as the following ones",
    ),
    Wording(
        r"prompt token count of \d+ exceeds|maximum prompt length is",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "xAI; the first form: GitHub Copilot",
    ),
    Wording(
        r"`inputs` tokens \+ `max_new_tokens` must be",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and "
        "512 `max_new_tokens`",
        "Text Generation Inference; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    Wording(
        r"should not exceed max_(?:num_tokens|seq_len)",
        "The sum of prompt length (40970) and max_new_tokens (4096) should not exceed max_num_tokens (40960)",
        "TensorRT-LLM",
    ),
    Wording(
        r"range of input length should be|prompt exceeds max length",
        "Range of input length should be [1, 129024]",
        "DashScope; the second form: Z.ai",
    ),
    Wording(
        r"current length is.{0,40}while limit is",
        "Please reduce the length of the messages or completion. Current length is 8193 while limit is 8192",
        "Cerebras; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    Wording(
        r"prompt tokens \(\d+\) exceed model maximum",
        "prompt tokens (210000) exceed model maximum (200000)",
        "Bedrock Mantle; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
)
"""Every known wording. A pattern stands once for each service that uses it, so that none is lost with another one's."""

_OVERFLOW = re.compile("|".join(dict.fromkeys(wording.pattern for wording in WORDINGS)), re.IGNORECASE)


def says_overflow(words: str) -> bool:
    """Whether a service's message says that the conversation does not fit."""
    return _OVERFLOW.search(words) is not None
