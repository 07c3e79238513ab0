"""The same episode, played by the student itself and through an agent: the same tokens, the same KL of a teacher."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tinker")
pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")
if importlib.util.find_spec("litellm") is None:  # imported too early, it downloads a list of prices
    pytest.skip("the extra `chat` is not installed", allow_module_level=True)

from research.episodes import call
from rtl_agent_gym.demo.founding import PROBLEM_ID
from rtl_agent_gym.engines.local import LocalServiceClient
from rtl_agent_gym.envs.tinker_config import load_renderer
from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.runtime import Runtime
from rtl_agent_gym.evaluation.play import play
from rtl_agent_gym.policies import ModelOptions, heredoc
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.policies.endpoint import ModelEndpoint
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.training.advantages import RunningMeans
from rtl_agent_gym.training.datums import Example, judge, make_examples
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.rollouts import EpisodePlayer, PlayedGroup, Rollout
from rtl_agent_gym.training.teachers import SameTokens

from .test_agents import CONTEXT, Forced, config_of, model


@pytest.mark.docker
async def test_the_teachers_kl_is_that_of_the_episode_that_the_student_plays_itself(
    tmp_path: Path, service: LocalServiceClient, runtime: Runtime
) -> None:
    """The agent is the package's own chat policy: OpenAI's API, the shell as a tool, the episode's prompts."""
    [problem] = load_problems("bundled", ids=[PROBLEM_ID])
    solution = "\n".join(heredoc(path, text) for path, text in (problem.golden or {}).items())
    commands = ["ls rtl; false", solution, "iverilog -g2012 -o /tmp/a rtl/*.sv && echo é"]
    texts = [f"{text}<|im_end|>" for text in (*map(call, commands), "Done.")]
    student, other = model(tmp_path / "student", 1), model(tmp_path / "teacher", 2)
    config = config_of(student, user_prompt=None)
    renderer, options = load_renderer(config), ModelOptions(max_tokens=900, max_context=CONTEXT)

    async def forced() -> TokenSamplerPolicy:
        sampler: Any = Forced(await service.create_sampling_client(base_model=str(student)), list(texts))
        return TokenSamplerPolicy(sampler, name="student", in_run=True, options=options)

    native = await EpisodePlayer(config, renderer, runtime, 0)(problem, await forced())
    async with ModelEndpoint(await forced(), "qwen3") as endpoint:
        line = endpoint.open(seed=0)
        agent = ChatPolicy("openai/policy", ModelOptions(base_url=line.url, api_key="none", attempts=1))
        episode = Episode(
            problem,
            provider=runtime.agents,
            grader=runtime.scorer(config.reward, config.score_cache),
            renderer=renderer,
            config=config.episode,  # with the prompts that the student gets
        )
        through = Rollout.of(episode, await play(episode, agent), line.streams)
        await agent.close()
    assert native.result.passed
    assert through.result.passed
    assert through.numbers["tokens/breaks"] == 0
    [own], [agents] = native.streams, through.streams
    assert list(agents.tokens) == list(own.tokens)
    assert list(agents.mask) == list(own.mask)
    assert sum(own.mask) > 200

    teacher: Any = await service.create_sampling_client(base_model=str(other))
    judged: list[Example] = []
    for rollout in (native, through):
        group = PlayedGroup(problem, [rollout])
        examples = make_examples([group], TrainOptions(kl_penalty_coef=1.0), RunningMeans())
        await judge(examples, {problem.id: SameTokens(teacher)})
        judged += examples
    [first, second] = [example.judgement for example in judged]
    assert first is not None
    assert second is not None
    assert second.covered == first.covered
    assert sum(first.covered) == sum(own.mask)
    assert second.kl == pytest.approx(first.kl, abs=1e-6)
    assert max(map(abs, first.kl)) > 0.01
