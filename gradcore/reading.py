"""A log as people read it: in named records, with the layers of several networks told apart."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gradcore.cells import name_of_file
from gradcore.events import ALLOC, KEEP, RESERVE, RETAG, TAG_AT, Network, Raw, Record, Scope, Site, Tag, typed

T = TypeVar("T", bound=Hashable)


def read_log(log: Iterable[Raw]) -> list[Record]:
    """A log as named records. If it has several networks, the path of each layer begins with its network's name."""
    log = _gradients_from_the_start(_as_known_later(list(log)))
    # By id, since a tag takes long to hash. The log keeps them alive.
    tags = {id(tag): tag for tag in [raw[TAG_AT[raw[0]]] for raw in log if raw[0] in TAG_AT]}
    names = network_names(tag.network for tag in tags.values())
    shown = {key: tag if tag.network is None else tag._replace(layer=layer_in(tag, names), network=None)
             for key, tag in tags.items()}
    return [typed(raw, shown) for raw in log]


def _as_known_later(log: list[Raw]) -> list[Raw]:
    """The log with the layers of what was live when it began as they are in the network that names them during the log.

    A part that was called alone before, such as for the size of its output, is no network of its own within the whole; nor does
    a whole exist any more that a part has outlived.
    """
    later: dict[int, Tag] = {raw[1]: raw[2] for raw in log if raw[0] == RETAG}
    opening = [i for i, raw in enumerate(itertools.takewhile(lambda raw: raw[0] in (RESERVE, ALLOC, KEEP), log))
               if raw[0] == ALLOC and raw[7].network is not None]
    # By layer: a gradient, for one, is often freed before the first call names its parameter.
    known: dict[tuple[Network | None, str], set[tuple[Network | None, str]]] = {}
    for i in opening:
        tag: Tag = log[i][7]
        if tag.role in ("parameter", "buffer"):
            now = later.get(log[i][1], tag)
            known.setdefault((tag.network, tag.layer), set()).add((now.network, now.layer))
    for i in opening:
        tag = log[i][7]
        found = known.get((tag.network, tag.layer), set())
        # A parameter that is shared with another network takes no other one with it.
        if len(found) == 1:
            (network, layer), = found
            log[i] = (*log[i][:7], tag._replace(layer=layer, network=network), *log[i][8:])
    return log


def _gradients_from_the_start(log: list[Raw]) -> list[Raw]:
    """The log with each gradient that backward delivers as one from its allocation on.

    It becomes the parameter's only when its op has run. So the last one of a backward, which often is at the peak, would be a
    temporary there, and count among the bytes of the samples.
    """
    made: dict[int, int] = {}
    for i, raw in enumerate(log):
        if raw[0] == ALLOC:
            if raw[7].role == "temporary":
                made[raw[1]] = i
        elif raw[0] == RETAG and raw[1] in made and raw[2].role == "gradient":
            at = made.pop(raw[1])
            log[at] = (*log[at][:7], raw[2], *log[at][8:])
    return log


def network_names(networks: Iterable[Network | None]) -> dict[Network, str]:
    """A name for each network, from its class; none if there is only one network."""
    found = sorted({n for n in networks if n is not None}, key=lambda n: n.number)
    if len(found) < 2:
        return {}
    alike = {n: [m for m in found if m.kind == n.kind] for n in found}
    return {n: n.kind if len(alike[n]) == 1 else f"{n.kind}#{alike[n].index(n) + 1}" for n in found}


def layer_in(where: Tag | Scope, names: Mapping[Network, str]) -> str:
    """The layer of a tag or scope, preceded by the name of its network if that has one."""
    name = None if where.network is None else names.get(where.network)
    return where.layer if name is None else f"{name}.{where.layer}" if where.layer else name


def owner_in(tag: Tag, names: Mapping[Network, str]) -> dict[str, Any]:
    """What an :class:`~gradcore.errors.OutOfMemory` says about the owner of the bytes that it could not allocate."""
    layer, caller = layer_in(tag, names), tag.caller or Site("", 0, "")
    return {"by": f"{tag.op} in layer {layer or '(root)'}, {tag.phase}, {tag.site}", "op": tag.op, "layer": layer,
            "phase": tag.phase, "file": name_of_file(tag.site.file), "line": tag.site.line,
            "caller_file": name_of_file(caller.file), "caller_line": caller.line}


def together(rows: Iterable[tuple[str, T]]) -> list[tuple[str, T, list[str]]]:
    """Layers whose paths differ in one number, and whose values are equal, as one row, with the paths of all of them.

    ``h.0.mlp`` to ``h.5.mlp`` are ``h.0-5.mlp``: a network of many equal blocks takes as many rows as one block.
    """
    merged = [(name.split("."), value, [name]) for name, value in rows]
    for at in range(max((len(path) for path, _, _ in merged), default=0)):
        alike: dict[object, list[tuple[list[str], T, list[str]]]] = {}
        for row in merged:
            path, value, _ = row
            # A path of numbers alone, as in a plain Sequential, says nothing without them.
            numbered = at < len(path) and path[at].isdecimal() and not all(part.isdecimal() for part in path)
            alike.setdefault((*path[:at], None, *path[at + 1:], value) if numbered else id(row), []).append(row)
        merged = [group[0] if len(group) == 1 else (
            [*group[0][0][:at], _ranges(int(path[at]) for path, _, _ in group), *group[0][0][at + 1:]], group[0][1],
            [name for _, _, names in group for name in names]) for group in alike.values()]
    return [(".".join(path), value, names) for path, value, names in merged]


def alike(rows: Sequence[tuple[str, T]], most: int) -> list[tuple[str, T, list[int]]]:
    """Rows of a layer and a value, with their places.

    Where there are more than ``most``, those that are equal, or equal in equal blocks as in :func:`together`, are one row.
    """
    if len(rows) <= most:
        return [(layer, value, [place]) for place, (layer, value) in enumerate(rows)]
    places: dict[tuple[str, T], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row, []).append(place)
    merged = together((layer, (value, len(found))) for (layer, value), found in places.items())
    return [(name, value, [place for layer in layers for place in places[layer, value]]) for name, (value, _), layers in merged]


def by_layer(sums: Mapping[tuple[str, T], int], most: int) -> list[tuple[str, T, int, str]]:
    """Bytes by layer and something else, the most first, with the first of the layers that share a row.

    They do if there are more than ``most`` rows, as in :func:`alike`.
    """
    rows = [(layer, (what, nbytes)) for (layer, what), nbytes in sums.items()]
    return sorted(((layer, what, nbytes * len(places), rows[places[0]][0])
                   for layer, (what, nbytes), places in alike(rows, most)), key=lambda row: (-row[2], str(row[1]), row[0]))


def _ranges(numbers: Iterable[int]) -> str:
    """``0-2,5`` for 0, 1, 2 and 5."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return ",".join("-".join(map(str, run)) for run in runs)
