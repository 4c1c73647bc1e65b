"""The attributes of an object; a number, a list or an array of a class of the user's may have some beside its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Python's own types of values, of which an instance has none.
VALUES = frozenset((int, float, complex, bool, str, bytes, type(None), list, tuple, set, frozenset, dict))


def attributes_of(x: Any) -> Mapping[str, Any] | None:
    """The attributes of an object, those in slots of its class included; None if it can have none."""
    own, slots = getattr(x, "__dict__", None), getattr(type(x), "__slots__", ())
    if not slots:
        return own
    names = (slots,) if isinstance(slots, str) else slots
    return (own or {}) | {n: getattr(x, n) for n in names if not n.startswith("__") and hasattr(x, n)}
