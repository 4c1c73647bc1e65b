"""How often a function has been traced without a replay, and whether that is worth another trace."""

from __future__ import annotations

import time
import warnings
from typing import Any

#: Seconds to wait before a trace for each one before it that was disturbed, and at most.
_SHORT, _LONG = 0.002, 0.02


class Attempts:
    """A context manager around a trace, which counts it unless it raises or :meth:`disturbed` is called.

    A function that raises when it is traced shall do so each time. A thread that uses the device may disturb many traces, and
    the next one may be good: it ends no tracing, but after each trace that it disturbs one more call than before runs eagerly.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: Traces since the last replay.
        self.made = 0
        #: Traces that were disturbed since the last good one, and calls that are still to run eagerly after the last of them.
        self._disturbed = 0
        self._left = 0
        self.eager = False

    def __enter__(self) -> None:
        self.made += 1
        # A thread that prefetches goes on until its queue is full.
        time.sleep(min(self._disturbed * _SHORT, _LONG))

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.made -= 1

    def disturbed(self) -> None:
        """Do not count the present trace, and put off the next one."""
        self.made -= 1
        self._disturbed += 1
        self._left = self._disturbed

    def succeeded(self) -> None:
        """A trace can be replayed."""
        self._disturbed = 0

    def puts_off(self) -> bool:
        """Is the present call one of those that run eagerly after a trace that was disturbed?"""
        late = self._left > 0
        self._left -= late
        return late

    def give_up(self, function: Any, traces: list[str]) -> bool:
        """Were there as many traces as may be? Then the function runs eagerly from now on, which a warning says."""
        if self.made < self._most:
            return False
        self.eager = True
        recent = "\n".join(f"  {reason}" for reason in traces[-4:])
        warnings.warn(f"{getattr(function, '__name__', function)} was traced {self._most} times without one replay in between, "
                      f"and runs eagerly from now on. The last traces were made because:\n{recent}",
                      RuntimeWarning, stacklevel=3)
        return True
