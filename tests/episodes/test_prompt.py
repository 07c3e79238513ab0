"""The prompt of an episode: its words, its budget, and who reads it."""

from __future__ import annotations

from typing import Literal

import pytest

from rtl_agent_gym.episodes.prompt import PromptTooLong, episode_renderer, open_prompt
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.prompts.shortening import MARKER
from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problems("bundled")[0]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return get_renderer("qwen3", qwen3_tokenizer())


@pytest.mark.parametrize("workspace", ["shell", "answer"])
def test_the_callers_own_words_are_used_and_shortened_too(
    workspace: Literal["shell", "answer"], problem: Problem, renderer: Renderer
) -> None:
    own = EpisodeConfig(
        workspace=workspace, system_prompt="Be brief.", user_prompt="Design it.\n\n" + "And so on.\n\n" * 300
    )

    def tokens(system: str, user: str) -> int:
        return len(episode_renderer(own, renderer).initial_ids(system, user))

    whole = open_prompt(problem, own, renderer)
    assert (whole.system, whole.user, whole.cut) == (own.system_prompt, own.user_prompt, ())
    short = open_prompt(problem, own.with_options(max_prompt_tokens=500), renderer)
    assert tokens(short.system, short.user) <= 500 < tokens(whole.system, whole.user)
    assert short.system == "Be brief."
    assert short.user.startswith("Design it.")
    assert MARKER in short.user
    assert short.cut
    assert problem.prompt[:40] not in short.user


def test_what_cannot_fit_is_an_error_that_says_so(problem: Problem, renderer: Renderer) -> None:
    with pytest.raises(PromptTooLong, match=f"{problem.id} does not fit into 100 tokens"):
        open_prompt(problem, EpisodeConfig(max_prompt_tokens=100), renderer)
    with pytest.raises(UsageError, match="tokenizer"):
        open_prompt(problem, EpisodeConfig(max_prompt_tokens=9_000), get_renderer("qwen3"))


def test_a_turn_must_fit_behind_the_prompt() -> None:
    assert EpisodeConfig().prompt_limit is None
    assert EpisodeConfig(max_trajectory_tokens=1_000).prompt_limit == 1_000 - 256
    assert EpisodeConfig(max_trajectory_tokens=1_000, max_tokens=10, max_prompt_tokens=995).prompt_limit == 990
    assert EpisodeConfig(max_trajectory_tokens=1_000, max_tokens=10).has_room(990)
    assert not EpisodeConfig(max_trajectory_tokens=1_000, max_tokens=10).has_room(991)


def test_a_service_with_tools_of_its_own_is_taught_no_dialect(problem: Problem, renderer: Renderer) -> None:
    taught = open_prompt(problem, EpisodeConfig(), renderer).system
    untaught = open_prompt(problem, EpisodeConfig(teach_dialect=False), renderer).system
    assert "JSON object" in taught
    assert "JSON object" not in untaught
