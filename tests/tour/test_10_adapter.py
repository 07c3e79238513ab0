"""An adapter: a framework with tool calls of its own drives an episode through `ToolSession`."""

from __future__ import annotations

import pytest

from rtl_agent_gym import load_problems
from rtl_agent_gym.integrations.session import ToolSession
from rtl_agent_gym.policies import heredoc


@pytest.mark.docker
async def test_an_adapter() -> None:
    [problem] = load_problems("bundled", ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"])
    session = ToolSession(problem)
    try:
        opening = await session.start()
        assert [message["role"] for message in opening.messages] == ["system", "user"]
        assert opening.tools[0]["function"]["name"] == "execute_bash"  # to be declared to the model

        assert (await session.run("ls rtl; false")).endswith("[exit code 1]")  # what the model reads
        for path, text in (problem.golden or {}).items():
            await session.run(heredoc(path, text))
        result = await session.finish()
        assert (result.score.passed, result.stop_reason, result.numbers["tests_passed"]) == (True, "completed", 1.0)
    finally:
        await session.close()  # ends the container, also after an error
