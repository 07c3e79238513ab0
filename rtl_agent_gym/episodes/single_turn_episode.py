"""One completion, its code taken out and graded: the episode without a shell.

It has the parts of `Episode` that a face drives (`start`, `step`, `close`, `transcript_path`, `over`), so that a face
can drive either.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import UsageError
from ..policies.protocol import Completion
from ..problems import Problem
from ..prompts.single_turn import build_single_turn_prompt
from ..renderers import Action, Renderer
from ..scoring import RewardWeights
from ..scoring.score import Score
from ..transcripts import End, Header, ScoreRecord, TranscriptWriter, TurnRecord
from .answers import Answer, read_answer
from .rules import SINGLE_TURN_FEEDBACK, EpisodeConfig, Grader
from .turns import Opening, StopReason, Turn


@dataclass(frozen=True)
class AnswerTurn(Turn):
    """What the one completion led to."""

    answer: Answer | None = None

    @property
    def terminated(self) -> bool:
        """Always: one completion is all there is."""
        return True

    @property
    def truncated(self) -> bool:
        """Never."""
        return False


class SingleTurnEpisode:
    """One problem, one completion. It needs no sandbox of its own, only the grader's.

    Args:
        problem: What is to be solved.
        grader: Who scores the files.
        renderer: The model's dialect; takes thinking and control tokens off the answer.
        config: Of its rules, `scoring_timeout`, `transcript_dir`, `system_prompt` and `user_prompt` apply.
        seed: Recorded in the transcript.

    Raises:
        UsageError: The rules give the agent submissions.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        grader: Grader,
        renderer: Renderer,
        config: EpisodeConfig | None = None,
        seed: int | None = None,
    ) -> None:
        self.problem, self.renderer, self.config = problem, renderer, config or EpisodeConfig()
        self._grader, self._seed = grader, seed
        if self.config.harness_feedback:
            raise UsageError(SINGLE_TURN_FEEDBACK)
        self._transcript: TranscriptWriter | None = None
        self._begun: float | None = None
        self.turns: list[Turn] = []
        self.over = False

    @property
    def transcript_path(self) -> Path | None:
        """Where the transcript is written, once the episode has started."""
        return self._transcript.path if self._transcript is not None else None

    async def start(self) -> Opening:
        """The prompt. Raises `UsageError` when it has been given before."""
        if self._begun is not None or self.over:
            raise UsageError("this episode has been started already; make another SingleTurnEpisode")
        self._begun = time.monotonic()
        system, user = build_single_turn_prompt(self.problem)
        system = system if self.config.system_prompt is None else self.config.system_prompt
        user = user if self.config.user_prompt is None else self.config.user_prompt
        if self.config.transcript_dir is not None:
            self._transcript = TranscriptWriter.in_folder(self.config.transcript_dir, self.problem.id)
            self._write(self._header(system, user))
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        return Opening(system, user, messages, "\n\n".join(message["content"] for message in messages))

    async def step(self, completion: str | Completion, *, out_of_tokens: bool = False) -> AnswerTurn:
        """Take the completion and grade the code in it.

        Args:
            completion: The policy's words.
            out_of_tokens: Whether the token limit ended it; `Completion.cut_off` says the same.

        Raises:
            SandboxError: The machine failed; there is no score.
            UsageError: The episode has not begun or is over.
        """
        if self._begun is None or self.over:
            raise UsageError("step needs a running episode: call start() first, and make a new one for each completion")
        said = Completion(completion) if isinstance(completion, str) else completion
        begun = time.monotonic()
        self.over = True
        try:
            answer = read_answer(self._spoken(said), self.problem)
            action = Action("final" if answer.found else "malformed", text=said.text)
            self._record_turn(said, action, time.monotonic() - begun)
            score = await self._grade(answer)
        except BaseException as error:
            self._end("error", error)
            raise
        stop: StopReason = "completed" if answer.found else "parse_error"
        if said.cut_off or out_of_tokens:
            stop = "max_tokens"
        turn = AnswerTurn(1, action, stop_reason=stop, score=score, answer=answer)
        self.turns.append(turn)
        self._end(stop)
        return turn

    def _spoken(self, said: Completion) -> str:
        """The words without thinking and control tokens."""
        if said.token_ids is not None:
            return self.renderer.parse_ids(said.token_ids, truncated=said.cut_off).text
        text = self.renderer.parse_text(said.text, truncated=said.cut_off).text
        # Plain words, from a chat interface that has taken the dialect off already.
        return text or ("" if "<|" in said.text or "<think>" in said.text else said.text)

    async def _grade(self, answer: Answer) -> Score:
        files: dict[str, str | bytes] = dict(answer.files)
        score = await self._grader.score(self.problem, files, timeout=self.config.scoring_timeout)
        self._write(ScoreRecord(score=score.model_dump(mode="json"), files=answer.files))
        return score

    def _header(self, system: str, user: str) -> Header:
        options: dict[str, Any] = {"single_turn": True, "scoring_timeout": self.config.scoring_timeout}
        weights = getattr(self._grader, "weights", None)
        if isinstance(weights, RewardWeights):
            options["weights"] = weights.model_dump()
        return Header(
            package_version=__version__,
            problem_id=self.problem.id,
            problem_digest=self.problem.digest,
            renderer=self.renderer.name,
            seed=self._seed,
            options=options,
            system=system,
            user=user,
        )

    def _record_turn(self, said: Completion, action: Action, seconds: float) -> None:
        self._write(
            TurnRecord(
                turn=1,
                completion=said.text,
                token_ids=list(said.token_ids) if said.token_ids is not None else None,
                logprobs=list(said.logprobs) if said.logprobs is not None else None,
                cut_off=said.cut_off,
                action=action.kind,
                seconds=seconds,
            )
        )

    def _write(self, event: Header | TurnRecord | ScoreRecord | End) -> None:
        if self._transcript is not None:
            self._transcript.write(event)

    def _end(self, stop_reason: str, error: BaseException | None = None) -> None:
        seconds = time.monotonic() - (self._begun or 0.0)
        fault = f"{type(error).__name__}: {error}" if error is not None else None
        self._write(End(stop_reason=stop_reason, turns=1, seconds=seconds, error=fault))
        if self._transcript is not None:
            self._transcript.close()

    async def close(self) -> None:
        """End the transcript. Idempotent."""
        self.over = True
        if self._transcript is not None:
            with contextlib.suppress(OSError):
                self._transcript.close()
