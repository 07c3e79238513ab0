"""One episode: a problem, a sandbox, a renderer, a score. Every face of the environment drives this one state machine.

::

    new ──start()──► running ──step()──► running │ over ──close()──► closed

`Episode` owns its sandbox and its transcript, from `start` to `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from .. import __version__
from ..errors import SandboxError, UsageError
from ..policies.protocol import Completion
from ..problems import Problem
from ..prompts import build_prompt
from ..renderers import Action, Renderer
from ..renderers.protocol import Message, with_notes
from ..sandboxes import CommandResult, Sandbox, SandboxProvider, SandboxSpec
from ..scoring.reward import RewardWeights
from ..scoring.score import Score
from ..transcripts import CommandRecord, End, Header, ScoreRecord, TranscriptWriter, TurnRecord
from .outputs import describe

StopReason = Literal["completed", "max_turns", "max_tokens", "parse_error"]
"""Why an episode ended, in tinker-cookbook's words."""

FOLDERS = ("rtl", "verif", "docs")
"""The folders of the work folder whose files are graded."""

MAX_RECORDED_FILE = 256 << 10
MAX_RECORDED_TOTAL = 4 << 20
"""Bytes of a file, and of all together, that a transcript follows from turn to turn."""


class Grader(Protocol):
    """What an episode needs of a scorer."""

    async def score(self, problem: Problem, files: dict[str, str | bytes], timeout: float = 600.0) -> Score:
        """Grade files; raises `SandboxError` for a machine's fault."""
        ...


@dataclass(frozen=True)
class EpisodeConfig:
    """The rules of an episode."""

    max_turns: int = 50
    command_timeout: float = 30.0
    """Seconds a command may run."""
    max_output: int = 16_000
    """Characters of a command's output that the model gets to read."""
    max_malformed: int = 3
    """Malformed turns in a row that end the episode."""
    scoring_timeout: float = 600.0
    """Seconds the hidden tests may run."""
    start_attempts: int = 3
    """How often a sandbox is tried to be had before the machine's fault is raised."""
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    transcript_dir: Path | None = None
    """Folder for the transcript; None writes none."""
    record_files: bool = True
    """Whether the transcript holds the text files that each turn changed. Costs about a millisecond a turn."""
    system_prompt: str | None = None
    """Replaces the package's system message; ``""`` gives none."""
    user_prompt: str | None = None
    """Replaces the problem's user message."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "command_timeout", "max_output", "max_malformed", "scoring_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be greater than 0, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Opening:
    """What the model reads first."""

    system: str
    user: str
    messages: list[Message]
    text: str
    """System and user text as one, without the dialect's control tokens."""


@dataclass(frozen=True)
class Turn:
    """What one turn led to."""

    number: int
    action: Action
    results: tuple[CommandResult, ...] = ()
    outputs: tuple[str, ...] = ()
    """What the model reads for each command, or nothing."""
    observation: str = ""
    """The same in the dialect, as one text."""
    stop_reason: StopReason | None = None
    score: Score | None = None
    """Set on the last turn."""

    @property
    def reward(self) -> float:
        """The score's reward at the end, 0 before."""
        return self.score.reward if self.score is not None else 0.0

    @property
    def terminated(self) -> bool:
        """Whether the agent itself ended the episode."""
        return self.stop_reason == "completed"

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.stop_reason not in (None, "completed")

    def info(self) -> dict[str, Any]:
        """The ``info`` of the Gymnasium contract. For several commands in one turn, the last one's figures."""
        info: dict[str, Any] = {"turn": self.number, "action": self.action.kind}
        if self.results:
            last = self.results[-1]
            info |= {
                "command": "\n".join(self.action.commands),
                "exit_code": last.exit_code,
                "timed_out": any(result.timed_out for result in self.results),
                "truncated_output": any(result.truncated for result in self.results),
                "seconds": sum(result.seconds for result in self.results),
            }
        if self.stop_reason is not None:
            info["stop_reason"] = self.stop_reason
        if self.score is not None:
            info["score"] = self.score.model_dump(mode="json")
        return info


def _followed(context: dict[str, str]) -> dict[str, str]:
    """The files of a problem that a transcript follows."""
    return {
        path: text
        for path, text in context.items()
        if path.partition("/")[0] in FOLDERS and len(text.encode()) <= MAX_RECORDED_FILE
    }


