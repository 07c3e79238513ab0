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
    """A completion that says `text` and calls the tool once per command, in the renderer's dialect."""
    return renderer.turn_text(ModelTurn(text=text, calls=tuple(map(ToolCall.of, commands))))


class ScriptedTurn(BaseModel):
    """One turn of a script: either words and commands, put into the model's dialect, or a completion as it stands."""

    model_config = ConfigDict(extra="forbid")

    say: str = ""
    run: str | list[str] = []
    completion: str | None = None
    native: ModelTurn | None = None
    """With a completion of a transcript: the turn as a chat service reported it, which is then what is acted on."""

    def text(self, renderer: Renderer) -> str:
        """The completion."""
        if self.completion is not None:
            return self.completion
        return write_turn(renderer, self.say, [self.run] if isinstance(self.run, str) else self.run)


_TURNS = TypeAdapter(list[ScriptedTurn])


class ScriptedPolicy:
    """Plays a file's turns in order, then says that it is done.

    Args:
        path: A YAML list of `ScriptedTurn`, or a transcript (``.jsonl``), whose completions are then said again.

    Raises:
        UsageError: The file cannot be read or is no script; names the turn and the field.
        TranscriptError: The transcript cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.name = f"scripted {self.path.name}"
        if self.path.suffix == ".jsonl":
            said = read_transcript(self.path).turns
            self.turns = [ScriptedTurn(completion=turn.completion, native=turn.native) for turn in said]
        else:
            self.turns = _read_script(self.path)

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> ScriptedPlayer:
        """A player for one episode."""
        said = [Completion(turn.text(renderer), native=turn.native) for turn in self.turns]
        return ScriptedPlayer([*said, Completion(write_turn(renderer, "Done."))])


class ScriptedPlayer:
    """Gives prepared completions in order, and then the last one again."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        self._completions, self._last = iter(completions), completions[-1]

    async def act(self, messages: Sequence[Message]) -> Completion:
        """The next turn, whatever the shell says."""
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
