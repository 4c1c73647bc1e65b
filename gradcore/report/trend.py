"""Tells from the live bytes at the ends of steps whether memory grows, however kinds of steps alternate."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from operator import itemgetter
from statistics import median_low
from typing import Generic, TypeVar

from gradcore.report.growth import Growth

#: The most kinds of alternating steps that are recognized.
TURNS = 4
#: Rounds of growing steps that tell of growth where results of several steps have piled up, and where each has only left larger
#: ones than the last, as batches of changing lengths may do a few times in a row.
_FEW, _MANY = 3, 8
#: The most gains that the median is of: rounds of 1 to :data:`TURNS` kinds of steps fill it.
_GAINS = 60
#: The most steps with more bytes than any before that are kept.
_RISES = 25
#: The steps of the smallest windows of which the lowest end is kept, and how many sizes there are: each is twice the last.
_WINDOW, _SIZES = 8, 12
_E = TypeVar("_E")


class Trend(Generic[_E]):
    """Growth over the ends of any number of steps, of which only the last few are kept."""

    def __init__(self) -> None:
        #: The number of steps until now, and of the one from which on no two in a row have ended with fewer bytes than before.
        self._count = self._since = 0
        #: The steps since then that ended with more bytes than any before: number, bytes, and what was given with them.
        self._rises: deque[tuple[int, int, _E]] = deque(maxlen=_RISES)
        self._last: deque[int] = deque(maxlen=_GAINS + TURNS)
        #: By how many kinds of steps alternate: the steps in a row that ended above the last of their kind.
        self._steps = dict.fromkeys(range(1, TURNS + 1), 0)
        #: By that number, and which of the kinds: when the next step of the kind gave back what three had added, and how high
        #: that had come, the last two times.
        self._tops: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        #: The lowest end of the present window, and by size those of the last windows: bytes, number, and what was given.
        self._lowest: tuple[int, int, _E] | None = None
        self._floors: list[deque[tuple[int, int, _E]]] = [deque(maxlen=_MANY + 1) for _ in range(_SIZES)]
        #: The sizes of windows of which the last few lowest ends rise.
        self._rising: list[int] = []

    def add(self, requested: int, end: _E) -> None:
        """A step has ended with so many live bytes; ``end`` is kept if that is more than before."""
        # One alone may be the smaller last batch of an epoch.
        if self._rises and max(requested, self._last[-1]) < self._rises[-1][1]:
            self._rises.clear()
            self._since = self._count
        if not self._rises or requested > self._rises[-1][1]:
            self._rises.append((self._count, requested, end))
        if self._lowest is None or requested < self._lowest[0]:
            self._lowest = requested, self._count, end
        self._count += 1
        if self._count % _WINDOW == 0:
            self._end_window(self._lowest)
        last = [*self._last]
        for turns, steps in self._steps.items():
            if len(last) < turns:
                break
            top = last[-turns]
            self._steps[turns] = steps + 1 if requested > top else 0
            if len(last) >= 4 * turns and requested <= last[-4 * turns] < last[-3 * turns] < last[-2 * turns] < top:
                self._tops.setdefault((turns, self._count % turns), deque(maxlen=2)).append((self._count - 1, top))
        self._last.append(requested)

    def _end_window(self, lowest: tuple[int, int, _E]) -> None:
        self._lowest = None
        windows = self._count // _WINDOW
        for floors in self._floors:
            floors.append(lowest)
            # Two windows make one of the next size.
            if windows % 2:
                break
            windows //= 2
            lowest = min(floors[-2], lowest, key=itemgetter(0))
        self._rising = [size for size, floors in enumerate(self._floors) if _rise(floors, _FEW)]

    @property
    def growth(self) -> Growth | None:
        """Growth up to the last step; None for fewer than three growing steps.

        What fewer than eight have added may be chance, if nothing has piled up: see :attr:`is_sure`.
        """
        return self._growth(_FEW)

    @property
    def is_sure(self) -> bool:
        """Do bytes grow that steps only replace, as one that holds more at every step?"""
        return self._growth(_MANY) is not None

    def _growth(self, least: int) -> Growth | None:
        """Growth in at least so many rounds.

        If steps of several kinds alternate, as training and evaluation do, each is compared with the last of its kind. Every
        kind must have grown so often, so that ends which merely go up and down are no growth. If one kind adds to the live
        bytes and the others leave them as they are, it is said what that one adds.
        """
        ways = [(steps, -turns) for turns, steps in self._steps.items() if steps >= least * turns]
        if ways:
            # The one that has gone on for longest: three in a row may be steps between two evaluations.
            steps, turns = max(ways)[0], -max(ways)[1]
            if self._last[-1] <= self._given_back(turns):
                return None
            # Whole rounds, so that the last step is compared with one of its kind.
            steps -= steps % turns
            last, window = self._last, range(min(steps, _GAINS))
            added = [last[-1 - k] - last[-2 - k] for k in window]
            if turns > 1 and min(added) == 0 and turns * (len(added) - added.count(0)) == len(added):
                return Growth(steps, median_low(filter(None, added)), every=turns)
            return Growth(steps, median_low(last[-1 - k] - last[-1 - turns - k] for k in window) // turns)
        return self._slow(least)

    def _given_back(self, turns: int) -> float:
        """How high bytes had come twice when three steps of the last one's kind had added to them and the next one gave that
        back, as it does with the losses of micro-batches or of an epoch: less than that is no growth, unless it is long ago."""
        tops = self._tops.get((turns, self._count % turns))
        if tops is None or len(tops) < 2:
            return -inf
        (first, low), (second, high) = tops
        return min(low, high) if self._count - second <= 2 * (second - first) else -inf

    def _slow(self, least: int) -> Growth | None:
        """Growth of steps of which only some add to the live bytes, at regular intervals and more than ``least`` times."""
        if len(self._rises) < least + 2:
            return None
        numbers, sizes, _ = zip(*self._rises, strict=True)
        gaps = [b - a for a, b in pairwise(numbers)]
        every = median_low(gaps)
        # It has not stopped, nor only begun: what is made once is made early.
        if every == 1 or max(gaps[-1], self._count - 1 - numbers[-1]) > 2 * every:
            return None
        return Growth(self._count - 1 - self._since, median_low(b - a for a, b in pairwise(sizes)), every=every)

    def underneath(self) -> Iterator[tuple[Growth, list[_E], bool]]:
        """Growth below ends that go up and down, such as what an evaluation keeps after tens of steps of training: by sizes of
        windows, with the ends that tell, the lowest of the last windows, and whether these have risen too often for chance.
        """
        for size in [*self._rising]:
            floors = self._floors[size]
            tell = [*floors][-_FEW - 1:]
            (low, since, _), (high, _, _) = tell[0], tell[-1]
            present = self._last[-1]
            # It has been given back; or it is what has been given back twice, and nothing from before that.
            if present < high or (present <= self._given_back(1) and since >= self._tops[1, 0][-1][0]):
                continue
            yield (Growth(self._count - 1 - since, (high - low) // _FEW, every=_WINDOW << size),
                   [end for _, _, end in tell], _rise(floors, _MANY))
            # Not taken for growth, and not asked for again before a window ends: it takes time.
            self._rising.remove(size)

    def is_highest(self, steps: int) -> bool:
        """Has one of the last ``steps`` steps ended with more bytes than all before them, as far as these are kept?"""
        last = [*self._last]
        return max(last[-steps:]) > max(last[:-steps], default=-1)

    @property
    def risen(self) -> list[_E]:
        """What was given with the last steps that ended with more bytes than any before."""
        return [end for _, _, end in self._rises]


def _rise(floors: Sequence[tuple[int, int, object]], times: int) -> bool:
    """Are the last lowest ends of windows each higher than the one before, so many times?"""
    return len(floors) > times and all(floors[-k - 1][0] < floors[-k][0] for k in range(1, times + 1))


def growth_of(ends: Iterable[int]) -> Growth | None:
    """Growth over ``ends``, the live requested bytes at the ends of steps in order, as :class:`Trend` finds it."""
    trend = Trend[None]()
    for requested in ends:
        trend.add(requested, None)
    return trend.growth


def growth_of_nodes(made: Sequence[int], alive: Iterable[tuple[int, int]]) -> Growth | None:
    """Growth of the graph: None unless each of the last five steps that built nodes continued from an earlier one's.

    The losses of :data:`TURNS` kinds of steps that alternate keep those of as many steps, and a list of the last losses those
    of more, but their graphs end where their steps began.
    ``made`` has the number of the last node at the ends of steps in order, ``alive`` the numbers of the nodes that are alive,
    with those of the oldest that they continue from.
    """
    nodes = list(alive)
    left = Counter(bisect_left(made, number) for number, _ in nodes)
    linked = {step for number, oldest in nodes if oldest <= made[(step := bisect_left(made, number)) - 1]}
    counts: list[int] = []
    for step in range(len(made) - 1, 0, -1):
        if made[step] > made[step - 1]:
            if step not in linked:
                break
            counts.append(left[step])
    return Growth(len(counts) - 1, 0, nodes=median_low(counts[1:])) if len(counts) > TURNS else None
