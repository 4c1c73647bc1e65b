"""The report of one step: its parts, as data."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

from gradcore.report.growth import Growth
from gradcore.report.plain import read
from gradcore.units import format_bytes

#: Version of the JSON format, which docs/report-schema.md describes. Readers refuse other versions.
SCHEMA_VERSION = 1
#: Why a node that backward has run has not released what it keeps: that was told to retain the graph.
RETAINED = "retained"


@dataclass(frozen=True)
class PeakPoint:
    """The peak of a step in bytes, and the allocation that reached it. ``position`` is an index into the step's records."""

    position: int
    requested: int
    allocated: int
    reserved: int
    op: str
    layer: str
    phase: str
    line: str


@dataclass(frozen=True)
class TopTensor:
    """One of the largest buffers at the peak, or ``count`` equal ones in equal blocks; sizes in bytes, of one of them.

    Of several, ``layer`` names all, as ``h.0-5.mlp``; ``node``, ``kept_by`` and ``caller`` are those of the oldest.
    """

    allocated: int
    requested: int
    role: str
    op: str
    layer: str
    phase: str
    shape: tuple[int, ...] | None
    dtype: str | None
    line: str
    caller: str | None
    node: int
    #: ``node:name`` for each node that keeps it for backward.
    kept_by: tuple[str, ...]
    #: At the level ``stacks``: the callers of ``line``, the nearest first.
    stack: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class PhaseEnd:
    """Live bytes when a phase of the step ended."""

    phase: str
    requested: int
    allocated: int
    #: Seconds from the start of the step.
    seconds: float


@dataclass(frozen=True)
class KeptTensor:
    """A buffer kept for backward: the node that kept it, the records at which it was kept and dropped, and its bytes."""

    node: int
    name: str
    op: str
    layer: str
    role: str
    line: str
    allocated: int
    kept_at: int
    #: The records at which the node dropped it and the buffer was freed; None if not within the step.
    dropped_at: int | None
    freed_at: int | None
    #: Of what was not released, :data:`RETAINED` or None.
    reason: str | None
    #: The buffer's number in the log: several nodes may keep one. 0 if an earlier version of gradcore wrote the report.
    serial: int = 0


@dataclass(frozen=True)
class PoolFigures:
    """Counts of the pool's work during the step, and its state at the end in bytes (``segments`` is a count)."""

    allocations: int
    hits: int
    segments: int
    reserved: int
    cached: int
    largest_free: int

    @property
    def fragmentation(self) -> float:
        """The share of cached bytes that are not in the largest free block."""
        return 1 - self.largest_free / self.cached if self.cached else 0.0


