"""Writes the transcript of an episode while it is played."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import __version__
from ..errors import SandboxBroken
from ..policies.protocol import Completion, Outside
from ..problems import Problem
from ..problems.paths import UNREAD, graded_folders, in_graded_folders
from ..renderers import Action, ModelTurn, Renderer, ToolCall
from ..renderers.actions import command_of, native_action, with_text
from ..sandboxes import CommandResult, FoundFiles, ReadRequest, Sandbox
from ..scoring import RewardWeights, rules_digest
from ..scoring.score import Score
from ..transcripts import CommandRecord, End, Header, ScoreRecord, SubmissionRecord, TranscriptWriter, TurnRecord
from .rules import EpisodeConfig
from .submissions import Submitted
from .turns import Opening, StopReason, Turn

MAX_RECORDED_FILE = 256 << 10
MAX_RECORDED_TOTAL = 4 << 20
"""Limits, in bytes, of one recorded file and of all recorded files together; what exceeds them is not recorded."""
MAX_RECORDED_EPISODE = 64 << 20
"""Limit of the recorded changes of all turns together, in bytes of JSON, in which a character may take six."""
MIN_FREE = 512 << 20
"""Bytes that must be free on the transcripts' disk before an episode starts."""
DISK_PAUSE = 5.0
"""Seconds between two checks of a full disk."""

logger = logging.getLogger(__name__)


