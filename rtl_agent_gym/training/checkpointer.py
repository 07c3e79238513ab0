"""Steps that a service broke off, taken again without being taken twice.

A request to a trainer that failed may have been carried out or not, and so may those made behind it; asking once more
could add a gradient twice, step twice, or step without a gradient. So a step counts when its checkpoint is saved, and
not before: after a failure the trainer is made anew from the last checkpoint, as a resumed run does, and everything
since is done again with the same episodes. Where the last checkpoint is older than the step (``resume_every``), the run
ends, and resumes exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..engines.protocol import Trainer
from ..errors import RequestRefused, ServiceDown, ServiceError
from .progress import Progress

T = TypeVar("T")
MakeTrainer = Callable[[str | None], Awaitable[Trainer]]
"""A trainer from a checkpoint's ``state_path``, or for None as the run began."""

PAUSES = (2.0, 10.0, 30.0)
"""Seconds before each repetition of a step."""


class TrainerInUse:
    """A trainer, and the way back to its last checkpoint.

    Args:
        trainer: The weights under training.
        make: Makes it anew; None where that cannot be done, and a failure ends the run.
        progress: Where to tell of repetitions.
        step: Steps that its weights have seen.
        state: The checkpoint that holds them; None for a run that has not taken a step.
    """

    def __init__(
        self, trainer: Trainer, make: MakeTrainer | None, progress: Progress, step: int = 0, state: str | None = None
    ) -> None:
        self.trainer = trainer
        self.repeated = 0
        """How often work was done again since `checkpointed`."""
        self._make, self._progress, self._step, self._state = make, progress, step, state

    def checkpointed(self, steps: int, state: str | None) -> None:
        """So many steps are done; the checkpoint holds them, or, for None, the last one does not."""
        self.repeated = 0
        if state is not None:
            self._step, self._state = steps, state

    async def do(self, step: int, work: Callable[[Trainer], Awaitable[T]]) -> T:
        """Do a step's work on the trainer, once in effect.

        Args:
            step: The step, counted from 0.
            work: All that changes or saves the weights since the last step; done again from its beginning.

        Raises:
            RequestRefused: The service would refuse it again.
            ServiceDown: It failed each time, or it cannot be repeated here.
        """
        for pause in (*PAUSES, None):
            try:
                return await work(self.trainer)
            except (RequestRefused, ServiceDown):
                raise
            except ServiceError as error:
                if pause is None:
                    raise ServiceDown(f"step {step + 1} failed {len(PAUSES) + 1} times; {error}") from error
                if self._make is None or self._step != step:
                    raise ServiceDown(
                        f"step {step + 1}: {error}; whether it counted is not known, and the last checkpoint is of "
                        f"step {self._step}: start the same command again to go on from there"
                    ) from error
                self.repeated += 1
                self._progress.say(f"step {step + 1}: {error}; again from the last checkpoint in {pause:.0f} s")
            await asyncio.sleep(pause)
            self.trainer = await self._make(self._state)
        raise AssertionError("the last repetition returns or raises")
