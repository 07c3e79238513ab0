"""One episode: a problem, a workspace, a renderer, a score. Every interface drives this one state machine.

::

    new ──start()──► running ──step()──► running │ over ──close()──► closed

With `EpisodeConfig.workspace` ``"shell"``, the agent works in a sandbox and `step` runs its commands. With
``"answer"``, the only `step` takes the files from the completion. In both cases the last step grades the files.

`Episode` owns its workspace, with its sandbox, and its transcript, from `start` to `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..errors import SandboxError, UsageError
from ..metrics import EPISODES, FAULTS
from ..policies.protocol import Completion
from ..problems import Problem
from ..renderers import ModelTurn, Renderer, ToolCall
from ..renderers.transcript import TokenTranscript
from ..sandboxes import Sandbox, SandboxProvider
from ..scoring.score import Score
from .prompt import episode_renderer, open_prompt
from .recording import Recording, changed_files, room_on_disk
from .rules import EpisodeConfig, Grader
from .submissions import Submissions
from .turn_rewards import TurnBudget, TurnRewards
from .turns import Opening, StopReason, Turn, result_numbers
from .workspaces import AnswerWorkspace, ShellWorkspace

__all__ = ["Episode", "EpisodeConfig", "Grader", "Opening", "StopReason", "Turn"]


class Episode(contextlib.AbstractAsyncContextManager["Episode"]):
    """One episode of one problem.

    A policy works in the same way in both workspaces: it gets `Episode.renderer`, which declares no tool for an answer,
    then `Opening.messages` (as tokens: ``renderer.initial_ids(opening.system, opening.user)``), and passes each
    completion to `step` until `Turn.stop_reason` is set.

    Args:
        provider: Creates the sandbox; not needed for the workspace ``"answer"``.
        config: The rules; None for the defaults.
        seed: Seed of ``$RANDOM`` and of the stimuli of submissions; recorded in the transcript. None: a random one.
        on_output: Called with the output of commands while they run, for live display.
        turn_budget: Time for grading turns; see `Runtime.turn_budget`. None: one for this episode.

    Example:
        async with Episode(problem, provider=provider, grader=scorer, renderer=get_renderer("qwen3")) as episode:
            opening = await episode.start()
            turn = await episode.step("All done.")
            print(turn.stop_reason, turn.score)
    """

    def __init__(
        self,
        problem: Problem,
        *,
        grader: Grader,
        renderer: Renderer,
        provider: SandboxProvider | None = None,
        config: EpisodeConfig | None = None,
        seed: int | None = None,
        on_output: Callable[[bytes], None] | None = None,
        turn_budget: TurnBudget | None = None,
    ) -> None:
        self.problem, self.config = problem, config or EpisodeConfig()
        self.renderer = episode_renderer(self.config, renderer)
        self.seed = secrets.randbits(31) if seed is None else seed
        self._grader = grader
        self._submissions = Submissions(problem, grader, self.config, self.seed)
        self._workspace: ShellWorkspace | AnswerWorkspace
        if self.config.workspace == "answer":
            self._workspace = AnswerWorkspace(problem, self.renderer)
        elif provider is not None:
            self._workspace = ShellWorkspace(
                problem, self.config, provider, renderer, self._submissions, self.seed, on_output
            )
        else:
            raise UsageError("an episode in a shell needs a provider of sandboxes, such as DockerSandboxes()")
        budget = turn_budget or TurnBudget(self.config.turn_grading_time)
        self._turn_rewards = TurnRewards(problem, self.config.turn_rewards, self._submissions.grade, budget)
        self._recording = Recording(problem, self.config)
        self._opening: Opening | None = None
        self._tokens: TokenTranscript | None = None
        self._begun = time.monotonic()
        self._malformed = 0
        self._finishing = asyncio.Lock()
        self._score: Score | None = None
        self._fault: SandboxError | None = None
        self.turns: list[Turn] = []
        """The turns so far. Only the last has its outputs: keep the conversation yourself, or read the transcript."""
        self.stop_reason: StopReason | None = None
        """Why the episode ended; None while it runs, and after an error."""
        self.files: dict[str, str] = {}
        """The graded text files that differ from the problem's, once the episode is graded."""
        self.oom_kills: int | None = None
        """Number of agent processes that the kernel killed for lack of memory, set by grading; None if unknown."""
        self.turn_rewards: list[float] = []
        """What each turn earned, once the episode is graded and if `EpisodeConfig.turn_rewards` asks for it."""
        self.over = False

    @property
    def transcript_path(self) -> Path | None:
        """Where the transcript is written, once the episode has started."""
        return self._recording.path

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the running episode. The agent sees the effects of commands that you run in it."""
        if self._workspace.sandbox is None:
            raise UsageError("only an episode in a shell has a sandbox, between start() and its last turn")
        return self._workspace.sandbox

    @property
    def tokens(self) -> TokenTranscript:
        """The episode as tokens, for policies that sample tokens: prompt, sampled ids, and the replies to them.

        A reply that leaves no room for another turn is not included, because the model never reads it.

        Raises:
            UsageError: The renderer has no vocabulary, or the episode has not started.
        """
        if self._tokens is None:
            if self._opening is None:
                raise UsageError("an episode has no tokens before start()")
            self._tokens = TokenTranscript(self.renderer.initial_ids(self._opening.system, self._opening.user))
        return self._tokens

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> Opening:
        """Open the workspace and return the prompt.

        Raises:
            PromptTooLong: The prompt does not fit its budget. Nothing was started.
            SandboxError: No sandbox started in `EpisodeConfig.start_attempts` attempts.
            UsageError: The episode was already started or closed, or was closed during the start.
        """
        if self._opening is not None or self.over:
            raise UsageError("this episode has been started already; make another Episode")
        opening = await asyncio.to_thread(open_prompt, self.problem, self.config, self.renderer)
        if self.config.transcript_dir is not None:
            await room_on_disk(Path(self.config.transcript_dir))
        self._begun = time.monotonic()
        try:
            await self._workspace.open()
        except SandboxError as error:
            FAULTS.labels("start", type(error).__name__).inc()
            EPISODES.labels("fault").inc()
            raise
        if self.over:
            await self._workspace.close()
            raise UsageError("this episode was closed while it started")
        self._opening = opening
        self._recording.begin(
            opening,
            renderer=self.renderer.name,
            seed=self.seed,
            image=getattr(self._workspace.sandbox, "image_id", ""),
            weights=getattr(self._grader, "weights", None),
        )
        return opening

    async def step(self, completion: str | Completion) -> Turn:
        """Run what a completion requests, and grade the files if this was the last turn.

        Raises:
            SandboxError: The machine failed; the episode is over, without a score.
            UsageError: The episode has not begun or is over.
        """
        self._require_running("step")
        completion = Completion(completion) if isinstance(completion, str) else completion
        begun = time.monotonic()
        try:
            turn, found = await self._workspace.act(completion, len(self.turns) + 1, self._recording.wanted_files())
            ids = completion.token_ids
            if ids is not None:
                self.tokens.add_action(ids, completion.logprobs)
            stop = self._stop_reason(turn, sampled=ids is not None)
            if stop is None and ids is not None and not self._append_reply(turn, ids):
                stop = "max_tokens"
            seconds = time.monotonic() - begun
            await self._recording.turn(completion, turn, seconds, self._workspace.sandbox, found, self.renderer)
            score = await self._grade() if stop is not None else None
            turn = replace(turn, stop_reason=stop, score=score)
            self.turn_rewards = await self._turn_rewards.share([*self.turns, turn], score, self._workspace.files)
        except BaseException as error:
            self._end("error", error)
            raise
        if self.turns:
            self.turns[-1] = self.turns[-1].without_texts()
        self.turns.append(turn)
        if stop is not None:
            self._end(stop)
        return turn

    async def act(self, action: Sequence[ToolCall] | str, *, cut_off: bool = False) -> Turn:
        """Play a turn that is already parsed: tool calls to run in order, or the text of a final answer.

        For frameworks that declare the tool natively. The model reads `Turn.replies`. Calls written out in an answer
        are never run. `cut_off` is whether the token limit ended the turn. Raises the same errors as `step`.
        """
        turn = ModelTurn(text=action) if isinstance(action, str) else ModelTurn(calls=tuple(action))
        return await self.step(Completion(turn.text, native=turn, cut_off=cut_off))

    def _stop_reason(self, turn: Turn, *, sampled: bool) -> StopReason | None:
        """Why the episode ends with this turn, or None; `sampled` is whether its tokens are counted."""
        self._malformed = self._malformed + 1 if turn.action.kind == "malformed" else 0
        if turn.stop_reason is not None:
            return turn.stop_reason
        if self._malformed >= self.config.max_malformed:
            return "parse_error"
        if sampled and not self.config.has_room(len(self.tokens)):
            return "max_tokens"
        return "max_turns" if turn.number >= self.config.max_turns else None

    def _append_reply(self, turn: Turn, ids: Sequence[int]) -> bool:
        """Append the reply to the sampled `ids` if it leaves room for another turn. Returns whether it did."""
        if turn.action.kind == "malformed":
            reply = self.renderer.correction_ids(turn.action.correction or "", ids)
        else:
            reply = self.renderer.observation_ids(turn.outputs, ids)
        room = self.config.has_room(len(self.tokens) + len(reply))
        if room:
            self.tokens.append(reply)
        return room

    async def finish(self, reason: StopReason = "completed") -> Score:
        """Return the score; if the episode is running, end it for this reason and grade its files first. Idempotent.

        Raises:
            SandboxError: The machine failed, now or in an earlier turn.
            UsageError: The episode has not begun, or was closed before its end.
        """
        async with self._finishing:
            if self._fault is not None:
                raise self._fault
            if self._score is not None:
                return self._score
            self._require_running("finish")
            try:
                score = await self._grade()
                self.turn_rewards = await self._turn_rewards.share(self.turns, score, self._workspace.files)
            except BaseException as error:
                self._end("error", error)
                raise
            self._end(reason)
            return score

    def trained_numbers(self, score: Score) -> dict[str, float]:
        """`result_numbers` and `TurnRewards.numbers` of the ended episode; submissions only if its rules allow any."""
        numbers = result_numbers(score, self.stop_reason, self.turns, self.oom_kills)
        numbers |= self._turn_rewards.numbers()
        unused = set() if self.config.harness_feedback else {"submissions", "progress_reward"}
        return {name: number for name, number in numbers.items() if name not in unused}

    def abandon(self, error: BaseException) -> None:
        """End the episode without a score; the transcript records the error."""
        if not self.over:
            self._end("error", error)

    def _require_running(self, method: str) -> None:
        if self._opening is None or self.over:
            raise UsageError(
                f"{method} needs a running episode: call start() first, and make a new Episode after its end"
            )

    async def _grade(self) -> Score:
        files, notes = await self._workspace.files()
        self.oom_kills = await self._workspace.oom_kills()
        # Closed during the grading, not after it, so that the sandbox's memory is free meanwhile.
        closing = asyncio.ensure_future(self._workspace.close())
        try:
            score = await self._submissions.grade(files, notes)
        finally:
            await closing
        self._score, self.files = score, changed_files(self.problem, files)
        self._turn_rewards.ended(files, score)
        self._recording.score(score, self.files)
        EPISODES.labels("passed" if score.passed else "failed").inc()
        return score

    def _end(self, reason: StopReason | Literal["error"], error: BaseException | None = None) -> None:
        self.over = True
        self.stop_reason = None if reason == "error" else reason
        if isinstance(error, SandboxError):
            self._fault = error
            FAULTS.labels("episode", type(error).__name__).inc()
        if error is not None:
            EPISODES.labels("fault" if isinstance(error, SandboxError) else "aborted").inc()
        turns = len(self.turns) + (error is not None)
        try:
            self._recording.end(reason, turns, time.monotonic() - self._begun, self.oom_kills, error)
        except (SandboxError, UsageError):  # the disk is full; the original error is more important to the caller
            if error is None:
                raise

    async def close(self) -> None:
        """Close the workspace and the transcript. Idempotent; may be called at any time."""
        self.over = True
        self._recording.close()
        await self._turn_rewards.close()
        await self._workspace.close()
