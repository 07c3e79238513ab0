"""The episodes that the shipped models are trained on agree with the real shell, renderer and harness."""

from __future__ import annotations

import random
import re

import pytest

from research import mixture, variation
from research.episodes import Design, Encoder, TextEpisode, answer, call, submitted_episode, write, written_episode
from research.mixture import Mix
from research.tokenizer import make_tokenizer
from rtl_agent_gym.demo.founding import FOUNDING
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig, Turn
from rtl_agent_gym.prompts import build_prompt, with_reference
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families import FAMILIES, Family, Parameters
from rtl_agent_gym.sources.families.family import HELD_OUT_STEMS, STEMS, suffixes
from rtl_agent_gym.sources.families.looking import LookingFamily

pytestmark = pytest.mark.slow

READ = {name: family for name, family in FAMILIES.items() if not isinstance(family, LookingFamily)}
"""The families whose specification is a file; of the others see test_spelled.py."""
ALL = {**READ, FOUNDING.name: FOUNDING}
each_family = pytest.mark.parametrize("family", ALL.values(), ids=ALL)


async def play(
    family: Family, member: Parameters, one: TextEpisode, provider: DockerSandboxes, harness_feedback: int = 0
) -> list[Turn]:
    config = EpisodeConfig(system_prompt=one.system, harness_feedback=harness_feedback, max_turns=9)
    async with (
        Scorer(provider) as scorer,
        Episode(
            family.problem(member), provider=provider, grader=scorer, renderer=get_renderer(RENDERER), config=config
        ) as episode,
    ):
        await episode.start()
        return [await episode.step(turn.text) for turn in one.turns]


@pytest.mark.docker
@each_family
async def test_the_outputs_of_the_episodes_are_what_the_shell_prints(family: Family, provider: DockerSandboxes) -> None:
    member = family.draw(random.Random(1), "train")
    specification = family.specification(member)
    one = written_episode(mixture.start(family, specification), specification, family.design(member))
    assert one.user == build_prompt(family.problem(member))[1]
    turns = await play(family, member, one, provider)
    assert [turn.outputs[0] if turn.outputs else None for turn in turns] == [turn.output for turn in one.turns]
    renderer = get_renderer(RENDERER)
    for turn, text in zip(turns[:-1], one.turns, strict=False):
        assert turn.observation == renderer.observation_text([text.output or ""])
    assert turns[-1].score is not None
    assert turns[-1].score.passed


@pytest.mark.docker
@each_family
@pytest.mark.parametrize("passes", [True, False])
async def test_submissions_are_answered_as_in_the_episodes(
    family: Family, passes: bool, provider: DockerSandboxes
) -> None:
    member = family.draw(random.Random(2), "train")
    specification, habits = family.specification(member), family.habits_of(member)
    designs = [Design(family.design(member, some), some) for some in (habits, habits[: 0 if passes else 1])]
    one = submitted_episode(mixture.start(family, specification), specification, designs, 2)
    turns = await play(family, member, one, provider, harness_feedback=2)
    for number, turn, wrong in ((1, turns[2], habits), (2, turns[4], habits[: 0 if passes else 1])):
        _, *failing = turn.outputs[0].removesuffix("\n[exit code 1]").split("\n- ")
        expected = mixture.failing_checks(family, member, wrong)
        assert turn.outputs[0] == answer(number, 2, failing)
        assert failing == [*expected] if family is not FOUNDING else {*failing} <= {*expected}
        assert bool(failing) == bool(wrong)


def test_a_reference_is_shown_as_in_the_environment() -> None:
    family, rng = FAMILIES["registers"], random.Random(3)
    references = set()
    for _ in range(20):
        one = mixture.draw(family, Mix(reference=1.0), rng)
        user, written = one.user.split("\n\n# A reference solution")[0], one.turns[1].text
        text = one.user.split("```\n")[1].removesuffix("```")
        references.add(text)
        assert one.user == with_reference(user, {"rtl/design.sv": text})
        assert written == call(write({"rtl/design.sv": text}))
    assert len(references) == 20


@pytest.fixture(scope="module")
def episodes() -> list[TextEpisode]:
    rng, mix = random.Random(0), Mix(follow=0.6, mend=0.5, renamed=0.3, reworded=0.3)
    return [mixture.draw(rng.choice([*ALL.values()]), mix, rng) for _ in range(500 * len(ALL))]


@pytest.fixture(scope="module")
def encoder(episodes: list[TextEpisode]) -> Encoder:
    tokenizer = make_tokenizer(list(ALL.values()), episodes, 300)
    return Encoder(get_renderer(RENDERER, tokenizer), tokenizer)


def test_models_are_never_shown_the_held_out_words_and_wordings(encoder: Encoder) -> None:
    rng, roles = random.Random(4), ("module", "clock", "reset", "other")
    held_out = {*HELD_OUT_STEMS, *(one for role in roles for out in (0, 1) for one in suffixes(role, True, bool(out)))}
    assert not held_out & {*variation.WORDS, *STEMS}
    tokens = {encoder.tokenizer.decode([number]) for number in range(len(encoder.tokenizer))}
    assert not {f"{mark}{one}" for one in HELD_OUT_STEMS for mark in ("", "_", " ")} & tokens
    for family in READ.values():
        for _ in range(300):
            member = variation.renamed(family, family.draw(rng), rng)
            assert not held_out & {part for name in member.names.values() for part in name.split("_")}
            text = variation.reworded(family, member, rng)
            assert not any(line in text for line in variation.held_out_lines(family, member))
            assert not held_out & set(re.findall(r"\b[a-z]+\b", text))
            held_specification = family.specification(member := family.draw(rng, "wordings"))
            assert any(line in held_specification for line in variation.held_out_lines(family, member))


def test_the_designs_still_follow_from_changed_specifications() -> None:
    rng = random.Random(5)
    for family in READ.values():
        for _ in range(100):
            member = variation.renamed(family, family.draw(rng), rng)
            text = variation.reworded(family, member, rng)
            assert all(f"`{name}`" in text for name in member.names.values())
            assert all(name in family.design(member)["rtl/design.sv"] for name in member.names.values())


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
        assert len(found.ids) < 900
        expected = renderer.initial_ids(one.system, one.user)
        for turn in one.turns:
            action = [*encoder.tokenizer.encode(turn.text, add_special_tokens=False), encoder.tokenizer.eos_token_id]
            assert renderer.parse_ids(action) == renderer.parse_text(turn.text)
            expected += action
            if turn.output is not None:
                expected += renderer.observation_ids([turn.output], action)
        assert found.ids == expected


def test_the_tokenizer_is_the_same_for_the_same_episodes(episodes: list[TextEpisode], encoder: Encoder) -> None:
    again = make_tokenizer(list(ALL.values()), episodes, 300)
    assert again.backend_tokenizer.to_str() == encoder.tokenizer.backend_tokenizer.to_str()
