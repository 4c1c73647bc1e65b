"""An arena: a block that a plan divides. It is reserved as a whole, and allocated range by range.

While the block is set aside, it counts as reserved and not as allocated; what counts is the ranges that are open in it, each
with its owner. So a report says what lies in an arena as it says what lies in a segment of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradcore.events import CONSUMED, DIED, DROP, KEEP
from gradcore.memory.ledger import Ledger
from gradcore.memory.resource import Block


class _Closed:
    """Where a range goes that is given back: it counts no more, and its bytes stay the arena's."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def append(self, block: Block) -> None:
        self.ledger.ranges.pop(block, None)


class Range(Block):
    """A part of an arena's block, closed as long as it has no serial."""

    __slots__ = ("going",)

    #: Has it been given back, though the books may not have seen that yet?
    going: bool

    def let_go(self, release: Callable[[Block], None]) -> None:
        """Give it back if it is open; a finaliser may call this."""
        if self.serial and not self.going:
            self.going = True
            self.drop(DIED)
            release(self)

    def drop(self, reason: int) -> None:
        """Whoever kept it for a gradient keeps it no more."""
        if self.keeps:
            self.keeps = 0
            log = self.home.ledger.log  # type: ignore[attr-defined]
            if log is not None:
                log.append((DROP, self.serial, 0, reason))


def range_of(ledger: Ledger, block: Block, offset: int, nbytes: int, size: int, tag: int, node: int = 0) -> Range:
    """A closed range of an arena's block: ``size`` bytes at ``offset``, of which ``nbytes`` were asked for."""
    found = Range(block.segment, block.offset + offset, size, block.stream)
    found.going = False
    found.home = _Closed(ledger)  # type: ignore[assignment]
    found.requested = nbytes
    found.tag = tag
    found.node = node
    return found


def open_ranges(ledger: Ledger, ranges: Iterable[Range], keeper: str = "") -> None:
    """They count as allocated, under new serials, and where there is a ``keeper`` as kept for a gradient."""
    with ledger.lock:
        ledger.drain()
        for block in ranges:
            ledger.pool.serial += 1
            block.going = False
            block.serial = ledger.pool.serial
            ledger.ranges[block] = None
            ledger.count((block,), 1)
            if keeper:
                block.keeps = 1
                if ledger.log is not None:
                    ledger.log.append((KEEP, block.serial, 0, keeper))


def close_ranges(ledger: Ledger, ranges: Iterable[Range]) -> None:
    """Those that are open count no more."""
    with ledger.lock:
        ledger.drain()
        for block in ranges:
            if block.serial:
                block.drop(CONSUMED)
                ledger.count((block,), -1)
                block.serial = 0
                ledger.ranges.pop(block, None)


def set_aside(ledger: Ledger, block: Block) -> None:
    """A block that was allocated for this becomes an arena."""
    ledger.set_aside(block)
    block.home = _Returning(ledger, block.home)  # type: ignore[assignment]


class _Returning:
    """Where an arena's block goes when it is given back: it is counted as any other, and waits where it came from."""

    def __init__(self, ledger: Ledger, home: list[Block]) -> None:
        self._ledger = ledger
        self._home = home

    def append(self, block: Block) -> None:
        self._ledger.arenas.discard(block)
        self._ledger.restore(block)
        block.home = self._home
        self._home.append(block)
