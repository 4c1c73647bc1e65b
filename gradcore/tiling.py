"""Tiling: how kernels cut their work into pieces that fit in a core's cache, for which ops declare workspace.

Ops and kernels both ask here, so that the bytes that are declared are those that are used. No piece grows with the batch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcore.spec import PIECE, TensorSpec, round_up

#: A number for the rows and one for the columns of an image.
Pair = tuple[int, int]
#: Elements of a tensor that a block of a GPU takes, at least, where one launch is for many tensors.
CHUNK = 1024
#: Elements of a piece on the CPU of functions that take tens of calls of NumPy: each takes the time of thousands of elements.
INTRICATE = 8192
#: Elements of a laid-out piece, which stays in a core's cache: more only where one row of one image needs more.
COLUMNS = 1 << 18


def intricate(spec: TensorSpec, temporaries: int) -> int:
    """Bytes that NumPy allocates for such a function of so many doubles for each element of a piece."""
    return 8 * temporaries * min(spec.numel, INTRICATE)


def windows_at_once(depth: int, images: int, rows: int, width: int) -> tuple[int, int]:
    """(images, rows of windows) of a piece of ``depth`` elements a window: several images, or some rows of one."""
    image = depth * rows * width
    if image <= COLUMNS:
        return min(images, max(COLUMNS // max(image, 1), 1)), rows
    most = max(COLUMNS // (depth * width), 1)
    # As many pieces as it takes, all about as long.
    return 1, -(-rows // -(-rows // most))


@dataclass(frozen=True)
class WidePieces:
    """Pieces of a convolution of stride 1, whose windows run on over the padding between rows.

    A row of windows is then one run of memory, plus a few windows that are not used.
    """

    #: Images of a piece, and rows of windows.
    images: int
    rows: int
    #: Windows of a row with those over the padding, and elements of a padded plane.
    width: int
    plane: int

    @staticmethod
    def of(x: tuple[int, ...], weight: tuple[int, ...], padding: tuple[int, int], dilation: tuple[int, int],
           rows: int) -> WidePieces:
        width = x[3] + 2 * padding[1]
        images, some = windows_at_once(x[1] * weight[2] * weight[3], x[0], rows, width)
        return WidePieces(images, some, width, plane(some, width, weight, dilation))

    def elements(self, channels: int, out: int, weight: tuple[int, ...]) -> int:
        """Elements of padded planes, of their windows laid out, and of a plane an output channel."""
        windows = self.rows * self.width
        return self.images * (channels * (self.plane + weight[2] * weight[3] * windows) + out * windows)


def plane(rows: int, width: int, weight: tuple[int, ...], dilation: tuple[int, int]) -> int:
    """Elements that ``rows`` rows of windows reach over, to the end of the last window."""
    return (rows + dilation[0] * (weight[2] - 1)) * width + dilation[1] * (weight[3] - 1)


def is_pointwise(weight: tuple[int, ...], stride: tuple[int, int], padding: tuple[int, int]) -> bool:
    """One element a window, one window an element: the input is laid out as it lies."""
    return weight[2:] == (1, 1) and stride == (1, 1) and padding == (0, 0)


def planes_at_once(count: int, size: int) -> int:
    """Planes of ``size`` elements that make a piece, at least one."""
    return min(count, max(PIECE // max(size, 1), 1))


def parts_of(size: int, count: int) -> list[tuple[int, int]]:
    """Where each of ``count`` parts of ``size`` elements begins and ends, as adaptive pooling cuts them: they may overlap."""
    return [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]


def samples_at_once(x: tuple[int, ...]) -> int:
    """How many samples of [N, C, ...] make a piece, at least one: temporaries do not grow with the batch."""
    return min(x[0], max(2 * PIECE // max(math.prod(x[1:]), 1), 1))


#: Queries of a block: causal attention skips the keys behind the block.
QUERIES = 64


def scores_at_once(batch: int, heads: int, length: int, keys: int) -> tuple[int, int, int]:
    """(samples, heads, queries) whose scores make a piece: several samples, or some heads of one, at least one."""
    queries = max(min(length, QUERIES), 1)
    matrices = max(2 * PIECE // max(queries * keys, 1), 1)
    return max(min(batch, matrices // max(heads, 1)), 1), max(min(heads, matrices), 1), queries


def words_a_row(keys: int) -> int:
    """Random numbers of a row of scores: whole counters of Philox, which make eight float32 each."""
    return -(-keys // 8) * 8


#: Threads of a block, which the CUDA kernels assume.
BLOCK = 256
#: A number of blocks that keeps any GPU busy.
BUSY = 1024
#: The same for blocks of which one keeps a multiprocessor busy: an H200 has so many.
ALONE = 132
#: The longest line that a block of a GPU sorts in its shared memory, in elements.
SORTED_AT_ONCE = 2048

#: Bytes of a row of a tile of a weight's gradient, and the fewest windows of a share of them.
TILE_ROW, SHARE = 256, 256


def tiles_alone(rows: int, columns: int, itemsize: int) -> tuple[int, int]:
    """The rows of a tile of a weight's gradient, so that few of its elements are outside, and the number of tiles."""
    counts = {height: -(-rows // height) * -(-columns // (TILE_ROW // itemsize)) for height in (64, 32)}
    height = min(counts, key=lambda height: height * counts[height])
    return height, counts[height]


@functools.lru_cache(maxsize=4096)
def shares_alone(most: int, tiles: int) -> int:
    """Into how many shares, up to ``most``, the windows of all tiles are split: the fewest that take the least time.

    Blocks run in rounds, of which the last one takes as long as the others.
    """
    return min(range(1, max(most, 1) + 1), key=lambda shares: -(-shares * tiles // ALONE) / shares)


#: With more pairs of a position and a place than this, a GPU sorts the positions; otherwise each place looks at all of them, in
#: one launch. Both take some 20 microseconds there: the five launches or more of the sort take that long themselves. By whether
#: a place is looked after by a block, of which fewer than :data:`BUSY` take as long as that many, or by a thread.
PAIRS = {True: 1 << 23, False: 1 << 26}
#: Sorted positions that one thread adds up.
RUN = 64
#: Bits by which positions are sorted at once.
DIGIT = 9


@dataclass(frozen=True)
class Groups:
    """How a GPU groups ``count`` positions by place, to write ``row`` elements of ``dtype`` at each."""

    count: int
    row: int
    dtype: np.dtype[Any]

    @property
    def share(self) -> int:
        """Positions of a block while they are sorted: a multiple of its threads, for 128 blocks at most, since each looks at
        what all have counted."""
        return max(round_up(-(-self.count // 128), BLOCK), 1024)

    @property
    def nbytes(self) -> int:
        return sum(round_up(n * kind.itemsize, 16) for n, kind in self.pieces)

    @property
    def pieces(self) -> tuple[tuple[int, np.dtype[Any]], ...]:
        """The workspace: two orders, how many of a block's positions have each digit, and parts of sums in wide numbers."""
        spec, order = TensorSpec.of((), self.dtype), np.dtype(np.uint32)
        wide = spec.widened().dtype if spec.floating else np.dtype(np.int64)
        return ((self.count, order), (self.count, order), (-(-self.count // self.share) << DIGIT, order),
                (2 * -(-self.count // RUN) * self.row, wide))


def groups_of(count: int, length: int, row: int, dtype: np.dtype[Any], blocks: bool = True) -> Groups | None:
    """How ``count`` positions along a dimension of ``length`` are grouped; None if they are few, or too many for 32 bits.

    Otherwise a block looks through the positions for each place, 1024 at once, or a thread, if not ``blocks``.
    """
    # To start a block takes as long as to look at some 1,024 positions.
    pairs = (round_up(count, BLOCK) + 1024) * max(length, BUSY) if blocks else count * length
    return Groups(count, row, dtype) if count and pairs > PAIRS[blocks] and count < 1 << 32 else None
