"""A log as people and tests read it: in named records, with the layers of several networks told apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradcore.events import (
    ALLOC,
    LAUNCH,
    RETAG,
    TAGS,
    VIEW,
    Alloc,
    Launch,
    Mark,
    Network,
    Raw,
    Record,
    Retag,
    Scope,
    Site,
    Tag,
    View,
    typed,
)

#: A node in the label of a mark.
_NODE = re.compile(r"\bnode (\d+)")
#: The position of the tag in those kinds of records that have one.
_TAG_AT = {ALLOC: 7, LAUNCH: 2, RETAG: 2, VIEW: 2}


def read_log(log: Iterable[Raw]) -> list[Record]:
    """A log as named records. If it has several networks, the path of each layer begins with its network's name."""
    log = list(log)
    tags = {raw[_TAG_AT[raw[0]]] for raw in log if raw[0] in _TAG_AT}
    names = network_names(TAGS[tag].network for tag in tags)
    shown = {tag: TAGS[tag]._replace(layer=layer_in(TAGS[tag], names), network=None) for tag in tags}
    return [typed(raw, shown) for raw in log]


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


def normalized(records: Iterable[Raw], *, lines: bool = True) -> list[Record]:
    """Named records in a form that is equal for two runs of the same program.

    Serials, nodes and segments are numbered from 1 in order of appearance; times and streams become 0. With ``lines=False``
    sites keep only file name and function, for logs that are committed.
    """
    numbers: dict[tuple[str, int], int] = {}
    counts = {"serial": 0, "node": 0, "segment": 0}

    def number(kind: str, value: int) -> int:
        if value == 0 and kind != "segment":
            return 0
        key = (kind, value)
        if key not in numbers:
            counts[kind] += 1
            numbers[key] = counts[kind]
        return numbers[key]

    def serials(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(number("serial", v) for v in values)

    def site(value: Site | None) -> Site | None:
        return value if lines or value is None else Site(value.file.rsplit("/", 1)[-1], 0, value.function)

    def tag(value: Tag) -> Tag:
        export = value.export and value.export._replace(site=site(value.export.site) or value.export.site)
        return value if lines else value._replace(site=site(value.site) or value.site, caller=site(value.caller), export=export)

    result: list[Record] = []
    for record in read_log(records):
        if isinstance(record, Launch):
            record = record._replace(tag=tag(record.tag), node=number("node", record.node), time=0,
                                     inputs=serials(record.inputs), outputs=serials(record.outputs))
        elif isinstance(record, Mark):
            label = _NODE.sub(lambda found: f"node {number('node', int(found[1]))}", record.label)
            record = record._replace(time=0, label=label)
        else:
            changes: dict[str, Any] = {}
            for name in record._fields:
                if name in counts:
                    changes[name] = number(name, getattr(record, name))
            if isinstance(record, Alloc):
                changes["stream"] = 0
            if isinstance(record, (Alloc, Retag, View)):
                changes["tag"] = tag(record.tag)
            record = record._replace(**changes)
        result.append(record)
    return result
