"""Free ranges of addresses: best fit, split, coalesce, over integers alone.

The pool keeps its free memory in these lists, and the planner lays out arenas with the same code, so a plan and a run
agree on what fits where. The merging of neighbors follows Knuth, TAOCP 1, section 2.5.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable


class FreeList:
    """A set of disjoint free ranges ``[start, start + size)``. Adjacent ranges are merged as they come in."""

    __slots__ = ("_by_start", "_by_end", "_by_size", "total")

    def __init__(self) -> None:
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        #: Free bytes in all.
        self.total = 0

    def add(self, start: int, size: int) -> None:
        """Give back a range, merging it with its neighbors."""
        self.total += size
        before = self._by_end.pop(start, None)
        if before is not None:
            length = self._by_start.pop(before)
            self._forget(length, before)
            start, size = before, length + size
        after = self._by_start.pop(start + size, None)
        if after is not None:
            self._forget(after, start + size)
            size += after
        self._by_start[start] = size
        self._by_end[start + size] = start
        insort(self._by_size, (size, start))

    def take(self, size: int, suits: Callable[[int, int], bool] | None = None) -> int | None:
        """The start of ``size`` bytes from the smallest range that holds them and ``suits(start, length)``, the lowest address
        first; None if none does."""
        by_size = self._by_size
        i = bisect_left(by_size, (size, -1))
        if suits is not None:
            while i < len(by_size) and not suits(by_size[i][1], by_size[i][0]):
                i += 1
        if i == len(by_size):
            return None
        length, start = by_size.pop(i)
        del self._by_start[start]
        if length == size:
            del self._by_end[start + size]
        else:
            self._by_start[start + size] = length - size
            self._by_end[start + length] = start + size
            insort(by_size, (length - size, start + size))
        self.total -= size
        return start

    def remove(self, start: int) -> None:
        """Take the whole free range that begins at ``start``. Raises KeyError if none does."""
        size = self._by_start.pop(start)
        del self._by_end[start + size]
        self._forget(size, start)
        self.total -= size

    def largest(self) -> int:
        """Bytes of the largest free range, 0 if there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    def ranges(self) -> list[tuple[int, int]]:
        """Every free range as ``(start, size)``, by address."""
        return sorted(self._by_start.items())

    def whole(self) -> bool:
        """Are the tables consistent? An interrupted call may leave them inconsistent."""
        by_start = self._by_start
        return (sum(by_start.values()) == self.total and self._by_size == sorted((n, s) for s, n in by_start.items())
                and self._by_end == {s + n: s for s, n in by_start.items()})

    def _forget(self, size: int, start: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
