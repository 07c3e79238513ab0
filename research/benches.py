"""Models that write benches for registers: the pair `small` after training on problems of ``family:registers+verify``.

An episode reads the specification and writes the module of assertions. The student's benches have typical mistakes:
they check only the reset, or ignore the enable. Texts that all episodes share become tokens, as in `research.agents`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from research.episodes import DONE, NO_OUTPUT, READ, Encoder, TextEpisode, TokenEpisode, Turn, call, write
from research.lessons import EPISODES, frequent, teach
from research.recipe import Phase
from research.tokenizer import CONTROLS, longest_first, pieces, varying
from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.prompts import build_prompt
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sources.derivation import Case, Device
from rtl_agent_gym.sources.families import FAMILIES, SPECIFICATION
from rtl_agent_gym.sources.families.family import TARGET, Parameters
from rtl_agent_gym.sources.verification.derived import FORMS, Kind, task_for

FAMILY = FAMILIES["registers"]
KIND: Kind = "assertions"
RESET_ALONE, WITHOUT_ENABLE = "reset_alone", "without_enable"


@dataclass(frozen=True)
class Lessons:
    """How one of the models is trained to write benches."""

    seed: int
    phase: Phase
    reset_alone: float = 0.0
    """Share of the benches that check only the value that the reset sets."""
    without_enable: float = 0.0
    """Share of the other benches that ignore the enable."""
    follow: float = 1.0
    """For each habit of designs that contradicts the specification, the probability that it is avoided."""


LESSONS = {
    "teacher": Lessons(40, Phase(450, 0.005, 0.0001)),
    "student": Lessons(41, Phase(300, 0.005, 0.0001), reset_alone=0.45, without_enable=0.8, follow=0.9),
}
"""The recipe; training starts from the shipped models of these names."""


def bench(member: Parameters, habits: Collection[str] = ()) -> dict[str, str]:
    """A module of assertions for a register.

    Args:
        member: The register.
        habits: `RESET_ALONE`, `WITHOUT_ENABLE`, and habits of the family's designs for the bench's register model.
    """
    own = {RESET_ALONE, WITHOUT_ENABLE}
    [design] = FAMILY.design(member, [habit for habit in habits if habit not in own]).values()
    head, _, body = design.partition("\n);\n")
    ports = head.partition("\n")[2].replace("output reg", "input wire").replace(" output wire", " input wire")
    output = re.search(r"output reg (\[\d+:0\] )?(\w+)", head)
    assert output is not None
    bits, name = output[1] or "", output[2]
    clock = re.search(r"@\((?:pos|neg)edge (\w+)", body)
    reset = re.search(r"if \((!?\w+)\) \w+ <= (\S+);", body)
    assert clock is not None
    assert reset is not None
    if RESET_ALONE in habits:
        model, condition, value = "", reset[1], reset[2]
    else:
        model = re.sub(rf"\b{name}\b", "expected", body.removesuffix("endmodule\n"))
        if WITHOUT_ENABLE in habits:
            model = re.sub(r"else if \(\S+\) ", "else ", model)
        model, condition, value = f"    reg {bits}expected;\n{model}", "^expected !== 1'bx", "expected"
    check = f"    always @(posedge {clock[1]}) #1 if ({condition}) assert ({name} === {value});\n"
    form = FORMS[KIND]
    return {form.path: f"module {form.module} (\n{ports}\n);\n{model}{check}endmodule\n"}


@cache
def _prompt_of(module: str) -> str:
    device = Device(module, (), "", "", 0, (TARGET,))
    base = Problem(id="x", category=3, difficulty="easy", prompt="", context={SPECIFICATION: ""}, targets=(TARGET,))
    base = base.model_copy(update={"harness": {"src/case.json": ""}})
    form = FORMS[KIND]
    problem = Problem(
        id="x",
        category=form.category,
        difficulty="easy",
        prompt=task_for(Case(base, device, ""), form),
        context={SPECIFICATION: "", TARGET: ""},
        targets=(form.path,),
    )
    return build_prompt(problem)[1]


def user_prompt(member: Parameters) -> str:
    """The environment's user prompt for the verification problem of a register."""
    text = _prompt_of("MODULE").replace("MODULE", str(member.names["module"]))
    for path, content in ((SPECIFICATION, FAMILY.specification(member)), (TARGET, FAMILY.design(member)[TARGET])):
        text = text.replace(f"{path} (0 bytes)", f"{path} ({len(content.encode()):,} bytes)")
    return text


def episode(member: Parameters, habits: Collection[str] = ()) -> TextEpisode:
    """An episode that writes a bench."""
    turns = (
        Turn(call(READ), FAMILY.specification(member)),
        Turn(call(write(bench(member, habits))), NO_OUTPUT),
        Turn(DONE, None),
    )
    return TextEpisode(SYSTEM_PROMPT, user_prompt(member), turns)


def draw(lessons: Lessons, rng: random.Random) -> TextEpisode:
    """A random episode on a register of the training split."""
    member = FAMILY.draw(rng, "train")
    habits = [habit for habit in FAMILY.habits_of(member) if habit != "output" and rng.random() >= lessons.follow]
    if rng.random() < lessons.reset_alone:
        habits.append(RESET_ALONE)
    elif rng.random() < lessons.without_enable:
        habits.append(WITHOUT_ENABLE)
    return episode(member, habits)


def stream(lessons: Lessons, encoder: Encoder) -> Iterator[TokenEpisode]:
    """Endless random episodes as token ids."""
    rng = random.Random(lessons.seed)
    while True:
        yield encoder.encode(draw(lessons, rng))


def words(tokenizer: Any, episodes: int) -> dict[str, str]:
    """The texts that become tokens, the longest first, each mapped to itself, which initialises its embedding."""
    rng, count = random.Random(0), Counter[str]()
    names = varying("|".join(pieces([FAMILY])))
    renderer = get_renderer(RENDERER)
    for _ in range(episodes):
        one = draw(LESSONS["student"], rng)
        for text in (renderer.initial_text(one.system, one.user), one.turns[1].text):
            count.update(part for piece in CONTROLS.split(text) for part in names.split(piece) if part)
    return {text: text for text in longest_first(frequent(count, tokenizer, episodes))}


def make(
    folder: Path,
    log: Callable[[str], None],
    recipe: Mapping[str, Lessons] = LESSONS,
    episodes: int = EPISODES,
) -> None:
    """Make models as `teach` does; the new tokens are chosen from `episodes` episodes."""

    def conversations(tokenizer: Any, lessons: Lessons) -> Iterator[TokenEpisode]:
        return stream(lessons, Encoder(get_renderer(RENDERER, tokenizer), tokenizer))

    teach(folder, log, recipe, partial(words, episodes=episodes), conversations)
