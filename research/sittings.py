"""Training from random weights that may be stopped at any time and resumed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from research.episodes import Encoder
from research.recipe import Phase
from research.spelled import Spelled, draw_batch
from research.training import Trainer, every_25_steps
from rtl_agent_gym.sources.families.looking import LookingFamily


@dataclass(frozen=True)
class Lesson:
    """A part of a model's training."""

    seed: int
    mix: Spelled
    phase: Phase
    examples: int = 0
    """Number of different batches, repeated in order; 0 for a new one in each step."""


@dataclass
class Sitting:
    """The progress of a training, from which it resumes."""

    lesson: int = 0
    step: int = 0
    seconds: float = 0.0
    """Processor time so far."""


class Course:
    """The consecutive lessons of one model, with the state in a file.

    Args:
        trainer: The model with its optimizers.
        families: The families on which it is trained.
        encoder: Encodes the episodes.
        path: The file of the state; its folder must exist.
        log: Receives occasional lines of progress.
    """

    every_seconds = 120.0
    """Processor time between two saves of the state."""

    def __init__(
        self,
        trainer: Trainer,
        families: Sequence[LookingFamily],
        encoder: Encoder,
        path: Path,
        log: Callable[[str], None],
    ) -> None:
        self.trainer, self.families, self.encoder, self.path, self.log = trainer, families, encoder, path, log
        self.sitting = Sitting()
        if path.exists():
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            trainer.load(state["trainer"])
            self.sitting = Sitting(**state["sitting"])

    def run(self, lessons: Sequence[Lesson]) -> None:
        """Train for the remaining lessons and steps."""
        for number in range(self.sitting.lesson, len(lessons)):
            self._teach(number, lessons[number])
            self.sitting.lesson, self.sitting.step = number + 1, 0
            self.save()

    def _teach(self, number: int, lesson: Lesson) -> None:
        note = every_25_steps(self.log, f"{self.path.stem} {number}")
        begun = saved = time.process_time()
        before = self.sitting.seconds
        for step in range(self.sitting.step, lesson.phase.steps):
            rng = random.Random(f"{lesson.seed} {step % lesson.examples if lesson.examples else step}")
            batch = draw_batch(self.families, lesson.mix, self.encoder, lesson.phase.batch, rng)
            loss = self.trainer.take(lesson.phase, step, batch)
            now = time.process_time()
            self.sitting.step, self.sitting.seconds = step + 1, before + now - begun
            note(step, loss, self.sitting.seconds)
            if now - saved > self.every_seconds:
                self.save()
                saved = now

    def save(self) -> None:
        """Write the state, atomically."""
        scratch = self.path.with_suffix(".new")
        torch.save({"trainer": self.trainer.state(), "sitting": vars(self.sitting)}, scratch)
        os.replace(scratch, self.path)
