"""The shipped models' episodes as text: read the specification, write the design, compile or submit it, and finish.

No command is run while models are made. The outputs here are those of the real shell, which a test verifies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rtl_agent_gym.demo.shipped import FEEDBACK_PROMPT, SYSTEM_PROMPT
from rtl_agent_gym.renderers import Renderer

READ = "cat docs/specification.md"
COMPILE = "iverilog -g2012 -o rundir/sim rtl/*.sv && echo OK"
SUBMIT = "submit"
DONE = "Done."

NO_OUTPUT = "[no output, exit code 0]"
COMPILED = "OK\n"


def call(command: str) -> str:
    """The model's turn that runs a command."""
    arguments = json.dumps({"name": "execute_bash", "arguments": {"command": command}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


def write(files: dict[str, str]) -> str:
    """The command that writes a design, one here-document for each file."""
    return "\n".join(f"cat > {path} <<'EOF'\n{text}EOF" for path, text in files.items())


@dataclass(frozen=True)
class Start:
    """How an episode begins."""

    user: str
    """The environment's user prompt."""
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
class Design:
    """One design of an episode with submissions."""

    files: dict[str, str]
    failing: tuple[str, ...] = ()
    """The names of the checks that fail."""
    learned: bool = True


@dataclass(frozen=True)
class TextEpisode:
    """An episode as text."""

    system: str
    user: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class TokenEpisode:
    """An episode as token ids."""

    ids: list[int]
    learned: list[bool]
    """Whether the model is trained on each id."""


def written_episode(start: Start, specification: str, files: dict[str, str]) -> TextEpisode:
    """An episode that writes a design and compiles it."""
    reading, writing = Turn(call(start.read), specification), Turn(call(write(files)), NO_OUTPUT)
    return TextEpisode(SYSTEM_PROMPT, start.user, (reading, writing, *_COMPILING))


def submitted_episode(start: Start, specification: str, designs: Sequence[Design], submissions: int) -> TextEpisode:
    """An episode in which designs are submitted until one passes or the submissions are used up.

    A design that is written after the last submission is compiled instead.
    """
    turns = [Turn(call(start.read), specification)]
    for number, design in enumerate(designs, 1):
        turns.append(Turn(call(write(design.files)), NO_OUTPUT, design.learned))
        if number <= submissions:
            turns.append(Turn(call(SUBMIT), answer(number, submissions, design.failing)))
    closing = _COMPILING if len(designs) > submissions else _COMPILING[1:]
    return TextEpisode(FEEDBACK_PROMPT, start.user, (*turns, *closing))


def answer(number: int, submissions: int, failing: Sequence[str]) -> str:
    """The output of ``submit``."""
    begin = f"submission {number} of {submissions}: "
    if not failing:
        return f"{begin}all checks pass\n"
    return "\n".join([f"{begin}these checks fail:", *(f"- {check}" for check in failing), "[exit code 1]"])


_COMPILING = Turn(call(COMPILE), COMPILED), Turn(DONE, None)


class Encoder:
    """Encodes episodes as the environment does. It caches the ids of prompts, turns and outputs that recur.

    Args:
        renderer: The models' dialect, with their tokenizer.
        tokenizer: The tokenizer.
    """

    def __init__(self, renderer: Renderer, tokenizer: Any) -> None:
        self.renderer, self.tokenizer = renderer, tokenizer
        self._turn = lru_cache(maxsize=64)(self._encode_turn)
        self._prompt = lru_cache(maxsize=1024)(renderer.initial_ids)
        self._answer = lru_cache(maxsize=64)(
            lambda output: renderer.observation_ids([output], [tokenizer.eos_token_id])
        )

    def _encode_turn(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def encode(self, one: TextEpisode) -> TokenEpisode:
        """The episode as token ids."""
        ids = list(self._prompt(one.system, one.user))
        learned = [False] * len(ids)
        for turn in one.turns:
            action = self._turn(turn.text)
            answer = [] if turn.output is None else self._answer(turn.output)
            ids += action + answer
            learned += [turn.learned] * len(action) + [False] * len(answer)
        return TokenEpisode(ids, learned)
