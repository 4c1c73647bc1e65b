"""Writes a step's log as JSON data, and reads it with a check of every length and index.

Tags, sites, specs, invocations and strings are each stored once, in tables; the records are columns of indices into them.
docs/report-schema.md describes the format. Files are not trusted: damaged data raises ValueError.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from gradcore import events
from gradcore.cells import name_of_file
from gradcore.dtypes import dtype_named
from gradcore.events import Export, Invocation, Record, Site, Tag
from gradcore.spec import TensorSpec

#: Version of the packed form.
LOG_VERSION = 1

#: A letter for each kind of record; ``kinds`` of a packed log is a string of these.
KINDS: dict[str, type[Any]] = dict(zip("RUAFKDLTMVPG", events.NAMED, strict=True))
_LETTERS = {kind: letter for letter, kind in KINDS.items()}
#: Fields that hold an index into a table, and fields that hold a list of serials; all others are ints.
_INDEXED = {"tag": "tags", "invocation": "invocations", "name": "strings", "reason": "strings", "what": "strings",
            "label": "strings"}
_LISTS = ("inputs", "outputs")

_TYPES: dict[str, type] = {t.__name__: t for t in (bool, int, float, type(None))}
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_LIMIT = 1 << 63

T = TypeVar("T")


# -- writing -----------------------------------------------------------------------------------------------------------


class _Table(dict[T, int]):
    """The indices of values, in order of appearance: to ask for that of a new one adds it."""

    def __missing__(self, value: T) -> int:
        self[value] = index = len(self)
        return index


class _Tables:
    """The tables of one packed log while it is written."""

    def __init__(self) -> None:
        self.strings: _Table[str] = _Table()
        self.sites: _Table[Site] = _Table()
        self.specs: _Table[TensorSpec] = _Table()
        self.tags: _Table[Tag] = _Table()
        self.invocations: _Table[Invocation] = _Table()

    def site(self, site: Site) -> list[Any]:
        row: list[Any] = [self.strings[name_of_file(site.file)], site.line, self.strings[site.function]]
        return [*row, [self.sites[c] for c in site.callers]] if site.callers else row

    def tag(self, tag: Tag) -> list[int | None]:
        names: list[int | None] = [self.strings[s] for s in (tag.op, tag.layer, tag.phase, tag.role)]
        shown = [] if tag.export is None else [self.strings[tag.export.form], self.sites[tag.export.site]]
        return [*names, self.sites[tag.site], None if tag.caller is None else self.sites[tag.caller],
                None if tag.spec is None else self.specs[tag.spec], *shown]

    def invocation(self, call: Invocation) -> list[Any]:
        return [self.strings[call.op], [self.value(x) for x in call.inputs], [self.specs[s] for s in call.outputs],
                [[name, self.specs[s]] for name, s in call.aux], call.workspace,
                [[name, self.value(x)] for name, x in call.attrs]]

    def value(self, x: Any) -> Any:
        """An input or attribute. Types that JSON lacks become an object with one key, unknown types their ``repr``."""
        if x is None or isinstance(x, (bool, int, str)):
            return x
        if isinstance(x, float):
            return x if math.isfinite(x) else {"float": repr(x)}
        if isinstance(x, TensorSpec):
            return {"spec": self.specs[x]}
        if isinstance(x, (tuple, list)):
            return [self.value(v) for v in x]
        if isinstance(x, np.dtype):
            return {"dtype": x.name}
        if isinstance(x, type) and x.__name__ in _TYPES:
            return {"type": x.__name__}
        return {"repr": repr(x)}


def pack(records: Iterable[Record]) -> dict[str, Any]:
    """A log as plain data, which :func:`unpack` reads. An attribute of an unknown type becomes its ``repr``."""
    tables = _Tables()
    kinds: list[str] = []
    # By letter, in the order of the fields: the name, the column, and the table that its values are in.
    columns: dict[str, list[tuple[str, list[Any], _Table[Any] | None]]] = {}
    for record in records:
        letter = _LETTERS[type(record)]
        kinds.append(letter)
        if letter not in columns:
            columns[letter] = [(field, [], getattr(tables, _INDEXED.get(field, ""), None)) for field in record._fields]
        for (_, column, table), value in zip(columns[letter], record, strict=True):
            column.append(value if table is None else table[value])
    # Writing a row may add to other tables, so the order matters: strings come last.
    tags = [tables.tag(t) for t in tables.tags]
    invocations = [tables.invocation(i) for i in tables.invocations]
    sites: list[list[Any]] = []
    # A site's callers join the table while it is written.
    while new := list(islice(tables.sites, len(sites), None)):
        sites += map(tables.site, new)
    return {
        "version": LOG_VERSION, "tags": tags, "invocations": invocations, "sites": sites,
        "specs": [[list(s.shape), s.dtype.name] if s is s.like() else
                  [list(s.shape), s.dtype.name, list(s.strides), s.offset] for s in tables.specs],
        "strings": list(tables.strings), "kinds": "".join(kinds),
        "columns": {letter: {f: [list(v) for v in column] if f in _LISTS else column for f, column, _ in fields}
                    for letter, fields in columns.items()}}


# -- reading -----------------------------------------------------------------------------------------------------------


def unpack(data: dict[str, Any]) -> list[Record]:
    """The records that :func:`pack` wrote. Raises ValueError for another version and for anything damaged.

    The records can be folded: none names a buffer that is not live.
    """
    version = data.get("version") if isinstance(data, dict) else type(data).__name__
    if version != LOG_VERSION:
        raise ValueError(f"expected a log of version {LOG_VERSION}, but got {reprlib.repr(version)}")
    try:
        return _unpack(data)
    except (KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"this is not a log of version {LOG_VERSION}: {type(error).__name__} {error}") from error


def _unpack(data: dict[str, Any]) -> list[Record]:
    strings = _rows(data, "strings", lambda s: _of(s, str, "a string"))
    specs = _rows(data, "specs", _spec)
    lines = _rows(data, "sites", lambda s: Site(_at(strings, s[0]), _int(s[1]), _at(strings, s[2])))
    sites = [line.called_by(_at(lines, i) for i in row[3]) if len(row) > 3 else line
             for line, row in zip(lines, data["sites"], strict=True)]
    tables: dict[str, list[Any]] = {
        "strings": strings,
        "tags": _rows(data, "tags", lambda t: Tag(
            _at(strings, t[0]), _at(strings, t[1]), _at(strings, t[2]), _at(strings, t[3]), _at(sites, t[4]),
            None if t[5] is None else _at(sites, t[5]), None if t[6] is None else _at(specs, t[6]),
            Export(_at(strings, t[7]), _at(sites, t[8])) if len(t) > 7 else None)),
        "invocations": _rows(data, "invocations", lambda c: Invocation(
            _at(strings, c[0]), tuple(_value(x, specs) for x in _of(c[1], list, "a list")),
            tuple(_at(specs, i) for i in _of(c[2], list, "a list")),
            tuple((_of(name, str, "a name"), _at(specs, i)) for name, i in c[3]), _int(c[4]),
            tuple((_of(name, str, "a name"), _value(x, specs)) for name, x in c[5])))}
    kinds = _of(data["kinds"], str, "a string of kinds")
    counts = Counter(kinds)
    if not counts.keys() <= KINDS.keys():
        raise ValueError(f"unknown kinds of record {sorted(counts.keys() - KINDS.keys())[:8]}")
    streams = {letter: _records(letter, count, data["columns"][letter], tables) for letter, count in counts.items()}
    records: list[Record] = [next(streams[letter]) for letter in kinds]
    _check_lives(records)
    return records


def _records(letter: str, count: int, columns: dict[str, Any], tables: dict[str, list[Any]]) -> Any:
    kind = KINDS[letter]
    decoded = []
    for field in kind._fields:
        column = _of(columns[field], list, "a column")
        if len(column) != count:
            raise ValueError(f"column {field} of {kind.__name__} should have {count} rows, but has {len(column)}")
        table = tables.get(_INDEXED.get(field, ""))
        if table is not None:
            decoded.append([_at(table, i) for i in column])
        elif field in _LISTS:
            decoded.append([tuple(map(_int, _of(row, list, "a list of serials"))) for row in column])
        else:
            decoded.append(list(map(_int, column)))
    return map(partial(tuple.__new__, kind), zip(*decoded, strict=True))


def _check_lives(records: Sequence[Record]) -> None:
    """Raise ValueError unless buffers are live where records keep, free or retag them, and sizes are not negative."""
    live: set[int] = set()
    for position, record in enumerate(records):
        if isinstance(record, events.Alloc):
            if record.serial in live or not 0 <= record.requested <= record.allocated or record.offset < 0:
                raise ValueError(f"record {position} is not an allocation: {reprlib.repr(record)}")
            live.add(record.serial)
        elif isinstance(record, (events.Free, events.Keep, events.Retag)):
            if record.serial not in live:
                raise ValueError(f"record {position} names buffer {record.serial}, which is not live")
            if isinstance(record, events.Free):
                live.discard(record.serial)


def _rows(data: dict[str, Any], name: str, row: Callable[[Any], T]) -> list[T]:
    return [row(x) for x in _of(data[name], list, f"a list of {name}")]


def _of(x: Any, kind: type[T], expected: str) -> T:
    if not isinstance(x, kind):
        raise ValueError(f"expected {expected}, but got {reprlib.repr(x)}")
    return x


def _int(x: Any) -> int:
    if type(x) is not int or not -_LIMIT <= x < _LIMIT:
        raise ValueError(f"expected an int of 64 bits, but got {reprlib.repr(x)}")
    return x


def _at(table: Sequence[T], index: Any) -> T:
    if type(index) is not int or not 0 <= index < len(table):
        raise ValueError(f"expected an index below {len(table)}, but got {reprlib.repr(index)}")
    return table[index]


def _spec(row: Any) -> TensorSpec:
    shape, dtype, *layout = _of(row, list, "a spec")
    sizes = tuple(map(_int, _of(shape, list, "a shape")))
    if any(n < 0 for n in sizes) or len(sizes) > 64 or math.prod(sizes) >= _LIMIT:
        raise ValueError(f"invalid shape {reprlib.repr(shape)}")
    if not layout:
        return TensorSpec.of(sizes, _dtype(dtype))
    strides, offset = layout
    if len(_of(strides, list, "a list of strides")) != len(sizes):
        raise ValueError(f"expected {len(sizes)} strides, but got {len(strides)}")
    return TensorSpec.strided(sizes, _dtype(dtype), tuple(map(_int, strides)), _int(offset))


def _value(x: Any, specs: list[TensorSpec]) -> Any:
    if isinstance(x, list):
        return tuple(_value(v, specs) for v in x)
    if not isinstance(x, dict):
        return x
    (kind, inner), *more = x.items()
    if more or kind not in _VALUES:
        raise ValueError(f"expected an input or an attribute, but got {reprlib.repr(x)}")
    return _VALUES[kind](inner, specs)


def _dtype(x: Any) -> np.dtype[Any]:
    found = dtype_named(x)
    if found is None:
        raise ValueError(f"unknown dtype {reprlib.repr(x)}")
    return found


_VALUES: dict[str, Callable[[Any, list[TensorSpec]], Any]] = {
    "spec": lambda x, specs: _at(specs, x), "float": lambda x, specs: _FLOATS[x],
    "dtype": lambda x, specs: _dtype(x), "type": lambda x, specs: _TYPES[x],
    "repr": lambda x, specs: _of(x, str, "a string")}
