"""Nested lists, tuples and dicts: their leaves, and the same structure with other leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves in order: all that is no list, tuple or dict."""
    if isinstance(tree, (list, tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    else:
        yield tree


def filled(tree: Any, values: Iterable[Any]) -> Any:
    """The same structure with ``values`` as its leaves, of which there must be enough."""
    given = iter(values)
    # No function that calls itself: its cycle would hold the values.
    return mapped(tree, lambda part: filled(part, given)) if isinstance(tree, (list, tuple, dict)) else next(given)


def mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """A list, tuple or dict of the same kind with each element changed; any other object as it is."""
    if isinstance(x, (list, tuple)):
        return _listed(x, [change(v) for v in x])
    return _filled(x, {k: change(v) for k, v in x.items()}) if isinstance(x, dict) else x


def _listed(like: Any, parts: list[Any]) -> Any:
    """A list or tuple of the same kind with other items. Its constructor may take others, and it may have attributes."""
    if type(like) is list:
        return parts
    if isinstance(like, list):
        made = copy.copy(like)
        made[:] = parts
        return made
    made = tuple.__new__(type(like), parts)
    if getattr(like, "__dict__", None):
        vars(made).update(vars(like))
    return made


def _filled(like: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of the same kind with other values."""
    if type(like) is dict:
        return items
    made = copy.copy(like)
    for k, v in items.items():
        made[k] = v
    return made
