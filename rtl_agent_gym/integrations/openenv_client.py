"""The client for ``rtl-agent-gym serve``, which raises the errors of the server again."""

from __future__ import annotations

import re
from typing import Any

from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State as Connection

from ..errors import RTLGymError, SandboxError, UsageError

MESSAGE_TIMEOUT = 3600.0
"""Seconds that the client waits for an answer: the last turn's includes the grading, and its wait for a processor."""
KINDS: dict[str, type[RTLGymError]] = {"SandboxError": SandboxError, "UsageError": UsageError}
"""The errors whose names the server writes in front of their texts."""


def _read_error(text: str) -> RTLGymError | None:
    """The exception for what OpenEnv's client makes of an error; None for an unexpected one of the server."""
    found = re.fullmatch(r"Server error: (.*) \(code: (\w+)\)", text, re.DOTALL)
    message, code = found.groups() if found else (text, "")
    kind, _, rest = message.partition(": ")
    if code == "EXECUTION_ERROR":
        return KINDS[kind](rest) if kind in KINDS else None
    if code == "CAPACITY_REACHED":
        return SandboxError(f"the server has no free session: {message}")
    return UsageError(message) if code in ("VALIDATION_ERROR", "INVALID_JSON", "UNKNOWN_TYPE") else None


class RTLClient(GenericEnvClient):
    """OpenEnv's client for ``rtl-agent-gym serve``. A machine fault, there or on the way, raises `SandboxError`.

    Args:
        base_url: The server's address, such as ``http://HOST:8000``.
        token: What the server asks for; None if it asks for nothing.
        message_timeout_s: Seconds to wait for an answer.
        **options: Those of OpenEnv's client.

    Example:
        async with RTLClient("http://localhost:8000") as env:
            opening = (await env.reset(problem_id=ID)).observation  # messages, tools
            output = (await env.step({"command": "cat docs/*.md"})).observation["replies"]
            result = await env.step({"answer": "Done."})
            print(result.reward, result.metadata["numbers"])
    """

    def __init__(
        self, base_url: str, *, token: str | None = None, message_timeout_s: float = MESSAGE_TIMEOUT, **options: Any
    ) -> None:
        headers = dict(options.pop("headers", None) or {})
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        super().__init__(base_url, message_timeout_s=message_timeout_s, headers=headers, **options)

    async def _connect_async(self) -> Any:
        try:
            return await super()._connect_async()
        except (OSError, TimeoutError) as error:  # ConnectionError is an OSError
            cause = error.__cause__
            if isinstance(cause, InvalidStatus) and cause.response.status_code in (401, 403):
                reason = "token is missing or wrong, or the server has none and this address does not name its machine"
                raise UsageError(f"{self.base_url} refuses the connection: {reason}") from error
            raise SandboxError(f"{self.base_url} cannot be reached: {error}") from error

    async def _step_async(self, action: Any, **options: Any) -> Any:
        if self._ws is None or self._ws.state is not Connection.OPEN:  # OpenEnv would connect to a new episode
            raise SandboxError("there is no connection, or it was lost and the episode with it: call reset()")
        return await super()._step_async(action, **options)

    async def _send_and_receive(self, message: dict[str, Any]) -> Any:
        try:
            return await super()._send_and_receive(message)
        except RTLGymError:
            raise
        except RuntimeError as error:
            known = _read_error(str(error))
            if known is None:
                raise
            raise known from error
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == 1009:
                raise UsageError("the message is longer than the server reads") from error
            raise SandboxError(f"the connection was lost, and the episode with it: {error}") from error
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"the server does not answer: {str(error) or 'time-out'}") from error
