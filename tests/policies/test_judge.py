"""The judge model behind a chat service."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("litellm")

from rtl_agent_gym.errors import RequestRefused
from rtl_agent_gym.policies.judge import ChatJudge
from rtl_agent_gym.scoring.judging import rate


async def test_an_answer_that_the_service_refuses_is_rated_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may dislike what an answer says: else the answer could choose to have no score."""
    judge = ChatJudge("x/y", "http://127.0.0.1:9/v1")

    async def request(messages: list[dict[str, Any]], *_: object) -> Any:
        text = messages[-1]["content"]
        if "<script>" in text:
            raise RequestRefused("403")
        code = text.split("the rating's code ")[1].split(",")[0]
        turn = SimpleNamespace(text=f'{{"code": "{code}", "score": 1, "reasoning": "the same"}}')
        return SimpleNamespace(refused=False, cut_off=False, turn=turn)

    monkeypatch.setattr(judge._policy, "request", request)
    rating = await rate(judge, "What?", "right", "<script>alert(1)</script>")
    assert (rating.score, rating.given) == (0.0, False)
    await judge.close()
