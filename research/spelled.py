"""Episodes of families whose files must be read, and a tokenizer that spells what varies.

No command is run while models are made. The outputs here are those of the real shell, which a test verifies, with one
simplification: the output of the smoke test is derived from the two polarities only. For a design that is otherwise
wrong, such as another problem's reference or one whose output never changes, the real test may print something else.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from research.episodes import DONE, NO_OUTPUT, Encoder, TextEpisode, TokenEpisode, Turn, call, write
from research.tokenizer import CONTROLS, SPELLED, build, longest_first
from research.variation import WORDS
from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.prompts import build_prompt, with_reference
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sources.families.accumulators import ACCUMULATORS, BASES
from rtl_agent_gym.sources.families.family import LAYOUTS, TARGET, Fields, Layout, Parameters
from rtl_agent_gym.sources.families.looking import PASSED, RESERVED, RUN_SMOKE, UNKNOWN, LookingFamily, draw_identifier

MOST_CHECKS = 3
"""Maximum number of runs of the smoke test in an episode: two fixes are enough."""


@dataclass(frozen=True)
class Behaviour:
    """How a model acts. Each value is the probability of a mistake, in the situations in which it can happen."""

    misread: float = 0.0
    """Having each of the family's habits."""
    blind: float = 0.0
    """Not reading the document, if the specification is a paragraph."""
    astray: float = 0.0
    """Reading the document that is listed first, if the specification is a list."""
    hasty: float = 0.0
    """Taking the first width in the document, even if it is another module's."""
    careless: float = 0.0
    """Finishing after a failing smoke test, if the reset is asynchronous."""
    confused: float = 0.0
    """Changing the wrong polarity after a failing smoke test, if the reset is synchronous."""
    restless: float = 0.0
    """Changing the enable's polarity after a passing smoke test, if the reset is synchronous."""


@dataclass(frozen=True)
class Spelled:
    """Shares of the kinds of episodes."""

    behaviour: Behaviour = Behaviour()
    forced: float = 0.35
    """Share of the episodes whose first design gets a wrong reset (not trained on), which is otherwise rarely seen."""
    reference: float = 0.0
    """Share of the episodes with a reference solution in the prompt; half of these are another problem's."""
    layouts: tuple[Layout, ...] = LAYOUTS
    """Layouts of the specifications."""
    longest: int = 99
    """Maximum length of names, in characters."""
    renamed: float = 0.0
    """Share of the episodes whose names begin with English words that are not in the split ``names``."""


def look(document: str) -> str:
    """The command that reads a document."""
    return f"cat docs/{document}.md"


def fix(fields: Fields, role: str) -> str:
    """The command that inverts a polarity in the design; `fields` are those of the design."""
    name, high = fields[role], bool(fields[f"{role}_level"])
    was, becomes = (f"({name})", f"(!{name})") if high else (f"(!{name})", f"({name})")
    edge = ""
    if role == "reset" and fields["reset_kind"] == "async":
        old, new = ("posedge", "negedge") if high else ("negedge", "posedge")
        edge = f";s/{old} {name}/{new} {name}/"
    return f"sed -i 's/{was}/{becomes}/{edge}' {TARGET}"


def play(family: LookingFamily, member: Parameters, mix: Spelled, rng: random.Random) -> TextEpisode:
    """An episode of a model that behaves as `mix` says. Raises `UsageError` for families other than `accumulators`."""
    if family is not ACCUMULATORS:
        raise UsageError(f"{family.name} has no scripted episodes; choose {ACCUMULATORS.name}")
    doing, names = mix.behaviour, member.names
    user, design = build_prompt(family.problem(member))[1], dict(member.fields)
    documents = family.documents(member)
    turns: list[Turn] = []
    read = names["document"]
    if member.layout == "list" and rng.random() < doing.astray:
        read = next(iter(documents)).removeprefix("docs/").removesuffix(".md")
        if read != names["document"]:
            design |= read_table(documents[f"docs/{read}.md"], names["module"])
    if rng.random() < doing.hasty:
        design["width"] = int(re.findall(r"\| width \| (\d+)", documents[f"docs/{read}.md"])[0])
    for habit in family.habits:
        if rng.random() < doing.misread:
            design = family.with_habit(design, habit)
    if member.layout == "prose" and rng.random() < doing.blind:
        design |= {"width": 8, "base": "decimal", "value": 0}
    else:
        turns.append(Turn(call(look(read)), documents[f"docs/{read}.md"]))
    design["enable_level"] = 1
    forced = rng.random() < mix.forced
    if rng.random() < mix.reference:
        shown, forced = family.draw(rng) if rng.random() < 0.5 else member, False
        design = dict(shown.fields)
        user = with_reference(user, family.design(shown))
    if forced:
        design["reset_level"] = 1 - int(member.values["reset_level"])
    turns.append(Turn(call(write({TARGET: family.write(design)})), NO_OUTPUT, learned=not forced))
    for number in range(MOST_CHECKS):
        output = smoke_output(member, design)
        turns.append(Turn(call(RUN_SMOKE), output))
        asynchronous = design["reset_kind"] == "async"
        if number == MOST_CHECKS - 1 or (output != PASSED and asynchronous and rng.random() < doing.careless):
            break
        if output == PASSED and (asynchronous or rng.random() >= doing.restless):
            break
        role = "enable" if output == PASSED else output.split()[1]
        if output != PASSED and not asynchronous and rng.random() < doing.confused:
            role = "reset" if role == "enable" else "enable"
        turns.append(Turn(call(fix(design, role)), NO_OUTPUT))
        design[f"{role}_level"] = 1 - int(design[f"{role}_level"])
    return TextEpisode(SYSTEM_PROMPT, user, (*turns, Turn(DONE, None)))


