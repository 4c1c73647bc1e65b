"""Peaks over nested stretches of time, correct even if a user resets the peak statistics inside one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcore.memory.ledger import Ledger

#: Requested, allocated and reserved bytes.
Peaks = tuple[int, int, int]
NOTHING: Peaks = (0, 0, 0)


def highest(a: Peaks, b: Peaks) -> Peaks:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])


class Measured:
    """A ledger's peaks from :meth:`begin` to :meth:`end`, which works, too, if an interrupt has cut the beginning short."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: The peaks from before a user's last reset, and those from before it began.
        self._found = self._before = NOTHING

    def begin(self) -> None:
        ledger = self._ledger
        with ledger.lock:
            ledger.drain()
            self._before = ledger.peaks
            ledger.measured.append(self)
            ledger.peaks = ledger.present

    def end(self) -> Peaks:
        """The peaks since it began. From now on the ledger's peaks include those from before it again."""
        ledger = self._ledger
        with ledger.lock:
            ledger.drain()
            # An interrupt may have cut an earlier call short.
            if self in ledger.measured:
                ledger.measured.remove(self)
            found = highest(self._found, ledger.peaks)
            ledger.peaks = highest(self._before, ledger.peaks)
        return found

    def forget(self, peaks: Peaks) -> Peaks:
        """A user resets the peaks: this stretch includes ``peaks``, and those from before it are forgotten.

        Returns the peaks for the stretch around this one.
        """
        self._found = highest(self._found, peaks)
        around = highest(peaks, self._before)
        self._before = NOTHING
        return around
