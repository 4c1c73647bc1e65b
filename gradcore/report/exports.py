"""Exports a step's records for other programs: traces for Chrome and Perfetto, and tables of allocations.

PyTorch's memory snapshots are in :mod:`gradcore.report.memory_viz`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from gradcore import folds
from gradcore.cells import name_of_file
from gradcore.events import Alloc, Free, Launch, Mark, Record, Retag
from gradcore.grouping import BY
from gradcore.report.files import write_whole
from gradcore.report.memory_viz import to_snapshot
from gradcore.report.recording import Recording
from gradcore.report.timeline import breakdown

#: Columns of the table of allocations. ``_at`` are positions in the log, ``_us`` microseconds since the first timed record.
COLUMNS = ("serial", "requested", "allocated", "segment", "offset", "stream", "role", "op", "layer", "phase", "shape", "dtype",
           "file", "line", "function", "node", "made_at", "made_us", "kept_at", "dropped_at", "reason", "freed_at", "freed_us",
           "exported")


def moments(records: Sequence[Record]) -> list[int]:
    """Nanoseconds from the first timed record to each record.

    Launches and marks have times; records between two of them are spread evenly, so that order is kept. After a mark ``at``,
    all records until the next have its time.
    """
    known = [(i, r.time) for i, r in enumerate(records) if isinstance(r, (Launch, Mark))]
    if not known:
        return list(range(len(records)))
    began, latest, pinned = known[0][1], 0, False
    found: list[int] = []
    for i, time in known:
        # Records of several threads can be out of order; times here never decrease.
        now, gap = max(time - began, latest), i - len(found) + 1
        found += [latest] * (gap - 1) + [now] if pinned else [latest + (now - latest) * k // gap for k in range(1, gap + 1)]
        record = records[i]
        latest, pinned = now, isinstance(record, Mark) and (record.what == "at" or pinned)
    return found + [latest] * (len(records) - len(found))


def to_trace(recording: Recording) -> dict[str, Any]:
    """A trace for chrome://tracing and ui.perfetto.dev: ops, phases, and live bytes by role.

    An op's slice lasts from its launch to the next record with a time, so it includes what Python does in between; on a GPU it
    is the time to launch. The counter ``live bytes`` has a value after every record that changes it.
    """
    records = recording.records
    times = moments(records)
    events: list[dict[str, Any]] = [_name(0, "process_name", f"gradcore on {recording.report.device}"),
                                    _name(1, "thread_name", "phases"), _name(2, "thread_name", "ops")]
    timed = [i for i, r in enumerate(records) if isinstance(r, (Launch, Mark))]
    for i, following in zip(timed, [*timed[1:], len(records) - 1], strict=True):
        record = records[i]
        if isinstance(record, Launch):
            tag = record.tag
            events.append({"ph": "X", "pid": 1, "tid": 2, "cat": tag.phase or "op", "name": tag.op, "ts": times[i] / 1e3,
                           "dur": (times[following] - times[i]) / 1e3,
                           "args": {"layer": tag.layer or "(root)", "phase": tag.phase, "line": tag.site.full,
                                    "node": record.node}})
    open_: list[tuple[str, int]] = []
    for i, record in enumerate(records):
        if isinstance(record, Mark) and record.what == "begin":
            open_.append((record.label, times[i]))
        elif isinstance(record, Mark) and open_ and open_[-1][0] == record.label:
            label, began = open_.pop()
            events.append({"ph": "X", "pid": 1, "tid": 1, "cat": "phase", "name": label, "ts": began / 1e3,
                           "dur": (times[i] - began) / 1e3, "args": {}})
    last: dict[str, int] = {}
    for i, sums in enumerate(breakdown(records, BY["role"])):
        if sums != last:
            last = dict(sums)
            events.append({"ph": "C", "pid": 1, "name": "live bytes", "ts": times[i] / 1e3, "args": last})
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"peak": recording.report.peak.allocated}}


def _name(tid: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": tid, "name": what, "args": {"name": name}}


def to_csv(recording: Recording) -> str:
    """A table with one line for each allocation and :data:`COLUMNS`; what is unknown, or did not happen, is empty."""
    records = recording.records
    times = moments(records)
    rows: dict[int, dict[str, Any]] = {}
    for i, r in enumerate(records):
        if isinstance(r, Alloc):
            rows[r.serial] = {"serial": r.serial, "requested": r.requested, "allocated": r.allocated, "segment": r.segment,
                              "offset": r.offset, "stream": r.stream, "node": r.node, "made_at": i, "made_us": times[i] / 1e3,
                              "tag": r.tag}
        elif isinstance(r, Retag):
            rows[r.serial]["tag"] = r.tag
        elif isinstance(r, Free):
            rows[r.serial] |= {"freed_at": i, "freed_us": times[i] / 1e3}
    kept: dict[int, list[folds.Residual]] = {}
    for residual in folds.residuals(records):
        kept.setdefault(residual.serial, []).append(residual)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for serial, row in rows.items():
        tag = row.pop("tag")
        row |= {"role": folds.role_of(tag, serial in kept), "op": tag.op, "layer": tag.layer, "phase": tag.phase,
                "file": name_of_file(tag.site.file), "line": tag.site.line, "function": tag.site.function,
                "exported": "" if tag.export is None else str(tag.export)}
        if tag.spec is not None:
            row |= {"shape": "x".join(map(str, tag.spec.shape)), "dtype": tag.spec.dtype.name}
        if serial in kept:
            # From the first node's keep to the last node's drop.
            row["kept_at"] = kept[serial][0].kept_at
            if all(k.dropped_at is not None for k in kept[serial]):
                final = max(kept[serial], key=lambda k: k.dropped_at or 0)
                row |= {"dropped_at": final.dropped_at, "reason": final.reason}
        writer.writerow(row)
    return out.getvalue()


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


#: The formats of :func:`export`: a function from a recording to the file's bytes.
FORMATS: dict[str, Callable[[Recording], bytes]] = {
    # The page at pytorch.org/memory_viz reads no protocol later than 4.
    "snapshot": lambda recording: pickle.dumps(to_snapshot(recording), protocol=4),
    "trace": lambda recording: _json(to_trace(recording)),
    # A path that is not UTF-8 is escaped as in JSON.
    "csv": lambda recording: to_csv(recording).encode(errors="backslashreplace"),
    "json": lambda recording: _json(recording.to_dict())}


def export(recording: Recording, path: str | os.PathLike[str], format: str, step: int | None = None) -> None:
    """Write what :func:`exported` makes of a recording, whole or not at all. Raises what that does, and OSError."""
    write_whole(path, exported(recording, format, step))


def exported(recording: Recording, format: str, step: int | None = None) -> bytes:
    """A recording as one of :data:`FORMATS`; in JSON with the number of the step, if that is given.

    Raises ValueError for another format and for a recording without records.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, but got {format!r}")
    if not recording.records:
        raise ValueError("the recording has no records, and cannot be exported: it is a step report alone, or of a step at the "
                         "level 'counts' (record it at 'events')")
    numbered = format == "json" and step is not None
    return _json({**recording.to_dict(), "step": step}) if numbered else FORMATS[format](recording)
