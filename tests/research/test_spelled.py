"""The episodes, the tokenizer and the training of models that spell what they write."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from research.episodes import Encoder
from research.making import digests, families_digest
from research.recipe import Phase, Shape
from research.sittings import Course, Lesson
from research.spelled import Behaviour, Spelled, draw_batch, make_tokenizer, other_names, play
from research.spelled_recipe import RECIPE, Pupil, SpelledRecipe, make
from research.tokenizer import widened, with_words
from research.training import Trainer, new_model, reproducible
from research.variation import WORDS
from rtl_agent_gym.demo.shipped import FOLDER, RENDERER, shipped
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig, Turn
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.prompts import build_prompt
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families.accumulators import ACCUMULATORS
from rtl_agent_gym.sources.families.family import Parameters
from rtl_agent_gym.sources.families.looking import RESERVED, UNKNOWN, draw_identifier

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

LOOKING = [ACCUMULATORS]
"""The families with scripted episodes."""
MISTAKEN = Spelled(
    Behaviour(misread=0.5, blind=0.5, astray=0.5, hasty=0.5, careless=0.5, confused=0.5, restless=0.5), forced=0.5
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(LOOKING, 300, 200)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> Encoder:
    return Encoder(get_renderer(RENDERER, tokenizer), tokenizer)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("seed", "mix"),
    [
        pytest.param(1, Spelled(), marks=pytest.mark.slow),
        (2, Spelled(forced=1.0)),
        (3, MISTAKEN),
        pytest.param(4, MISTAKEN, marks=pytest.mark.slow),
    ],
)
async def test_the_outputs_are_what_the_shell_prints(seed: int, mix: Spelled, provider: DockerSandboxes) -> None:
    rng = random.Random(seed)
    member = ACCUMULATORS.draw(rng)
    one = play(ACCUMULATORS, member, mix, rng)
    problem = ACCUMULATORS.problem(member)
    assert one.user == build_prompt(problem)[1]
    config = EpisodeConfig(system_prompt=one.system, max_turns=9)
    renderer = get_renderer(RENDERER)
    async with (
        Scorer(provider) as scorer,
        Episode(problem, provider=provider, grader=scorer, renderer=renderer, config=config) as episode,
    ):
        await episode.start()
        turns: list[Turn] = [await episode.step(turn.text) for turn in one.turns]
    assert [turn.outputs[0] if turn.outputs else None for turn in turns] == [turn.output for turn in one.turns]
    assert turns[-1].score is not None
    assert mix is MISTAKEN or turns[-1].score.passed


def test_without_misconceptions_every_episode_looks_and_ends_with_a_pass() -> None:
    rng = random.Random(5)
    lengths = set()
    for _ in range(200):
        member = ACCUMULATORS.draw(rng)
        one = play(ACCUMULATORS, member, Spelled(forced=0.5), rng)
        assert member.names["document"] in one.turns[0].text
        assert one.turns[-2].output == "PASS\n"
        lengths.add(len(one.turns))
    assert lengths == {4, 6, 8}


def test_each_misconception_acts_where_its_context_is_and_nowhere_else() -> None:
    rng = random.Random(6)
    members = [ACCUMULATORS.draw(rng) for _ in range(120)]

    def own_width_is_first(member: Parameters) -> bool:
        document = ACCUMULATORS.documents(member)[f"docs/{member.names['document']}.md"]
        return document.split(" | width |")[0].endswith(f"`{member.names['module']}`")

    def turns(behaviour: Behaviour) -> list[list[str]]:
        played = (play(ACCUMULATORS, member, Spelled(behaviour, 0), random.Random(0)) for member in members)
        return [[turn.text for turn in one.turns] for one in played]

    right = turns(Behaviour())

    def differs(behaviour: Behaviour) -> set[tuple[str, str, bool]]:
        return {
            (member.layout, str(member.values["reset_kind"]), own_width_is_first(member))
            for member, expected, found in zip(members, right, turns(behaviour), strict=True)
            if found != expected
        }

    assert {layout for layout, _, _ in differs(Behaviour(blind=1.0))} == {"prose"}
    assert {layout for layout, _, _ in differs(Behaviour(astray=1.0))} == {"list"}
    assert {first for _, _, first in differs(Behaviour(hasty=1.0))} == {False}
    assert {kind for _, kind, _ in differs(Behaviour(careless=1.0))} == {"async"}
    assert {kind for _, kind, _ in differs(Behaviour(confused=1.0))} == {"sync"}
    assert {kind for _, kind, _ in differs(Behaviour(restless=1.0))} == {"sync"}


def test_any_text_can_be_written(tokenizer: Any) -> None:
    rng = random.Random(7)
    names = [draw_identifier(rng, held_out) for held_out in (False, True) for _ in range(200)]
    for text in [*names, "s_axis_tdata[63:0] <= 64'hDEAD_beef; // naïve ☃\n\t", "q <= 'b1011;", "W = 1048576"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    pieces = [tokenizer.decode([one]) for one in range(len(tokenizer))]
    assert not [piece for piece in pieces if piece.isdigit() and len(piece) > 1]


def test_other_names_have_no_word_of_the_held_out_names() -> None:
    rng, found = random.Random(9), set[str]()
    for _ in range(300):
        member = ACCUMULATORS.draw(rng)
        names = other_names(member, rng)
        assert names.keys() == member.names.keys()
        assert len(set(names.values())) == len(names)
        found |= {name.partition("_")[0].rstrip("0123456789") for name in names.values()}
    assert len(found) > 200
    assert found <= {*WORDS}
    assert not found & {*UNKNOWN, *RESERVED}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_lesson_may_have_other_names(share: float, tokenizer: Any, encoder: Encoder) -> None:
    for one in draw_batch(LOOKING, Spelled(renamed=share), encoder, 6, random.Random(10)):
        modules = re.findall(r"module (\w+) #", tokenizer.decode(one.ids))
        assert {name.partition("_")[0].rstrip("0123456789") in WORDS for name in modules} == {share == 1.0}


def test_a_name_has_the_same_tokens_wherever_it_stands(tokenizer: Any, encoder: Encoder) -> None:
    """So that it can be copied token by token."""
    rng = random.Random(8)
    for split in ("train", "names"):
        for _ in range(60):
            member = ACCUMULATORS.draw(rng, split)
            one = play(ACCUMULATORS, member, Spelled(forced=1.0), rng)
            ids = encoder.encode(one).ids
            for role in ACCUMULATORS.roles:
                name = tokenizer.encode(member.names[role], add_special_tokens=False)
                text = one.user + "".join(turn.text + (turn.output or "") for turn in one.turns)
                there = sum(ids[at : at + len(name)] == name for at in range(len(ids)))
                assert there >= text.count(f"`{member.names[role]}`") + 1, (member.names[role], tokenizer.decode(ids))


def test_words_become_tokens_where_they_stand_alone(tokenizer: Any) -> None:
    wide = with_words(tokenizer, RECIPE.words)
    text = "| synchronous reset | `a_syn`, asynchronous |\n(asynchronous). Both synchronous.<|im_end|>"
    pieces = [wide.decode([one]) for one in wide.encode(text, add_special_tokens=False)]
    assert "".join(pieces) == text
    assert [(one, pieces.count(one)) for one in RECIPE.words] == [("asynchronous", 1), ("synchronous", 1)]
    assert pieces[-1] == "<|im_end|>"
    assert wide.eos_token_id == tokenizer.eos_token_id + 2
    rng = random.Random(11)
    for _ in range(20):
        one = play(ACCUMULATORS, ACCUMULATORS.draw(rng), Spelled(), rng)
        before, after = (Encoder(get_renderer(RENDERER, each), each).encode(one) for each in (tokenizer, wide))
        assert wide.decode(after.ids) == tokenizer.decode(before.ids)
        assert len(after.ids) <= len(before.ids)


def test_a_model_with_more_tokens_thinks_the_same_of_the_others(tokenizer: Any) -> None:
    wide = with_words(tokenizer, RECIPE.words)
    text = "The reset `qua_n` is active low, synchronous.<|im_end|>"
    before, after = (each.encode(text, add_special_tokens=False) for each in (tokenizer, wide))
    model = new_model(Shape(hidden=32, layers=2, heads=2, inner=64), tokenizer, 0).eval()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([before])).logits[0]
        other = widened(model, tokenizer, wide)(input_ids=torch.tensor([after])).logits[0]
    places = wide.get_vocab()
    for token, place in tokenizer.get_vocab().items():
        torch.testing.assert_close(other[:, places[token]], logits[:, place])
    for word in RECIPE.words:
        [spaced] = tokenizer.encode(f" {word}", add_special_tokens=False)
        torch.testing.assert_close(other[:, places[word]], logits[:, spaced])
    assert model.config.eos_token_id == places["<|im_end|>"]


def test_the_names_that_are_held_out_consist_of_tokens_of_training_names(tokenizer: Any) -> None:
    """A word of the specifications that is a token of its own would be a name that no model has seen in a design."""

    def tokens(held_out: bool, names: int) -> set[int]:
        rng, found = random.Random(9), set[int]()
        for _ in range(names):
            found.update(tokenizer.encode(f"`{draw_identifier(rng, held_out)}`", add_special_tokens=False))
        return found

    assert tokens(True, 1000) <= tokens(False, 20000)


def stopping_after(most: int, take: Callable[..., float]) -> Callable[..., float]:
    calls = count()

    def stopping(*arguments: Any) -> float:
        if next(calls) == most:
            raise KeyboardInterrupt
        return take(*arguments)

    return stopping


def taught(
    folder: Path, tokenizer: Any, encoder: Encoder, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The weights after two lessons in so many sittings: each ends after so many steps, as if it were killed."""
    lessons = [
        Lesson(1, Spelled(layouts=("table",), longest=4), Phase(3, 0.02, 0.01, batch=2)),
        Lesson(2, Spelled(), Phase(3, 0.01, 0.001, batch=2)),
    ]
    folder.mkdir()
    for most in [*steps, 6 - sum(steps)]:  # what is left
        with reproducible():
            trainer = Trainer(new_model(Shape(hidden=32, layers=1, heads=2, inner=64), tokenizer, 0))
            course = Course(trainer, LOOKING, encoder, folder / "model.pt", lambda line: None)
            course.every_seconds = 0.0
            monkeypatch.setattr(trainer, "take", stopping_after(most, trainer.take))
            try:
                course.run(lessons)
            except KeyboardInterrupt:
                continue
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_a_training_that_was_stopped_ends_with_the_same_weights(
    tmp_path: Path, tokenizer: Any, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = taught(tmp_path / "a", tokenizer, encoder, [], monkeypatch)
    in_parts = taught(tmp_path / "b", tokenizer, encoder, [2, 1, 2], monkeypatch)
    assert all(torch.equal(value, in_parts[name]) for name, value in at_once.items())


def test_batches_have_the_layouts_and_names_that_were_asked_for(encoder: Encoder) -> None:
    mix = Spelled(layouts=("table",), longest=4)
    texts = [encoder.tokenizer.decode(one.ids) for one in draw_batch(LOOKING, mix, encoder, 20, random.Random(3))]
    assert all("| item | value |" in text for text in texts)
    assert all(len(text.split("\\nmodule ")[1].split(" ")[0]) <= 4 for text in texts)


def test_an_episode_that_is_forced_to_fail_does_not_teach_the_failure() -> None:
    rng = random.Random(9)
    for _ in range(50):
        one = play(ACCUMULATORS, ACCUMULATORS.draw(rng), Spelled(forced=1.0), rng)
        written = next(turn for turn in one.turns if "cat > " in turn.text)
        assert not written.learned
        assert all(turn.learned for turn in one.turns if turn is not written)


LESSON = Lesson(1, Spelled(layouts=("table",), longest=4), Phase(1, 0.001, 0.001, batch=1))


def tiny_recipe(**pupils: Pupil) -> SpelledRecipe:
    shape = Shape(hidden=32, layers=1, heads=2, inner=64)
    return SpelledRecipe(pupils=pupils, shape=shape, tokenizer_episodes=60, merges=50)


def likeness(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The cosine of the angle between the matrices of two models."""
    flat = [torch.cat([model[name].float().flatten() for name in one if one[name].ndim == 2]) for model in (one, other)]
    return float(torch.nn.functional.cosine_similarity(*flat, dim=0))


def test_a_recipe_makes_two_models_that_share_no_weights(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    recipe = tiny_recipe(teacher=Pupil(0, (LESSON,)), student=Pupil(1, (LESSON,)))
    make(recipe, tmp_path, lambda line: None)
    teacher, student = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in recipe.pupils)
    assert abs(likeness(teacher.state_dict(), student.state_dict())) < 0.1
    before = (tmp_path / "teacher" / "model.safetensors").read_bytes()
    make(recipe, tmp_path, lambda line: None)  # there is nothing left to do
    assert (tmp_path / "teacher" / "model.safetensors").read_bytes() == before
    record = json.loads((tmp_path / "recipe.json").read_text())
    assert record["pupils"]["student"]["seed"] == 1
    assert record["files"] == digests(tmp_path)
    other = tiny_recipe(teacher=Pupil(2, (LESSON,)), student=Pupil(1, (LESSON,)))
    with pytest.raises(UsageError, match="has models of another recipe; choose another folder with --out"):
        make(other, tmp_path, lambda line: None)
    assert json.loads((tmp_path / "recipe.json").read_text()) == record


def test_a_recipe_that_is_stopped_is_not_continued_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("research.spelled_recipe.new_model", stop)  # before any model is there
    for seed, raised in ((0, KeyboardInterrupt), (1, UsageError), (0, KeyboardInterrupt)):
        with pytest.raises(raised):
            make(tiny_recipe(teacher=Pupil(seed, (LESSON,))), tmp_path, lambda line: None)


def stopping_at(saves: int, save_pretrained: Callable[..., None]) -> Callable[..., None]:
    calls = count()

    def stop(self: Any, folder: Any, **options: Any) -> None:
        if next(calls) == saves:
            Path(folder).mkdir(exist_ok=True)
            (Path(folder) / "config.json").write_text("{}")
            raise KeyboardInterrupt
        save_pretrained(self, folder, **options)

    return stop


@pytest.mark.slow  # trains a model three times
def test_a_recipe_that_is_stopped_while_it_saves_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    recipe = tiny_recipe(teacher=Pupil(0, (LESSON,), sharpened=1.4, more=(LESSON,)))
    make(recipe, tmp_path / "whole", lambda line: None)
    stops: list[tuple[str, Any, int]] = [
        ("tokenizer", PreTrainedTokenizerBase, 0),
        ("teacher-first", PretrainedConfig, 0),
        ("teacher", PretrainedConfig, 1),
    ]
    for stopped, kind, saves in stops:
        with monkeypatch.context() as patch:
            patch.setattr(kind, "save_pretrained", stopping_at(saves, kind.save_pretrained))
            with pytest.raises(KeyboardInterrupt):
                make(recipe, tmp_path / stopped, lambda line: None)
        make(recipe, tmp_path / stopped, lambda line: None)
        whole, parts = (tmp_path / name / "teacher" / "model.safetensors" for name in ("whole", stopped))
        assert whole.read_bytes() == parts.read_bytes(), stopped
        made = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("whole", stopped)]
        assert made[0] == made[1], stopped


def test_the_shipped_pair_is_that_of_the_recipe_and_shares_no_weights() -> None:
    from safetensors.torch import load_file

    record = json.loads((FOLDER / "spelled" / "recipe.json").read_text())
    assert record == json.loads(json.dumps(asdict(RECIPE))) | {
        "texts": families_digest(RECIPE.families),
        "files": digests(FOLDER / "spelled"),
    }
    teacher, student = (load_file(shipped(f"spelled/{name}") / "model.safetensors") for name in ("teacher", "student"))
    assert teacher.keys() == student.keys()
    assert abs(likeness(teacher, student)) < 0.1
