"""Logs that are written one inside another: each receives, when the one inside it ends, what that has recorded."""

from __future__ import annotations

import threading

from gradcore.events import Raw


class OfThread(list[Raw]):
    """A log that must see all that its thread does: of other threads' logs, only those of this kind are written inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def is_elsewhere(self) -> bool:
        """Is the thread that asks another one?"""
        return threading.get_ident() != self.thread


#: The logs around the one that is written, the outermost first, each with the number of opening records of the log inside it.
Nest = list[tuple[list[Raw], int]]


def so_far(nest: Nest, innermost: list[Raw], log: list[Raw]) -> list[Raw]:
    """The records of a log, including those of the logs that are being written inside it."""
    written = [*nest, (innermost, 0)]
    inside = next((i for i, (outer, _) in enumerate(written) if outer is log), len(written))
    found = list(log)
    for (_, opened), (inner, _) in zip(written[inside:], written[inside + 1:], strict=False):
        found += inner[opened:]
    return found


def take_out(nest: Nest, innermost: list[Raw], log: list[Raw]) -> None:
    """End a log that is not the innermost, as a step may end while another thread traces. It gets what those inside it have
    recorded so far; they go on, inside the one that was around it. Does nothing for a log that is not being written."""
    at = next((i for i, (outer, _) in enumerate(nest) if outer is log), None)
    if at is None:
        return
    rest = so_far(nest, innermost, log)[len(log):]
    opened = nest[at][1]
    if at:
        around, before = nest[at - 1]
        around += log[before:]
        nest[at - 1] = around, opened
    del nest[at]
    log += rest


def put_in(nest: Nest, innermost: list[Raw], log: list[Raw]) -> list[Raw]:
    """Begin a log, and return the one that is then the innermost: this one, or it goes around those of other threads that are
    :class:`OfThread`, as a step may begin while another thread traces."""
    written = [*[outer for outer, _ in nest], innermost]
    at = len(written)
    while at and isinstance(found := written[at - 1], OfThread) and found.is_elsewhere():
        at -= 1
    if at == len(written) or isinstance(log, OfThread):
        nest.append((innermost, len(log)))
        return log
    # What those inside have recorded so far is no part of it. An interrupt may come when a function returns: none is called
    # between two changes that belong together.
    for i in reversed(range(max(at - 1, 0), len(nest))):
        outer, opened = nest[i]
        inner = written[i + 1]
        now = outer, len(inner)
        outer += inner[opened:]
        nest[i] = now
    own, opened = (log, len(written[at])), len(log)
    if at:
        nest[at - 1] = written[at - 1], opened
    nest.insert(at, own)
    return innermost
