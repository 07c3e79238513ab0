"""Recorded episodes as tokens of the student, with a mask of the tokens to train on."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...evaluation.export import LeftOut
from ...renderers import Renderer
from ...renderers.transcript import TokenTranscript
from .episodes import Demonstration


@dataclass(frozen=True)
class EncodedEpisode:
    """An episode in the student's tokens."""

    problem: str
    tokens: list[int]
    mask: list[int]
    """1 for each token that the model wrote, which are trained on; 0 for prompts and outputs. As long as `tokens`."""
    exact: bool
    """Whether the model's tokens are the recorded ids; otherwise they were encoded from text."""


@dataclass(frozen=True)
class Prompts:
    """What the student reads instead of the recorded prompts; None keeps the recorded one."""

    system: str | None = None
    user: str | None = None


def encode(one: Demonstration, renderer: Renderer, prompts: Prompts = Prompts()) -> EncodedEpisode | None:
    """An episode in a student's tokens; None if its dialect cannot express a turn.

    Recorded ids are taken as they are if they are of this dialect and its vocabulary decodes them to the recorded text.
    Otherwise all turns are encoded from their thinking (if the student thinks), text and calls. Outputs are appended as
    in an episode; nothing is rendered twice.
    """
    exact = one.renderer == renderer.name and all(
        turn.token_ids is not None and renderer.decode(turn.token_ids) == turn.completion for turn in one.turns
    )
    system, user = prompts.system, prompts.user
    transcript = TokenTranscript(
        renderer.initial_ids(one.system if system is None else system, one.user if user is None else user)
    )
    for number, turn in enumerate(one.turns, 1):
        if exact and turn.token_ids is not None:
            ids, outputs = list(turn.token_ids), list(turn.outputs)
        else:
            model_turn = turn.turn if renderer.thinks else replace(turn.turn, thinking="")
            ids, outputs = renderer.turn_ids(model_turn), list(turn.outputs)
            action = renderer.parse_ids(ids)
            if action.kind != ("command" if turn.turn.calls else "final"):
                return None
            if len(outputs) > len(action.commands):  # a dialect with one call a turn
                outputs = ["\n".join(outputs)]
        transcript.add_action(ids)
        if number < len(one.turns):
            if not outputs:
                return None
            transcript.append(renderer.observation_ids(outputs, ids))
    return EncodedEpisode(one.problem, transcript.tokens, transcript.mask, exact)


@dataclass(frozen=True)
class SupervisedData:
    """The episodes of a run."""

    train: Sequence[EncodedEpisode]
    validation: Sequence[EncodedEpisode] = ()
    """Episodes of held-out problems."""
    left_out: LeftOut = field(default_factory=Counter)
    """Number of episodes that are in neither, by reason."""

    @classmethod
    def collect(
        cls,
        demonstrations: Iterable[Demonstration],
        renderer: Renderer,
        *,
        prompts: Prompts,
        held_out: Collection[str],
        single_turn: bool,
        max_tokens: int,
        left_out: LeftOut,
    ) -> SupervisedData:
        """Encode episodes.

        Args:
            demonstrations: The episodes.
            renderer: The student's, with its vocabulary.
            prompts: The student's prompts.
            held_out: The ids of the held-out problems.
            single_turn: Whether an episode is one answer without calls; otherwise it must have a call.
            max_tokens: Longer episodes are left out.
            left_out: Counts the episodes that are left out.
        """
        train: list[EncodedEpisode] = []
        validation: list[EncodedEpisode] = []
        for one in demonstrations:
            if any(turn.turn.calls for turn in one.turns) == single_turn:
                left_out["of another env"] += 1
                continue
            encoded = encode(one, renderer, prompts)
            if encoded is None:
                left_out["not expressible in the student's dialect"] += 1
            elif len(encoded.tokens) > max_tokens:
                left_out[f"longer than {max_tokens} tokens"] += 1
            else:
                (validation if one.problem in held_out else train).append(encoded)
        return cls(train, validation, left_out)

    @cached_property
    def digest(self) -> str:
        """A digest of all tokens and masks: a run is resumed only with the same data."""
        made = hashlib.sha256()
        for episodes in (self.train, self.validation):
            for one in episodes:
                made.update(repr((one.problem, one.tokens, one.mask)).encode())
            made.update(b"|")
        return made.hexdigest()[:16]

    @property
    def longest(self) -> int:
        """Tokens of the longest episode."""
        return max(len(one.tokens) for one in (*self.train, *self.validation))

    def steps(self, batch_size: int, epochs: int) -> int:
        """The number of steps of a run."""
        return math.ceil(len(self.train) * epochs / batch_size)

    def batch(self, step: int, batch_size: int, epochs: int, seed: int) -> list[EncodedEpisode]:
        """The episodes of a step. Each epoch has its own order; a batch can span two, and the last can be smaller."""
        size = len(self.train)
        found: list[EncodedEpisode] = []
        for place in range(step * batch_size, min((step + 1) * batch_size, epochs * size)):
            epoch, index = divmod(place, size)
            found.append(self.train[self._order(epoch, seed)[index]])
        return found

    def _order(self, epoch: int, seed: int) -> list[int]:
        order = list(range(len(self.train)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        return order

    def summary(self) -> str:
        """One line: how many episodes there are, and how many were left out."""
        every = (*self.train, *self.validation)
        tokens = sum(sum(one.mask) for one in self.train)
        line = f"{len(self.train)} episodes to train on, with {tokens:,} tokens of the model"
        if self.validation:
            line += f"; {len(self.validation)} for validation"
        line += f"; {sum(one.exact for one in every)} with recorded tokens, the others encoded from text"
        return f"{line}; {self.reasons()}"

    def reasons(self) -> str:
        """Why how many episodes were left out."""
        return "left out: " + (", ".join(f"{count} {why}" for why, count in self.left_out.most_common()) or "none")