@dataclass
class Recording:
    """The transcript of one episode, from `begin` to `close`. Without a transcript folder, each method does nothing."""

    problem: Problem
    config: EpisodeConfig
    _writer: TranscriptWriter | None = field(default=None, init=False)
    _files: dict[str, bytes] = field(default_factory=dict, init=False)
    """Digests of the text files as last recorded."""
    _written: int = field(default=0, init=False)
    """Bytes of the transcript that changes of files take."""
    _closed: bool = field(default=False, init=False)

    @property
    def path(self) -> Path | None:
        """The file, once it has been begun."""
        return self._writer.path if self._writer is not None else None

    def begin(self, opening: Opening, *, renderer: str, seed: int, image: str, weights: object) -> None:
        """Write the header. `image` is the digest of the sandbox's image; `weights` are recorded if `RewardWeights`."""
        if self.config.transcript_dir is None:
            return
        self._writer = TranscriptWriter.in_folder(self.config.transcript_dir, self.problem.id)
        files = {}
        if self.config.record_files and self.config.workspace == "shell":
            files = _recorded_files(self.problem)
            self._files = {path: _digest(text) for path, text in files.items()}
        options = self.config.recorded()
        if isinstance(weights, RewardWeights):
            options["weights"] = weights.model_dump()
        self._write(
            Header(
                package_version=__version__,
                problem_id=self.problem.id,
                problem_digest=self.problem.digest,
                category=self.problem.category,
                difficulty=self.problem.difficulty,
                image_digest=image,
                rules_digest=rules_digest(),
                renderer=renderer,
                seed=seed,
                options=options,
                system=opening.system,
                user=opening.user,
                files=files,
            )
        )

    def wanted_files(self) -> ReadRequest | None:
        """The files to read after each turn; None if their changes are not recorded."""
        if self._writer is None or not self.config.record_files:
            return None
        folders, limits = graded_folders(self.problem), (MAX_RECORDED_FILE, MAX_RECORDED_TOTAL)
        return ReadRequest(folders, self.problem.targets, *limits, UNREAD)

    async def turn(
        self,
        completion: Completion,
        turn: Turn,
        seconds: float,
        sandbox: Sandbox | None,
        found: FoundFiles | None,
        renderer: Renderer,
    ) -> None:
        """Write a turn and its changes to the files. `found` are the files after the turn; None reads them now."""
        if self._writer is None:
            return
        acted = bool(turn.results) or completion.outside is not None  # a program may write files without any call
        files, left_out = await self._changes(sandbox, found) if acted else ({}, [])
        completion = self._readable_as_text(completion, renderer)
        logprobs = completion.logprobs
        if logprobs is not None and not all(map(math.isfinite, logprobs)):
            logprobs = None  # recorded as unknown: JSON has no infinity and no NaN
        self._write(
            TurnRecord(
                turn=turn.number,
                completion=completion.text,
                native=completion.native,
                outside=completion.outside is not None,
                stream=completion.stream.number if completion.stream is not None else None,
                stream_reason=completion.stream.reason if completion.stream is not None else "",
                token_ids=list(completion.token_ids) if completion.token_ids is not None else None,
                logprobs=list(logprobs) if logprobs is not None else None,
                cut_off=completion.cut_off,
                refused=completion.refused,
                action=turn.action.kind,
                commands=[
                    command_record(*ran) for ran in zip(turn.action.commands, turn.results, turn.outputs, strict=True)
                ],
                observation=turn.observation,
                files=files,
                left_out=left_out,
                seconds=seconds,
            )
        )

    def _readable_as_text(self, completion: Completion, renderer: Renderer) -> Completion:
        """The completion, changed if necessary so that parsing its text gives the same action as parsing its tokens.

        Ids without a stop token count as cut off, whatever ended them. Bytes that are not UTF-8 become lone surrogates
        if they make a call malformed. If the text spells a stop token that the ids do not have, the parsed turn is
        recorded.
        """
        ids, native = completion.token_ids, completion.native
        if ids is None or native is not None or self.config.workspace != "shell":
            return completion
        action = renderer.parse_ids(ids, truncated=completion.cut_off)
        for text in dict.fromkeys((completion.text, renderer.codec.decode(ids))):
            for cut_off in (completion.cut_off, True):
                if renderer.parse_text(text, truncated=cut_off) == action:
                    return replace(completion, text=text, cut_off=cut_off)
        native = ModelTurn(action.thinking, action.text, tuple(map(ToolCall.of, action.commands)))
        read = native_action(native, truncated=completion.cut_off)
        same = (read.kind, read.commands, read.text) == (action.kind, action.commands, action.text)
        return replace(completion, native=native) if same else completion

    async def _changes(
        self, sandbox: Sandbox | None, found: FoundFiles | None
    ) -> tuple[dict[str, str | None], list[str]]:
        """The text files of the graded folders that a turn changed (None: removed), and the files left out."""
        wanted = self.wanted_files()
        if wanted is None or sandbox is None:
            return {}, []
        try:
            if found is None:
                found = await sandbox.read_files(**vars(wanted))
        except SandboxBroken:  # the turn's result reports it
            return {}, []
        before, texts = self._files, dict[str, str]()
        beyond = []  # left out by this method
        for path, data in found.items():
            try:
                texts[path] = data.decode()
            except UnicodeDecodeError:  # binary files are not recorded
                if path in before:
                    beyond.append((path, "it is not text"))
        self._files = {path: _digest(text) for path, text in texts.items()}
        changes: dict[str, str | None] = {}
        for path, text in texts.items():
            if before.get(path) == self._files[path]:
                continue
            if (size := _recorded_size(path, text)) <= MAX_RECORDED_EPISODE - self._written:
                self._written += size
                changes[path] = text
            else:
                beyond.append((path, f"at most {MAX_RECORDED_EPISODE >> 20} MiB of changes are recorded"))
                del self._files[path]
        left_out = (*found.left_out, *beyond)
        unknown = len(found.left_out) < found.left_out_count  # some are counted, but not named
        named = {path for path, _ in left_out}
        for path in before.keys() - self._files.keys():
            if unknown or path in named:  # it may still exist
                self._files[path] = before[path]
            else:
                changes[path] = None
        return changes, FoundFiles({}, left_out, found.left_out_count + len(beyond)).left_out_lines()

    def score(self, score: Score, files: Mapping[str, str]) -> None:
        self._write(ScoreRecord(score=score.model_dump(mode="json"), files=dict(files)))

    def end(
        self, stop_reason: str, turns: int, seconds: float, oom_kills: int | None, error: BaseException | None
    ) -> None:
        """Write the end of the episode, and close the file."""
        fault = f"{type(error).__name__}: {error}" if error is not None else None
        try:
            self._write(End(stop_reason=stop_reason, turns=turns, seconds=seconds, oom_kills=oom_kills, error=fault))
        finally:
            self.close()

    def close(self) -> None:
        """Close the file: a turn that still runs is not recorded. Idempotent."""
        self._closed = True
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def _write(self, event: Header | TurnRecord | ScoreRecord | End) -> None:
        if self._writer is not None and not self._closed:
            self._writer.write(event)


