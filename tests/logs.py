"""Logs in a form that is equal for two runs of the same program, to compare and to commit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gradcore.events import Raw, Record, Site, Tag
from gradcore.reading import read_log

#: A node in the label of a mark.
_NODE = re.compile(r"\bnode (\d+)")


def normalized(records: Iterable[Raw], *, lines: bool = True) -> list[Record]:
    """Named records with serials, nodes and segments numbered from 1 in order of appearance, and times and streams 0.

    With ``lines=False`` sites keep only file name and function, for logs that are committed.
    """
    numbers: dict[str, dict[int, int]] = {"serial": {}, "node": {}, "segment": {}}

    def number(kind: str, value: int) -> int:
        return numbers[kind].setdefault(value, len(numbers[kind]) + 1) if value or kind == "segment" else 0

    def site(value: Site) -> Site:
        return value if lines else Site(value.file.rsplit("/", 1)[-1], 0, value.function)

    def tag(value: Tag) -> Tag:
        return value._replace(site=site(value.site), caller=value.caller and site(value.caller),
                              export=value.export and value.export._replace(site=site(value.export.site)))

    def changed(name: str, value: Any) -> Any:
        if name in numbers:
            return number(name, value)
        if name in ("inputs", "outputs"):
            return tuple(number("serial", v) for v in value)
        if name == "tag":
            return tag(value)
        if name == "label":
            return _NODE.sub(lambda found: f"node {number('node', int(found[1]))}", value)
        return 0 if name in ("time", "stream") else value

    return [type(r)(*map(changed, r._fields, r)) for r in read_log(records)]
