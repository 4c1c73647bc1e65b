"""Reads dataclasses from JSON data, checked against their annotations: damaged data raises ValueError with its place."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def read(kind: type[T], data: Any, where: str = "") -> T:
    """A dataclass of ``kind`` from a dict of its fields, nested ones included; a field with a default may be missing.

    The annotations may be int, float, str, None in a union with one of the others, tuples of any length, dicts with string
    keys and dataclasses. Raises ValueError for a field that is missing, unknown or of another type.
    """
    name = where or kind.__name__
    if not isinstance(data, dict):
        raise ValueError(f"{name} should be an object, but is {reprlib.repr(data)}")
    cls: Any = kind
    hints = _hints(cls)
    wrong = [f"an unknown field {key!r}" for key in data if key not in hints]
    wrong += [f"no field {f.name!r}" for f in dataclasses.fields(cls)
              if f.name not in data and f.default is f.default_factory is dataclasses.MISSING]
    if wrong:
        raise ValueError(f"{name} has {', '.join(wrong[:8])}")
    return kind(**{key: _value(hints[key], value, f"{name}.{key}") for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _value(next(h for h in of if h is not types.NoneType), value, where)
    if dataclasses.is_dataclass(hint):
        return read(typing.cast(type[Any], hint), value, where)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(of[0], x, f"{where}[{i}]") for i, x in enumerate(value))
    if origin is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _value(of[1], x, f"{where}[{key!r}]") for key, x in value.items()}
    if type(value) is hint or (hint is float and type(value) is int):
        return value
    raise ValueError(f"{where} should be {getattr(hint, '__name__', hint)}, but is {reprlib.repr(value)}")
