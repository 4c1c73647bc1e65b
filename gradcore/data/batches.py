"""Mini-batches of arrays in a shuffled order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Batches:
    """Iterates over tuples of ``batch_size`` rows of each array. Each iteration is one epoch, in an order of its own.

    The order depends only on the seed and the number of the epoch. Raises ValueError for arrays of different lengths
    and for a batch size below 1.
    """

    def __init__(self, *arrays: Array, batch_size: int, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False) -> None:
        if not arrays or len({len(a) for a in arrays}) > 1:
            raise ValueError(f"Size mismatch between tensors: expected arrays of one length, but got "
                             f"{[len(a) for a in arrays]}")
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        self.arrays = arrays
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        #: The number of iterations that have begun.
        self.epoch = 0

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        whole, rest = divmod(len(self.arrays[0]), self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self._rows(epoch)

    def _rows(self, epoch: int) -> Iterator[tuple[Array, ...]]:
        count, size = len(self.arrays[0]), self.batch_size
        order = np.arange(count)
        if self.shuffle:
            key = np.array([self.seed % 2**64, epoch], np.uint64)
            order = np.random.Generator(np.random.Philox(key=key)).permutation(count)
        for k in range(len(self)):
            rows = order[k * size:(k + 1) * size]
            yield tuple(a[rows] for a in self.arrays)
