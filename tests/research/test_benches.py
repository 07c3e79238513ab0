"""The benches that models learn to write: graded as they should be, in episodes that are those of real problems."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from research.benches import (  # noqa: E402
    FAMILY,
    KIND,
    LESSONS,
    RESET_ALONE,
    WITHOUT_ENABLE,
    Lessons,
    bench,
    draw,
    episode,
    make,
    user_prompt,
    words,
)
from research.episodes import Encoder  # noqa: E402
from research.recipe import Phase  # noqa: E402
from research.tokenizer import with_words  # noqa: E402
from rtl_agent_gym.demo.shipped import RENDERER, shipped  # noqa: E402
from rtl_agent_gym.problems import load_problems  # noqa: E402
from rtl_agent_gym.prompts import build_prompt  # noqa: E402
from rtl_agent_gym.renderers import get_renderer  # noqa: E402
from rtl_agent_gym.sandboxes import SandboxProvider  # noqa: E402
from rtl_agent_gym.scoring import Scorer  # noqa: E402
from rtl_agent_gym.sources.derivation import Store  # noqa: E402
from rtl_agent_gym.sources.families import SPECIFICATION, draw_members  # noqa: E402
from rtl_agent_gym.sources.making import VerificationMaker  # noqa: E402
from rtl_agent_gym.sources.verification.derived import Findings, VerifyOptions, cases  # noqa: E402


@pytest.mark.slow  # makes a problem and grades three benches
@pytest.mark.docker
async def test_right_benches_pass_in_real_problems_and_habits_earn_little(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    source, options = "family:registers?count=1&seed=7&split=combinations", VerifyOptions(kind=KIND)
    [member] = draw_members(source)
    async with VerificationMaker.open(store=Store(Findings, tmp_path), cache=False) as maker:
        problem, found = await maker.make(next(cases(load_problems(source), options)), options)
    assert problem is not None, found.fault
    assert build_prompt(problem)[1] == user_prompt(member)
    assert problem.context[SPECIFICATION] == FAMILY.specification(member)
    async with Scorer(provider) as scorer:
        right, reset_alone, without_enable = [
            await scorer.score(problem, {**bench(member, habits)}) for habits in ((), (RESET_ALONE,), (WITHOUT_ENABLE,))
        ]
    assert right.passed
    assert right.tests_passed == right.tests_total >= 8
    assert 0 < reset_alone.tests_passed < right.tests_total / 2 + 1
    assert without_enable.tests_passed == 0
    assert "rejects a right design" in without_enable.reason


def test_the_student_has_the_habits_and_the_teacher_none() -> None:
    rng = random.Random(0)
    benches = {name: [draw(lessons, rng).turns[1].text for _ in range(100)] for name, lessons in LESSONS.items()}
    complete = {
        name: sum("expected" in text and "else if" in text for text in every) for name, every in benches.items()
    }
    assert complete["teacher"] == 100
    assert 2 <= complete["student"] <= 25
    assert 30 <= sum("expected" not in text for text in benches["student"]) <= 60


def test_what_all_episodes_share_is_a_token() -> None:
    import transformers

    library: Any = transformers
    plain = library.AutoTokenizer.from_pretrained(shipped("student"))
    chosen = words(plain, 60)
    tokenizer = with_words(plain, list(chosen))
    one = episode(FAMILY.draw(random.Random(4), "names"))
    before, after = (Encoder(get_renderer(RENDERER, each), each).encode(one) for each in (plain, tokenizer))
    assert tokenizer.decode(after.ids) == plain.decode(before.ids)
    assert len(after.ids) < 400 < len(before.ids)
    assert all(len(tokenizer.encode(text, add_special_tokens=False)) == 1 for text in chosen)


@pytest.mark.slow  # that the same recipe makes the same models is tested with those of agents
def test_a_recipe_makes_a_model(tmp_path: Path) -> None:
    make(tmp_path, lambda line: None, {"student": Lessons(5, Phase(2, 0.005, 0.001, batch=2), reset_alone=0.5)}, 20)
    made, before = (folder / "model.safetensors" for folder in (tmp_path / "student", shipped("student")))
    assert made.stat().st_size > before.stat().st_size
