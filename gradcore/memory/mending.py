"""What an interrupt may leave of a pool, and how it is made whole again."""

from __future__ import annotations

import sys
from collections.abc import Collection, Container

from gradcore.memory.freelist import FreeList
from gradcore.memory.pool import Pool
from gradcore.memory.resource import KINDS, SPACING, Block


def mend(pool: Pool) -> None:
    """Rebuild the free lists after a call was cut short.

    Whatever bytes of the segments are not in a block that is live or waiting are free. Those in the ledger's queue live. If
    the call that was cut short came within another one, which is at work, they are that one's.
    """
    if pool.at_work or _whole(pool):
        return
    if len(pool.streams) > 1:
        # On which stream bytes were free is not known any more.
        pool.order.drain()
    for stream in pool.streams:
        for waiting in stream.waiting.values():
            waiting[:] = [b for b in dict.fromkeys(waiting) if b in pool.blocks and not b.serial]
        stream.free = [FreeList() for _ in KINDS]
    waiting_now = {b for s in pool.streams for blocks in s.waiting.values() for b in blocks}
    # In place, since adopted blocks leave this very set when they are freed.
    pool.blocks -= {b for b in pool.blocks if not b.serial and b not in waiting_now}
    pool.reserved = sum(s.nbytes for s in pool.segments.values())
    taken: dict[int, list[tuple[int, int]]] = {}
    for block in pool.blocks:
        taken.setdefault(block.segment.index, []).append((block.offset, block.size))
    for index, segment in pool.segments.items():
        free, at = pool.streams[0].free[segment.kind], 0
        for offset, size in (*sorted(taken.get(index, ())), (segment.nbytes, 0)):
            if offset > at:
                free.add(index * SPACING + at, offset - at)
            at = offset + size


def lost(books: Collection[Block], aside: Container[Block] = ()) -> list[Block]:
    """Live blocks that will not be freed, because an interrupt ended a finalizer as it began, or came before an owner.

    They are those of a set of the ``books`` that nothing else refers to, and ``aside`` to those in it.
    """
    blocks = list(books)
    # Three references: the set's, the list's, and the argument of getrefcount.
    return [b for b, n in zip(blocks, list(map(sys.getrefcount, blocks)), strict=True)
            if n == 3 + (b in aside) and b.serial]


def _whole(pool: Pool) -> bool:
    """Is every byte of the segments in one free list, or in a block that is live or waiting?"""
    free = [ranges for s in pool.streams for ranges in s.free]
    waiting = {b for s in pool.streams for blocks in s.waiting.values() for b in blocks}
    return (all(ranges.whole() for ranges in free)
            and waiting == {b for b in pool.blocks if not b.serial}
            and sum(f.total for f in free) + sum(b.size for b in pool.blocks) == pool.reserved
            == sum(s.nbytes for s in pool.segments.values()))