def recorded_turn(completion: Completion, outside: Outside, number: int) -> Turn:
    """The turn of a third-party agent, whose program ran the calls itself: their exit codes are unknown."""
    native = completion.native or ModelTurn(text=completion.text)
    commands = tuple(command_of(call) for call in native.calls)
    outputs = tuple([*outside.outputs, *[""] * len(commands)][: len(commands)])
    results = tuple(CommandResult(output, None, output_chars=len(output)) for output in outputs)
    action = with_text(Action("final" if outside.last else "command", commands), native.text, native.thinking)
    stop: StopReason | None = "completed" if outside.last else None
    stop = "sandbox_broken" if outside.broken else stop
    return Turn(number, action, results, outputs, "\n".join(outputs), stop)


def changed_files(problem: Problem, files: Mapping[str, str | bytes]) -> dict[str, str]:
    """The graded text files that differ from the problem's, up to the limits: targets first, then the smallest."""
    left, changed = MAX_RECORDED_TOTAL, dict[str, str]()
    for path in sorted(files, key=lambda path: (path not in problem.targets, len(files[path]))):
        data = files[path]
        with contextlib.suppress(UnicodeDecodeError):  # binary files are not recorded
            text = data.decode() if isinstance(data, bytes) else data
            if problem.context.get(path) == text or len(data) > MAX_RECORDED_FILE:
                continue
            if (size := _recorded_size(path, text)) <= left:
                changed[path] = text
                left -= size
    return changed


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _recorded_size(path: str, text: str) -> int:
    return len(json.dumps({path: text}))


def _recorded_files(problem: Problem) -> dict[str, str]:
    """The problem's files for a transcript's header, up to the limits: targets first, then the smallest."""
    left = MAX_RECORDED_TOTAL
    sizes = {path: len(text.encode()) for path, text in problem.context.items() if in_graded_folders(problem, path)}
    kept = set()
    for path in sorted(sizes, key=lambda path: (path not in problem.targets, sizes[path], path)):
        if sizes[path] <= min(left, MAX_RECORDED_FILE):
            kept.add(path)
            left -= sizes[path]
    return {path: text for path, text in problem.context.items() if path in kept}


def command_record(command: str, result: CommandResult, output: str) -> CommandRecord:
    """The record of a command and its result in a transcript."""
    submission = result.submission if isinstance(result, Submitted) else None
    recorded = None
    if submission is not None:
        recorded = SubmissionRecord(**vars(submission) | {"score": submission.score.model_dump(mode="json")})
    return CommandRecord(
        command=command,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        truncated_output=result.truncated,
        restarted=result.restarted,
        seconds=result.seconds,
        output=output,
        submission=recorded,
    )


async def room_on_disk(folder: Path) -> None:
    """Wait until the disk of a folder, which need not exist yet, has `MIN_FREE` bytes free."""
    place = folder.absolute()
    while not os.path.exists(place):
        place = place.parent
    waited = False
    while (free := shutil.disk_usage(place).free) < MIN_FREE:
        if not waited:
            logger.warning(
                "%s has only %d MiB free: no episode begins until it has %d", place, free >> 20, MIN_FREE >> 20
            )
        waited = True
        await asyncio.sleep(DISK_PAUSE)
    if waited:
        logger.warning("%s has enough free space again: episodes continue", place)
