"""The local engine behind a proxy in which chosen requests fail with the SDK's exceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import tinker
from tinker.types import RequestErrorCategory

Fault = Callable[[], Exception]


def status_error(kind: type[tinker.APIStatusError], status: int) -> Fault:
    """What the SDK raises for an HTTP status."""
    response = httpx.Response(status, request=httpx.Request("POST", "http://service/api"))
    return lambda: kind(f"Error code: {status}", response=response, body=None)


def no_connection() -> Exception:
    """What the SDK raises when it cannot connect."""
    return tinker.APIConnectionError(request=httpx.Request("POST", "http://service/api"))


def failed(category: RequestErrorCategory) -> Fault:
    """What the SDK's futures raise for a failed request."""
    return lambda: tinker.RequestFailedError("Request failed: boom", request_id="1", category=category)


class Faulty:
    """A proxy of a client, and of the clients that it creates.

    Args:
        below: The client.
        faults: By method: what a call raises, by its number over all clients, counted from 0, or for ``"always"``. The
            call is executed nevertheless.
        calls: How often each method has been called.
        lost: Methods whose faulty calls are not executed.
    """

    def __init__(
        self,
        below: Any,
        faults: Mapping[str, Mapping[int | str, Fault]],
        calls: Counter[str] | None = None,
        lost: tuple[str, ...] = (),
    ) -> None:
        self._below, self._faults, self._lost = below, faults, lost
        self.calls: Counter[str] = calls if calls is not None else Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._below, name)
        if not callable(found) or name in ("close", "get_tokenizer", "get_info"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            number = self.calls[name]
            self.calls[name] += 1
            faults = self._faults.get(name, {})
            fault = faults.get(number, faults.get("always"))
            if fault is not None and name in self._lost:
                return _Pending(None, fault, self)
            return _Pending(found(*arguments, **named), fault, self)

        return call

    def in_front_of(self, result: Any) -> Any:
        """A proxy of a created client, with the same faults."""
        if type(result).__name__ in ("LocalTrainingClient", "LocalSamplingClient"):
            return Faulty(result, self._faults, self.calls, self._lost)
        return result


class _Pending:
    def __init__(self, below: Any, fault: Fault | None, service: Faulty) -> None:
        self._below, self._fault, self._service = below, fault, service

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        result = await self._below if self._below is not None else None
        if self._fault is not None:
            raise self._fault()
        return self._service.in_front_of(result)
