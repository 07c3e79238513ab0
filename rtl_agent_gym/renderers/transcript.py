"""The tokens of one episode, only ever appended to.

A re-rendered history is not what the model sampled: spaces, escapes and empty think blocks change on the way through
text. Here the ids that were sampled stay as they are, and whatever comes back is put behind them. So each prompt is the
one before it, plus exactly the sampled ids, plus the appended ones, and an episode is one training example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from rtl_agent_gym.errors import UsageError

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Segment:
    """A run of tokens that came from one side."""

    ids: tuple[int, ...]
    """The token ids, in order."""
    sampled: bool
    """Whether the model sampled them; otherwise they are prompt, results or corrections."""
    logprobs: tuple[float, ...] = ()
    """Of the sampled ids, one each, in nats; empty where none were recorded, and for what was not sampled."""


class TokenTranscript:
    """Prompt, action, appended ids, action, appended ids, … in that order.

    >>> transcript = TokenTranscript([1, 2])
    >>> transcript.add_action([7, 8], [-0.5, -0.1])
    >>> transcript.append([3])
    >>> transcript.tokens, transcript.mask
    ([1, 2, 7, 8, 3], [0, 0, 1, 1, 0])

    Args:
        prompt: The ids of the opening. It must not be empty: the first token of a training example has nothing before
            it to be predicted from.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise UsageError("a token transcript starts with a prompt, and this one is empty")
        self._segments = [Segment(tuple(prompt), sampled=False)]
        self._length = len(prompt)
        self._chunks: list[tinker.ModelInputChunk] = []  # made of the segments when they are first asked for

    def __len__(self) -> int:
        """Tokens so far."""
        return self._length

    def add_action(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Add what the model sampled after everything so far.

        Args:
            ids: The sampled ids, the stop token included if it was sampled. May be empty.
            logprobs: Their log-probabilities under the policy that sampled them, one each.

        Raises:
            UsageError: When log-probabilities and ids differ in number, or nothing came back since the last action.
        """
        if self._segments[-1].sampled:
            raise UsageError("two actions in a row: append what went back to the model first")
        if logprobs is not None and len(logprobs) != len(ids):
            raise UsageError(f"an action of {len(ids)} tokens came with {len(logprobs)} log-probabilities")
        self._add(Segment(tuple(ids), sampled=True, logprobs=tuple(logprobs or ())))

    def append(self, ids: Sequence[int]) -> None:
        """Append what goes back to the model for the last action. Raises `UsageError` when there is none."""
        if not self._segments[-1].sampled:
            raise UsageError("nothing can be appended before the model has acted")
        self._add(Segment(tuple(ids), sampled=False))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The runs of tokens, in order. A prompt for the next turn can be made of them without copying a token."""
        return tuple(self._segments)

    @property
    def tokens(self) -> list[int]:
        """All ids so far. After `append`, this is the prompt of the next turn."""
        return list(chain.from_iterable(segment.ids for segment in self._segments))

    @property
    def mask(self) -> list[int]:
        """For each token, 1 if the model sampled it and 0 if not."""
        return list(chain.from_iterable([int(segment.sampled)] * len(segment.ids) for segment in self._segments))

    @property
    def logprobs(self) -> list[float]:
        """For each token its log-probability when it was sampled; 0 where the model did not sample it.

        Raises:
            UsageError: When an action was added without.
        """
        out: list[float] = []
        for segment in self._segments:
            if segment.sampled and len(segment.logprobs) != len(segment.ids):
                raise UsageError("an action was recorded without log-probabilities")
            out += segment.logprobs if segment.sampled else [0.0] * len(segment.ids)
        return out

    def model_input(self) -> tinker.ModelInput:
        """The tokens so far as a prompt for Tinker, one chunk a segment. Costs the new segments only."""
        import tinker

        new = self._segments[len(self._chunks) :]
        self._chunks += [tinker.EncodedTextChunk(tokens=list(segment.ids)) for segment in new]
        return tinker.ModelInput(chunks=[chunk for chunk in self._chunks if chunk.length])

    def to_datum(self, advantage: float = 0.0) -> tinker.Datum:
        """The episode as one training example in tinker-cookbook's layout.

        Inputs are all tokens but the last, targets all but the first; ``logprobs``, ``advantages`` (this `advantage`
        where sampled, 0 elsewhere) and ``mask`` belong to the targets.
        """
        import tinker
        import torch

        def data(values: Sequence[float], dtype: torch.dtype) -> tinker.TensorData:
            return tinker.TensorData.from_torch(torch.tensor(values[1:], dtype=dtype))

        tokens, mask = self.tokens, self.mask
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": data(tokens, torch.int64),
                "logprobs": data(self.logprobs, torch.float32),
                "advantages": data([advantage * sampled for sampled in mask], torch.float32),
                "mask": data(mask, torch.float32),
            },
        )

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._length += len(segment.ids)
