"""Draws a live view of a run: the live bytes of the present step by role, and the loss so far."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gradcore._step import step
from gradcore.cli.tables import in_color
from gradcore.report.blocks import block_plot
from gradcore.report.run import StepFigures
from gradcore.units import format_bytes, format_loss

#: Seconds between two updates: drawing takes about as long as a small step.
INTERVAL = 0.15


def sparkline(values: Sequence[float], width: int) -> str:
    """``values`` as a row of at most ``width`` blocks: the mean of each stretch, from the lowest (▁) to the highest (█).

    A mean that is not finite is an x.
    """
    count = min(width, len(values))
    parts = (values[i * len(values) // count:(i + 1) * len(values) // count] for i in range(count))
    means = [sum(part) / len(part) for part in parts]
    finite = [m for m in means if math.isfinite(m)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join("x" if not math.isfinite(m) else "▁▂▃▄▅▆▇█"[round((m - low) / (high - low) * 7) if high > low else 0]
                   for m in means)


class LiveView:
    """A context manager that draws on a terminal. ``steps`` is the number of steps of the run."""

    def __init__(self, console: Console, steps: int) -> None:
        self._steps = steps
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._losses: list[float] = []
        self._drawn = -math.inf

    def update(self, line: StepFigures, done: step) -> None:
        """Note the end of a step, and draw it if the last update is old enough or it is the last step."""
        self._losses.append(math.nan if line.loss is None else line.loss)
        now = time.monotonic()
        if now - self._drawn >= INTERVAL or line.step == self._steps:
            self._drawn = now
            self._live.update(self.picture(line, done), refresh=True)

    def picture(self, line: StepFigures, done: step) -> Group:
        """The picture of a step."""
        width = max(20, min(self._live.console.width - 16, 100))
        title = Text(f"step {line.step}/{self._steps}  peak {format_bytes(line.allocated)}  kept for backward "
                     f"{format_bytes(line.kept or 0)}  live at the end {format_bytes(line.live)}", style="bold")
        loss = Text(f"{f'loss {format_loss(self._losses[-1])}':>11} {sparkline(self._losses, width)}\n")
        return Group(title, block_plot(done.recording, width=width, height=8, color=in_color(self._live.console)), loss)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()
