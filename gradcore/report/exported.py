"""Finds bytes that arrays of other libraries share: owner, how and where they were exported, and what else holds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradcore import folds
from gradcore.events import HELD_OUTSIDE
from gradcore.report.grouping import line_of


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


def exported(holders: Iterable[folds.Holder]) -> tuple[Exported, ...]:
    """Those of the holders that other libraries share, summed; the largest first."""
    sums: dict[tuple[str, str, str, str, str, bool], tuple[int, int]] = {}
    for h in holders:
        if h.tag.export is not None:
            export = h.tag.export
            key = h.tag.op, h.tag.layer, line_of(h.tag), export.form, line_of(export), h.role == HELD_OUTSIDE
            count, allocated = sums.get(key, (0, 0))
            sums[key] = count + 1, allocated + h.allocated
    return tuple(Exported(*key, *sums[key]) for key in sorted(sums, key=lambda k: (-sums[k][1], k)))
