"""Encodes the contents of a program as JSON and decodes them exactly: attributes, specs, source lines and tags.

JSON has no tuples, no infinity and no dtypes. A tuple becomes an array; anything else that JSON lacks becomes an object whose
one key is its kind. Decoding trusts nothing: sizes are checked as Python integers before a spec is made of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcore.cells import name_of_file
from gradcore.dtypes import DTYPES, dtype_named
from gradcore.errors import ProgramError
from gradcore.events import ROLES, Network, Site, Tag
from gradcore.reading import layer_in
from gradcore.spec import TensorSpec
from gradcore.utils.safetensors import unique

#: Sizes, strides and offsets, in elements or bytes, must be below this.
LARGEST = 1 << 48
#: The most dimensions of a spec.
_DIMS = 32
#: The most levels of nesting in an attribute's value.
_DEPTH = 16


def fail(where: str, expected: str, given: Any) -> ProgramError:
    return ProgramError(f"{where}: expected {expected}, but got {str(given)[:80]}")


# -- text --------------------------------------------------------------------------------------------------------------


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises :class:`ProgramError` for a repeated name, NaN, and nesting that is too deep."""
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"the program is not valid JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


# -- parts of what was read --------------------------------------------------------------------------------------------


def members(x: Any, where: str, *names: str) -> list[Any]:
    """The values of a JSON object, in the order of ``names``. Raises :class:`ProgramError` unless it has just these names."""
    if not isinstance(x, dict) or set(x) != set(names):
        raise fail(where, f"an object with {', '.join(names)}", sorted(x) if isinstance(x, dict) else x)
    return [x[name] for name in names]


