"""Reads dataclasses from JSON data, checked against their annotations: damaged data raises ValueError with its place."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _Wrong(Exception):
    """What does not fit its annotation, and the keys that lead there, the innermost first."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.keys: list[str] = []


def read(kind: type[T], data: Any, where: str = "") -> T:
    """A dataclass of ``kind`` from a dict of its fields, nested ones included; a field with a default may be missing.

    The annotations may be int, float, str, None in a union with one of the others, tuples of any length, dicts with string
    keys and dataclasses. Raises ValueError for a field that is missing, unknown or of another type.
    """
    try:
        found: T = _reader(typing.cast(Any, kind))(data)
    except _Wrong as wrong:
        raise ValueError(f"{where or kind.__name__}{''.join(reversed(wrong.keys))} {wrong.text}") from None
    return found


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """What reads a value of this annotation. A report has thousands of values, so it is made once."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        other = _reader(next(h for h in of if h is not types.NoneType))
        return lambda value: None if value is None else other(value)
    if dataclasses.is_dataclass(hint):
        return _object_reader(hint)
    if origin is tuple:
        return _tuple_reader(hint, _reader(of[0]))
    if origin is dict:
        return _dict_reader(hint, _reader(of[1]))

    def read_plain(value: Any) -> Any:
        if type(value) is hint or (hint is float and type(value) is int):
            return value
        raise _misfit(hint, value)

    return read_plain


def _misfit(hint: Any, value: Any) -> _Wrong:
    return _Wrong(f"should be {getattr(hint, '__name__', hint)}, but is {reprlib.repr(value)}")


def _object_reader(kind: Any) -> Callable[[Any], Any]:
    readers = {name: _reader(hint) for name, hint in typing.get_type_hints(kind).items()}
    needed = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]

    def read_object(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _Wrong(f"should be an object, but is {reprlib.repr(data)}")
        wrong = [f"an unknown field {key!r}" for key in data if key not in readers]
        wrong += [f"no field {name!r}" for name in needed if name not in data]
        if wrong:
            raise _Wrong(f"has {', '.join(wrong[:8])}")
        return kind(**_each(data, readers.__getitem__, ".{}"))

    return read_object


def _dict_reader(hint: Any, reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_dict(data: Any) -> Any:
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise _misfit(hint, data)
        return _each(data, lambda key: reader, "[{!r}]")

    return read_dict


def _tuple_reader(hint: Any, reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_tuple(data: Any) -> Any:
        if not isinstance(data, (list, tuple)):
            raise _misfit(hint, data)
        return tuple(_each(dict(enumerate(data)), lambda key: reader, "[{}]").values())

    return read_tuple


def _each(data: dict[Any, Any], reader_of: Callable[[Any], Callable[[Any], Any]], shown: str) -> dict[Any, Any]:
    found, key = {}, None
    try:
        for key, value in data.items():
            found[key] = reader_of(key)(value)
    except _Wrong as wrong:
        wrong.keys.append(shown.format(key))
        raise
    return found
