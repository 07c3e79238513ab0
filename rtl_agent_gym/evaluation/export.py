"""Recorded episodes as training data: chats for SFT, sampled tokens, and preference pairs for DPO."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from pydantic import Field
from pydantic_core import to_jsonable_python

from ..errors import UsageError
from ..options import Options
from ..renderers import Renderer, ToolCall, get_renderer
from ..renderers.chat import call_message
from ..renderers.protocol import TOOL
from ..renderers.vocabularies import printable
from ..transcripts import Transcript, TurnRecord
from .recorded import outputs, read_action, renderer_of

Style = Literal["tools", "transformers", "dialect"]
"""See `ExportConfig.style`."""

Row = dict[str, Any]
"""A line of an export, before it is written as JSON."""


class ExportConfig(Options):
    """Which episodes are exported, and how they are written."""

    style: Style = "tools"
    """tools: calls as in OpenAI's chat format; transformers: the same with arguments as objects, for chat templates;
    dialect: every turn as the text that the model wrote."""
    passed_only: bool = True
    """With sft and tokens: leave out episodes that did not pass."""
    min_reward: float | None = None
    """With sft and tokens: leave out episodes with a lower reward."""
    keep_malformed: bool = False
    """With sft and dpo: include episodes with malformed turns, which a model should not learn to write."""
    keep_violations: bool = False
    """Include episodes with attempts against the grader."""
    pairs: int = Field(default=4, ge=1)
    """With dpo: upper bound on the pairs of one prompt."""

    def lack(self, passed: bool | None, reward: float | None) -> str:
        """Why an episode with this verdict and reward (None: unknown) is left out; empty if it is exported."""
        if self.passed_only and not passed:
            return "did not pass"
        if self.min_reward is not None and (reward is None or not reward >= self.min_reward):  # also if it is NaN
            return "too little reward"
        return ""


_TOKEN_FIELDS = {"token_ids", "logprobs", "teacher_logprobs", "completion", "native", "cut_off", "observation"}

LeftOut = Counter[str]
"""How many episodes were left out, by reason."""


def export_rows(
    format: str, transcripts: Iterable[Transcript], config: ExportConfig | None = None, left_out: LeftOut | None = None
) -> Iterator[Row]:
    """Yield the lines of an export, reading one transcript at a time.

    Args:
        format: ``sft``: a line per episode: its messages, the tool unless the style is ``dialect``, and metadata.
            ``tokens``: a line per episode: for each turn the sampled ids, with log-probabilities under student and
            teacher. ``dpo``: pairs of a passed and a failed episode of the same prompt: ``prompt``, ``chosen``,
            ``rejected``.

    Raises:
        UsageError: There is no such format.
    """
    if format not in _FORMATS:
        raise UsageError(f"there is no format {format!r}; choose one of {', '.join(_FORMATS)}")
    config, left_out = config or ExportConfig(), Counter() if left_out is None else left_out
    exported = _exported(transcripts, format, config, left_out)
    if format == "dpo":
        return _preference_rows(exported, config, left_out)
    return (_sft_row(each, config.style) if format == "sft" else _token_row(each) for each in exported)


_FORMATS = ("sft", "tokens", "dpo")


def _sft_row(transcript: Transcript, style: Style) -> Row:
    return {"messages": messages(transcript, style), **_tools(transcript, style), "metadata": _metadata(transcript)}


def _token_row(transcript: Transcript) -> Row:
    return {
        "system": transcript.header.system,
        "user": transcript.header.user,
        # Null for log-probabilities that are not finite. Lone surrogates stay: a call with them is malformed.
        "turns": [
            to_jsonable_python(turn.model_dump(include=_TOKEN_FIELDS), inf_nan_mode="null") for turn in transcript.turns
        ],
        "metadata": _metadata(transcript),
    }


def _preference_rows(transcripts: Iterable[Transcript], config: ExportConfig, left_out: LeftOut) -> Iterator[Row]:
    groups: dict[tuple[str, ...], tuple[list[Transcript], list[Transcript]]] = defaultdict(lambda: ([], []))
    for transcript in transcripts:
        header = transcript.header
        key: tuple[str, ...] = (header.problem_id, header.problem_digest, header.system, header.user)
        key += (header.renderer, str(header.options.get("single_turn"))) if config.style == "dialect" else ()
        groups[key][0 if _metadata(transcript)["passed"] else 1].append(transcript)
    for chosen, rejected in groups.values():
        if not chosen or not rejected:
            left_out["no failed counterpart" if chosen else "no passed counterpart"] += len(chosen or rejected)
        yield from islice(_pairs(_distinct(chosen), _distinct(rejected), config.style), config.pairs)


def messages(transcript: Transcript, style: Style) -> list[Row]:
    """An episode as chat messages.

    Raises:
        UsageError: The style is not ``dialect``, and the transcript's renderer is unknown or its package is
            missing, so its turns cannot be parsed.
    """
    header, renderer = transcript.header, renderer_of(transcript)
    if renderer is None and style != "dialect":
        get_renderer(header.renderer).parse_text("")  # raises
    if style == "dialect" and renderer is not None:
        found: list[Row] = [dict(message) for message in renderer.initial_messages(header.system, header.user)]
    else:
        found = [
            {"role": role, "content": text} for role, text in (("system", header.system), ("user", header.user)) if text
        ]
    for turn in transcript.turns:
        found += _turn_as_text(turn, renderer) if style == "dialect" else _turn_with_calls(turn, renderer, style)
    while found and found[-1]["role"] in ("tool", "user"):  # training data ends with the assistant
        found.pop()
    return found


def _tools(transcript: Transcript, style: Style) -> Row:
    if style == "dialect":
        return {}
    return {"tools": [] if transcript.header.options.get("single_turn") else [TOOL]}


def _turn_as_text(turn: TurnRecord, renderer: Renderer | None) -> list[Row]:
    text = turn.completion if turn.native is None or renderer is None else renderer.turn_text(turn.native)
    for stop in renderer.stop if renderer is not None else ():
        text = text.removesuffix(stop) if isinstance(stop, str) else text  # gpt-oss's ids tell a call from the end
    reply = [{"role": "user", "content": printable(turn.observation)}] if turn.observation else []
    return [{"role": "assistant", "content": printable(text)}, *reply]  # JSON parsers reject lone surrogates


def _turn_with_calls(turn: TurnRecord, renderer: Renderer | None, style: Style) -> list[Row]:
    if turn.action == "malformed":
        return _turn_as_text(turn, renderer)
    action = read_action(turn, renderer)
    message: Row = {"role": "assistant", "content": action.text}
    if action.thinking:
        message["reasoning_content"] = action.thinking
    if not turn.commands:
        return [message]
    ids = [f"call_{turn.turn}_{number}" for number in range(1, len(turn.commands) + 1)]
    calls = [ToolCall.of(command.command) for command in turn.commands]
    message["tool_calls"] = [call_message(replace(call, id=id_)) for id_, call in zip(ids, calls, strict=True)]
    for call in message["tool_calls"] if style == "transformers" else ():
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    texts = outputs(turn, renderer)
    if len(texts) != len(ids):  # the dialect does not separate outputs: the last call gets all of them
        texts = [""] * (len(ids) - 1) + ["\n".join(texts)]
    results = [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in zip(ids, texts, strict=True)]
    return [message, *results]


def _pairs(chosen: list[Transcript], rejected: list[Transcript], style: Style) -> Iterator[Row]:
    """Every passed episode with every failed one, ordered so that each episode repeats as late as possible."""
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
    return row | _tools(good, style) | {"metadata": {"chosen": _metadata(good), "rejected": _metadata(bad)}}


def _distinct(transcripts: list[Transcript]) -> list[Transcript]:
    seen: dict[tuple[Any, ...], Transcript] = {}
    for transcript in transcripts:
        seen.setdefault(tuple((turn.completion, turn.native) for turn in transcript.turns), transcript)
    return list(seen.values())


def _exported(
    transcripts: Iterable[Transcript], format: str, config: ExportConfig, left_out: LeftOut
) -> Iterator[Transcript]:
    """The episodes that are exported in a format; the others are counted in `left_out`."""
    for transcript in transcripts:
        score, turns = transcript.score.score if transcript.score is not None else {}, transcript.turns
        lack = "" if format == "dpo" else config.lack(score.get("passed"), score.get("reward"))
        malformed = not config.keep_malformed and any(turn.action == "malformed" for turn in turns)
        reasons = {
            "no turns": not turns,
            f"renderer {transcript.header.renderer!r} not available (style {config.style})": (
                config.style != "dialect" and format != "tokens" and renderer_of(transcript) is None
            ),
            "no score": transcript.score is None,
            lack: lack,
            "violations": not config.keep_violations and score.get("violations"),
            "malformed turns": format != "tokens" and malformed,
            "used an agent's own tools": format != "tokens" and any(turn.outside for turn in turns),
            "no tokens recorded": format == "tokens" and not any(turn.token_ids for turn in turns),
        }
        reason = next((reason for reason, applies in reasons.items() if applies), None)
        if reason is None:
            yield transcript
        else:
            left_out[reason] += 1


def _metadata(transcript: Transcript) -> Row:
    header, score = transcript.header, transcript.score.score if transcript.score is not None else {}
    reward = score.get("reward")
    return {
        "problem_id": header.problem_id,
        "problem_digest": header.problem_digest,
        "renderer": header.renderer,
        "transcript": transcript.path.name,
        "passed": score.get("passed"),
        "reward": reward if reward is not None and math.isfinite(reward) else None,
        "turns": len(transcript.turns),
    }
