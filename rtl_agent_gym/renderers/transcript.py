"""The append-only tokens of one episode.

Rendering a history again would change spaces, escapes and empty think blocks, so it would differ from what the model
sampled. Here sampled ids stay unchanged, and replies are appended. Each prompt is the previous prompt, plus exactly the
sampled ids, plus the appended ones, so an episode is one training example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UsageError

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one origin."""

    ids: tuple[int, ...]
    sampled: bool
    """Whether the model sampled them; otherwise they are the prompt, results or corrections."""
    logprobs: tuple[float, ...] = ()
    """Log-probabilities of the sampled ids, in nats; empty if none were recorded or the ids were not sampled."""


class Response(NamedTuple):
    """What follows the prompt, up to the last sampled token; three lists of equal length."""

    ids: list[int]
    mask: list[int]
    """1 for a token that the model sampled, 0 for one that was appended."""
    logprobs: list[float]
    """Log-probabilities of sampled tokens, in nats; 0 for the others; empty if none were recorded."""


class TokenTranscript:
    """Prompt, action, appended ids, action, appended ids, … in that order.

    >>> transcript = TokenTranscript([1, 2])
    >>> transcript.add_action([7, 8], [-0.5, -0.1])
    >>> transcript.append([3])
    >>> transcript.tokens, transcript.mask
    ([1, 2, 7, 8, 3], [0, 0, 1, 1, 0])

    Args:
        prompt: The ids of the opening. Must not be empty: a training example predicts each token from those before it.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise UsageError("the prompt of a token transcript must not be empty")
        self._segments = [Segment(tuple(prompt), sampled=False)]
        self._length = len(prompt)
        self._chunks: list[tinker.ModelInputChunk] = []  # one per segment, created by `model_input`

    def __len__(self) -> int:
        return self._length

    def add_action(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Add the ids that the model sampled, possibly none, including the stop token if it was sampled.

        `logprobs` are the ids' log-probabilities under the policy that sampled them, in nats.

        Raises:
            UsageError: `logprobs` and `ids` differ in length, or nothing was appended since the last action.
        """
        if self._segments[-1].sampled:
            raise UsageError("two actions in a row: append the reply to the first action before the second")
        if logprobs is not None and len(logprobs) != len(ids):
            raise UsageError(f"an action of {len(ids)} tokens came with {len(logprobs)} log-probabilities")
        self._add(Segment(tuple(ids), sampled=True, logprobs=tuple(logprobs or ())))

    def append(self, ids: Sequence[int]) -> None:
        """Append the reply to the last action. Raises `UsageError` if there is no such action."""
        if not self._segments[-1].sampled:
            raise UsageError("nothing can be appended before the model has acted")
        self._add(Segment(tuple(ids), sampled=False))

    def to_json(self) -> list[dict[str, Any]]:
        """The transcript as plain data; see `from_json`."""
        return [vars(segment) for segment in self._segments]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> TokenTranscript:
        made = cls(data[0]["ids"])
        for row in data[1:]:
            made._add(Segment(tuple(row["ids"]), row["sampled"], tuple(row["logprobs"])))
        return made

    @property
    def segments(self) -> tuple[Segment, ...]:
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
        """For each token its log-probability when sampled, in nats; 0 if the model did not sample it.

        Raises:
            UsageError: An action was added without log-probabilities.
        """
        logprobs: list[float] = []
        for segment in self._segments:
            if segment.sampled and len(segment.logprobs) != len(segment.ids):
                raise UsageError("an action was recorded without log-probabilities")
            logprobs += segment.logprobs if segment.sampled else [0.0] * len(segment.ids)
        return logprobs

    @property
    def prompt(self) -> list[int]:
        """The ids of the opening."""
        return list(self._segments[0].ids)

    @property
    def response(self) -> Response:
        """The tokens after `prompt`, in the form that most trainers expect. The reply to the last action is left out,
        because the model never read it.

        Raises:
            UsageError: Some actions have log-probabilities and others none.
        """
        last = max((number for number, segment in enumerate(self._segments) if segment.sampled), default=0)
        kept = self._segments[1 : last + 1]
        recorded = any(segment.logprobs for segment in kept)
        begin, end = len(self._segments[0].ids), sum(len(segment.ids) for segment in self._segments[: last + 1])
        return Response(self.tokens[begin:end], self.mask[begin:end], self.logprobs[begin:end] if recorded else [])

    def model_input(self) -> tinker.ModelInput:
        """The tokens so far as a prompt for Tinker, one chunk per segment. Only new segments are converted."""
        import tinker

        new = self._segments[len(self._chunks) :]
        self._chunks += [tinker.EncodedTextChunk(tokens=list(segment.ids)) for segment in new]
        return tinker.ModelInput(chunks=[chunk for chunk in self._chunks if chunk.length])

    def to_datum(self, advantage: float = 0.0) -> tinker.Datum:
        """The episode as one training example in tinker-cookbook's layout.

        Inputs are all tokens except the last, targets all except the first. ``logprobs``, ``advantages`` (`advantage`
        for sampled tokens, 0 for others) and ``mask`` are aligned with the targets.
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
