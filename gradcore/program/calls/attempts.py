"""The account of a function's traces: why each was made, why it cannot be replayed, and whether another one is worth while."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from gradcore.arguments import warn
from gradcore.nn.module import Module
from gradcore.program.tracing.building import FREED
from gradcore.program.tracing.escapes import DEBUGGED, HELD, STORED
from gradcore.program.tracing.trace_log import DISTURBED

#: Seconds to wait before a trace for each one before it that was disturbed, and at most.
_SHORT, _LONG = 0.002, 0.02
#: The reasons for a trace that say nothing about what the user could change.
FIRST = "the first call"
SAME = "the call before, which had the same arguments, could not be replayed"
#: Between the reason for a trace and those why it cannot be replayed; and what stands there if it is empty.
REFUSED, NOTHING = "; it cannot be replayed: ", "; it runs no op, so there is nothing to replay"
#: The most traces of which the reason is kept: shapes that never come again lead to one after another.
_MOST_TRACES = 1000
#: The most reasons that are given for one trace that cannot be replayed.
_MOST_REASONS = 4
#: The most reasons of each kind in a warning, and the most characters of one.
_MOST, _LENGTH = 6, 300


class Attempts:
    """A context manager around a trace, which counts it unless it raises or is disturbed.

    A function that raises when it is traced shall do so each time. A thread that uses the device may disturb many traces, and
    the next one may be good: it ends no tracing, but after each trace that it disturbs one more call than before runs eagerly.
    """

    def __init__(self, function: Any, most: int) -> None:
        self._function = function
        self._most = most
        #: The reason for each trace, and why it cannot be replayed: those of the last ones, and how many there were before.
        self.traces: list[str] = []
        self.earlier = 0
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

    def begin(self, reason: str) -> None:
        """A trace begins, for this reason."""
        self.traces.append(reason)
        if len(self.traces) > _MOST_TRACES:
            del self.traces[0]
            self.earlier += 1

    def refuse(self, obstacles: list[str]) -> None:
        """The present trace cannot be replayed. If it was disturbed, it does not count, and the next one is put off."""
        # What the function assigns to first, and last what often follows from others: what it stores, and what this replaced.
        reasons = sorted(dict.fromkeys(obstacles), key=lambda reason: (
            " assigns to " not in reason, any(words in reason for words in (HELD, STORED, FREED))))
        if sys.gettrace() is not None and any(HELD in reason or STORED in reason for reason in reasons):
            reasons.insert(0, DEBUGGED)
        more = len(reasons) - _MOST_REASONS
        self.traces[-1] += REFUSED + "; ".join(reasons[:_MOST_REASONS]) + f"; and {more} more such reasons" * (more > 0)
        if DISTURBED in reasons or DEBUGGED in reasons:
            self.made -= 1
            self._disturbed += 1
            self._left = self._disturbed
        else:
            self._refusals.update(reasons)

    def found_nothing(self) -> None:
        """The present trace has no op that could be replayed."""
        self.traces[-1] += NOTHING
        self._refusals.update([NOTHING[2:]])

    def succeeded(self) -> None:
        """A trace can be replayed."""
        self._disturbed = 0

    def puts_off(self) -> bool:
        """Is the present call one of those that run eagerly after a trace that was disturbed?"""
        late = self._left > 0
        self._left -= late
        return late

    def give_up(self) -> bool:
        """Were there as many traces as may be? Then the function runs eagerly from now on, which a warning says."""
        if self.made < self._most:
            return False
        self.eager = True
        causes = Counter(cause for trace in self.traces[-self._most:]
                         for cause in [trace.partition(REFUSED)[0].removesuffix(NOTHING)]
                         if cause not in (FIRST, SAME))
        said = [*_counted("it was traced again: ", causes), *_counted(REFUSED[2:], self._refusals)]
        warn(f"{_name_of(self._function)} was traced {self._most} times without one replay in between, and runs "
             "eagerly from now on; docs/graph-mode.md says what to write instead:\n"
             + "\n".join(f"  {reason}" for reason in said), RuntimeWarning)
        # No trace follows, which would say more.
        self.traces[-1] += "; it runs eagerly from now on" + "".join(
            f"{REFUSED}{_short(reason)}" for reason, _ in self._refusals.most_common(1))
        return True


def _name_of(function: Any) -> str:
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
