"""A policy that plays turns from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ..errors import UsageError
from ..problems import Problem
from ..renderers import Message, ModelTurn, Renderer, ToolCall
from ..transcripts import read_transcript
from .protocol import Completion


def write_turn(renderer: Renderer, text: str, commands: Sequence[str] = ()) -> str:
    """A completion with `text` and one tool call per command, in the renderer's dialect."""
    return renderer.turn_text(ModelTurn(text=text, calls=tuple(map(ToolCall.of, commands))))


class ScriptedTurn(BaseModel):
    """One turn of a script: either text and commands, written in the model's dialect, or a literal completion."""

    model_config = ConfigDict(extra="forbid")

    say: str = ""
    run: str | list[str] = []
    completion: str | None = None
    native: ModelTurn | None = None
    """For a completion of a transcript: the turn as a chat service reported it, used instead of the completion."""

    def text(self, renderer: Renderer) -> str:
        """The completion."""
        if self.completion is not None:
            return self.completion
        return write_turn(renderer, self.say, [self.run] if isinstance(self.run, str) else self.run)


_TURNS = TypeAdapter(list[ScriptedTurn])


class ScriptedPolicy:
    """Plays a file's turns in order, then ends the episode.

    Args:
        path: A YAML list of `ScriptedTurn`, or a transcript (``.jsonl``), whose completions are repeated.

    Raises:
        UsageError: The file cannot be read or is not a script; names the turn and the field.
        TranscriptError: The transcript cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.name = f"scripted {self.path.name}"
        if self.path.suffix == ".jsonl":
            recorded = read_transcript(self.path).turns
            self.turns = [ScriptedTurn(completion=turn.completion, native=turn.native) for turn in recorded]
        else:
            self.turns = _read_script(self.path)

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        completions = [Completion(turn.text(renderer), native=turn.native) for turn in self.turns]
        return ScriptedPlayer([*completions, Completion(write_turn(renderer, "Done."))])


class ScriptedPlayer:
    """Returns prepared completions in order, then the last one again."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        self._completions, self._last = iter(completions), completions[-1]

    async def act(self, messages: Sequence[Message]) -> Completion:
        """The next turn, which does not depend on the shell's output."""
        return next(self._completions, self._last)


def _read_script(path: Path) -> list[ScriptedTurn]:
    try:
        return _TURNS.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(
            f"{path}: turn {place}: {first['msg']}; a script is a list of {{say, run, completion}}"
        ) from error