def read_table(document: str, module: str) -> dict[str, str | int]:
    """The values in a module's rows of a document. Raises `KeyError` if a row is missing."""
    width = re.search(rf"\| `{module}` \| width \| (\d+) \|", document)
    value = re.search(rf"\| `{module}` \| reset value \| (0x|0b)?(\w+) \|", document)
    if width is None or value is None:
        raise KeyError(module)
    prefix, number = value.groups()
    base = next(name for name, (before, *_) in BASES.items() if before == (prefix or ""))
    return {"width": int(width[1]), "base": base, "value": int(number, BASES[base][3])}


def smoke_output(member: Parameters, design: Fields) -> str:
    """What `RUN_SMOKE` prints for the reference solution with a design's polarities of reset and enable."""
    wrong = [role for role in ("reset", "enable") if design[f"{role}_level"] != member.values[f"{role}_level"]]
    return f"FAIL: {wrong[0]}\n" if wrong else PASSED


def draw_batch(
    families: Sequence[LookingFamily], mix: Spelled, encoder: Encoder, batch: int, rng: random.Random
) -> list[TokenEpisode]:
    """Random episodes on problems of the training split, as token ids."""
    found: list[TokenEpisode] = []
    while len(found) < batch:
        family = rng.choice(families)
        member = family.draw(rng)
        if mix.longest < 99:
            member = member.model_copy(update={"names": short_names(family, member, mix.longest, rng)})
        if mix.renamed and rng.random() < mix.renamed:
            member = member.model_copy(update={"names": other_names(member, rng)})
        if member.layout in mix.layouts:
            found.append(encoder.encode(play(family, member, mix, rng)))
    return found


def short_names(family: LookingFamily, member: Parameters, longest: int, rng: random.Random) -> dict[str, str]:
    """Names for a member with at most `longest` characters each."""
    names = dict(member.names)
    for role in names:
        while len(names[role]) > longest or list(names.values()).count(names[role]) > 1:
            names[role] = rng.choice(list(family.draw_names(rng, held_out=False).values()))
    return names


_OTHER_WORDS = tuple(word for word in WORDS if word not in RESERVED and word not in UNKNOWN)


def other_names(member: Parameters, rng: random.Random) -> dict[str, str]:
    """The member's names, with the first parts replaced by English words that are not in the split ``names``."""
    words = rng.sample(_OTHER_WORDS, len(member.names))
    found = {}
    for word, (role, name) in zip(words, member.names.items(), strict=True):
        _, joint, rest = name.partition("_")
        found[role] = f"{word}{joint}{rest}"
    return found


_AT_LEAST = 8
_WORD = re.compile(r"[A-Za-z][A-Za-z-]*| `|`| \| |\.\n-?|[.,:;]|\| | \|\n|\n")


def make_tokenizer(families: Sequence[LookingFamily], episodes: int, merges: int) -> Any:
    """The tokenizer: one token for each text that episodes share and each word of specifications; the rest is spelled.

    Args:
        families: The families of problems.
        episodes: Number of episodes from which tokens are chosen.
        merges: Maximum number of merges of byte pairs, learned from training names.
    """
    rng, count = random.Random(0), Counter[str]()
    renderer = get_renderer(RENDERER)
    mix = Spelled(Behaviour(0.3, 0.3, 0.3, 0.3, 0.3, 0.3), reference=0.2)
    for _ in range(episodes):
        family = rng.choice(families)
        member = family.draw(rng)
        episode = play(family, member, mix, rng)
        specification = family.specification(member).removeprefix(f"{family.heading}\n\n").rstrip("\n")
        heading, ending = episode.user.split(specification, 1)
        names = sorted(member.names.values(), key=len, reverse=True)
        variable = re.compile(
            rf"(?<![\w\\])(?:{'|'.join(names)})(?!\w)|(?<=W = )\d+|(?:(?<=INIT = )|(?<=INIT = '[hb]))[0-9A-F]+(?=\\)"
            r"|(?:(?<= \| )|(?<= \| 0[xb]))[0-9A-F]+(?= \|)|(?<=\()[\d,]+(?= bytes)"
        )
        parts = [renderer.initial_text(SYSTEM_PROMPT, heading + "\x00" + ending), *renderer.turn_pieces(["|"])]
        for turn in episode.turns:
            parts.append(turn.text)
            if turn.output is not None:
                parts.append(f"\n{turn.output}\n")
        texts = {text for part in parts for segment in CONTROLS.split(part) for text in segment.split("\x00") if text}
        for text in texts:
            count.update(part for part in variable.split(text) if part)
        body = re.sub("|".join(rf"`{name}`|/{name}\." for name in names), "``", specification)
        words = _WORD.findall(body)
        count.update(word for word in words if not word.islower())
        count.update(f" {word}" for word in words if word[0].isalpha())
    least = max(_AT_LEAST, episodes // 150)
    fixed = longest_first(word for word, often in count.items() if often >= least)
    names = [draw_identifier(rng) for _ in range(30000)]
    return build(fixed, (), [word for name in names for word in re.findall("[a-z]+", name)], range(10), merges, SPELLED)
