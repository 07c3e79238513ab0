"""The shipped models' episodes, as text: read the specification, write the design, compile, done.

Nothing is run while models are made. The outputs here are what the real shell prints, and a test compares them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..problems.families.family import TARGET as TARGET
from ..renderers import Renderer

RENDERER = "qwen3"
"""The models' dialect."""

SYSTEM_PROMPT = ""
"""Replaces the environment's system prompt, which would be long for a small model."""

USER_PROMPT = "Write the design that docs/specification.md describes."
"""Replaces the problem's user prompt."""

REFERENCE = "\n\nA reference solution:\n\n"
"""Stands between the user prompt and a reference solution, for a teacher that reads one."""

READ = "cat docs/specification.md"
COMPILE = "iverilog -g2012 -o rundir/sim rtl/*.sv && echo OK"
SUBMIT = "submit"
DONE = "Done."

NO_OUTPUT = "[no output, exit code 0]"
COMPILED = "OK\n"


@dataclass(frozen=True)
class Start:
    """How an episode begins."""

    user: str = USER_PROMPT
    """Replaces the problem's user prompt."""
    read: str = READ
    """The command that reads the specification."""


@dataclass(frozen=True)
class Turn:
    """One turn of the model, and the output of its command."""

    text: str
    output: str | None
    """None after the last turn."""
    learned: bool = True
    """Whether the model is trained on it."""


@dataclass(frozen=True)
class TextEpisode:
    """An episode as text."""

    user: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class TokenEpisode:
    """An episode as ids."""

    ids: list[int]
    learned: list[bool]
    """Whether the model is trained on each id."""


def call(command: str) -> str:
    """The model's turn that runs a command."""
    arguments = json.dumps({"name": "execute_bash", "arguments": {"command": command}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


def write(files: dict[str, str]) -> str:
    """The command that writes a design, one here-document for each file."""
    return "\n".join(f"cat > {path} <<'EOF'\n{text}EOF" for path, text in files.items())


def with_reference(files: dict[str, str], user: str = USER_PROMPT) -> str:
    """The user prompt of a teacher that reads a reference solution."""
    return user + REFERENCE + "".join(files.values())


def episode(specification: str, files: dict[str, str], start: Start = Start()) -> TextEpisode:
    """The episode that writes a design that compiles."""
    reading = Turn(call(start.read), specification)
    return TextEpisode(start.user, (reading, Turn(call(write(files)), NO_OUTPUT), *_closing()))


def repaired(
    specification: str, first: dict[str, str], failing: str, files: dict[str, str], start: Start = Start()
) -> TextEpisode:
    """The episode in which a first design is submitted and fails, and a second one replaces it.

    Only the second one is learned.
    """
    return TextEpisode(
        start.user,
        (
            Turn(call(start.read), specification),
            Turn(call(write(first)), NO_OUTPUT, learned=False),
            Turn(call(SUBMIT), failing),
            Turn(call(write(files)), NO_OUTPUT),
            *_closing(),
        ),
    )


def _closing() -> tuple[Turn, ...]:
    return Turn(call(COMPILE), COMPILED), Turn(DONE, None)


class Encoder:
    """Encodes episodes as the environment does. It keeps the ids of texts that are the same in all episodes.

    Args:
        renderer: The models' dialect, with their tokenizer.
        tokenizer: The tokenizer.
    """

    def __init__(self, renderer: Renderer, tokenizer: Any) -> None:
        self.renderer, self.tokenizer = renderer, tokenizer
        self._turn = lru_cache(maxsize=64)(self._encode_turn)
        self._prompt = lru_cache(maxsize=64)(lambda user: renderer.initial_ids(SYSTEM_PROMPT, user))
        self._answer = lru_cache(maxsize=64)(
            lambda output: renderer.observation_ids([output], [tokenizer.eos_token_id])
        )

    def _encode_turn(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def encode(self, one: TextEpisode) -> TokenEpisode:
        """The episode as ids."""
        ids = list(self._prompt(one.user))
        learned = [False] * len(ids)
        for turn in one.turns:
            action = self._turn(turn.text)
            answer = [] if turn.output is None else self._answer(turn.output)
            ids += action + answer
            learned += [turn.learned] * len(action) + [False] * len(answer)
        return TokenEpisode(ids, learned)


_WORD = re.compile(r"_?[a-z]+")
_SYLLABLES = tuple(
    a + b for a in "bcdfghjklmnprstvwyz" for b in ("a", "e", "i", "o", "u", "an", "er", "il", "on", "ust", "ee")
)


def invented(rng: random.Random) -> str:
    """A word that means nothing."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((2, 2, 3))))


def renamed(texts: Sequence[str], pieces: Collection[str], share: float, rng: random.Random) -> list[str]:
    """The texts with some pieces of names replaced by invented words, the same in all texts.

    So a model learns to copy any name, not only those of the training split.

    Args:
        texts: The texts.
        pieces: The pieces of names; a suffix begins with ``_``.
        share: The probability that a piece is replaced.
        rng: The source of chance.
    """
    new: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        word = match[0]
        if word in pieces and word not in new:
            mark = "_" if word.startswith("_") else ""
            new[word] = mark + invented(rng) if rng.random() < share else word
        return new.get(word, word)

    return [_WORD.sub(replace, text) for text in texts]
