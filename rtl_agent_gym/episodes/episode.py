"""One episode: a problem, a sandbox, a renderer, a score. Every face of the environment drives this one state machine.

::

    new ──start()──► running ──step()──► running │ over ──close()──► closed

`Episode` owns its sandbox and its transcript, from `start` to `close`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from ..errors import SandboxBroken, SandboxError, SandboxLost, UsageError
from ..policies.protocol import Completion
from ..problems import Problem
from ..prompts import build_prompt
from ..renderers import Action, Renderer, with_notes
from ..renderers.actions import native_action
from ..sandboxes import CommandResult, Sandbox, SandboxProvider
from ..scoring.score import Score
from .outputs import BROKEN, describe
from .recording import Recording
from .rules import FOLDERS, EpisodeConfig, Grader
from .submissions import MISPLACED, Submissions
from .turns import Opening, StopReason, Turn

__all__ = ["FOLDERS", "Episode", "EpisodeConfig", "Grader", "Opening", "StopReason", "Turn"]


class Episode:
    """One episode of one problem.

    Args:
        problem: What is to be solved.
        provider: Where the sandbox comes from.
        grader: Who scores the files at the end.
        renderer: The model's dialect.
        config: The rules.
        seed: What the shell's ``$RANDOM`` and the stimuli of submissions come from; recorded in the transcript. None
            draws one.
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
        self._provider, self._grader, self._on_output = provider, grader, on_output
        self._seed = secrets.randbits(31) if seed is None else seed
        self._sandbox: Sandbox | None = None
        self._recording = Recording(problem, self.config)
        self._submissions = Submissions(problem, grader, self.config, self._seed)
        self._begun = time.monotonic()
        self._malformed = 0
        self._broken = False
        self.turns: list[Turn] = []
        self.over = False

    @property
    def transcript_path(self) -> Path | None:
        """Where the transcript is written, once the episode has started."""
        return self._recording.path

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
            harness_feedback=config.harness_feedback,
        )
        system = system if config.system_prompt is None else config.system_prompt
        user = user if config.user_prompt is None else config.user_prompt
        self._begun = time.monotonic()
        self._sandbox = await self._start_sandbox()
        self._recording.begin(
            system,
            user,
            renderer=self.renderer.name,
            seed=self._seed,
            image=getattr(self._sandbox, "image_id", ""),
            weights=getattr(self._grader, "weights", None),
        )
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
                    folders = f"mkdir -p rtl verif docs rundir && RANDOM={self._seed & 0x7FFFFFFF}"
                    made = await sandbox.run(folders, timeout=30.0)
                    if made.exit_code != 0:
                        raise SandboxLost(f"sandbox {sandbox.id} cannot make folders: {made.output.strip()[-400:]}")
                except SandboxBroken as error:  # before an agent has had a word
                    await asyncio.shield(sandbox.close())
                    raise SandboxLost(str(error)) from error
                except BaseException:
                    await asyncio.shield(sandbox.close())
                    raise
        return sandbox

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
            turn = await self._act(said, len(self.turns) + 1)
            stop = self._stop_reason(turn.action, turn.number, out_of_tokens)
            await self._recording.turn(said, turn, time.monotonic() - begun, self._sandbox)
            score = await self._grade() if stop is not None else None
        except BaseException as error:
            self._end("error", error)
            raise
        turn = replace(turn, stop_reason=stop, score=score)
        self.turns.append(turn)
        if stop is not None:
            self._end(stop)
        return turn

    async def _act(self, said: Completion, number: int) -> Turn:
        renderer = self.renderer
        if said.native is not None:
            action = native_action(said.native, truncated=said.cut_off)
        elif said.token_ids is not None:
            action = renderer.parse_ids(said.token_ids, truncated=said.cut_off)
        else:
            action = renderer.parse_text(said.text, truncated=said.cut_off)
        if action.kind == "malformed":
            return Turn(number, action, observation=renderer.correction_text(action.correction or ""))
        if action.kind == "final":
            return Turn(number, action)
        results: list[CommandResult] = []
        outputs: list[str] = []
        for command in action.commands:
            try:
                result = BROKEN if self._broken else await self._run(command)
            except SandboxBroken:
                self._broken, result = True, BROKEN
            notes = [MISPLACED] if self._submissions.misplaced(command, result) else []
            results.append(result)
            outputs += with_notes([describe(result, self.config.command_timeout)], notes)
        shown = with_notes(outputs, action.notes)
        return Turn(number, action, tuple(results), tuple(shown), renderer.observation_text(shown))

    async def _run(self, command: str) -> CommandResult:
        sandbox = self.sandbox
        if self._submissions.takes(command):
            submitted = await self._submissions.submit(sandbox)
            if self._on_output is not None:
                self._on_output(submitted.output.encode())
            return submitted
        return await sandbox.run(
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
        if self._broken:
            return "sandbox_broken"
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
        score, files = await self._submissions.grade(self.sandbox)
        self._recording.score(score, files)
        return score

    def _end(self, stop_reason: str, error: BaseException | None = None) -> None:
        self.over = True
        turns = len(self.turns) + (error is not None)
        self._recording.end(stop_reason, turns, time.monotonic() - self._begun, error)

    async def close(self) -> None:
        """End the sandbox and the transcript. Idempotent, and safe at any moment."""
        self.over = True
        sandbox, self._sandbox = self._sandbox, None
        self._recording.close()
        if sandbox is not None:
            await sandbox.close()
