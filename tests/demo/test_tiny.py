"""The tiny models' texts match the real environment and the renderer; the built models behave as intended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import tinker

from rtl_agent_gym.demo import tiny
from rtl_agent_gym.demo.tiny_episode import (
    DESIGN,
    PROBLEM_ID,
    RENDERER,
    SYSTEM_PROMPT,
    USER_PROMPT,
    WRONG_DESIGN,
    script,
)
from rtl_agent_gym.demo.tiny_training import episode_ids
from rtl_agent_gym.engines.local import LocalEngineConfig, LocalServiceClient
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig, Turn
from rtl_agent_gym.policies import Completion
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import QWEN3_ADDED, QWEN3_SPECIAL
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer

TINIEST = tiny.TinyRecipe(
    hidden=32,
    batch=2,
    student=(tiny.Phase(2, 1e-3, 1e-3, right=0.25, noise=0.03),),
    teacher=(tiny.Phase(2, 1e-3, 1e-3, right=0.99, noise=0.0),),
)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problems("bundled", ids=[PROBLEM_ID])[0]


async def play(problem: Problem, design: str, provider: DockerSandboxes) -> list[Turn]:
    renderer = get_renderer(RENDERER)
    config = EpisodeConfig(system_prompt=SYSTEM_PROMPT, user_prompt=USER_PROMPT)
    async with (
        Scorer(provider) as scorer,
        Episode(problem, provider=provider, grader=scorer, renderer=renderer, config=config) as episode,
    ):
        await episode.start()
        return [await episode.step(turn) for turn in script(design).turns]


def test_the_designs_are_the_bundled_problems_own(problem: Problem) -> None:
    assert problem.golden == {"rtl/fixed_priority_arbiter.sv": DESIGN}
    assert "reset" not in WRONG_DESIGN.replace("rst_n", "")
    assert WRONG_DESIGN.count("rst_n") == 2


@pytest.mark.docker
@pytest.mark.usefixtures("shared_gradings")
@pytest.mark.parametrize(("design", "passes"), [(DESIGN, True), (WRONG_DESIGN, False)])
async def test_the_recorded_outputs_are_what_the_shell_gives(
    problem: Problem, provider: DockerSandboxes, design: str, passes: bool
) -> None:
    turns = await play(problem, design, provider)
    assert tuple(output for turn in turns for output in turn.outputs) == script(design).outputs
    assert [turn.stop_reason for turn in turns] == [None, None, None, "completed"]
    assert turns[-1].score is not None
    assert turns[-1].score.passed is passes


def test_every_control_token_is_one_id_and_every_text_comes_back(tmp_path: Path) -> None:
    tokenizer = tiny.make_tokenizer(1100)
    assert 1000 <= len(tokenizer) <= 1100
    for control in (*QWEN3_SPECIAL, *QWEN3_ADDED):
        assert len(tokenizer.encode(control, add_special_tokens=False)) == 1
    for text in (*script(DESIGN).turns, *script(WRONG_DESIGN).turns, "any text \u00e9\u4e2d\x00\t  at all"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_episode_is_short_and_its_turns_are_read_back_from_their_ids() -> None:
    tokenizer = tiny.make_tokenizer(1100)
    renderer = get_renderer(RENDERER, tokenizer)
    episode = episode_ids(script(DESIGN), renderer, tokenizer)
    assert len(episode.ids) < 450
    assert sum(episode.sampled) < 180
    turns, current = [], []
    for id_, said in zip(episode.ids, episode.sampled, strict=True):
        if said:
            current.append(id_)
        elif current:
            turns.append(current)
            current = []
    turns.append(current)
    for ids, text in zip(turns, script(DESIGN).turns, strict=True):
        assert ids[-1:] == renderer.stop
        assert renderer.parse_ids(ids) == renderer.parse_text(text)


def test_models_are_made_once_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first = tiny.make_tiny(3, TINIEST, tmp_path / "a")
    second = tiny.make_tiny(3, TINIEST, tmp_path / "b")
    other = tiny.make_tiny(4, TINIEST, tmp_path / "a")
    for name in ("student", "teacher"):
        weights = [
            (one.student_path.parent / name / "model.safetensors").read_bytes() for one in (first, second, other)
        ]
        assert weights[0] == weights[1] != weights[2]
    stamp = (first.student_path / "model.safetensors").stat().st_mtime_ns
    assert tiny.make_tiny(3, TINIEST, tmp_path / "a") == first
    assert (first.student_path / "model.safetensors").stat().st_mtime_ns == stamp
    assert not [path for path in (tmp_path / "a").iterdir() if path.name.startswith(".")]


def test_whatever_goes_into_the_models_changes_their_digest() -> None:
    assert TINIEST.digest(0) != TINIEST.digest(1)
    assert TINIEST.digest(0) != replace(TINIEST, hidden=64).digest(0)
    assert TINIEST.digest(0) == replace(TINIEST).digest(0)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(1200)
async def test_the_teacher_passes_the_real_harness_and_the_student_seldom_does(
    problem: Problem, provider: DockerSandboxes, tmp_path: Path
) -> None:
    models = tiny.make_tiny(0)
    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path)) as service:
        teacher = await pass_rate(service, models.teacher_path, problem, provider, tmp_path / "gradings")
        student = await pass_rate(service, models.student_path, problem, provider, tmp_path / "gradings")
    assert teacher >= 0.95
    assert 0.05 <= student <= 0.35


async def pass_rate(
    service: LocalServiceClient,
    path: Path,
    problem: Problem,
    provider: DockerSandboxes,
    gradings: Path,
    episodes: int = 64,
) -> float:
    """The part of real episodes at temperature 1 that pass the hidden tests; the same design is graded once."""
    sampler = await service.create_sampling_client(base_model=str(path))
    renderer = get_renderer(RENDERER, sampler.get_tokenizer())
    config = EpisodeConfig(max_turns=6, system_prompt=SYSTEM_PROMPT, user_prompt=USER_PROMPT)
    gate = asyncio.Semaphore(4)

    async with Scorer(provider, cache=gradings) as scorer:

        async def one(number: int) -> bool:
            async with (
                gate,
                Episode(problem, provider=provider, grader=scorer, renderer=renderer, config=config) as episode,
            ):
                await episode.start()
                ids = renderer.initial_ids(SYSTEM_PROMPT, USER_PROMPT)
                while True:
                    seed = number * 100 + len(episode.turns)
                    params = tinker.SamplingParams(max_tokens=256, stop=renderer.stop, seed=seed)
                    answer = await sampler.sample(tinker.ModelInput.from_ints(ids), 1, params)
                    said, cut_off = answer.sequences[0].tokens, answer.sequences[0].stop_reason == "length"
                    text = sampler.get_tokenizer().decode(said)
                    turn = await episode.step(Completion(text, said, answer.sequences[0].logprobs, cut_off))
                    if turn.score is not None:
                        return turn.score.passed
                    ids = ids + said
                    if turn.action.kind == "malformed":
                        ids += renderer.correction_ids(turn.action.correction or "", said)
                    else:
                        ids += renderer.observation_ids(list(turn.outputs), said)

        return sum(await asyncio.gather(*(one(number) for number in range(episodes)))) / episodes
