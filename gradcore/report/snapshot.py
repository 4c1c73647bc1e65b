"""Reads PyTorch's memory snapshots as records, so that a report shows which lines of a PyTorch program hold memory at its peak.

A snapshot is a pickle. It is read by an unpickler that refuses every global name, so nothing in a file is ever called.
"""

from __future__ import annotations

import io
import os
import pickle
import reprlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gradcore.events import Alloc, Free, Mark, Record, Reserve, Site, Tag, Unreserve
from gradcore.report.built import build_report
from gradcore.report.label import tag_of
from gradcore.report.step import PoolFigures, StepReport
from gradcore.spec import round_up

#: The largest file that is read by default, in bytes.
MAX_BYTES = 1 << 30
_LIMIT = 1 << 63
_FRAMES = 64
#: Roles by the categories of PyTorch's memory profiler; snapshots of its allocator have none.
_ROLES = {"input": "input", "activation": "output", "gradient": "gradient", "parameter": "parameter",
          "optimizer_state": "optimizer state", "temporary": "temporary", "autograd_detail": "temporary"}
_UNKNOWN = Site("(no frame of Python)", 0, "")
_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")


# The unpickler in Python, since the one in C allocates a memo as long as the highest index in the file.
class _Plain(pickle._Unpickler):
    """An unpickler of dicts, lists, tuples, numbers and strings."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {reprlib.repr(f'{module}.{name}')}, but a snapshot holds plain data only")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def looks_like_snapshot(path: str | os.PathLike[str]) -> bool:
    """Does the file begin as a pickle of protocol 2 or later? Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        start = file.read(2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def load_snapshot(path: str | os.PathLike[str], device: int | None = None, *,
                  max_bytes: int = MAX_BYTES) -> tuple[list[Record], StepReport]:
    """The records of one device of a snapshot, and the report of its peak.

    ``device`` is its index, by default that of the device with most events. Memory that was live before the history begins
    opens the log. Sizes are rounded as both pools round them. PyTorch records neither layers nor roles: a buffer is an
    ``output``, or ``temporary`` if its frames show that backward or an optimizer made it, and its op is the function that the
    line of source called. Memory counts as live until its free has completed. Snapshots by ``Recording.export`` do have layers
    and roles, the step's beginning and end, and the device. Marks ``at`` give the time of the records after them.

    Raises OSError if the file cannot be read, and ValueError for one larger than ``max_bytes`` and for any other contents.
    """
    path = Path(path)
    nbytes = path.stat().st_size
    if nbytes > max_bytes:
        raise ValueError(f"{path} has {nbytes:,} bytes, more than the limit of {max_bytes:,}")
    try:
        data = _Plain(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, MemoryError, RecursionError, LookupError, AttributeError, TypeError, ValueError,
            OverflowError, AssertionError) as error:
        raise ValueError(f"{path} is not a memory snapshot: {error or type(error).__name__}") from None
    try:
        traces = [_of(trace, list) for trace in _of(data["device_traces"], list)]
        number = max(range(len(traces)), key=lambda i: len(traces[i]), default=0) if device is None else device
        if not 0 <= number < len(traces):
            raise ValueError(f"it has {len(traces)} devices, but device {number} was requested")
        segments = [s for s in _of(data["segments"], list) if s.get("device", number) == number]
        own = _of(data.get("gradcore", {}), dict)
        reader = _Reader(segments, traces[number], own)
        records = list(reader.records())
        name = _of(own.get("device", f"cuda:{number}"), str)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not a memory snapshot: {what}") from None
    return records, replace(build_report(records, device=name, batch_size=None, pool=reader.pool()), of="snapshot")


class _Reader:
    """Turns one device's events into records."""

    def __init__(self, segments: list[Any], trace: list[Any], own: dict[str, Any]) -> None:
        self._trace = [_of(event, dict) for event in trace]
        times = [_time(event) for event in self._trace]
        # Older versions of gradcore wrote 0 as the time of events before the step.
        began = next((t for t in times if t), 0)
        self._opening = _size(own.get("before", times.index(began) if began else 0))
        self._began = _time(own, "began_us") if own else began
        self._ended = _time(own, "ended_us")
        self._final = {_size(s["address"]): _size(s["total_size"]) for s in segments}
        self._at_end = [block for s in segments for block in _blocks(s)]
        self._free = [_size(b["size"]) for s in segments for b in _of(s["blocks"], list) if b["state"] not in _ACTIVE]
        self._segments: dict[int, tuple[int, int]] = {}
        self._live: dict[int, int] = {}
        self._allocations = self._grown = self._serial = self._index = 0

    def records(self) -> Iterator[Record]:
        """Segments and blocks from before the history, the events, and marks at both ends."""
        before_segments, before_blocks = self._before()
        for address, size in before_segments.items():
            yield self._reserve(address, size)
        for address, (size, frames) in before_blocks.items():
            yield self._alloc(address, size, 0, {"frames": frames})
        now = self._began
        for position, event in enumerate([*self._trace, None]):
            if position == min(self._opening, len(self._trace)):
                # Allocations from before are not counted as the step's.
                self._allocations = self._grown = 0
                yield Mark("begin", "step", now)
                yield Mark("at", "", now)
            if event is None:
                break
            if _time(event) > now:
                now = _time(event)
                yield Mark("at", "", now)
            action = event["action"]
            if action == "alloc":
                yield self._alloc(_size(event["addr"]), _size(event["size"]), _size(event.get("stream", 0)), event)
            elif action == "free_completed" and _size(event["addr"]) in self._live:
                yield Free(self._live.pop(event["addr"]))
            elif action in ("segment_alloc", "segment_map"):
                yield self._reserve(_size(event["addr"]), _size(event["size"]))
            elif action in ("segment_free", "segment_unmap") and _size(event["addr"]) in self._segments:
                index, size = self._segments.pop(event["addr"])
                yield Unreserve(index, size)
        yield Mark("end", "step", max(now, self._ended))

    def _before(self) -> tuple[dict[int, int], dict[int, tuple[int, list[Any]]]]:
        """Segments and blocks, by address, that exist without an event that made them."""
        segments: dict[int, int] = {}
        blocks: dict[int, tuple[int, list[Any]]] = {}
        made: set[int] = set()
        reserved: set[int] = set()
        for event in self._trace:
            action, address = event["action"], _size(event.get("addr", 0))
            if action == "alloc":
                made.add(address)
            elif action == "free_completed" and address not in made:
                blocks.setdefault(address, (_size(event["size"]), event.get("frames", [])))
            elif action in ("segment_alloc", "segment_map"):
                reserved.add(address)
            elif action in ("segment_free", "segment_unmap") and address not in reserved:
                segments.setdefault(address, _size(event["size"]))
        for address, size in self._final.items():
            if address not in reserved:
                segments.setdefault(address, size)
        for address, block in self._at_end:
            if address not in made:
                blocks.setdefault(address, (_size(block.get("requested_size", block["size"])), block.get("frames", [])))
        return segments, blocks

    def _reserve(self, address: int, size: int) -> Reserve:
        self._grown += 1
        self._index += 1
        self._segments[address] = self._index, size
        return Reserve(self._index, size)

    def _alloc(self, address: int, size: int, stream: int, event: dict[str, Any]) -> Alloc:
        if address in self._live:
            raise ValueError(f"address {address:#x} is allocated twice")
        self._serial += 1
        self._allocations += 1
        self._live[address] = self._serial
        # Without a known segment, segment 0, in which the address is the offset.
        start, (index, _) = max(((a, s) for a, s in self._segments.items() if a <= address < a + s[1]), default=(0, (0, 0)))
        return Alloc(self._serial, index, address - start, size, round_up(size), stream, _tag(event), 0)

    def pool(self) -> PoolFigures:
        """The pool's figures after the events: call it after :meth:`records`."""
        reserved = sum(size for _, size in self._segments.values())
        return PoolFigures(self._allocations, max(self._allocations - self._grown, 0), len(self._segments), reserved,
                           sum(self._free), max(self._free, default=0))


def _blocks(segment: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Live blocks of a segment at the end, with their addresses, computed from sizes since older snapshots lack them."""
    address = _size(segment["address"])
    for block in _of(segment["blocks"], list):
        if block["state"] in _ACTIVE:
            yield address, block
        address += _size(block["size"])


def _tag(event: dict[str, Any]) -> Tag:
    frames = _of(event.get("frames", []), list)[:_FRAMES]
    # With slashes, whatever the system that wrote the snapshot.
    sites = [Site(_of(f["filename"], str).replace("\\", "/"), _size(f["line"]), _of(f["name"], str)) for f in frames]
    told = tag_of(sites)
    if told is not None:
        return told
    python = [i for i, s in enumerate(sites) if s.file.endswith(".py")]
    own = [i for i in python if "/torch/" not in sites[i].file and not sites[i].file.startswith("torch/")]
    first = (own or python or [len(sites) - 1])[0]
    names = {s.file.rpartition("torch/")[2] for s in sites if "torch/" in s.file}
    phase = ("backward" if any(n.startswith("autograd/") for n in names) else
             "optimizer" if any(n.startswith("optim/") for n in names) else "forward")
    role = _ROLES.get(event.get("category", ""), "output" if phase == "forward" else "temporary")
    if first < 0:
        return Tag("(unknown)", "", phase, role, _UNKNOWN, None, None)
    # The function that the line called is in the frame below it.
    op = sites[first - 1].function if first else sites[first].function
    return Tag(op, "", phase, role, sites[first].called_by(sites[i] for i in own[1:]), None, None)


def _of(x: Any, kind: type) -> Any:
    if not isinstance(x, kind):
        raise ValueError(f"expected a {kind.__name__}, but got {type(x).__name__}")
    return x


def _size(x: Any) -> int:
    if type(x) is not int or not 0 <= x < _LIMIT:
        raise ValueError(f"expected a size or an address, but got {type(x).__name__}")
    return x


def _time(event: dict[str, Any], key: str = "time_us") -> int:
    return _size(event.get(key, 0)) * 1000
