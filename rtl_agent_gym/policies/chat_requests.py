"""How a request to a chat service is written, and what is learnt from refusals of its parameters."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

from ..renderers.protocol import TOOL
from .model_options import ModelOptions

THINKING = "reasoning_content"
"""The name of a turn's thinking in the history."""

_OPTIONAL = ("seed", "top_p", "stream_options", THINKING)  # what a request, or a message in it, can do without
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"

_log = logging.getLogger(__name__)


class RequestWriter:
    """Writes the requests to one service, without the parameters that it has refused.

    Args:
        name: The policy's name, for warnings.
        model: litellm's full name of the model.
        options: Sampling and connection.
    """

    def __init__(self, name: str, model: str, options: ModelOptions) -> None:
        self._name, self._model, self._options = name, model, options
        self._left_out: set[str] = set()  # of `_OPTIONAL`: what the service does not accept
        self._limit = _LIMIT  # what the service calls the limit on the tokens of an answer

    def write(self, messages: Sequence[dict[str, Any]], seed: int | None, max_tokens: int) -> dict[str, Any]:
        """The arguments of litellm's ``acompletion``."""
        options = self._options
        request: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "temperature": options.temperature,
            self._limit: max_tokens,
            "timeout": options.request_timeout,
            "num_retries": 0,
            "max_retries": 0,  # `ChatPolicy.request` retries
        }
        if options.top_p != 1.0:
            request["top_p"] = options.top_p
        if seed is not None:
            request["seed"] = seed
        if options.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        for name in self._left_out:
            request.pop(name, None)
        if THINKING in self._left_out:
            request["messages"] = [{key: message[key] for key in message if key != THINKING} for message in messages]
        if options.tools:
            # litellm would silently leave out tools where it knows of none.
            request |= {"tools": [TOOL], "tool_choice": "auto", "allowed_openai_params": ["tools"]}
            if importlib.util.find_spec("mcp") is None:
                # litellm searches the tools for MCP tools, and fails without the package mcp.
                request["_skip_mcp_handler"] = True
        if options.base_url:
            request["api_base"] = options.base_url
        if options.api_key:
            request["api_key"] = options.api_key
        elif options.base_url and self._model.startswith("openai/"):
            request["api_key"] = os.environ.get("OPENAI_API_KEY") or "none"
        return request

    def adapt(self, request: dict[str, Any], words: str) -> bool:
        """Change how later requests are written, if a refusal names a parameter that they can do without or rename.

        Args:
            request: The request that was refused.
            words: The service's message.

        Returns:
            Whether the request is worth sending again.
        """
        if _LIMIT in request and _NEW_LIMIT in words and "instead" in words:
            if self._limit != _NEW_LIMIT:
                _log.warning("%s: sending %s for %s: %s", self._name, _NEW_LIMIT, _LIMIT, words)
            self._limit = _NEW_LIMIT
            return True
        sent = set(request).union(*request["messages"])
        named = {name for name in _OPTIONAL if name in sent and re.search(rf"\b{name}\b", words)}
        if new := named - self._left_out:
            _log.warning("%s: sending requests without %s: %s", self._name, " and ".join(sorted(new)), words)
        self._left_out |= named
        return bool(named)
