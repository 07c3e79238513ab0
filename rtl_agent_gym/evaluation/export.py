"""Recorded episodes as training data: chats for SFT, sampled tokens, and pairs of siblings for DPO."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from ..errors import UsageError
from ..renderers import Renderer, ToolCall, get_renderer
from ..renderers.protocol import TOOL
from ..transcripts import Transcript, TurnRecord
from .viewer.model import known_renderer, outputs, read_action

Style = Literal["tools", "dialect"]
"""``tools``: calls as OpenAI's chat format has them. ``dialect``: every turn as the text that the model wrote."""

Row = dict[str, Any]
"""A line of an export, as it is written in JSON."""


@dataclass(frozen=True)
class ExportConfig:
    """Which episodes are taken, and how they are written."""

    style: Style = "tools"
    passed_only: bool = True
    """SFT and tokens: leave out episodes that did not pass."""
    min_reward: float | None = None
    """SFT and tokens: leave out episodes that earned less."""
    keep_malformed: bool = False
    """SFT and DPO: keep episodes with turns that could not be acted on, which nobody should learn to write."""
    keep_violations: bool = False
    """Keep episodes that tried something against the grader."""
    pairs: int = 4
    """DPO: pairs of one problem, at most."""


@dataclass
class Left:
    """What was left out, and why."""

    reasons: Counter[str] = field(default_factory=Counter)

    def out(self, reason: str) -> None:
        """Count one more."""
        self.reasons[reason] += 1


def sft_rows(transcripts: Iterable[Transcript], config: ExportConfig, left: Left) -> Iterator[Row]:
    """A line an episode: its messages, the tool where the style is ``tools``, and where it is from."""
    for transcript in transcripts:
        if (reason := _unfit(transcript, config)) is not None:
            left.out(reason)
            continue
        row: Row = {"messages": messages(transcript, config.style)}
        if config.style == "tools":
            row["tools"] = [TOOL]
        yield row | {"metadata": _metadata(transcript)}


def token_rows(transcripts: Iterable[Transcript], config: ExportConfig, left: Left) -> Iterator[Row]:
    """A line an episode: for each turn the sampled ids with the log-probabilities under student and teacher."""
    for transcript in transcripts:
        reason = _unfit(transcript, config, malformed=True)
        if reason is None and not any(turn.token_ids for turn in transcript.turns):
            reason = "no tokens recorded"
        if reason is not None:
            left.out(reason)
            continue
        yield {
            "system": transcript.header.system,
            "user": transcript.header.user,
            "turns": [_tokens(turn) for turn in transcript.turns],
            "metadata": _metadata(transcript),
        }


def preference_rows(transcripts: Iterable[Transcript], config: ExportConfig, left: Left) -> Iterator[Row]:
    """Pairs of a passed and a failed episode that answer the same prompt: ``prompt``, ``chosen``, ``rejected``."""
    groups: dict[tuple[str, str, str, str], tuple[list[Transcript], list[Transcript]]] = defaultdict(lambda: ([], []))
    for transcript in transcripts:
        header, score = transcript.header, transcript.score
        if score is None:
            left.out("no score")
        elif (reason := _unfit(transcript, config, failed=True)) is not None:
            left.out(reason)
        else:
            passed = bool(score.score.get("passed"))
            key = (header.problem_id, header.problem_digest, header.system, header.user)
            groups[key][0 if passed else 1].append(transcript)
    for chosen, rejected in groups.values():
        if not chosen or not rejected:
            for _ in chosen or rejected:
                left.out("all of its problem passed" if chosen else "all of its problem failed")
        yield from islice(_pairs(_distinct(chosen), _distinct(rejected), config.style), config.pairs)


FORMATS: dict[str, Callable[[Iterable[Transcript], ExportConfig, Left], Iterator[Row]]] = {
    "sft": sft_rows,
    "tokens": token_rows,
    "dpo": preference_rows,
}
"""Every format by its name."""


