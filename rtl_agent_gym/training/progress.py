"""What a person sees while a run goes on: one line a step, and a live one for the step under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

BAR = "▁▂▃▄▅▆▇█"


class Progress:
    """Prints the steps of a run. A context manager: leaving it ends the live line.

    Args:
        total: Steps of the whole run.
        console: Where to print; stderr by default, so that stdout stays free for a program.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._total = total
        self._status = Status("", console=self.console)
        self._episodes, self._asked, self._step = 0, 0, 0
        self._doing = ""
        self._recent: deque[float] = deque(maxlen=10)
        self._rates: deque[float] = deque(maxlen=40)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, step: int, doing: str, episodes: int = 0) -> None:
        """Something begins, with so many episodes to play."""
        self._step, self._doing, self._asked, self._episodes = step, doing, episodes, 0
        self._show()

    def episode_done(self) -> None:
        """One more episode is graded."""
        self._episodes += 1
        self._show()

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done; its line stays."""
        self._recent.append(float(metrics.get("time/total", 0.0)))
        if "pass_rate" in metrics:
            self._rates.append(float(metrics["pass_rate"]))
        parts = [f"step {step + 1:>4}/{self._total}"]
        for label, name, form in (
            ("pass", "pass_rate", "{:4.0%}"),
            ("reward", "env/all/reward/total", "{:6.3f}"),
            ("KL", "teacher_kl", "{:7.4f}"),
            ("tokens/s", "tokens_per_second", "{:6.0f}"),
            ("", "time/total", "{:5.1f} s"),
        ):
            if name in metrics:
                parts.append(f"{label} {form.format(float(metrics[name]))}".strip())
        left = self._left(step)
        if left:
            parts.append(f"left {left}")
        parts.append(self._spark())
        self.say("  ".join(parts))

    def _left(self, step: int) -> str:
        if not self._recent:
            return ""
        seconds = (self._total - step - 1) * sum(self._recent) / len(self._recent)
        return time.strftime("%-H:%M:%S" if seconds >= 3600 else "%-M:%S", time.gmtime(seconds))

    def _spark(self) -> str:
        return "".join(BAR[min(len(BAR) - 1, int(rate * len(BAR)))] for rate in self._rates)

    def _show(self) -> None:
        played = f"  {self._episodes}/{self._asked} episodes" if self._asked else ""
        self._status.update(Text(f"step {self._step + 1}/{self._total}: {self._doing}{played}", style="dim"))