@dataclass(frozen=True)
class LibraryBytes:
    """Bytes in a library's own pool. ``name`` is the op or library that uses them, or says that they are cached."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class DriverFigures:
    """The driver's figures for the device, in bytes; ``remainder`` is what the other figures do not explain.

    ``source`` says where they come from; a figure is None if the driver does not give it. ``libraries`` adds up to ``library``.
    ``unseen`` describes what a library allocates outside gradcore's pools, and so is in the remainder; "" for nothing.
    """

    used: int | None
    source: str
    context: int | None
    segments: int
    library: int
    remainder: int | None
    libraries: tuple[LibraryBytes, ...] = ()
    unseen: str = ""


@dataclass(frozen=True)
class PinnedFigures:
    """Pinned host memory, in bytes: live at the end of the step, the most live at once during it, and reserved by the pool."""

    allocated: int
    max_allocated: int
    reserved: int


@dataclass(frozen=True)
class PlannedFigures:
    """Arenas of compiled functions in which buffers lay during the step: how many, the bytes that their plans reserve, and
    those of them that were live, the most at once and at the peak."""

    arenas: int
    planned: int
    max_live: int
    live_at_peak: int


@dataclass(frozen=True)
class Left:
    """Bytes allocated in a step and live at its end, by the line; ``held_by`` is ``graph``, ``outside`` or ``you``."""

    op: str
    layer: str
    line: str
    allocated: int
    held_by: str


@dataclass(frozen=True)
class Exported:
    """Live buffers that arrays of another library share, summed over those with the same owner and form of export.

    ``op``, ``layer`` and ``line`` made them; ``form`` is the way of export (``numpy()``, ``__array__``, ``__dlpack__``,
    ``__cuda_array_interface__``, with ``for`` and a library if it is known), on the line ``exported_at``. ``alone`` says that
    only such arrays hold them.
    """

    op: str
    layer: str
    line: str
    form: str
    exported_at: str
    alone: bool
    count: int
    #: Bytes.
    allocated: int


@dataclass(frozen=True, repr=False)
class StepReport:
    """Device memory over one step, in bytes and seconds.

    ``by_role``, ``by_layer``, ``by_op`` and ``by_line`` (of source) split the allocated bytes at the peak: each adds up to
    ``peak.allocated``. ``str`` is the report as text; docs/report-schema.md describes the fields.
    """

    device: str
    batch_size: int | None
    seconds: float
    peak: PeakPoint
    by_role: dict[str, int]
    by_layer: dict[str, int]
    by_op: dict[str, int]
    #: The ten largest tensors at the peak, the largest first; those of equal blocks are one, with the bytes of all.
    top: tuple[TopTensor, ...]
    phases: tuple[PhaseEnd, ...]
    kept: tuple[KeptTensor, ...]
    #: Bytes kept for backward when it began, and those of them that were freed by its end.
    residual_bytes: int
    residual_bytes_returned: int
    pool: PoolFigures
    nodes: int
    #: Seconds spent building graph: nodes times the measured cost of one that keeps two operands.
    graph_seconds: float
    records: int
    driver: DriverFigures | None = None
    #: Results of ops that are live at the end: kept by a graph, by an array of another library only, or by the user. The
    #: largest first.
    left: tuple[Left, ...] = ()
    growth: Growth | None = None
    #: None if no memory was pinned in the step.
    pinned: PinnedFigures | None = None
    #: None if nothing lay in an arena.
    planned: PlannedFigures | None = None
    #: Bytes of other libraries' memory in tensors at the peak, which are in none of the sums.
    outside_bytes: int = 0
    #: Buffers that arrays of other libraries share at the end, the largest first: their bytes are in the sums.
    exported: tuple[Exported, ...] = ()
    #: Empty in a report that an earlier version of gradcore wrote.
    by_line: dict[str, int] = dataclasses.field(default_factory=dict)
    #: ``step``, or ``snapshot`` for a report of a memory snapshot, which has no nodes: their figures are 0 and empty.
    of: str = "step"
    version: int = SCHEMA_VERSION

    @property
    def bytes_per_sample(self) -> float | None:
        """Bytes at the peak per sample, without parameters, buffers, gradients and optimizer state; None if unknown.

        A quotient, which includes what else does not scale with the batch, such as the workspace of an update.
        """
        if not self.batch_size or not self.by_role:
            return None
        fixed = sum(self.by_role.get(r, 0) for r in ("parameter", "optimizer state", "buffer", "gradient"))
        return (self.peak.allocated - fixed) / self.batch_size

    @property
    def graph_share(self) -> float:
        """The share of the step's time that was spent on building graph, by :attr:`graph_seconds`."""
        return min(self.graph_seconds / self.seconds, 1.0) if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, as docs/report-schema.md describes it."""
        return dataclasses.asdict(self)

    def to_json(self, indent: int | None = None) -> str:
        """The fields as JSON text, as docs/report-schema.md lists them, indented by ``indent`` blanks."""
        return json.dumps(self.to_dict(), indent=indent)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page; a recording's page also has the timeline. Raises OSError."""
        from gradcore.report.recording import Recording

        Recording(self, ()).save_html(path)

    def _repr_html_(self) -> str:
        from gradcore.report.recording import Recording

        return Recording(self, ())._repr_html_()

    def __repr__(self) -> str:
        return f"<report of a step on {self.device}: peak {format_bytes(self.peak.allocated)}, {self.records:,} records>"

    def __str__(self) -> str:
        from gradcore.report.text import render

        return render(self)


def load_report(data: dict[str, Any]) -> StepReport:
    """The report that :meth:`StepReport.to_dict` wrote. Raises ValueError for another version or missing fields."""
    if not isinstance(data, dict) or data.get("version") != SCHEMA_VERSION:
        given = data.get("version") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"expected a step report of version {SCHEMA_VERSION}, but got {given!r}")
    return read(StepReport, data)
