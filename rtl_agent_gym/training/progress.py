"""Shows a run's progress: one line per step, and a live line for the current step."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from ..visible import clock, visible

logger = logging.getLogger(__name__)

BARS = "▁▂▃▄▅▆▇█"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))  # rich's own method would end the process


class Progress:
    """Prints the steps of a run to stderr; `total` is their number. Leaving the context ends the live line.

    Once stderr cannot be written, as after its terminal was closed or the reader of its pipe, such as tee, ended,
    nothing more is shown, and the run continues.
    """

    def __init__(self, total: int) -> None:
        self.console: Console = _Console(stderr=True)
        self._total = total
        self._status = Status("", console=self.console)
        self._played, self._episodes, self._step = 0, 0, 0
        self._doing = ""
        self._recent: deque[float] = deque(maxlen=10)
        self._rates: deque[float] = deque(maxlen=40)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            with self._writing():
                self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._writing():
            self._status.stop()

    def print(self, text: str) -> None:
        """Print a line above the live line. The text may be untrusted, such as a service's error message."""
        with self._writing():
            self.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def begin(self, step: int, doing: str, episodes: int = 0) -> None:
        """Show a new activity on the live line, with the number of episodes to play."""
        self._step, self._doing, self._episodes, self._played = step, doing, episodes, 0
        self._show()

    def episode_done(self) -> None:
        self._played += 1
        self._show()

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._recent.append(float(metrics.get("time/total", 0.0)))
        if "pass_rate" in metrics:
            self._rates.append(float(metrics["pass_rate"]))
        parts = [f"step {step + 1:>4}/{self._total}"]
        for label, name, form in (
            ("pass", "pass_rate", "{:4.0%}"),
            ("reward", "env/all/reward/total", "{:6.3f}"),
            ("KL", "teacher_kl", "{:7.4f}"),
            ("NLL", "sft/nll", "{:7.4f}"),
            ("tokens/s", "tokens_per_second", "{:6.0f}"),
            ("", "time/total", "{:5.1f} s"),
        ):
            if name in metrics:
                parts.append(f"{label} {form.format(float(metrics[name]))}".strip())
        left = clock((self._total - step - 1) * sum(self._recent) / len(self._recent))
        rates = "".join(BARS[min(len(BARS) - 1, int(rate * len(BARS)))] for rate in self._rates)
        self.print("  ".join([*parts, f"left {left}", rates]))

    def _show(self) -> None:
        played = f"  {self._played}/{self._episodes} episodes" if self._episodes else ""
        with self._writing():
            self._status.update(Text(f"step {self._step + 1}/{self._total}: {self._doing}{played}", style="dim"))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.console.quiet = True
            logger.warning("stderr cannot be written, so nothing more is shown there: %s", error)
