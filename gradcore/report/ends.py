"""What is live at the ends of steps, whether that grows, and which lines have gained from step to step."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from gradcore.events import ALLOC, FREE, RETAG, Network, Raw, Site, Tag
from gradcore.folds import summed
from gradcore.report.growth import Growth, kind_of
from gradcore.report.trend import Trend

#: The most steps over which it is told what has gained: whole rounds, also in halves, of 1 to 4 kinds of steps.
_STEPS = 24


class End(NamedTuple):
    """The end of a step: live requested bytes, the serial of the last allocation, and the number of the last node.

    ``owned`` has the bytes by tag, or is None for a step without a log.
    """

    requested: int
    serial: int
    owned: Mapping[Tag, int] | None
    node: int


class Ends:
    """The ends of a device's steps, of which the last few are kept."""

    def __init__(self) -> None:
        self._trend = Trend[End]()
        self._last: deque[End] = deque(maxlen=_STEPS + 1)

    def add(self, end: End) -> None:
        """A step has ended."""
        self._trend.add(end.requested, end)
        self._last.append(end)

    @property
    def built(self) -> list[int]:
        """The numbers of the last nodes at the ends of steps, as far as these are kept."""
        return [end.node for end in self._last]

    def growth(self, alive: Callable[[], Mapping[int, int]]) -> tuple[Growth | None, list[End]]:
        """How live bytes have grown up to the last step, with the ends that tell: one before it grew, and those after it.

        ``alive`` gives the bytes of the live buffers by serial, and is called where growth may be chance.
        """
        growth, alive = self._trend.growth, cache(alive)
        if growth is not None:
            last = [*self._last]
            tell = last[-1 - min(growth.steps, _STEPS):] if growth.every == 1 else [*self._trend.risen, last[-1]]
            if self._trend.is_sure or self._has_stayed(tell, alive(), self._trend.is_highest(growth.steps)):
                return growth, tell
        for growth, tell, sure in self._trend.underneath():
            if sure or self._has_stayed_between(tell, alive()):
                return growth, [*tell, self._last[-1]]
        return None, []

    def _has_stayed(self, ends: Sequence[End], alive: Mapping[int, int], highest: bool) -> bool:
        """Has what several steps from the first of ``ends`` to the last have made stayed, rather than taken the place of more
        than the last step replaces, as in a queue? It has to be a good part of the rise. Where ends have come as high before,
        by going up and down, next to nothing may have gone in the last three steps."""
        ends = ends if highest else ends[-4:]
        risen, made = max(end.requested for end in ends) - ends[0].requested, self._made(ends, alive)
        new = sum(nbytes for serial, nbytes in alive.items() if serial > ends[0].serial)
        return len(made) > 1 and sum(made) <= risen <= 3 * sum(made) and (highest or 16 * (new - risen) <= risen)

    def _has_stayed_between(self, ends: Sequence[End], alive: Mapping[int, int]) -> bool:
        """Have as many bytes as have been added stayed of what was made between each of ``ends`` and the next? Of all together
        it may be twice as much, since the last may have what goes yet."""
        risen, made = ends[-1].requested - ends[0].requested, self._made(ends, alive)
        return len(made) == len(ends) - 1 and sum(made) <= 2 * risen <= 4 * len(made) * min(made)

    def _made(self, ends: Sequence[End], alive: Mapping[int, int]) -> list[int]:
        """The bytes that were made between one of these ends and the next, and before the last step, as far as they are alive:
        for each two ends for which there are some."""
        serials = [end.serial for end in ends]
        first, last = serials[0], min(serials[-1], self._last[-2].serial)
        made = [(serial, nbytes) for serial, nbytes in alive.items() if first < serial <= last]
        return list(summed((bisect_left(serials, serial), nbytes) for serial, nbytes in made).values())


#: With the role, if it is not one of results: a parameter's gradient is another thing than what its line leaves otherwise.
_Line = tuple[str, str, Network | None, Site, str]


def gained(ends: Sequence[End], log: Iterable[Raw]) -> dict[int, int] | None:
    """What lines gained in the later half of the steps from the first of ``ends`` to the last, in requested bytes.

    It is given by serial for the live buffers that they made since the first. What was made once is no gain, nor what every
    step replaces: a line has to gain in both halves, or to have made what is live in more than one step. Of a line that runs in
    one layer after the other, such as the copies of a model or experts that take turns, all layers count together.
    ``log`` is that of the last step. None if a step that matters had no log.
    """
    sums = [summed((_line(tag), nbytes) for tag, nbytes in end.owned.items())
            for end in (ends[0], ends[len(ends) // 2], ends[-1]) if end.owned is not None]
    if len(sums) < 3:
        return None
    serials = [end.serial for end in ends]
    tags: dict[int, Tag] = {}
    for record in log:
        if record[0] in (ALLOC, RETAG):
            tags[record[1]] = record[7 if record[0] == ALLOC else 2]
        elif record[0] == FREE:
            del tags[record[1]]
    made: dict[_Line, dict[int, int]] = {}
    for serial, tag in tags.items():
        if serial > serials[0]:
            made.setdefault(_line(tag), {})[serial] = bisect_left(serials, serial)
    found: dict[int, int] = {}
    others: dict[tuple[str, Site, str], list[_Line]] = {}
    for line in {line for owned in sums for line in owned}:
        if gain := _gain([line], sums, made):
            # It may have got what was made before, as a tensor becomes a buffer.
            found.update(dict.fromkeys(made.get(line, ()), gain))
        else:
            op, _, _, site, kind = line
            others.setdefault((op, site, kind), []).append(line)
    for lines in others.values():
        if gain := _gain(lines, sums, made):
            gaining = [line for line in lines if sums[2].get(line, 0) > sums[0].get(line, 0)]
            # Each has its share, at least a byte.
            found.update((serial, -(-gain // len(gaining))) for line in gaining
                         for serial in made.get(line, ()))
    return found


def _gain(lines: Iterable[_Line], sums: Iterable[Mapping[_Line, int]], made: Mapping[_Line, Mapping[int, int]]) -> int:
    """What these lines have gained together in the later half; 0 if that is no gain of one step after the other."""
    first, middle, last = (sum(owned.get(line, 0) for line in lines) for owned in sums)
    steps = {step for line in lines for step in made.get(line, {}).values()}
    return last - middle if last > max(first, middle) and (first < middle or len(steps) > 1) else 0


def _line(tag: Tag) -> _Line:
    return tag.op, tag.layer, tag.network, tag.site, kind_of(tag.role)
