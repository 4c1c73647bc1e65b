"""The file of peaks that tests are held to: JSON, sorted, so that a change of it can be read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gradcore.report.diff import moved, places, table
from gradcore.report.files import replacing
from gradcore.report.growth import line_of
from gradcore.report.plain import read
from gradcore.testing.memory import Measured

VERSION = 1


@dataclass(frozen=True)
class Owner:
    """What a line of source held at the peak. Bytes; the file's path is relative to pytest's root where it lies below it."""

    allocated: int
    op: str
    layer: str
    line: str


@dataclass(frozen=True)
class Entry:
    """A test's peak, in bytes, on the device where it was the highest, and who held it."""

    device: str
    requested: int
    allocated: int
    owners: tuple[Owner, ...]


@dataclass(frozen=True)
class _File:
    version: int
    tests: dict[str, Entry]


def entry(measured: Measured, root: Path) -> Entry:
    """What the file says of a test."""
    rows = places((h.allocated, h.tag.op, h.tag.layer, line_of(h.tag)) for h in measured.holders)
    owners = [Owner(held.nbytes, place.op, place.layer, _below(held.line, root)) for place, held in rows.items()]
    return Entry(measured.device, measured.requested, measured.allocated,
                 tuple(sorted(owners, key=lambda o: (-o.allocated, o.op, o.layer, o.line))))


def growth(before: Entry, after: Entry) -> str:
    """Why a test fails: its peak and whose bytes have grown; "" where it has not."""
    if after.allocated <= before.allocated:
        return ""
    changes = moved(*(places((o.allocated, o.op, o.layer, o.line) for o in e.owners) for e in (before, after)))
    return "\n".join([
        f"the peak of device memory grew from {before.allocated:,} to {after.allocated:,} bytes, by "
        f"{after.allocated - before.allocated:,}", *table("gained, from what to what, by whom:", changes)[1:]])


def load(path: Path) -> dict[str, Entry]:
    """The entries by test. Raises ValueError for a file that is none, and OSError."""
    try:
        found = read(_File, json.loads(path.read_text()), "the baseline")
    except ValueError as error:
        raise ValueError(f"{path} is no baseline of device memory: {error}") from error
    if found.version != VERSION:
        raise ValueError(f"{path}: a baseline of version {VERSION} was expected, but got {found.version}")
    return found.tests


def save(path: Path, tests: dict[str, Entry]) -> None:
    """Write the whole file, or leave the old one. Raises OSError."""
    data = {"version": VERSION, "tests": {name: dataclasses.asdict(e) for name, e in tests.items()}}
    with replacing(path) as file:
        file.write((json.dumps(data, indent=1, sort_keys=True) + "\n").encode())


def less(before: dict[str, Entry], after: dict[str, Entry]) -> Iterable[str]:
    """The tests that take less than the file says."""
    return [name for name, e in after.items() if name in before and e.allocated < before[name].allocated]


def _below(line: str, root: Path) -> str:
    return line.removeprefix(f"{root}/")
