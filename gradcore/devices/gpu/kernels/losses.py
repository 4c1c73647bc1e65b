"""Losses on the GPU: cross-entropy, its gradient, both in one kernel; mean squared error. None of them allocates."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import wide
from gradcore.devices.kernels import split_workspace

#: The widest row that one thread handles: a warp would spend more on exchanges than on exponentials.
_NARROW = 32
#: The work of one block that takes as long as the meeting of several, in elements that a thread handles in sequence: some 100
#: cycles each, about 1 microsecond in all. And the cost to a thread of a reduction over its team, in such elements.
_SERIAL, _FOLD = 16, 16
#: The most blocks that meet for a sum, which keep most devices busy: each adds up its rows first.
_MEETING = 512
#: The most labels that all blocks together may read, if each computes the whole weight itself: 16 MB from the L2 cache, which
#: takes as long as a launch. Beyond that a launch of its own computes it once.
_COUNTED = 1 << 21
#: The labels that a block of that launch counts, 32 KB: a thread has all its loads under way at once.
_LABELS = 4096


def _lanes(classes: int) -> int:
    """Threads of the team for a row: equal in all kernels, so that their results have the same bits."""
    return 1 if classes <= _NARROW else gl.lanes_of(classes)


def _blocks(rows: int, classes: int) -> int:
    """The number of blocks if each team takes one row."""
    return -(-rows // (gl.BLOCK // _lanes(classes)))


def _folding_blocks(rows: int, classes: int) -> int:
    """The number of blocks for the losses: one if it handles all rows in the time that several take to meet for their sum
    (up to 4,096 logits, fewer with reductions over teams)."""
    lanes, blocks = _lanes(classes), _blocks(rows, classes)
    return 1 if blocks * (-(-classes // lanes) + (_FOLD if lanes > 1 else 0)) <= _SERIAL else min(blocks, _MEETING)


def _shared(blocks: int) -> Any:
    """The argument for the memory in which the blocks of a launch meet, if there are several."""
    return gl.SHARED if blocks > 1 else None


def _whole(blocks: int, logits: Any, target: Any, weight: Any, workspace: Any, reduction: str, ignore_index: int) -> Any:
    """The total weight of all rows, for the gradient of a mean; None if each block computes it itself."""
    rows, classes = logits.shape
    if reduction != "mean" or blocks * rows <= _COUNTED:
        return None
    (whole,) = split_workspace(workspace, (1, wide(logits.dtype)))
    # Weights are added up in one order, labels are counted in any.
    blocks = min(-(-rows // _LABELS), gl.BLOCK) if weight is None else 1
    gl.run_blocks("loss", "whole_weight", (logits.dtype, target.dtype), blocks, target, weight, whole, np.int64(rows),
                  np.int32(classes), np.int64(ignore_index), _shared(blocks))
    return whole


def _rows(blocks: int, logits: Any, target: Any, weight: Any, losses: Any, out: Any, reduction: str, ignore_index: int,
          whole: Any = None, one: Any = None, slopes: Any = None) -> None:
    """Compute the losses of the rows or, with ``out``, their sum or mean; with ``slopes`` also the gradient."""
    rows, classes = logits.shape
    mean = np.int32(reduction == "mean")
    types = logits.dtype, target.dtype, gl.length_of(classes, logits, slopes), "false" if slopes is None else "true"
    gl.run_blocks("loss", "cross_entropy", types, blocks, logits, target, weight, losses, out, whole, one, slopes,
                  np.int64(rows), np.int32(classes), np.int64(ignore_index), mean, np.int32(_lanes(classes)),
                  _shared(blocks if out is not None else 1))


@gl.kernel
def cross_entropy(logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str = "mean",
                  ignore_index: int = -100) -> None:
    if reduction == "none":
        _rows(_blocks(*logits.shape), logits, target, weight, out, None, reduction, ignore_index)
    else:
        _rows(_folding_blocks(*logits.shape), logits, target, weight, None, out, reduction, ignore_index)


@gl.kernel
def cross_entropy_grad(dy: Any, logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str,
                       ignore_index: int) -> None:
    rows, classes = logits.shape
    whole = _whole(_blocks(rows, classes), logits, target, weight, workspace, reduction, ignore_index)
    types = logits.dtype, target.dtype, gl.length_of(classes, logits, out)
    gl.run_rows("loss", "cross_entropy_grad", types, rows, _lanes(classes), dy, logits, target, weight, whole, out,
                np.int64(rows), np.int32(classes), np.int64(ignore_index), np.int32(reduction == "mean"),
                np.int32(reduction == "none"))


def cross_entropy_with_slopes(one: Any, logits: Any, target: Any, weight: Any, slopes: Any, workspace: Any, out: Any, *,
                              reduction: str, ignore_index: int) -> None:
    """Write the sum or mean to ``out``, its cotangent 1 to ``one``, and the gradient to ``slopes``, with the same bits as the
    separate kernels. It takes one launch, and another for the weight of very many rows."""
    blocks = _folding_blocks(*logits.shape)
    whole = _whole(blocks, logits, target, weight, workspace, reduction, ignore_index)
    _rows(blocks, logits, target, weight, None, out, reduction, ignore_index, whole, one, slopes)


@gl.kernel
def mse_loss(x: Any, target: Any, out: Any, workspace: Any, *, reduction: str = "mean") -> None:
    divisor = np.float64(x.size if reduction == "mean" else 1)
    # One block for up to 4096 elements; the workspace, as large as a piece of x, has room for the sums of 256 blocks.
    blocks = min(-(-x.size // gl.BLOCK), gl.BLOCK) if x.size > 4096 else 1
    gl.run_blocks("loss", "mse_loss", (x.dtype,), blocks, x, target, workspace, out, np.int64(x.size), divisor, _shared(blocks))