class Episode:
    """One episode of one problem.

    Args:
        problem: What is to be solved.
        provider: Where the sandbox comes from.
        grader: Who scores the files at the end.
        renderer: The model's dialect.
        config: The rules.
        seed: Recorded in the transcript.
        on_output: Told of commands' output as it comes, for live display.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        provider: SandboxProvider,
        grader: Grader,
        renderer: Renderer,
        config: EpisodeConfig | None = None,
        seed: int | None = None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:
        self.problem, self.renderer, self.config = problem, renderer, config or EpisodeConfig()
        self._provider, self._grader, self._seed, self._on_output = provider, grader, seed, on_output
        self._sandbox: Sandbox | None = None
        self._transcript: TranscriptWriter | None = None
        self._begun = time.monotonic()
        self._malformed = 0
        self._files: dict[str, str] = {}  # the work folder as the transcript knows it
        self.turns: list[Turn] = []
        self.over = False

    @property
    def transcript_path(self) -> Path | None:
        """Where the transcript is written, once the episode has started."""
        return self._transcript.path if self._transcript is not None else None

    @property
    def sandbox(self) -> Sandbox:
        """The running episode's machine. Whoever runs commands in it beside `step` changes what the agent finds."""
        if self._sandbox is None:
            raise UsageError("an episode has a sandbox between start() and close() only")
        return self._sandbox

    async def __aenter__(self) -> Episode:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> Opening:
        """Start the sandbox, put the problem's files into it, and give the prompt.

        Raises:
            SandboxError: No sandbox could be had, after `EpisodeConfig.start_attempts`.
        """
        if self._sandbox is not None or self.over:
            raise UsageError("this episode has been started already; make another Episode")
        config = self.config
        system, user = build_prompt(
            self.problem,
            renderer=self.renderer.name,
            command_timeout=config.command_timeout,
            max_output=config.max_output,
            max_turns=config.max_turns,
        )
        system = system if config.system_prompt is None else config.system_prompt
        user = user if config.user_prompt is None else config.user_prompt
        self._begun = time.monotonic()
        self._sandbox = await self._start_sandbox()
        if self.config.transcript_dir is not None:
            self._transcript = TranscriptWriter.in_folder(self.config.transcript_dir, self.problem.id)
            if self.config.record_files:
                self._files = _followed(self.problem.context)
            self._write(self._header(system, user))
        messages = self.renderer.initial_messages(system, user)
        return Opening(system, user, messages, "\n\n".join(message["content"] for message in messages))

    async def _start_sandbox(self) -> Sandbox:
        attempts = self.config.start_attempts
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(SandboxError),
            stop=stop_after_attempt(attempts),
            wait=wait_random_exponential(multiplier=0.5, max=10),
            reraise=True,
        ):
            with attempt:
                sandbox = await self._provider.create(self.config.sandbox)
                try:
                    await sandbox.write_files(self.problem.context)
                    await sandbox.run("mkdir -p rtl verif docs rundir", timeout=30.0)
                except BaseException:
                    await asyncio.shield(sandbox.close())
                    raise
        return sandbox

    def _header(self, system: str, user: str) -> Header:
        options = {
            name: getattr(self.config, name)
            for name in ("max_turns", "command_timeout", "max_output", "max_malformed", "scoring_timeout")
        }
        weights = getattr(self._grader, "weights", None)
        if isinstance(weights, RewardWeights):
            options["weights"] = weights.model_dump()
        return Header(
            package_version=__version__,
            problem_id=self.problem.id,
            problem_digest=self.problem.digest,
            category=self.problem.category,
            difficulty=self.problem.difficulty,
            image_digest=getattr(self._sandbox, "image_id", ""),
            renderer=self.renderer.name,
            seed=self._seed,
            options=options,
            system=system,
            user=user,
            files=self._files,
        )

    async def step(self, completion: str | Completion, *, out_of_tokens: bool = False) -> Turn:
        """Take what the policy said, run what it asks for, and grade if this was the last turn.

        Args:
            completion: The policy's words.
            out_of_tokens: The policy's token budget ends with this turn, whatever it said.

        Raises:
            SandboxError: The machine failed; the episode is over, without a score.
            UsageError: The episode has not begun or is over.
        """
        if self._sandbox is None or self.over:
            raise UsageError(
                "step needs a running episode: call start() first, and make a new Episode when one is over"
            )
        said = Completion(completion) if isinstance(completion, str) else completion
        begun = time.monotonic()
        try:
            turn, observation = await self._act(said, len(self.turns) + 1)
            stop = self._stop_reason(turn.action, turn.number, out_of_tokens)
            seconds = time.monotonic() - begun
            self._record_turn(said, turn, observation, seconds, await self._changed_files(turn))
            score = await self._grade() if stop is not None else None
        except BaseException as error:
            self._end("error", error)
            raise
        final = Turn(turn.number, turn.action, turn.results, turn.outputs, observation, stop, score)
        self.turns.append(final)
        if stop is not None:
            self._end(stop)
        return final

    async def _act(self, said: Completion, number: int) -> tuple[Turn, str]:
        renderer = self.renderer
        if said.token_ids is not None:
            action = renderer.parse_ids(said.token_ids, truncated=said.cut_off)
        else:
            action = renderer.parse_text(said.text, truncated=said.cut_off)
        if action.kind == "malformed":
            return Turn(number, action), renderer.correction_text(action.correction or "")
        if action.kind == "final":
            return Turn(number, action), ""
        results: list[CommandResult] = []
        for command in action.commands:
            results.append(await self._run(command))
        shown = with_notes([describe(result, self.config.command_timeout) for result in results], action.notes)
        return Turn(number, action, tuple(results), tuple(shown)), renderer.observation_text(shown)

    async def _run(self, command: str) -> CommandResult:
        assert self._sandbox is not None
        return await self._sandbox.run(
            command,
            timeout=self.config.command_timeout,
            max_output=self.config.max_output,
            on_output=self._on_output,
        )

    def _stop_reason(self, action: Action, number: int, out_of_tokens: bool) -> StopReason | None:
        self._malformed = self._malformed + 1 if action.kind == "malformed" else 0
        if action.kind == "final":
            return "completed"
        if self._malformed >= self.config.max_malformed:
            return "parse_error"
        if out_of_tokens:
            return "max_tokens"
        return "max_turns" if number >= self.config.max_turns else None

    async def finish(self, reason: StopReason) -> Score:
        """End the episode from outside, as when the next prompt would not fit, and grade what is there."""
        if self._sandbox is None or self.over:
            raise UsageError("finish needs a running episode")
        try:
            score = await self._grade()
        except BaseException as error:
            self._end("error", error)
            raise
        self._end(reason)
        return score

    def abandon(self, error: BaseException) -> None:
        """End the episode from outside without a score, for a fault that the transcript is to name."""
        if not self.over:
            self._end("error", error)

    async def _grade(self) -> Score:
        assert self._sandbox is not None
        files: dict[str, str | bytes] = dict(await self._sandbox.read_files(FOLDERS))
        score = await self._grader.score(self.problem, files, timeout=self.config.scoring_timeout)
        text = {
            path: data.decode(errors="replace") if isinstance(data, bytes) else data for path, data in files.items()
        }
        changed = {path: content for path, content in text.items() if self.problem.context.get(path) != content}
        self._write(ScoreRecord(score=score.model_dump(mode="json"), files=changed))
        return score

    async def _changed_files(self, turn: Turn) -> dict[str, str | None]:
        """What the turn's commands did to the text files of the graded folders, for the transcript."""
        if self._transcript is None or not self.config.record_files or not turn.results:
            return {}
        assert self._sandbox is not None
        found = await self._sandbox.read_files(FOLDERS, max_file=MAX_RECORDED_FILE, max_total=MAX_RECORDED_TOTAL)
        before, self._files = self._files, {}
        for path, data in found.items():
            with contextlib.suppress(UnicodeDecodeError):  # binary files are no text to look at
                self._files[path] = data.decode()
        changes: dict[str, str | None] = {path: text for path, text in self._files.items() if before.get(path) != text}
        return changes | {path: None for path in before if path not in self._files}

    def _record_turn(
        self, said: Completion, turn: Turn, observation: str, seconds: float, files: dict[str, str | None]
    ) -> None:
        records = [
            CommandRecord(
                command=command,
                exit_code=result.exit_code,
                timed_out=result.timed_out,
                truncated_output=result.truncated,
                restarted=result.restarted,
                seconds=result.seconds,
            )
            for command, result in zip(turn.action.commands, turn.results, strict=True)
        ]
        self._write(
            TurnRecord(
                turn=turn.number,
                completion=said.text,
                token_ids=list(said.token_ids) if said.token_ids is not None else None,
                logprobs=list(said.logprobs) if said.logprobs is not None else None,
                cut_off=said.cut_off,
                action=turn.action.kind,
                commands=records,
                observation=observation,
                files=files,
                seconds=seconds,
            )
        )

    def _write(self, event: Header | TurnRecord | ScoreRecord | End) -> None:
        if self._transcript is not None:
            self._transcript.write(event)

    def _end(self, stop_reason: str, error: BaseException | None = None) -> None:
        self.over = True
        seconds = time.monotonic() - self._begun
        fault = f"{type(error).__name__}: {error}" if error is not None else None
        turns = len(self.turns) + (error is not None)
        self._write(End(stop_reason=stop_reason, turns=turns, seconds=seconds, error=fault))
        if self._transcript is not None:
            self._transcript.close()

    async def close(self) -> None:
        """End the sandbox and the transcript. Idempotent, and safe at any moment."""
        self.over = True
        sandbox, self._sandbox = self._sandbox, None
        if self._transcript is not None:
            with contextlib.suppress(OSError):
                self._transcript.close()
        if sandbox is not None:
            await sandbox.close()
