"""Writes at many positions along a dimension on the GPU, by sorting the positions: see kernels/group.cu.

``where`` is the layout of index, values and ``x``, with the dimensions of the positions folded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import DIGIT, RUN, Groups


def places(index: Any, length: int, stride: int, back: Any, skipped: int) -> tuple[Any, ...]:
    """What kernels need to know of positions along a dimension of ``length``, whose elements are ``stride`` apart in ``x``.

    ``back`` is added to negative ones, and nothing is written at the position ``skipped``.
    """
    return index, np.int64(length), np.int64(stride), back, np.int64(skipped)


def add_groups(groups: Groups, x: Any, values: Any, where: Any, places: tuple[Any, ...], workspace: Any,
               fresh: bool = False) -> None:
    """Add the values at their positions; ``fresh`` says that x is zeros."""
    order, parts = _grouped(groups, where, places, workspace)
    length = _length(x, values, where, places)
    types = x.dtype, places[0].dtype, str(fresh).lower(), RUN, length
    _run("sums", types, where, 32 * length if length > 1 else 128, x, values, order, parts, where, *places)
    _run("joins", types, where, 32 * length, x, order, parts, where, *places)


def _length(x: Any, values: Any, where: Any, places: tuple[Any, ...]) -> int:
    """Neighbours in one access: 16 bytes, but at most 8 elements, if rows are contiguous and all that is
    accessed begins at a multiple of that."""
    kept, length = where["kept"], min(16 // x.itemsize, 8)
    beside, apart = kept["strides"][1:3, :1], where["folded"]["strides"][1:3]
    even = not (where["rows"] % length or int(places[2]) % length or np.any(apart % length))
    return length if (even and kept["count"] == 1 and where["rows"] >= 32 and np.all(beside == 1) and x.dtype == values.dtype
                      and gl.packed(x, values)) else 1


def put_groups(groups: Groups, x: Any, values: Any, where: Any, places: tuple[Any, ...], workspace: Any) -> None:
    """Write the values at their positions, where the last one stays."""
    order, _ = _grouped(groups, where, places, workspace)
    _run("writes", (x.dtype, values.dtype, places[0].dtype, RUN), where, 128, x, values, order, where, *places)


def _run(name: str, types: tuple[Any, ...], where: Any, strip: int, *arguments: Any) -> None:
    """Launch a kernel with a warp for each run of positions and strip of rows."""
    units = -(-int(where["width"]) // RUN) * -(-int(where["rows"]) // strip)
    gl.run("group", name, types, 32 * units, *arguments, np.int64(units))


def _grouped(groups: Groups, where: Any, places: tuple[Any, ...], workspace: Any) -> tuple[Any, Any]:
    """The numbers of the positions, sorted by the positions, and memory for parts of sums."""
    index, length, *_ = places
    into, other, table, parts = split_workspace(workspace, *groups.pieces)
    order = None  # in the order of the index at first
    # Skipped positions count as `length`.
    for shift in range(0, int(length).bit_length(), DIGIT):
        how = where, *places, np.int64(groups.share), np.int32(shift)
        gl.run_blocks("group", "tally", (index.dtype,), table.size >> DIGIT, order, table, *how)
        gl.run_blocks("group", "deal", (index.dtype,), table.size >> DIGIT, order, into, table, *how)
        order, into, other = into, other, into
    return order, parts
