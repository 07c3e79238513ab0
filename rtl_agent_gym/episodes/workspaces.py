"""Workspaces of an episode: a shell in a sandbox, or the files in an answer."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace

from tenacity import stop_after_attempt

from ..errors import SandboxBroken, SandboxError, SandboxLost, UsageError
from ..metrics import COMMAND_OOMS, COMMAND_TIMEOUTS, COMMANDS
from ..policies.protocol import Completion
from ..problems import Problem
from ..problems.paths import AGENT_FOLDERS, ANSWER_FILE, UNREAD, graded_folders
from ..renderers import Action, Renderer, with_notes
from ..renderers.actions import native_action
from ..retries import START
from ..sandboxes import CommandResult, FoundFiles, OutputSink, ReadRequest, Sandbox, SandboxProvider
from .answers import Answer, read_answer, read_text
from .recording import recorded_turn
from .rules import EpisodeConfig
from .submissions import MISPLACED, Submissions
from .turns import StopReason, Turn

BROKEN = CommandResult("", None, restarted="the commands have ended the machine")
"""The result of a command that broke the agent's sandbox, and of the commands after it."""


@dataclass
class ShellWorkspace:
    """A persistent shell in a sandbox, which the workspace owns from `open` to `close`."""

    problem: Problem
    config: EpisodeConfig
    provider: SandboxProvider
    renderer: Renderer
    submissions: Submissions
    seed: int
    """Seed of the shell's ``$RANDOM``."""
    on_output: OutputSink | None = None
    """Called with the output of commands while they run."""
    sandbox: Sandbox | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False, repr=False, compare=False)
    """The event loop of the sandbox."""
    _broken: bool = field(default=False, init=False)
    _text: str = field(default="", init=False)
    """The last message, which is the answer if the problem asks for text."""

    async def open(self) -> None:
        """Start the sandbox, and write the problem's files into it.

        Raises `SandboxError` if none starts in `EpisodeConfig.start_attempts` attempts.
        """
        stop = stop_after_attempt(self.config.start_attempts)
        async for attempt in START.retrying(lambda error: isinstance(error, SandboxError), stop=stop):
            with attempt:
                sandbox = await self.provider.create(self.config.sandbox)
                try:
                    await self._prepare(sandbox)
                except BaseException as error:
                    await asyncio.shield(sandbox.close())
                    if isinstance(error, SandboxBroken):  # no agent has run a command yet
                        raise SandboxLost(str(error)) from error
                    raise
                self.sandbox, self._loop = sandbox, asyncio.get_running_loop()

    async def _prepare(self, sandbox: Sandbox) -> None:
        folders = ["rundir"] if self.problem.checkout else [*AGENT_FOLDERS, "rundir"]
        await sandbox.write_files(self.problem.context, folders=folders)
        # This starts no process, which would take longer than everything else here on a busy machine.
        seeded = await sandbox.run(f"RANDOM={self.seed & 0x7FFFFFFF}", timeout=30.0)
        if seeded.exit_code != 0:
            raise SandboxLost(f"sandbox {sandbox.id} has no working shell: {seeded.output.strip()[-400:]}")

    async def act(
        self, completion: Completion, number: int, then_read: ReadRequest | None = None
    ) -> tuple[Turn, FoundFiles | None]:
        """Run the commands of a completion, in order, as turn `number`, and read files after the last one.

        The turn has a `Turn.stop_reason` if the completion itself ends the episode. The files are None if they could
        not be read together with the last command.
        """
        if completion.outside is not None:
            return recorded_turn(completion, completion.outside, number), None
        action = read_completion(completion, self.renderer)
        if action.kind == "malformed":
            return Turn(number, action, observation=self.renderer.correction_text(action.correction or "")), None
        if action.kind == "final":
            self._text = action.text
            return Turn(number, action, stop_reason="completed"), None
        results: list[CommandResult] = []
        outputs: list[str] = []
        files = None
        for index, command in enumerate(action.commands, 1):
            result = await self._run(command, then_read if index == len(action.commands) else None)
            notes = [MISPLACED] if self.submissions.misplaced(command, result) else []
            files = result.files
            results.append(replace(result, files=None) if files is not None else result)  # turns are kept long
            outputs += with_notes([describe(result, self.config.command_timeout)], notes)
        shown = with_notes(outputs, action.notes)
        stop: StopReason | None = "sandbox_broken" if self._broken else None
        return Turn(number, action, tuple(results), tuple(shown), self.renderer.observation_text(shown), stop), files

    async def _run(self, command: str, then_read: ReadRequest | None) -> CommandResult:
        if self._broken or self.sandbox is None:
            return BROKEN
        try:
            if self.submissions.is_submission(command):
                submitted = await self.submissions.submit(self.files)
                if self.on_output is not None:
                    self.on_output(submitted.output.encode())
                return submitted
            result = await self.sandbox.run(
                command,
                timeout=self.config.command_timeout,
                max_output=self.config.max_output,
                on_output=self.on_output,
                then_read=then_read,
            )
            COMMANDS.observe(result.seconds)
            COMMAND_TIMEOUTS.inc(result.timed_out)
            return result
        except SandboxBroken:
            self._broken = True
            return BROKEN

    async def files(self) -> tuple[dict[str, str | bytes], str]:
        """The files of the graded folders, and a note on those left out; no files if the sandbox is broken.

        The problem's own files are read first, so that they are graded even if the agent leaves many others.
        """
        if self.problem.asks_text:
            return {ANSWER_FILE: read_text(self._text)}, ""
        if self.sandbox is None:
            raise UsageError("the sandbox is not open: read files between open() and close()")
        first = list(dict.fromkeys([*self.problem.targets, *self.problem.context]))
        try:
            found = await self.sandbox.read_files(graded_folders(self.problem), first=first, skip=UNREAD)
        except SandboxBroken as error:
            return {}, f"nothing was left to grade: {error}"
        lines = found.left_out_lines(most=5)
        return dict(found), f"left out: {', '.join(lines)}" if lines else ""

    async def oom_kills(self) -> int | None:
        """Number of processes that the kernel killed for lack of memory; None if unknown, such as in a lost sandbox."""
        kills = None
        with contextlib.suppress(SandboxBroken, SandboxError):  # the files have been read: only the count is lost
            kills = await self.sandbox.oom_kills() if self.sandbox is not None else None
        COMMAND_OOMS.inc(kills or 0)
        return kills

    async def close(self) -> None:
        """End the sandbox. Idempotent."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.close()

    def __del__(self) -> None:
        """End the sandbox of an episode that was dropped without `close`."""
        if (sandbox := self.sandbox) is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and `acquire` ends its sandboxes
                self._loop.call_soon_threadsafe(lambda loop: loop.create_task(sandbox.close()), self._loop)


class AnswerWorkspace:
    """The files in one answer, without a sandbox. It has the methods of `ShellWorkspace`."""

    sandbox = None

    def __init__(self, problem: Problem, renderer: Renderer) -> None:
        self._problem, self._renderer, self._answer = problem, renderer, Answer()

    async def open(self) -> None:
        """There is nothing to prepare."""

    async def act(self, completion: Completion, number: int, then_read: ReadRequest | None = None) -> tuple[Turn, None]:
        """Find the files in the answer. Any answer ends the episode."""
        text = read_completion(completion, self._renderer).text
        if self._problem.asks_text:
            self._answer = Answer({ANSWER_FILE: read_text(text)}, (ANSWER_FILE,) if text.strip() else ())
        else:
            self._answer = read_answer(text, self._problem)
        action = Action("final" if self._answer.found else "malformed", text=completion.text)
        stop: StopReason = "max_tokens" if completion.cut_off else "completed" if self._answer.found else "parse_error"
        return Turn(number, action, stop_reason=stop, answer=self._answer), None

    async def files(self) -> tuple[dict[str, str | bytes], str]:
        return dict(self._answer.files), ""

    async def oom_kills(self) -> None:
        """There is no sandbox."""

    async def close(self) -> None:
        """There is nothing to release."""


def read_completion(completion: Completion, renderer: Renderer) -> Action:
    """Parse a completion: its native turn if it has one, else its token ids, else its text."""
    if completion.native is not None:
        return native_action(completion.native, truncated=completion.cut_off)
    if completion.token_ids is not None:
        return renderer.parse_ids(completion.token_ids, truncated=completion.cut_off)
    return renderer.parse_text(completion.text, truncated=completion.cut_off)


def describe(result: CommandResult, timeout: float) -> str:
    """A command's output as the model reads it, with remarks in brackets below, such as the exit code."""
    if result is BROKEN:
        return "[the commands have ended this machine; its files are lost and the episode is over]"
    remarks = []
    if result.timed_out:
        remarks.append(f"timed out after {timeout:g} s; the command's processes were ended")
    elif result.exit_code != 0:
        remarks.append(f"exit code {result.exit_code}")
    if result.restarted:
        remarks.append(
            f"the shell was replaced, as {result.restarted}; files and working folder remain, variables, functions and "
            "background jobs are lost"
        )
    if not remarks and not result.output.strip():
        remarks.append("no output, exit code 0")
    end = "\n" if remarks and result.output and not result.output.endswith("\n") else ""
    return result.output + end + "\n".join(f"[{remark}]" for remark in remarks)
