"""Messages of services: that a conversation does not fit into the context, that a content filter withheld an answer."""

from __future__ import annotations

from typing import Any

OVERFLOW_MESSAGES = (
    # vLLM
    (
        "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your "
        "prompt contains at least 769 input tokens, for a total of at least 32769 tokens. Please reduce the length of "
        "the input prompt or the number of requested output tokens. (parameter=input_tokens, value=769)",
        "vLLM 0.20, vllm/renderers/params.py; github.com/vllm-project/vllm/issues/42474",
    ),
    (
        "This model's maximum context length is 16384 tokens. However, your request has 19427 input tokens. Please "
        "reduce the length of the input messages. (parameter=input_tokens, value=19427)",
        "vLLM 0.15; github.com/vllm-project/vllm/pull/33425 and github.com/agent0ai/agent-zero/issues/1102",
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 40960 "
        "tokens and your request has 39000 input tokens (4096 > 40960 - 39000).",
        "vLLM of 2025, vllm/entrypoints/openai/serving_engine.py; github.com/stepfun-ai/Step-Audio-R1/issues/3",
    ),
    (
        "You passed 40970 input tokens and requested 4096 output tokens. However, the model's context length is only "
        "40960 tokens, resulting in a maximum input length of 36864 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=40970)",
        "vLLM at commit 017638d, vllm/renderers/params.py, TokenizeParams._token_len_check",
    ),
    (
        "The decoder prompt (length 40970) is longer than the maximum model length of 40960. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        "vLLM, vllm/v1/engine/input_processor.py",
    ),
    (
        "The decoder prompt (length 2048) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 2048.",
        "vLLM, vllm/v1/engine/processor.py, as its tests/v1/e2e/test_context_length.py expects it",
    ),
    (
        "max_tokens must be at least 1, got -186.",
        "vLLM of 2024, where nothing is left for an answer; github.com/vllm-project/vllm/issues/4667",
    ),
    # SGLang
    (
        "The input (40970 tokens) is longer than the model's context length (40960 tokens).",
        "SGLang 0.5.23, srt/managers/tokenizer_manager.py; Together has the same",
    ),
    (
        "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total of "
        "45066 tokens: 40970 tokens from the input messages and 4096 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit.",
        "SGLang 0.5.23, srt/managers/tokenizer_manager.py",
    ),
    (
        "Input length (131393 tokens) exceeds the maximum allowed length (131040 tokens). Use a shorter input or "
        "enable --allow-auto-truncate.",
        "SGLang 0.5.23, srt/managers/utils.py",
    ),
    # OpenAI
    (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (904 in the messages, "
        "4096 in the completion). Please reduce the length of the messages or completion.",
        "OpenAI, 400 with code context_length_exceeded; github.com/langchain-ai/langchain/issues/24058. vLLM had the "
        "same: github.com/vllm-project/vllm/issues/20409",
    ),
    (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "OpenAI, 400 with code context_length_exceeded; github.com/maximhq/bifrost/issues/4413",
    ),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. Please "
        "reduce the length of the messages.",
        "OpenAI; litellm 1.106, litellm_core_utils/exception_mapping_utils.py. The second form: Moonshot",
    ),
    (
        "context_length_exceeded",
        "the code, where it stands in the message: OpenAI and OpenRouter, litellm, llama.cpp",
    ),
    # Anthropic: its own protocol, its OpenAI-compatible endpoint, and Bedrock
    (
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Anthropic, 400 invalid_request_error, in both of its protocols; github.com/OpenHands/OpenHands/issues/4894. "
        "The second form: Bedrock",
    ),
    (
        "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length or "
        "`max_tokens` and try again",
        "Anthropic, 400 invalid_request_error; github.com/strands-agents/sdk-python/pull/1078",
    ),
    (
        "Request exceeds the maximum allowed number of bytes.",
        "Anthropic, 413 request_too_large above 32 MB; docs.claude.com/en/api/errors",
    ),
    # litellm's proxy, which puts its own class before the provider's words
    (
        "litellm.ContextWindowExceededError: litellm.BadRequestError: the provider's words. Received Model Group=m",
        "litellm 1.106, litellm/exceptions.py",
    ),
    # others
    (
        "the request exceeds the available context size, try increasing it",
        "llama.cpp; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    (
        "Context size has been exceeded.",
        "llama.cpp, tools/server/server.cpp, in update_slots, with status 500 and type server_error",
    ),
    (
        "The input token count (1048580) exceeds the maximum number of tokens allowed (1048576).",
        "Gemini; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    (
        "Please reduce the length of the messages or completion.",
        "Groq; not checked at the source, as the following ones",
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "xAI; the first form: GitHub Copilot",
    ),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and "
        "512 `max_new_tokens`",
        "Text Generation Inference; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    (
        "The sum of prompt length (40970) and max_new_tokens (4096) should not exceed max_num_tokens (40960)",
        "TensorRT-LLM",
    ),
    (
        "Range of input length should be [1, 129024]",
        "DashScope; the second form: Z.ai",
    ),
    (
        "Please reduce the length of the messages or completion. Current length is 8193 while limit is 8192",
        "Cerebras; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    (
        "prompt tokens (210000) exceed model maximum (200000)",
        "Bedrock Mantle; litellm 1.106, litellm_core_utils/exception_mapping_utils.py",
    ),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the "
        "model with a larger context length, or provide a shorter input",
        "LM Studio 0.4.20; github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2205",
    ),
    (
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context "
        "length of only 32768 tokens, which is not enough.",
        "LM Studio 0.3.13; github.com/lmstudio-ai/lmstudio-bug-tracker/issues/546",
    ),
    (
        "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)",
        "LM Studio 0.4.6; github.com/anomalyco/opencode/issues/11141",
    ),
    (
        "invalid params, context window exceeds limit (2013)",
        "MiniMax; github.com/MiniMax-AI/MiniMax-M2/issues/119",
    ),
    (
        "prompt too long; exceeded max context length by 100918 tokens",
        "Ollama; not checked at the source",
    ),
)
"""Each message as a service sends it, and the service with the place where the message is written or reported."""
OVERFLOW = OVERFLOW_MESSAGES[0][0]
"""One of them."""

FILTERS: list[tuple[int, dict[str, Any]]] = [
    (
        400,
        {
            "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management "
            "policy. Please modify your prompt and retry.",
            "type": None, "param": "prompt", "code": "content_filter", "status": 400,
            "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
        },
    ),
    (400, {"message": "Bad request", "innererror": {"code": "ResponsibleAIPolicyViolation"}}),
    (400, {"message": "Your request was rejected.", "code": "content_policy_violation"}),
    (
        400,
        {
            "message": "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            "code": "invalid_prompt",
        },
    ),
    (400, {"message": "Output blocked by content filtering policy", "type": "invalid_request_error"}),
    (403, {"message": "Your chosen model requires moderation and your input was flagged", "code": 403}),
]  # fmt: skip
"""Status and error of content filters, as services send them."""
