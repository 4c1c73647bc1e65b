"""Arenas: a block that a plan divides into ranges. It is reserved as a whole, and allocated range by range.

While the block is set aside it counts as reserved but not as allocated; the ranges that are open in it count as allocated, each
for its owner. A report can so show what an arena holds just as it shows what a segment of the pool holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradcore.events import CONSUMED, DIED, DROP, Tag
from gradcore.memory.ledger import Ledger, opening
from gradcore.memory.resource import Block


class _Closed:
    """The ``home`` of ranges: a freed one no longer counts, and its bytes stay in the arena."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        #: No function of Python's: an interrupt as it begins would leave the range among those that are open.
        self.append: Callable[[Block], None] = ledger.ranges.__delitem__


class Range(Block):
    """A part of an arena's block; it is open while it has a serial."""

    __slots__ = ("going", "keepers", "whole")

    #: Has it been freed since it was opened, even if the ledger has not drained it yet?
    going: bool
    #: The nodes that keep it for a gradient while it is open.
    keepers: Sequence[int]
    #: The arena's block, which is not lost as long as something refers to it.
    whole: Block

    def let_go(self, release: Callable[[Block], None]) -> None:
        """Give the range back if it is open. Finalizers may call this."""
        if self.serial and not self.going:
            self.going = True
            self.drop(DIED)
            release(self)

    def drop(self, reason: int) -> None:
        """Mark it as no longer kept for a gradient."""
        if self.keeps:
            self.keeps = 0
            log = self.home.ledger.log  # type: ignore[attr-defined]
            if log is not None:
                log.extend((DROP, self.serial, node, reason) for node in self.keepers)


def set_aside(ledger: Ledger, block: Block) -> None:
    """Turn the block that was just allocated into an arena, as if it had never counted or been logged."""
    # Draining first would record a peak.
    with ledger.lock:
        log = ledger.log
        at = -1 if log is None else log.index(opening(block))
        # No calls from here on, as an interrupt after one would leave half of it done.
        ledger._requested -= block.requested
        ledger._allocated -= block.size
        ledger.arenas[block] = None
        if log is not None:
            del log[at]


def in_arenas(ledger: Ledger) -> int:
    """The bytes of arenas that are in no open range, so reserved but neither allocated nor cached."""
    with ledger.lock:
        ledger.drain()
        return sum(b.size for b in ledger.arenas) - sum(b.size for b in ledger.ranges)


def range_of(ledger: Ledger, block: Block, offset: int, nbytes: int, size: int, tag: Tag, node: int = 0) -> Range:
    """A closed range of an arena's block: ``size`` bytes at ``offset``, of which ``nbytes`` were asked for."""
    found = Range(block.segment, block.offset + offset, size, block.stream, _Closed(ledger), nbytes, tag, node)
    found.keepers = ()
    found.whole = block
    return found


def open_ranges(ledger: Ledger, ranges: Iterable[Range], serials: Sequence[int] = ()) -> None:
    """Count the ranges as allocated, and as kept by their keepers: under new serials, or those that the log has already."""
    with ledger.lock:
        ledger.drain()
        for k, block in enumerate(ranges):
            if not serials:
                ledger.pool.serial += 1
            block.going = False
            ledger.turn(block, serials[k] if serials else ledger.pool.serial, len(block.keepers), bool(serials))


def close_ranges(ledger: Ledger, ranges: Iterable[Range]) -> None:
    """Stop counting those of the ranges that are open."""
    with ledger.lock:
        ledger.drain()
        for block in ranges:
            if block.serial:
                block.drop(CONSUMED)
                ledger.turn(block, 0, 0, False)
