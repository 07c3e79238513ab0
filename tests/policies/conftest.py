"""Policies for the tests of chat services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.problems import Problem
from tests.policies.chatting import MakePolicy
from tests.policies.stub_server import ChatServer


@pytest.fixture(scope="session")
def problem(arbiter: Problem) -> Problem:
    return arbiter


@pytest.fixture
async def policies() -> AsyncIterator[MakePolicy]:
    """Makes policies for a server."""
    made: list[ChatPolicy] = []

    def make(server: ChatServer, model: str = "org/some-model", **options: Any) -> ChatPolicy:
        made.append(ChatPolicy(model, ModelOptions(**{"base_url": server.url, **options})))
        return made[-1]

    yield make
    for policy in made:
        await policy.close()