def export_rows(
    format: str, transcripts: Iterable[Transcript], config: ExportConfig | None = None, left: Left | None = None
) -> Iterator[Row]:
    """The lines of a format, one at a time.

    Args:
        format: One of `FORMATS`.
        transcripts: The episodes.
        config: Which of them, and how.
        left: Filled with what is left out.

    Raises:
        UsageError: There is no such format.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[format](transcripts, config or ExportConfig(), left if left is not None else Left())


def messages(transcript: Transcript, style: Style) -> list[Row]:
    """An episode as chat messages.

    Raises:
        UsageError: The style is ``tools`` and the transcript's renderer is unknown, so its turns cannot be read.
    """
    renderer = (
        get_renderer(transcript.header.renderer) if style == "tools" else known_renderer(transcript.header.renderer)
    )
    header = transcript.header
    if style == "dialect" and renderer is not None:
        found: list[Row] = [dict(message) for message in renderer.initial_messages(header.system, header.user)]
    else:
        found = [
            {"role": role, "content": text} for role, text in (("system", header.system), ("user", header.user)) if text
        ]
    for turn in transcript.turns:
        found += _turn_as_text(turn, renderer) if style == "dialect" else _turn_with_calls(turn, renderer)
    while found and found[-1]["role"] in ("tool", "user"):  # what nobody answered teaches nothing
        found.pop()
    return found


def _turn_as_text(turn: TurnRecord, renderer: Renderer | None) -> list[Row]:
    text = turn.completion if turn.native is None or renderer is None else renderer.turn_text(turn.native)
    said = [{"role": "assistant", "content": text}]
    return [*said, {"role": "user", "content": turn.observation}] if turn.observation else said


def _turn_with_calls(turn: TurnRecord, renderer: Renderer | None) -> list[Row]:
    if turn.action == "malformed":
        return _turn_as_text(turn, renderer)
    action = read_action(turn, renderer)
    said: Row = {"role": "assistant", "content": action.text}
    if action.thinking:
        said["reasoning_content"] = action.thinking
    if not turn.commands:
        return [said]
    names = [f"call_{turn.turn}_{number}" for number in range(1, len(turn.commands) + 1)]
    calls = [ToolCall.of(command.command) for command in turn.commands]
    said["tool_calls"] = [
        {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for name, call in zip(names, calls, strict=True)
    ]
    shown = outputs(turn, renderer)
    if len(shown) != len(names):  # the dialect does not tell them apart: all of it answers the last call
        shown = [""] * (len(names) - 1) + ["\n".join(shown)]
    return [
        said,
        *({"role": "tool", "tool_call_id": name, "content": text} for name, text in zip(names, shown, strict=True)),
    ]


def _tokens(turn: TurnRecord) -> Row:
    return {
        "token_ids": turn.token_ids,
        "logprobs": turn.logprobs,
        "teacher_logprobs": turn.teacher_logprobs,
        "completion": turn.completion,
        "cut_off": turn.cut_off,
        "observation": turn.observation,
    }


def _pairs(chosen: list[Transcript], rejected: list[Transcript], style: Style) -> Iterator[Row]:
    """Every passed one with every failed one, ordered so that episodes come again as late as can be."""
    size = max(len(chosen), len(rejected))
    for shift in range(size):
        for place in range(size):
            good, bad = place, (place + shift) % size
            if good < len(chosen) and bad < len(rejected):
                yield _pair(chosen[good], rejected[bad], style)


def _pair(good: Transcript, bad: Transcript, style: Style) -> Row:
    chosen, rejected = messages(good, style), messages(bad, style)
    opening = sum(1 for message in chosen if message["role"] == "system") + 1
    row: Row = {"prompt": chosen[:opening], "chosen": chosen[opening:], "rejected": rejected[opening:]}
    if style == "tools":
        row["tools"] = [TOOL]
    return row | {"metadata": {"chosen": _metadata(good), "rejected": _metadata(bad)}}


def _distinct(transcripts: list[Transcript]) -> list[Transcript]:
    seen: dict[tuple[Any, ...], Transcript] = {}
    for transcript in transcripts:
        seen.setdefault(tuple((turn.completion, turn.native) for turn in transcript.turns), transcript)
    return list(seen.values())


def _unfit(
    transcript: Transcript, config: ExportConfig, *, malformed: bool = False, failed: bool = False
) -> str | None:
    """Why an episode is left out; `malformed` and `failed` ones may be let through."""
    score = transcript.score.score if transcript.score is not None else {}
    if not transcript.turns:
        return "no turns"
    if config.passed_only and not failed and not score.get("passed"):
        return "did not pass"
    if config.min_reward is not None and not failed and float(score.get("reward", 0)) < config.min_reward:
        return "too little reward"
    if score.get("violations") and not config.keep_violations:
        return "violations"
    if not malformed and not config.keep_malformed and any(turn.action == "malformed" for turn in transcript.turns):
        return "malformed turns"
    return None


def _metadata(transcript: Transcript) -> Row:
    header, score = transcript.header, transcript.score.score if transcript.score is not None else {}
    return {
        "problem_id": header.problem_id,
        "problem_digest": header.problem_digest,
        "renderer": header.renderer,
        "transcript": transcript.path.name,
        "passed": score.get("passed"),
        "reward": score.get("reward"),
        "turns": len(transcript.turns),
    }
