"""Free ranges against a model that marks every unit of the address space."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gradcore.memory.freelist import FreeList


def check(free: FreeList) -> None:
    """Ranges are sorted, disjoint and never adjacent, and the figures are their sums."""
    ranges = free.ranges()
    for (start, size), (following, _) in pairwise(ranges):
        assert start + size < following
    assert all(size > 0 for _, size in ranges)
    assert free.total == sum(size for _, size in ranges)
    assert free.largest() == max((size for _, size in ranges), default=0)
    assert free.whole()


def test_an_empty_list_has_nothing() -> None:
    free = FreeList()
    assert free.take(1) is None and free.largest() == 0 and free.ranges() == [] and free.total == 0


def test_the_smallest_range_that_fits_is_split() -> None:
    free = FreeList()
    for start, size in ((0, 100), (200, 30), (300, 50)):
        free.add(start, size)
    assert free.take(25) == 200
    assert free.ranges() == [(0, 100), (225, 5), (300, 50)]
    assert free.take(50) == 300
    assert free.take(60) == 0
    assert free.take(60) is None
    assert free.ranges() == [(60, 40), (225, 5)]


def test_a_range_that_does_not_suit_is_left_whole() -> None:
    free = FreeList()
    free.add(0, 4)
    free.add(10, 8)
    free.add(30, 100)
    assert free.take(4, lambda start, length: start >= 10) == 10
    assert free.take(4, lambda start, length: length == 7) is None and free.total == 108
    assert free.ranges() == [(0, 4), (14, 4), (30, 100)]


def test_of_equal_ranges_the_lowest_is_taken() -> None:
    free = FreeList()
    for start in (40, 0, 20):
        free.add(start, 10)
    assert [free.take(10) for _ in range(3)] == [0, 20, 40]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_neighbors_merge_in_any_order(order: tuple[int, ...]) -> None:
    free = FreeList()
    for k in order:
        free.add(10 * k, 10)
        check(free)
    assert free.ranges() == [(0, 30)]


def test_only_a_whole_range_is_removed() -> None:
    free = FreeList()
    free.add(0, 10)
    with pytest.raises(KeyError):
        free.remove(5)
    assert free.ranges() == [(0, 10)] and free.whole()
    free.remove(0)
    assert free.ranges() == [] and free.total == 0 and free.whole()
    check(free)


@pytest.mark.parametrize("seed", range(20))
def test_a_random_walk_agrees_with_a_map_of_units(seed: int) -> None:
    rng = random.Random(seed)
    size = 400
    free, used = FreeList(), [False] * size
    free.add(0, size)
    taken: list[tuple[int, int]] = []
    for _ in range(300):
        if taken and rng.random() < 0.5:
            start, length = taken.pop(rng.randrange(len(taken)))
            free.add(start, length)
            used[start:start + length] = [False] * length
        else:
            length = rng.randint(1, 60)
            gaps = runs(used)
            at = free.take(length)
            fitting = sorted((n, s) for s, n in gaps if n >= length)
            assert at == (fitting[0][1] if fitting else None)
            if at is not None:
                taken.append((at, length))
                used[at:at + length] = [True] * length
        check(free)
        assert free.ranges() == runs(used)


def runs(used: list[bool]) -> list[tuple[int, int]]:
    """Maximal runs of unused units, as (start, size)."""
    found, start = [], None
    for i, u in enumerate([*used, True]):
        if not u and start is None:
            start = i
        elif u and start is not None:
            found.append((start, i - start))
            start = None
    return found
