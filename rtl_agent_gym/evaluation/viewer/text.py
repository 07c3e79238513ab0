"""Episodes in the terminal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ...renderers import Renderer
from ...scoring.score import MEASURED_STAGES, Score
from ...transcripts import CommandRecord, Transcript, TurnRecord
from ...visible import plural, visible
from ..outcome import STAGES
from ..recorded import (
    changed_paths,
    file_states,
    outcome,
    outputs,
    read_action,
    renderer_of,
    short_name,
    stream_name,
    summary,
    token_kl,
    token_texts,
)

_OUTCOMES = {"passed": "green", "failed": "red", "machine": "yellow", "cut off": "yellow"}
_CONTEXT = 2
"""Lines that are shown around a change."""
_MOST_PAIRS = 4_000_000
"""Most pairs of lines that a diff compares: its time grows with their number, and agents write the files."""
_MOST_COLOURED = 4_000
"""Most characters that are coloured: the time grows with their square, and agents write commands and files."""
_HUNK = re.compile(r"^@@ -(\d+)(.*? \+)(\d+)")
_LANGUAGES = {"v": "verilog", "sv": "systemverilog", "svh": "systemverilog", "vh": "verilog", "py": "python"}


def print_list(console: Console, transcripts: Iterable[Transcript]) -> None:
    """Print a table of episodes; tokens and KL only if they are known."""
    rows = [summary(transcript) for transcript in transcripts]
    shown = {"reward": ("reward", ".2f"), "tests": ("tests", ""), "turns": ("turns", ""), "seconds": ("seconds", ".1f")}
    optional = {"tokens": ("tokens", ","), "KL": ("kl", ".3f")}
    shown |= {name: column for name, column in optional.items() if any(row[column[0]] is not None for row in rows)}
    title = plural(len(rows), "episode")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name in ("#", "problem", "outcome", *shown, "ended"):
        table.add_column(name, justify="right" if name == "#" or name in shown else "left", overflow="fold")
    for number, row in enumerate(rows, 1):
        tests = "/".join(map(str, row["tests"])) if row["tests"] else None
        figures = row | {"tests": tests}
        table.add_row(
            str(number),
            plain(short_name(row["problem"])),
            Text(row["outcome"], style=_OUTCOMES[row["outcome"]]),
            *("–" if figures[key] is None else format(figures[key], style) for key, style in shown.values()),
            plain(row["stop"] or "–"),
        )
    console.print(table)


def print_episode(
    console: Console, transcript: Transcript, *, lines: int = 60, thinking: bool = False, heat: bool = False
) -> None:
    """Print an episode from the task to the score.

    Args:
        lines: Maximum lines of a command, an output or a diff.
        thinking: Print the model's thinking; otherwise only its length.
        heat: Print turns with a teacher's log-probabilities as tokens, coloured by the teacher KL.
    """
    header = transcript.header
    console.rule(plain(header.problem_id), style="bold")
    console.print(Panel(first_lines(header.user, lines), title="task", border_style="cyan"))
    states = file_states(transcript)
    changes = changed_paths(states)
    renderer = renderer_of(transcript)
    for place, turn in enumerate(transcript.turns):
        console.rule(plain(_turn_title(turn)), style="dim")
        action = read_action(turn, renderer)
        if heat and token_kl(turn) is not None:
            console.print(_heat(turn))
        elif action.thinking:
            thought = action.thinking if thinking else f"thinking, {len(action.thinking):,} characters"
            console.print(first_lines(thought, lines), style="dim italic")
        if action.text:
            console.print(first_lines(action.text, lines), style="blue")
        for part in _results(turn, renderer, lines):
            console.print(part)
        for path in changes[place]:
            console.print(_diff(path, states[place].get(path, ""), states[place + 1].get(path, ""), lines))
    console.rule("score", style="dim")
    console.print(_score(transcript))


def plain(text: str) -> Text:
    """Untrusted text made `visible`, without markup; ``\\r\\n`` ends a line."""
    return Text(visible(text.replace("\r\n", "\n")))


def _turn_title(turn: TurnRecord) -> str:
    kl = [value for value in token_kl(turn) or () if value is not None]
    parts = [f"turn {turn.turn}", turn.action]
    if turn.stream is not None:
        parts.append(stream_name(turn))
    if turn.token_ids is not None:
        parts.append(f"{len(turn.token_ids):,} tokens")
    if kl:
        parts.append(f"KL {sum(kl) / len(kl):.3f}")
    return " · ".join([*parts, f"{turn.seconds:.2f} s"])


def _results(turn: TurnRecord, renderer: Renderer | None, lines: int) -> Iterator[RenderableType]:
    shown = outputs(turn, renderer)
    if turn.action == "malformed":
        yield first_lines(turn.words, lines)
        yield from (Text.assemble(first_lines(text, lines), style="yellow") for text in shown)
        return
    apart = len(shown) == len(turn.commands)
    for number, command in enumerate(turn.commands):
        yield _code(command.command, "bash", lines)
        if apart:
            yield Padding(_output(shown[number], lines), (0, 2))
        yield command_status(command)
    if not apart and shown:
        yield Padding(_output("\n".join(shown), lines), (0, 2))


def command_status(command: CommandRecord) -> Text:
    """How a command ended, in one line."""
    if command.exit_code is None and not command.timed_out and not command.restarted:  # an agent's own program ran it
        return Text("(status unknown)", style="dim")
    parts = ["timed out" if command.timed_out else f"exit code {command.exit_code}", f"{command.seconds:.2f} s"]
    if command.truncated_output:
        parts.append("output cut")
    if command.restarted:
        parts.append(f"shell restarted: {visible(command.restarted)}")
    if (sent := command.submission) is not None:
        tests = f"{sent.score.get('tests_passed', 0)}/{sent.score.get('tests_total', 0)} tests"
        parts.append(f"submission {sent.number}, {sent.left} left: {tests}, reward {sent.reward:+.3f}")
    return Text(visible(f"({', '.join(parts)})"), style="green" if command.exit_code == 0 else "red")


def _output(text: str, lines: int) -> Text:
    shown = first_lines(text.rstrip("\n"), lines)
    shown.highlight_regex(r"(?im)^.*\b(?:error|fatal|fail(?:ed|ure)?|traceback)\b.*$", "red")
    shown.highlight_regex(r"(?im)^.*\bwarning\b.*$", "yellow")
    shown.highlight_regex(r"(?im)^.*\bpass(?:ed)?\b.*$", "green")
    return shown


def _diff(path: str, before: str, after: str, lines: int) -> RenderableType:
    mark = "+" if not before else "-" if not after else "~"
    title = Text.assemble((f"{mark} ", "yellow"), plain(path), style="bold")
    if not before:  # a new file is easier to read as code than as a diff
        body = _code(after, _LANGUAGES.get(path.rpartition(".")[2], "text"), lines)
    else:
        body = _code("\n".join(_changes(before, after)), "diff", lines)
    return Padding(Group(title, body), (0, 4))


def _code(text: str, language: str, lines: int) -> RenderableType:
    """The first lines of untrusted code, and how many follow; coloured if they are short."""
    shown = _head(text, lines)
    return Text(shown) if len(shown) > _MOST_COLOURED else Syntax(shown, language, theme="ansi_dark", word_wrap=True)


def _changes(before: str, after: str) -> list[str]:
    """The hunks of a unified diff; lines that differ become one replacement if they are too many to compare."""
    a, b = before.splitlines(), after.splitlines()
    shorter = min(len(a), len(b))
    start = next((at for at in range(shorter) if a[at] != b[at]), shorter)
    rest = shorter - start
    end = next((at for at in range(rest) if a[-1 - at] != b[-1 - at]), rest)
    removed, added = a[start : len(a) - end], b[start : len(b) - end]
    first, above = max(0, start - _CONTEXT), a[max(0, start - _CONTEXT) : start]
    below = a[len(a) - end : len(a) - end + _CONTEXT]
    if len(removed) * len(added) > _MOST_PAIRS:
        more = len(above) + len(below)
        head = f"@@ -{first + 1},{len(removed) + more} +{first + 1},{len(added) + more} @@"
        signed = ((" ", above), ("-", removed), ("+", added), (" ", below))
        return [head, *(sign + line for sign, lines in signed for line in lines)]
    olds, news = ([*above, *lines, *below] for lines in (removed, added))
    found = list(difflib.unified_diff(olds, news, lineterm="", n=_CONTEXT))[2:]

    def moved(hunk: re.Match[str]) -> str:
        return f"@@ -{int(hunk[1]) + first}{hunk[2]}{int(hunk[3]) + first}"

    return [_HUNK.sub(moved, line) for line in found]


def _heat(turn: TurnRecord) -> Text:
    """The sampled tokens; a redder background means a lower probability under the teacher."""
    text = Text()
    for token, value in zip(token_texts(turn), token_kl(turn) or (), strict=False):
        level = 0 if value is None else min(5, int(abs(value) * 2))
        colour = f"on rgb({70 + 30 * level},30,30)" if (value or 0) > 0 else f"on rgb(30,40,{70 + 30 * level})"
        text.append(visible(token), style=colour if level else "")
    return text


def _score(transcript: Transcript) -> RenderableType:
    if transcript.score is None:
        fault = transcript.end.error if transcript.end is not None else "the transcript ends before the grading"
        return Text.assemble("no score: ", plain(fault or "the episode was not graded"), style="yellow")
    score, found = Score.model_validate(transcript.score.score), outcome(transcript)
    return Group(
        Text.assemble((found, f"bold {_OUTCOMES[found]}"), f"  reward {score.reward:.3f}"),
        Text("  ".join(f"{name} {measured}" for name, measured in score_parts(score).items())),
        plain(score.reason),
        *(Text.assemble("violation: ", plain(violation), style="red") for violation in score.violations),
    )


def score_parts(score: Score) -> dict[str, str]:
    """The measured value of each part of a score: stages, tests, and other measured results."""
    parts = {name: f"{getattr(score, name):.2f}" for name in STAGES}
    parts["tests"] = f"{score.tests_passed}/{score.tests_total}"
    return parts | {name: f"{getattr(score, name):.2f}" for name in MEASURED_STAGES if name in score.measures}


def first_lines(text: str, lines: int) -> Text:
    """The first lines of untrusted text, and how many follow."""
    return Text(_head(text, lines))


def _head(text: str, lines: int) -> str:
    parts = visible(text).split("\n")
    more = [f"… {len(parts) - lines} more lines"] if len(parts) > lines else []
    return "\n".join(parts[:lines] + more)
