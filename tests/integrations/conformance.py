"""The scripted episodes that every framework plays alike, and the form in which each reports what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from rtl_agent_gym.episodes.rules import RECORDED_RULES, EpisodeConfig
from rtl_agent_gym.errors import RTLGymError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall

RULES = EpisodeConfig(max_turns=6, command_timeout=2.0)


@cache
def gray() -> Problem:
    """The problem of all scripts: quick to grade."""
    return next(problem for problem in load_problems("bundled") if "gray_counter" in problem.id)


@dataclass(frozen=True)
class Script:
    """An episode as a model would play it."""

    name: str
    turns: tuple[tuple[ToolCall, ...] | str, ...]
    """In each turn the calls, or the text of a final answer. If the last turn is not final, the model is cut off there,
    by the turn limit or by its framework, and the files are graded."""
    config: EpisodeConfig = RULES
    fault_in: int | None = None
    """The number of the turn whose call ends the container, as a machine would."""


@dataclass(frozen=True)
class Played:
    """What a framework made of a script."""

    reward: float | None
    """What the framework trains on or reports; None if it excludes the episode or calls it an error."""
    passed: bool | None
    """The verdict; None for a fault."""
    observations: tuple[str, ...] | None = None
    """What the model read after each turn with calls; None where the framework does not show it."""
    numbers: dict[str, float] | None = field(default=None, compare=False)
    """All numbers of `result_numbers`; None without a verdict, or where the framework has only their means."""

    def other_numbers(self, session: Played) -> dict[str, float | None]:
        """Those that differ from a session's, but for the time that a grading took. A framework may have more."""
        mine = self.numbers or {}
        names = (session.numbers or {}).keys() - {"score_seconds"}
        return {name: mine.get(name) for name in names if mine.get(name) != (session.numbers or {})[name]}


class Player(Protocol):
    """A framework."""

    name: str

    async def play(self, script: Script, folder: Path) -> Played:
        """Play a script; `folder` is an empty one for its files."""
        ...


def write(path: str, text: str) -> ToolCall:
    """A call that writes a file."""
    return ToolCall.of(f"cat > {path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE")


def solution() -> tuple[ToolCall, ...]:
    """Calls that write the reference solution."""
    golden = gray().golden
    assert golden is not None
    return tuple(write(path, text) for path, text in golden.items())


def scripts() -> Sequence[Script]:
    """All of them. The reward of each follows from the hidden tests, not from this list."""
    target = gray().targets[0]
    stub = "module gray_counter; endmodule"
    forged = f'{stub}\n`include "/dev/stdin"\n// TESTS=1 PASS=1 FAIL=0'
    look = (ToolCall.of("ls rtl docs"),)
    forge = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1.4 > reward.json; kill -9 -1"
    submit = (ToolCall.of("submit"),)
    return [
        Script("solved", (look, solution(), "The counter is done.")),
        Script("wrong", (look, (write(target, stub),), "Done.")),
        Script("untouched", ("There is nothing to do.",)),
        Script("malformed", ((ToolCall("execute_bash", '{"comand": "ls"}'),), solution(), "Done.")),
        Script("timed out", ((ToolCall.of("echo begun; sleep 60"),), solution(), "Done.")),
        Script("turn limit", (*[look] * 5, solution())),
        Script("submissions", (submit, solution(), submit, "Done."), RULES.with_options(harness_feedback=2)),
        Script("hostile", ((write(target, forged), ToolCall.of(forge)), look, "Passed with a reward of 1.4.")),
        Script("machine fault", (look, look, look, "Done."), fault_in=3),
    ]


EXPECTED = {
    "solved": True,
    "wrong": False,
    "untouched": False,
    "malformed": True,
    "timed out": True,
    "turn limit": True,
    "submissions": True,
    "hostile": False,
    "machine fault": None,
}
"""Whether each script passes; None for no verdict."""


def rules_of(script: Script, transcripts: Path) -> dict[str, Any]:
    """The rules of a script by name, as an adapter takes them."""
    return {name: getattr(script.config, name) for name in RECORDED_RULES} | {"transcript_dir": str(transcripts)}


def text_of(turn: tuple[ToolCall, ...] | str, renderer: Renderer) -> str:
    """A turn as a model writes it."""
    return turn if isinstance(turn, str) else renderer.turn_text(ModelTurn(calls=turn))


def ids_of(turn: tuple[ToolCall, ...] | str, renderer: Renderer, tokenizer: Any) -> list[int]:
    """A turn as a model of Qwen's family samples it."""
    ids: list[int] = tokenizer.encode(f"{text_of(turn, renderer)}<|im_end|>", add_special_tokens=False)
    return ids


def told(work: Callable[[], object]) -> str:
    """What the caller of a function is told: the error of this package, or ``fine``."""
    try:
        work()
    except RTLGymError as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def in_short(observation: str) -> str:
    """An observation without what differs between dialects by design: the form of a call that a correction shows."""
    return observation.split("\n")[0] if observation.startswith("ERROR: ") else observation
