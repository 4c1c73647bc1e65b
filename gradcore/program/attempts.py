"""How often a function has been traced without a replay, and whether that is worth another trace."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gradcore.nn.module import Module

#: Seconds to wait before a trace for each one before it that was disturbed, and at most.
_SHORT, _LONG = 0.002, 0.02
#: The reasons for a trace that say nothing about what the user could change.
FIRST = "the first call"
SAME = "the call before, which had the same arguments, could not be replayed"
#: Between the reason for a trace and those why it cannot be replayed; and what stands there if it is empty.
REFUSED, NOTHING = "; it cannot be replayed: ", "; it runs no op, so there is nothing to replay"
#: The most reasons of each kind in a warning, and the most characters of one.
_MOST, _LENGTH = 6, 300


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
        #: Why traces since the last replay cannot be replayed, each reason with how many of them gave it.
        self._refusals: Counter[str] = Counter()

    def __enter__(self) -> None:
        self.made += 1
        if self.made == 1:
            self._refusals.clear()
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

    def refused(self, reasons: Sequence[str]) -> None:
        """The present trace cannot be replayed for these reasons."""
        self._refusals.update(reasons)

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
        causes = Counter(cause for trace in traces[-self._most:]
                         for cause in [trace.partition(REFUSED)[0].removesuffix(NOTHING)]
                         if cause not in (FIRST, SAME))
        said = [*_counted("it was traced again: ", causes), *_counted(REFUSED[2:], self._refusals)]
        warnings.warn(f"{name_of(function)} was traced {self._most} times without one replay in between, and runs eagerly from "
                      "now on:\n" + "\n".join(f"  {reason}" for reason in said), RuntimeWarning, stacklevel=3)
        # No trace follows, which would say more.
        traces[-1] += "; it runs eagerly from now on" + "".join(
            f"{REFUSED}{_short(reason)}" for reason, _ in self._refusals.most_common(1))
        return True


def name_of(function: Any) -> str:
    """What a message calls a compiled function or module, whose text may have many lines."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, Module):
        return f"{type(function).__name__} (a module)"
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else f"{type(function).__name__} (an object)"


def _counted(what: str, reasons: Counter[str]) -> Iterator[str]:
    """Lines for the most frequent reasons, each with the number of traces that had it."""
    for reason, times in reasons.most_common(_MOST):
        yield f"{what}{_short(reason)}" + f" ({times} times)" * (times > 1)
    if len(reasons) > _MOST:
        yield f"{what}{len(reasons) - _MOST} more such reasons"


def _short(reason: str) -> str:
    return reason if len(reason) <= _LENGTH else reason[:_LENGTH - 3] + "..."
