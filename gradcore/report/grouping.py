"""Groups live bytes by their owners: by role, layer, op and line of source."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradcore import folds
from gradcore.events import Export, Tag

#: A function from a tag and a role to the name of an owner.
Key = Callable[[Tag, str], str]


def line_of(tag: Tag | Export) -> str:
    """``file:line in function``, the path as the interpreter has it, or the name of a notebook's cell."""
    return f"{tag.site} in {tag.site.function}"


#: The groupings of bytes.
BY: dict[str, Key] = {"role": lambda tag, role: role, "layer": lambda tag, role: tag.layer, "op": lambda tag, role: tag.op,
                      "line": lambda tag, role: line_of(tag)}


def by_owner(holders: Iterable[folds.Holder], shown: Callable[[str], str] = str) -> dict[str, dict[str, int]]:
    """Allocated bytes of ``holders`` in each grouping of :data:`BY`, the most first; ``shown`` shortens the path of a line."""
    found, sums = list(holders), {}
    for group, key in BY.items():
        name = (lambda h: shown(line_of(h.tag))) if group == "line" else (lambda h, key=key: key(h.tag, h.role))
        sums[group] = folds.total(found, name)
    return sums
