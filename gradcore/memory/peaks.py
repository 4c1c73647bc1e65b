"""Peaks over stretches of time, which may overlap in any way, as steps of threads do, and in which users may reset peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcore.memory.ledger import Ledger

#: Requested, allocated and reserved bytes.
Peaks = tuple[int, int, int]
NOTHING: Peaks = (0, 0, 0)


def highest(a: Peaks, b: Peaks) -> Peaks:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])


def restart(ledger: Ledger) -> None:
    """Enter the ledger's latest peaks wherever they count, and let them start again from what is live now.

    The caller holds the lock. After an interrupt it may be called again, since to enter a peak twice changes nothing.
    """
    ledger.drain()
    for measured in ledger.measured:
        measured.found = highest(measured.found, ledger.latest)
    ledger.earlier = highest(ledger.earlier, ledger.latest)
    ledger.latest = ledger.present


class Measured:
    """A ledger's peaks from :meth:`begin` to :meth:`end`, which works, too, if an interrupt has cut the beginning short."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: The peaks up to the last :func:`restart`.
        self.found = NOTHING

    def begin(self) -> None:
        with self._ledger.lock:
            restart(self._ledger)
            self._ledger.measured.append(self)

    def end(self) -> Peaks:
        """The peaks since it began."""
        measured = self._ledger.measured
        with self._ledger.lock:
            restart(self._ledger)
            # An interrupt may have cut an earlier call short.
            if self in measured:
                measured.remove(self)
        return self.found
