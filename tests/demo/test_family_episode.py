"""The episodes that the shipped models are trained on agree with the real shell, renderer and harness."""

from __future__ import annotations

import random

import pytest

from rtl_agent_gym.demo import family_episode, family_mix, family_tokenizer
from rtl_agent_gym.demo.family_episode import RENDERER, SYSTEM_PROMPT, Encoder, TextEpisode
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig, Turn
from rtl_agent_gym.problems.families import FAMILIES, Family, Parameters
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer


async def play(
    family: Family, member: Parameters, one: TextEpisode, provider: DockerSandboxes, harness_feedback: int = 0
) -> list[Turn]:
    config = EpisodeConfig(
        system_prompt=SYSTEM_PROMPT, user_prompt=one.user, harness_feedback=harness_feedback, max_turns=8
    )
    async with (
        Scorer(provider) as scorer,
        Episode(
            family.problem(member), provider=provider, grader=scorer, renderer=get_renderer(RENDERER), config=config
        ) as episode,
    ):
        await episode.start()
        return [await episode.step(turn.text) for turn in one.turns]


@pytest.mark.docker
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
async def test_the_outputs_of_the_episodes_are_what_the_shell_prints(family: Family, provider: DockerSandboxes) -> None:
    member = family.draw(random.Random(1), "train")
    one = family_episode.episode(family.specification(member), family.design(member))
    turns = await play(family, member, one, provider)
    assert [turn.outputs[0] if turn.outputs else None for turn in turns] == [turn.output for turn in one.turns]
    renderer = get_renderer(RENDERER)
    for turn, text in zip(turns[:-1], one.turns, strict=False):
        assert turn.observation == renderer.observation_text([text.output or ""])
    assert turns[-1].score is not None
    assert turns[-1].score.passed


@pytest.mark.docker
async def test_a_failing_submission_is_answered_as_in_the_episodes(provider: DockerSandboxes) -> None:
    family = FAMILIES["registers"]
    member = family.draw(random.Random(2), "train")
    one = family_episode.repaired(
        family.specification(member), family.design(member, ["output"]), "", family.design(member)
    )
    turns = await play(family, member, one, provider, harness_feedback=1)
    assert turns[2].outputs[0] in {family_mix.failing(random.Random(seed)) for seed in range(100)}
    assert turns[-1].score is not None
    assert turns[-1].score.passed


@pytest.fixture(scope="module")
def episodes() -> list[TextEpisode]:
    families = list(FAMILIES.values())
    rng, pieces = random.Random(0), set(family_tokenizer.pieces(families))
    mix = family_mix.Mix(follow=0.6, mend=0.5, renamed=0.2)
    return [family_mix.draw(rng.choice(families), mix, pieces, rng) for _ in range(600 * len(families))]


@pytest.fixture(scope="module")
def encoder(episodes: list[TextEpisode]) -> Encoder:
    tokenizer = family_tokenizer.make_tokenizer(list(FAMILIES.values()), episodes, 300, 0)
    return Encoder(get_renderer(RENDERER, tokenizer), tokenizer)


def test_every_control_token_is_one_id_and_every_text_comes_back(encoder: Encoder, episodes: list[TextEpisode]) -> None:
    for control in (*QWEN3_SPECIAL, *QWEN3_ADDED):
        assert len(encoder.tokenizer.encode(control, add_special_tokens=False)) == 1
    texts = [text for one in episodes[:50] for turn in one.turns for text in (turn.text, turn.output or "")]
    for text in (*texts, "any text \u00e9\u4e2d\x00\t  at all", "a_b clk_1 `x`\n\n\\n"):
        assert encoder.tokenizer.decode(encoder.tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_episode_is_the_renderers_own_and_its_turns_are_read_back(
    encoder: Encoder, episodes: list[TextEpisode]
) -> None:
    renderer = encoder.renderer
    for one in episodes[:50]:
        found = encoder.encode(one)
        assert len(found.ids) < 400
        expected = renderer.initial_ids(SYSTEM_PROMPT, one.user)
        for turn in one.turns:
            action = [*encoder.tokenizer.encode(turn.text, add_special_tokens=False), encoder.tokenizer.eos_token_id]
            assert renderer.parse_ids(action) == renderer.parse_text(turn.text)
            expected += action
            if turn.output is not None:
                expected += renderer.observation_ids([turn.output], action)
        assert found.ids == expected


def test_the_tokenizer_is_the_same_for_the_same_episodes(episodes: list[TextEpisode], encoder: Encoder) -> None:
    again = family_tokenizer.make_tokenizer(list(FAMILIES.values()), episodes, 300, 0)
    assert again.backend_tokenizer.to_str() == encoder.tokenizer.backend_tokenizer.to_str()
