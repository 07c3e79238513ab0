"""Names and wordings that the training split does not have, so that the shipped models can read a wider range of texts.

Words and lines of the held-out splits are never used, which a test checks. In about 4 of 1,000 reworded texts, a line
has the same words in the same order as a held-out line, with other punctuation.
"""

from __future__ import annotations

import random
import re

from rtl_agent_gym.sources.families.family import HELD_OUT_STEMS, STEMS, Family, Parameters, suffixes

_WORDS = """
acorn alder almond anvil arch arrow attic autumn bagel ballad bamboo banjo barley barn basil basket bath bay bead beam
bean bear beaver beech bell belt bench berry bike bison blanket boat bone book boot bottle bow bowl box bramley branch
brass bread brick bridge broom brush bucket buffalo bugle bulb butter button cabbage cable cactus camel camera candle
canoe canyon captain caravan cargo carpet carrot castle catfish cave cello chain chair cheese cherry chimney clay
clover coal coat cobra coconut coin comet compass cookie corn cotton cougar cradle crater crayon creek cricket crow
crown cup curtain cypress daisy dawn deer desert dolphin donkey door dragon dream drum duck dusk easel echo elbow elm
ember emu engine falcon farm feather fence ferry fiddle fig finch fire fish flame flag flower flute fog forest fork
fox frog fruit garden garlic gate gazelle geyser ginger giraffe glass globe glove goat goose gorilla grain granite
grape grass gravel guitar gull hammer hammock hawk hay helmet hen hill honey hook horn horse hotel house hut ice igloo
ink island ivory ivy jacket jaguar jar jelly jewel jungle juniper kayak key kite kiwi knot koala ladder lake lamp lava
leaf leather ledge lily lime lion lizard llama lobster lotus lynx magnet mango mantle market mask mast melon metal
mill mirror monkey moon moose motor mountain mouse mud muffin mule mushroom needle nest nickel night noodle north nut
oak oasis ocean olive onion opal orange orbit organ oven owl oyster paddle palm panda panther paper parrot path peach
peacock peak peanut pear pelican pencil pepper piano pigeon pillow pilot planet plate plum polar pond pony poppy porch
potato prairie prism puffin pumpkin puzzle quail quill rabbit radish rain rake ranch raft rhubarb ribbon rice ring
road robin rock rocket roof rope rose ruby rug rye sail salmon sand scarf school sea seal seed shadow shark sheep
shell ship shoe shore shrimp silk silver sky smoke snail snow soap sofa soup spade spark sparrow spider spinach spoon
squid squirrel stable star steam steel stork storm stove straw stream street sugar sun table tent tiger toast tomato
torch tower trail train tree trout trumpet tunnel turkey turnip turtle valley vase vessel village vine viola vulture
wagon wall walrus water wave wax weasel whale wheat wheel wind window wing winter wolf wool wren yacht yak yard yeast
zebra
"""
WORDS = tuple(_WORDS.split())
"""Words for names and for insertion between other words."""

_TAILS = "bus net wire pad gate sig bit val d q x z i o n p w b top main dut mod ip s r m v set data dat ctl ext int"
_GLUE = "a an and as at by for has have in is it its of on that the there to which with"
_HELD_OUT = {
    *HELD_OUT_STEMS,
    *(
        suffix
        for role in ("module", "clock", "reset", "")
        for out in (False, True)
        for suffix in suffixes(role, True, out)
    ),
}


def invented(rng: random.Random) -> str:
    """A word, or the beginning of one word with the end of another; never a word of the held-out split."""
    while True:
        first, second = rng.choice(WORDS), rng.choice(WORDS)
        word = first if rng.random() < 0.3 else first[: rng.randint(1, 4)] + second[-rng.randint(2, 5) :]
        if word not in _HELD_OUT:
            return word


def renamed(family: Family, member: Parameters, rng: random.Random) -> Parameters:
    """The member with other names, most of which consist of words that the training split does not have."""
    names: dict[str, str] = {}
    for role in family.roles:
        stem = invented(rng) if rng.random() < 0.75 else rng.choice(STEMS)
        tail = (
            rng.choice(_TAILS.split())
            if rng.random() < 0.6
            else rng.choice(suffixes(role, False, role in family.outputs))
        )
        names[role] = f"{stem}_{tail}" if rng.random() < 0.5 else stem
    if len({name.partition("_")[0] for name in names.values()}) < len(names):
        return renamed(family, member, rng)
    return member.model_copy(update={"names": names})


def reworded(family: Family, member: Parameters, rng: random.Random) -> str:
    """A member's specification with most lines changed in their words or word order."""
    held_out = held_out_lines(family, member)
    while True:
        text = _reworded(family.specification(member), rng)
        if not any(line in text for line in held_out):
            return text


def held_out_lines(family: Family, member: Parameters) -> list[str]:
    """All lines that a member's specification can have in the split ``wordings``."""
    lines = []
    for key, line in family.lines.items():
        for layout, known, unknown in (("list", line.train, line.held_out), ("table", line.rows, line.held_out_rows)):
            for number in range(len(known), len(known) + len(unknown)):
                one = member.model_copy(update={"layout": layout, "lines": ((key, number),)})
                lines.append(family.specification(one).splitlines()[-1].strip("-| "))
    return lines


def _reworded(specification: str, rng: random.Random) -> str:
    heading, body = specification.rstrip("\n").rsplit("\n\n", 1)
    if body.startswith("| "):
        head, rule, *rows = body.split("\n")
        body = "\n".join([head, rule, *(f"| {_row(row[2:-2], rng)} |" for row in rows)])
    elif body.startswith("- "):
        body = "\n".join(f"- {_sentence(line[2:], rng)}" for line in body.split("\n"))
    else:
        body = " ".join(_sentence(sentence, rng) for sentence in re.split(r"(?<=\.) ", body))
    return f"{heading}\n\n{body}\n"


def _sentence(text: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        return text
    words = _changed(text.rstrip(".").split(" "), rng)
    return f"{words[0].capitalize()} {' '.join(words[1:])}".strip() + "."


def _row(text: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        return text
    item, value = text.split(" | ")
    name, comma, rest = value.partition(", ")
    kind = rng.random()
    if comma and kind < 0.4:
        item, value = " ".join(_changed([*rest.replace(",", "").split(" "), *item.split(" ")], rng)), name
    elif comma and kind < 0.7:
        value = f"{name} ({rest})"
    elif comma and kind < 0.8:
        first, _, last = rest.partition(", ")
        item, value = f"{first} {item}", f"{name} ({last})" if last else name
    return f"{' '.join(_changed(item.split(' '), rng))} | {value}"


def _changed(words: list[str], rng: random.Random) -> list[str]:
    """The words with some function words removed, other words inserted, or in another order."""
    if rng.random() < 0.5:
        words = [word for word in words if word.lower() not in _GLUE.split() or rng.random() < 0.5] or words
    if rng.random() < 0.5 and len(words) > 1:
        cut = rng.randrange(1, len(words))
        words = [*words[cut:], *words[:cut]]
        words = [word.lower() if re.fullmatch("[A-Z][a-z]+", word) else word for word in words]
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        other = rng.choice(_GLUE.split()) if rng.random() < 0.6 else invented(rng)
        words = words.copy()
        words.insert(rng.randrange(len(words) + 1), other)
    return words