def array(x: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(x, list) or (length is not None and len(x) != length):
        raise fail(where, "an array" if length is None else f"an array of {length}", x)
    return x


def whole(x: Any, where: str, end: int = LARGEST, start: int = 0) -> int:
    """``x``, if it is an integer with ``start`` <= x < ``end``. Raises :class:`ProgramError`."""
    if type(x) is not int or not start <= x < end:
        raise fail(where, f"an integer from {start} to below {end}", x)
    return x


def string(x: Any, where: str) -> str:
    if type(x) is not str:
        raise fail(where, "a string", x)
    return x


# -- values of attributes ----------------------------------------------------------------------------------------------


def encode(x: Any) -> Any:
    """An attribute's value as JSON. Raises TypeError for a type that no op's attributes have."""
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        return x if math.isfinite(x) else {"float": repr(x)}
    if isinstance(x, tuple):
        return [encode(v) for v in x]
    if type(x) is list:
        return {"list": [encode(v) for v in x]}
    if isinstance(x, np.dtype):
        if x.name in DTYPES or x.name == "bfloat16":
            return {"dtype": x.name}
    elif isinstance(x, TensorSpec):
        return {"spec": encode_spec(x)}
    elif isinstance(x, slice):
        return {"slice": [encode(x.start), encode(x.stop), encode(x.step)]}
    elif x is Ellipsis:
        return {"ellipsis": True}
    raise TypeError(f"{x!r} of type {type(x).__name__} cannot be saved in a program's file: expected numbers, strings, None, "
                    "dtypes, specs, slices, lists or tuples")


def decode(x: Any, where: str, depth: int = 0) -> Any:
    """The value that :func:`encode` was given. Raises :class:`ProgramError`."""
    if depth > _DEPTH:
        raise ProgramError(f"{where}: nested more than {_DEPTH} levels deep")
    if x is None or type(x) in (bool, str):
        return x
    if type(x) is int:
        return whole(x, where, 1 << 64, -(1 << 63))
    if type(x) is float and math.isfinite(x):
        return x
    if isinstance(x, list):
        return tuple([decode(v, where, depth + 1) for v in x])
    if isinstance(x, dict) and len(x) == 1:
        (kind, value), = x.items()
        if kind == "float" and value in ("nan", "inf", "-inf"):
            return float(value)
        if kind == "list" and isinstance(value, list):
            return [decode(v, where, depth + 1) for v in value]
        if kind == "dtype":
            return decode_dtype(value, where)
        if kind == "spec":
            return decode_spec(value, where)
        if kind == "slice" and isinstance(value, list) and len(value) == 3:
            return slice(*[v if v is None else whole(v, where, LARGEST, -LARGEST) for v in value])
        if kind == "ellipsis" and value is True:
            return Ellipsis
    raise fail(where, "a value", x)


def encode_spec(spec: TensorSpec) -> list[Any]:
    return [list(spec.shape), spec.dtype.name, list(spec.strides), spec.offset]


def decode_spec(x: Any, where: str) -> TensorSpec:
    """A spec from JSON. Raises :class:`ProgramError` for numbers so large that sizes computed from them could overflow."""
    shape, dtype, strides, offset = array(x, where, 4)
    sizes = [whole(n, where) for n in array(shape, where)]
    steps = [whole(n, where, LARGEST, -LARGEST) for n in array(strides, where, len(sizes))]
    if len(sizes) > _DIMS or math.prod(sizes) >= LARGEST:
        raise fail(where, f"at most {_DIMS} dimensions and fewer than {LARGEST} elements", shape)
    return TensorSpec.strided(tuple(sizes), decode_dtype(dtype, where), tuple(steps), whole(offset, where))


def decode_dtype(x: Any, where: str) -> np.dtype[Any]:
    try:
        found = dtype_named(x)
    except ImportError as error:
        raise ProgramError(f"{where}: {error}") from None
    if found is None:
        raise fail(where, f"one of the dtypes bfloat16, {', '.join(DTYPES)}", x)
    return found


# -- tags --------------------------------------------------------------------------------------------------------------


class Tags:
    """Writes the tags of a program and their source lines, each once. ``networks`` gives the names of the layers' networks."""

    def __init__(self, networks: Mapping[Network, str]) -> None:
        self.networks = networks
        self.sites: dict[Site, int] = {}
        self.tags: dict[Tag, int] = {}
        self.rows: list[Any] = []
        self.lines: list[Any] = []

    def site(self, site: Site) -> int:
        if site not in self.sites:
            callers = [self.site(s) for s in site.callers]
            self.sites[site] = len(self.lines)
            self.lines.append([name_of_file(site.file), site.line, site.function, callers])
        return self.sites[site]

    def tag(self, tag: Tag) -> int:
        if tag not in self.tags:
            self.rows.append([tag.op, layer_in(tag, self.networks), tag.phase, tag.role, self.site(tag.site),
                              None if tag.caller is None else self.site(tag.caller),
                              None if tag.spec is None else encode_spec(tag.spec)])
            self.tags[tag] = len(self.tags)
        return self.tags[tag]


def decode_tags(lines: Any, rows: Any) -> list[Tag]:
    """The tags of a file. A source line may name earlier lines as its callers, which have no callers themselves."""
    sites: list[Site] = []
    for k, line in enumerate(array(lines, "sites")):
        where = f"site {k}"
        file, number, function, callers = array(line, where, 4)
        above = tuple([sites[whole(c, where, k)] for c in array(callers, where)])
        if any(site.callers for site in above):
            raise ProgramError(f"{where}: a caller cannot have callers of its own")
        sites.append(Site(string(file, where), whole(number, where), string(function, where), above))
    tags = []
    for k, row in enumerate(array(rows, "tags")):
        where = f"tag {k}"
        op, layer, phase, role, site, caller, spec = array(row, where, 7)
        if role not in ROLES:
            raise fail(where, f"one of the roles {', '.join(ROLES)}", role)
        tags.append(Tag(string(op, where), string(layer, where), string(phase, where), role,
                        sites[whole(site, where, len(sites))],
                        None if caller is None else sites[whole(caller, where, len(sites))],
                        None if spec is None else decode_spec(spec, where)))
    return tags
