"""The judge model behind a chat service."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("litellm")

from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.evaluation.evaluate import require_judge
from rtl_agent_gym.policies.judge import ChatJudge
from rtl_agent_gym.scoring.judging import rate
from tests.policies.stub_server import ChatServer

REFUSALS = [
    {"status": 400, "error": {"message": "this text offends"}},
    {"status": 403, "body": "<html>Forbidden</html>"},
    {"status": 413, "body": "<html>Request Entity Too Large</html>"},
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: str(refusal["status"]))
async def test_an_answer_that_the_service_refuses_is_rated_0(refusal: dict[str, Any]) -> None:
    """A firewall may dislike what an answer says: else the answer could choose to have no score, or end the run."""

    def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        text = messages[-1]["content"]
        if "alert(1)" in text:
            return refusal
        code = re.findall(r'"code": "(\w+)"', text)[-1]
        return {"content": f'{{"code": "{code}", "score": 1, "reasoning": "the same"}}'}

    with ChatServer(reply) as server:
        judge = ChatJudge(f"chat:x/y@{server.url}")
        for _ in range(2):  # as the first request of all, and after others
            rating = await rate(judge, "What?", "right", "<script>alert(1)</script>")
            assert (rating.score, rating.given) == (0.0, False)
        await judge.close()


async def test_a_service_that_refuses_a_plain_question_is_wrong_usage() -> None:
    problem: Any = SimpleNamespace(asks_text=True, category=9)
    with ChatServer([{"status": 400, "error": {"message": "an unknown field"}}]) as server:
        config = EvaluationConfig(episode=EpisodeConfig(judge=f"chat:x/y@{server.url}"))
        with pytest.raises(UsageError, match="the judge chat:x/y refused the request: an unknown field"):
            await require_judge(config, [problem])
