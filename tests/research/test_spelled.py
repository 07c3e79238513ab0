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

from research.episodes import Encoder, TextEpisode
from research.recipe import Phase, Shape
from research.sittings import Course, Lesson
from research.spelled import Behaviour, Spelled, draw_batch, make_tokenizer, other_names, play
from research.spelled_recipe import RECIPE, Pupil, SpelledRecipe, make
from research.tokenizer import widened, with_words
from research.training import Trainer, new_model, reproducible
from research.variation import WORDS
from rtl_agent_gym.demo.shipped import FOLDER, RENDERER, shipped
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig, Turn
from rtl_agent_gym.prompts import build_prompt
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families.accumulators import ACCUMULATORS
from rtl_agent_gym.sources.families.family import Parameters
from rtl_agent_gym.sources.families.identifiers import RESERVED, UNKNOWN, draw_identifier
from rtl_agent_gym.sources.families.looking import LookingFamily

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

LOOKING = [ACCUMULATORS]
each_family = pytest.mark.parametrize("family", LOOKING, ids=lambda family: family.name)
MISTAKEN = Spelled(
    Behaviour(misread=0.5, blind=0.5, astray=0.5, hasty=0.5, careless=0.5, confused=0.5, restless=0.5), forced=0.5
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(LOOKING, 300, 200, 0)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> Encoder:
    return Encoder(get_renderer(RENDERER, tokenizer), tokenizer)


@pytest.mark.docker
@each_family
@pytest.mark.parametrize(("seed", "mix"), [(1, Spelled()), (2, Spelled(forced=1.0)), (3, MISTAKEN), (4, MISTAKEN)])
async def test_the_outputs_are_what_the_shell_prints(
    family: LookingFamily, seed: int, mix: Spelled, provider: DockerSandboxes
) -> None:
    rng = random.Random(seed)
    member = family.draw(rng)
    one = play(family, member, mix, rng)
    problem = family.problem(member)
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


@each_family
def test_without_misconceptions_every_episode_looks_and_ends_with_a_pass(family: LookingFamily) -> None:
    rng = random.Random(5)
    lengths = set()
    for _ in range(200):
        member = family.draw(rng)
        one = play(family, member, Spelled(forced=0.5), rng)
        assert member.names["document"] in one.turns[0].text
        assert one.turns[-2].output == "PASS\n"
        lengths.add(len(one.turns))
    assert lengths == {4, 6, 8}


@each_family
def test_each_misconception_acts_where_its_context_is_and_nowhere_else(family: LookingFamily) -> None:
    rng = random.Random(6)
    members = [family.draw(rng) for _ in range(300)]

    def own_width_is_first(member: Parameters) -> bool:
        document = family.documents(member)[f"docs/{member.names['document']}.md"]
        return document.split(" | width |")[0].endswith(f"`{member.names['module']}`")

    def differs(behaviour: Behaviour) -> set[tuple[str, str, bool]]:
        found: set[tuple[str, str, bool]] = set()
        for member in members:
            right, other = (play(family, member, Spelled(one, 0), random.Random(0)) for one in (Behaviour(), behaviour))
            if [turn.text for turn in right.turns] != [turn.text for turn in other.turns]:
                found.add((member.layout, str(member.values["reset_kind"]), own_width_is_first(member)))
        return found

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


@each_family
def test_a_name_has_the_same_tokens_wherever_it_stands(family: LookingFamily, tokenizer: Any, encoder: Encoder) -> None:
    """So that it can be copied token by token."""
    rng = random.Random(8)
    for split in ("train", "names"):
        for _ in range(60):
            member = family.draw(rng, split)
            one = play(family, member, Spelled(forced=1.0), rng)
            ids = encoder.encode(one).ids
            for role in family.roles:
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
        one: TextEpisode = play(LOOKING[0], LOOKING[0].draw(rng), Spelled(forced=1.0), rng)
        written = next(turn for turn in one.turns if "cat > " in turn.text)
        assert not written.learned
        assert all(turn.learned for turn in one.turns if turn is not written)


def test_a_recipe_makes_two_models_that_share_no_weights(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    lesson = Lesson(1, Spelled(layouts=("table",), longest=4), Phase(1, 0.001, 0.001, batch=1))
    recipe = SpelledRecipe(
        pupils={"teacher": Pupil(0, (lesson,)), "student": Pupil(1, (lesson,))},
        shape=Shape(hidden=32, layers=1, heads=2, inner=64),
        tokenizer_episodes=60,
        merges=50,
    )
    make(recipe, tmp_path, lambda line: None)
    teacher, student = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in recipe.pupils)
    flat = [
        torch.cat([one.detach().flatten().float() for one in model.parameters() if one.ndim == 2])
        for model in (teacher, student)
    ]
    assert abs(float(torch.nn.functional.cosine_similarity(*flat, dim=0))) < 0.1
    before = (tmp_path / "teacher" / "model.safetensors").read_bytes()
    make(recipe, tmp_path, lambda line: None)  # there is nothing left to do
    assert (tmp_path / "teacher" / "model.safetensors").read_bytes() == before
    assert json.loads((tmp_path / "recipe.json").read_text())["pupils"]["student"]["seed"] == 1


@pytest.mark.parametrize("stopped", ["tokenizer", "teacher-first", "teacher"])
def test_a_recipe_that_is_stopped_while_it_saves_goes_on(
    stopped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    lesson = Lesson(1, Spelled(layouts=("table",), longest=4), Phase(1, 0.001, 0.001, batch=1))
    recipe = SpelledRecipe(
        pupils={"teacher": Pupil(0, (lesson,), sharpened=1.4, more=(lesson,))},
        shape=Shape(hidden=32, layers=1, heads=2, inner=64),
        tokenizer_episodes=60,
        merges=50,
    )
    make(recipe, tmp_path / "whole", lambda line: None)
    kind: Any = PreTrainedTokenizerBase if stopped == "tokenizer" else PretrainedConfig
    saves = {"tokenizer": 0, "teacher-first": 0, "teacher": 1}[stopped]
    calls, save_pretrained = count(), kind.save_pretrained

    def stop(self: Any, folder: Any, **options: Any) -> None:
        if next(calls) == saves:
            Path(folder).mkdir(exist_ok=True)
            (Path(folder) / "config.json").write_text("{}")
            raise KeyboardInterrupt
        save_pretrained(self, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "save_pretrained", stop)
        with pytest.raises(KeyboardInterrupt):
            make(recipe, tmp_path / "parts", lambda line: None)
    make(recipe, tmp_path / "parts", lambda line: None)
    whole, parts = (tmp_path / name / "teacher" / "model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


def test_the_student_of_the_recipe_shares_only_the_architecture() -> None:
    teacher, student = RECIPE.pupils["teacher"], RECIPE.pupils["student"]
    assert teacher.seed != student.seed
    assert not {one.seed for one in teacher.lessons} & {one.seed for one in student.lessons}
    assert all(one.mix.behaviour == Behaviour() for one in teacher.lessons)
    assert student.lessons[-1].examples


def test_the_shipped_pair_is_that_of_the_recipe_and_shares_no_weights() -> None:
    from safetensors.torch import load_file

    record = json.loads((FOLDER / "spelled" / "recipe.json").read_text())
    assert record == json.loads(json.dumps(asdict(RECIPE)))
    teacher, student = (load_file(shipped(f"spelled/{name}") / "model.safetensors") for name in ("teacher", "student"))
    assert teacher.keys() == student.keys()
    flat = [
        torch.cat([model[name].float().flatten() for name in sorted(teacher) if model[name].ndim == 2])
        for model in (teacher, student)
    ]
    assert abs(float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0))) < 0.1
