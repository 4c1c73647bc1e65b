"""Reads and writes the recorded peaks of tests: one sorted JSON file, to be committed with them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradcore.grouping import BY
from gradcore.report.diff import Owners, compare, summary, table
from gradcore.report.files import naming, write_whole
from gradcore.report.plain import parse
from gradcore.report.plain import read as from_json

VERSION = 1
#: Seconds to wait for another run that writes the file.
WAIT = 20.0


def read(path: Path) -> dict[str, Owners]:
    """Peaks and their owners by the test's node id. Raises OSError, and ValueError naming the file for any other contents."""
    try:
        data = parse(path.read_bytes())
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ValueError(f"expected a file of version {VERSION}")
        if not isinstance(data.get("tests"), dict):
            raise ValueError("expected an object of tests by their node ids as 'tests'")
        return {test: plain(entry) for test, entry in data["tests"].items()}
    except ValueError as error:
        raise ValueError(f"{path} is not a baseline of device memory: {error}") from error


def write(path: Path, tests: dict[str, Owners]) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    data = {"version": VERSION, "tests": {test: as_plain(owners) for test, owners in tests.items()}}
    write_whole(path, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode())


def merge(path: Path, tests: dict[str, Owners]) -> None:
    """Write the tests into the file beside those that it has by now: another run may have written since this one began.

    Raises OSError, TimeoutError if another run does not finish writing, and ValueError if the file is no baseline any more.
    """
    with _locked(path):
        write(path, {**(read(path) if path.exists() else {}), **tests})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock, a file beside it. Raises TimeoutError if another process has it for too long, and OSError with the
    name of the file itself if none can be made."""
    given, path = path, Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, end = path.with_name(f".{path.name}.lock"), time.monotonic() + WAIT
    while True:
        try:
            with naming(given, str(lock)):
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if time.monotonic() > end:
                raise TimeoutError(f"{lock} is there for more than {WAIT:g} s, as while another run writes {path.name}: "
                                   "remove it if none does, since a run that was killed leaves it behind") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def misnamed(recorded: Mapping[str, Owners], ran: Iterable[str]) -> str | None:
    """Which root directory the names in a baseline are from, if that is why it has none of the tests that ran; else None."""
    tests = list(ran)
    if any(test in recorded for test in tests):
        return None
    for test in tests:
        for name in recorded:
            if test.endswith(f"/{name}"):
                return f"{test} is {name} in it, written by a run whose --rootdir was {test.removesuffix(f'/{name}')}"
            if name.endswith(f"/{test}"):
                return f"{test} is {name} in it, written by a run whose --rootdir has {name.removesuffix(f'/{test}')} in it"
    return None


def as_plain(owners: Owners) -> dict[str, Any]:
    """The owners as plain data, for files and for other processes."""
    return {"peak": owners.peak, "by": owners.by}


def plain(data: dict[str, Any]) -> Owners:
    """The owners from the data that :func:`as_plain` wrote. Raises ValueError for other data."""
    owners = from_json(Owners, data, "a peak")
    if not owners.by.keys() <= BY.keys():
        raise ValueError(f"bytes are grouped by {', '.join(BY)}, but got {', '.join(owners.by)}")
    return owners


def grown(before: Owners, after: Owners) -> str | None:
    """A message about a peak that has grown, with the owners that grew; None if it has not."""
    if after.peak <= before.peak:
        return None
    diff = compare(before, after)
    lines = [summary(diff)]
    for group in ("line", "layer", "role"):
        if group in diff.by:
            lines += table(group, diff.by[group], rows=8)
    return "\n".join(lines)
