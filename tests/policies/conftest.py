"""Policies for the tests of chat services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rtl_agent_gym.policies import ModelOptions, chat
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.retries import CHAT
from tests.policies.chatting import MakePolicy
from tests.policies.stub_server import ChatServer


@pytest.fixture(scope="session")
def problem(arbiter: Problem) -> Problem:
    return arbiter


@pytest.fixture
async def policies(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakePolicy]:
    """Makes policies for a server, which pause before another try only as long as the server asks for."""
    monkeypatch.setattr(chat, "CHAT", CHAT._replace(first=0.0))
    made: list[ChatPolicy] = []

    def make(server: ChatServer, model: str = "org/some-model", **options: Any) -> ChatPolicy:
        made.append(ChatPolicy(model, ModelOptions(**{"base_url": server.url, **options})))
        return made[-1]

    yield make
    for policy in made:
        await policy.close()
