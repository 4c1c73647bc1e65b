"""Reads JSON, and dataclasses from it, checked against their annotations: damaged data raises ValueError with its place."""

from __future__ import annotations

import dataclasses
import functools
import json
import reprlib
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def read(kind: type[T], data: Any, where: str = "") -> T:
    """A dataclass of ``kind`` from a dict of its fields, nested ones included; a field with a default may be missing.

    The annotations may be int, float, str, None in a union with one of the others, tuples of any length, dicts with string
    keys and dataclasses. Raises ValueError for a field that is missing, unknown or of another type.
    """
    found: T = _object(kind, data, where or kind.__name__)
    return found


def parse(text: bytes) -> Any:
    """The value of a JSON text, also behind the mark that some editors put there. Raises ValueError for any other text."""
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not valid JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@functools.cache
def _parts(hint: Any) -> tuple[Any, Any]:
    """What an annotation is, and the annotations in it; of a dataclass those of its fields. A report has thousands of them."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return types.UnionType, next(h for h in of if h is not types.NoneType)
    return (object, typing.get_type_hints(hint)) if dataclasses.is_dataclass(hint) else (origin, of)


@functools.cache
def _needed(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]


def _object(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where} should be an object, but is {reprlib.repr(data)}")
    _, hints = _parts(kind)
    wrong = [f"an unknown field {key!r}" for key in data if key not in hints]
    wrong += [f"no field {name!r}" for name in _needed(kind) if name not in data]
    if wrong:
        raise ValueError(f"{where} has {', '.join(wrong[:8])}")
    return kind(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    kind, of = _parts(hint)
    if kind is None:
        if type(value) is hint or (hint is float and type(value) is int):
            return value
    elif kind is types.UnionType:
        return None if value is None else _value(of, value, where)
    elif kind is object:
        return _object(hint, value, where)
    elif kind is tuple and isinstance(value, (list, tuple)):
        return tuple([_value(of[0], x, f"{where}[{i}]") for i, x in enumerate(value)])
    elif kind is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _value(of[1], x, f"{where}[{key!r}]") for key, x in value.items()}
    raise ValueError(f"{where} should be {getattr(hint, '__name__', hint)}, but is {reprlib.repr(value)}")
