"""Writes a recording as a PyTorch memory snapshot, which pytorch.org/memory_viz draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore import folds
from gradcore.events import OUTSIDE, Alloc, Free, Keep, Launch, Mark, Record, Reserve, Retag, Tag, Unreserve
from gradcore.report.label import frames_of
from gradcore.report.recording import Recording

#: The address given to the first segment: large, since viewers tell addresses from sizes by their magnitude.
_BASE = 0x7F00_0000_0000
_ALIGNMENT = 2 << 20


def to_snapshot(recording: Recording) -> dict[str, Any]:
    """The format of ``torch.cuda.memory._snapshot()``, made of dicts, lists, ints and strings only.

    ``device_traces`` has the step's events, preceded by the allocation of all that was live before it; ``segments`` is the
    state of the pool at the end. As in PyTorch, the ``size`` of an event is in requested bytes, that of a block in allocated
    bytes. A frame above the line of source gives op, role and layer, for which PyTorch's format has no fields: as they were at
    the peak, or at last for a buffer that was not live there. Bytes of other libraries are left out, since they are not in the
    pool. ``gradcore`` says where the step begins and ends, for :mod:`gradcore.report.snapshot`; other readers ignore it.
    """
    # Blocks of other libraries' memory have no address in the pool.
    foreign = {r.serial for r in recording.records if isinstance(r, Alloc) and r.segment == OUTSIDE}
    records = [r for r in recording.records if getattr(r, "serial", None) not in foreign]
    sizes, bases = _segments(records)
    owners = _owners(recording)
    trace: list[dict[str, Any]] = []
    books = folds.Books()
    times = [r.time // 1000 for r in records if isinstance(r, (Launch, Mark))]
    # Events before the step get this time.
    began = now = times[0] if times else 0
    before: int | None = None

    def event(action: str, address: int, size: int, stream: int = 0, frames: list[dict[str, Any]] | None = None) -> None:
        trace.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": now,
                      "frames": frames or []})

    for record in records:
        if isinstance(record, (Launch, Mark)):
            now = max(now, record.time // 1000)
            before = len(trace) if before is None else before
        elif isinstance(record, (Reserve, Unreserve)):
            action = "segment_alloc" if isinstance(record, Reserve) else "segment_free"
            event(action, bases[record.segment], record.nbytes)
        elif isinstance(record, Alloc):
            event("alloc", bases[record.segment] + record.offset, record.requested, record.stream,
                  frames_of(*owners[record.serial]))
        elif isinstance(record, Free):
            gone = books.blocks[record.serial]
            for action in ("free_requested", "free_completed"):
                event(action, bases[gone.segment] + gone.offset, gone.requested, gone.stream)
        books.enter(record)
    segments = []
    for index, size in sizes.items():
        blocks: list[dict[str, Any]] = []
        end = 0
        for block in sorted((b for b in books.blocks.values() if b.segment == index), key=lambda b: b.offset):
            blocks += _free(bases[index], end, block.offset)
            role = folds.role_of(block.tag, block.serial in books.kept)
            blocks.append({"address": bases[index] + block.offset, "size": block.allocated, "requested_size": block.requested,
                           "state": "active_allocated", "frames": frames_of(block.tag, role)})
            end = block.offset + block.allocated
        blocks += _free(bases[index], end, size)
        active = [b for b in blocks if b["state"] == "active_allocated"]
        total = sum(b["size"] for b in active)
        segments.append({
            "device": 0, "address": bases[index], "total_size": size, "allocated_size": total, "active_size": total,
            "requested_size": sum(b["requested_size"] for b in active), "stream": 0, "frames": [], "blocks": blocks,
            "segment_type": "small" if size <= _ALIGNMENT else "large", "segment_pool_id": (0, 0), "is_expandable": False})
    return {"segments": segments, "device_traces": [trace], "external_annotations": [], "allocator_settings": {},
            "gradcore": {"device": recording.report.device, "before": before or 0, "began_us": began, "ended_us": now}}


def _owners(recording: Recording) -> dict[int, tuple[Tag, str]]:
    """The tag and role of every buffer at the peak; of one not live there the last tag, as a residual if it ever was one."""
    kept = {r.serial for r in recording.records if isinstance(r, Keep)}
    tags = {r.serial: r.tag for r in recording.records if isinstance(r, (Alloc, Retag))}
    found = {serial: (tag, folds.role_of(tag, serial in kept)) for serial, tag in tags.items()}
    return found | {h.serial: (h.tag, h.role) for h in folds.at_peak(recording.records)[1]}


def _segments(records: Sequence[Record]) -> tuple[dict[int, int], dict[int, int]]:
    """By segment: bytes of those that exist at the end, and the addresses of all."""
    sizes: dict[int, int] = {}
    largest: dict[int, int] = {}
    for record in records:
        if isinstance(record, Reserve):
            sizes[record.segment] = record.nbytes
        elif isinstance(record, Unreserve):
            sizes.pop(record.segment, None)
        if isinstance(record, (Reserve, Unreserve)):
            largest[record.segment] = max(largest.get(record.segment, 0), record.nbytes)
        elif isinstance(record, Alloc):
            largest[record.segment] = max(largest.get(record.segment, 0), record.offset + record.allocated)
    bases: dict[int, int] = {}
    at = _BASE
    for index, nbytes in largest.items():
        bases[index] = at
        at += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return sizes, bases


def _free(base: int, start: int, end: int) -> list[dict[str, Any]]:
    if start >= end:
        return []
    return [{"address": base + start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}]
