"""Tells which layers and lines of one peak are which of another, where their names have changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

#: Of a function, about how many pairs of a line before and one after are compared, or four for each line if these are more.
_COMPARED = 1_000_000
#: A line of source: its number, its bytes, and its name.
_Line = tuple[int, int, str]
#: What speaks for some pairs of lines, and the last of these pairs, with those before it.
_Pairs = tuple[int, Any]


# -- layers -----------------------------------------------------------------------------------------------------------


def in_networks_of(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """``before``, with layers of a network under its name in ``after``: once there is a second network, the first has another.

    That is the first part of a path, or nothing where there is one network. The same network is the one with most layers in
    common, of several the older one.
    """
    old, new = _by_network(before), _by_network(after)
    # Parts that are no networks have no common name with another part; the whole is of any kind.
    kinds: dict[str, list[str]] = {}
    for b in {*new} - {*old, ""}:
        kinds.setdefault(b.partition("#")[0], [""]).append(b)
    pairs = [(a, b) for a in {*old} - {*new, ""} for b in kinds.get(a.partition("#")[0], [""])]
    pairs += [("", b) for found in kinds.values() for b in found[1:]]
    # All as a whole may have as much in common as they are.
    whole = len(old[""] & new[""])
    alike = sorted((-common, a, b) for a, b in pairs if (common := len(old[a] & new[b])) > ("" in (a, b)) * whole)
    names: dict[str, str] = {}
    taken = set[str]()
    for _, a, b in alike:
        if a not in names and b not in taken and "" not in names:
            names[a] = b
            taken.add(b)
    sums: dict[str, int] = {}
    for layer, nbytes in before.items():
        network, _, inner = ("", "", layer) if "" in names else layer.partition(".")
        there = ".".join(filter(None, (names[network], inner))) if network in names else layer
        # What runs in no layer stays there: it may be outside of all networks.
        name = there if layer and there in after else layer
        sums[name] = sums.get(name, 0) + nbytes
    return sums


def _by_network(layers: Iterable[str]) -> dict[str, set[str]]:
    """By first part of their paths, what follows it; and all layers by ""."""
    found: dict[str, set[str]] = {"": set(filter(None, layers))}
    for network, dot, inner in [layer.partition(".") for layer in found[""]]:
        if network:
            found.setdefault(network, set()).update([inner] * len(dot))
    return found


# -- lines of source --------------------------------------------------------------------------------------------------


def followed(before: dict[str, int], after: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """Each line of source with its bytes before and after: lines that have only moved within their function, or with their
    file, are one."""
    before = _at_paths_of(after, before)
    functions: dict[str, tuple[list[_Line], list[_Line]]] = {}
    for side, sums in enumerate((before, after)):
        for line, nbytes in sums.items():
            file, number, function = _parts(line)
            functions.setdefault(f"{file} in {function}", ([], []))[side].append((int(number), nbytes, line))
    for old, new in functions.values():
        pairs = _paired(sorted(old), sorted(new))
        still = set(pairs.values())
        yield from ((line, before[pairs[line]] if line in pairs else 0, nbytes) for _, nbytes, line in new)
        yield from ((line, nbytes, 0) for _, nbytes, line in old if line not in still)


def _paired(old: Sequence[_Line], new: Sequence[_Line]) -> dict[str, str]:
    """By line of a function: the same line before. Both are given in order.

    A line may now be where another one was. Equal bytes speak for a pair, and so does, a little less, that it has moved as far
    as the pair before it, or not at all: a line that has grown is still itself, and all that follows an insertion goes on.
    """
    # All before the first change is itself.
    equal = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(old, new, strict=False)))
    found = {line: line for _, _, line in old[:equal]}
    old, new = old[equal:], new[equal:]
    # The best pairs among the lines so far, with all of the new ones up to one; and those that end with one that moved so far.
    none: _Pairs = 0, None
    best = [none] * (len(new) + 1)
    moved = {0: none}
    # Of thousands of lines, each is compared with those that are about as far into the function.
    reach = max(_COMPARED, len(new)) // max(len(old), 1) + 1
    for i, (was, bytes_before, a) in enumerate(old):
        middle = i * len(new) // len(old)
        first = max(middle - reach, 0)
        above = best[first]
        for j, (now, bytes_after, b) in enumerate(new[first:middle + reach], first + 1):
            alike, far = 4 * (bytes_before == bytes_after), now - was
            before, above = above, best[j]
            most = max(best[j - 1], above, key=itemgetter(0))
            for (score, pairs), more in ((moved.get(far, none), 3 * (far in moved) + alike), (before, alike)):
                if more and score + more > most[0]:
                    most = score + more, (b, a, pairs)
                if more and score + more > moved.get(far, none)[0]:
                    moved[far] = score + more, (b, a, pairs)
            best[j] = most
    pairs = best[-1][1]
    while pairs is not None:
        b, a, pairs = pairs
        found[b] = a
    return found


def _at_paths_of(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """``before``, with paths of another checkout or environment as in ``after``: those with most of their end in common."""
    old, new = ({_parts(line)[0] for line in sums} for sums in (before, after))
    ends = {path: tuple(re.split(r"[/\\]", path)[::-1]) for path in old ^ new}
    paths: dict[str, str] = {}
    for common in range(max(map(len, ends.values()), default=0), 0, -1):
        alike: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
        for path in sorted(ends.keys() - paths.keys() - {*paths.values()}):
            if len(ends[path]) >= common:
                alike.setdefault(ends[path][:common], ([], []))[path in new].append(path)
        paths.update(pair for both in alike.values() for pair in zip(*both, strict=False))
    return {paths.get((path := _parts(line)[0]), path) + line[len(path):]: nbytes for line, nbytes in before.items()}


def _parts(line: str) -> tuple[str, str, str]:
    """The path, the number and the function of a line of source."""
    found = re.fullmatch(r"(.*):(\d+) in (.*)", line)
    return (found[1], found[2], found[3]) if found else (line, "0", "")
