"""Data sets: base classes and combinations."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from gradcore._random import Generator, default_generator
from gradcore._tensor import Tensor
from gradcore.blame import type_of
from gradcore.units import count_of

T = TypeVar("T", covariant=True)


def samples_of(dataset: Any, indices: Sequence[int]) -> Sequence[Any]:
    """The samples at several indices, which a data set that defines ``__getitems__`` gives at once."""
    several = getattr(dataset, "__getitems__", None)
    found: Sequence[Any] = several(indices) if callable(several) else [dataset[k] for k in indices]
    return found


class Dataset(Generic[T]):
    """Samples by index. Subclasses define ``__getitem__(index)`` and ``__len__()``."""

    #: What methods of the library read, which a compiled function that uses one is guarded by; those of the user name it.
    _compile_decides: frozenset[str] = frozenset()

    def __getitem__(self, index: int) -> T:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__(index)")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """Samples in sequence, without indices. Subclasses define ``__iter__()``."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__()")

    def __add__(self, other: Dataset[Any]) -> ChainDataset[Any]:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Tuples of the rows of tensors of equal length. Raises ValueError for different lengths, TypeError for no tensors."""

    _compile_decides = frozenset(("tensors",))

    def __init__(self, *tensors: Tensor) -> None:
        for other in (t for t in tensors if not isinstance(t, Tensor)):
            raise TypeError(f"TensorDataset expects tensors, but got {type_of(other)}: convert it with gradcore.tensor(...)")
        if len({t.size(0) for t in tensors}) > 1:
            raise ValueError(f"Size mismatch between tensors: expected one length, but got {[t.size(0) for t in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].size(0))


class Subset(Dataset[T]):
    """The samples at ``indices`` of another data set."""

    _compile_decides = frozenset(("dataset", "indices"))

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        """The sample at an index; for a list of them, what the data set gives for a list, as in PyTorch."""
        return self.dataset[[self.indices[k] for k in index] if isinstance(index, list) else self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """The samples at several indices: of a subclass that overrides ``__getitem__``, its own."""
        if type(self).__getitem__ is not Subset.__getitem__:
            return [self[k] for k in indices]
        return samples_of(self.dataset, [self.indices[k] for k in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T]):
    """Data sets concatenated. Raises ValueError for none, TypeError for an :class:`IterableDataset`."""

    _compile_decides = frozenset(("datasets", "cumulative_sizes"))

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        for d in self.datasets:
            if isinstance(d, IterableDataset):
                raise TypeError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range of {count_of(count, 'sample')}")
        index %= count
        k = bisect_right(self.cumulative_sizes, index)
        return self.datasets[k][index - (self.cumulative_sizes[k - 1] if k else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[T]):
    """Iterable data sets concatenated."""

    _compile_decides = frozenset(("datasets",))

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        return sum(map(len, self.datasets))


class StackDataset(Dataset[T]):
    """Tuples of the samples of several data sets, or dicts if the sets are given by name.

    Raises ValueError for none, for both kinds of arguments, and for different lengths.
    """

    _compile_decides = frozenset(("datasets", "_length"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("Supported either ``tuple``- (via ``args``) or``dict``- (via ``kwargs``) like input/output, but "
                             "both types are given." if args else "At least one dataset should be passed")
        self.datasets: Any = args or kwargs
        lengths = [len(d) for d in args or kwargs.values()]
        if len(set(lengths)) > 1:
            raise ValueError(f"Size mismatch between datasets: {lengths}")
        self._length = lengths[0]

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples at several indices."""
        given = self.datasets.values() if isinstance(self.datasets, dict) else self.datasets
        columns = [samples_of(d, indices) for d in given]
        for column, d in zip(columns, given, strict=True):
            if len(column) != len(indices):
                raise ValueError(f"Nested dataset's output size mismatch. Expected {len(indices)}, got {len(column)} from "
                                 f"{type(d).__name__}.__getitems__")
        rows = zip(*columns, strict=True)
        return [dict(zip(self.datasets, row, strict=True)) for row in rows] if isinstance(self.datasets, dict) else list(rows)

    def __len__(self) -> int:
        return self._length


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None) -> list[Subset[Any]]:
    """Random disjoint subsets of given sizes, or fractions that add up to 1; by default with the CPU's generator.

    Raises ValueError for sizes that do not add up to that of ``dataset``.
    """
    count = len(dataset)
    shares = list(lengths)
    if shares and math.isclose(sum(shares), 1):
        if any(not 0 <= share <= 1 for share in shares):
            raise ValueError(f"Fractions must be between 0 and 1, but got {shares}")
        sizes = [math.floor(count * share) for share in shares]
        for k in range(count - sum(sizes)):
            sizes[k % len(sizes)] += 1
        for k, size in enumerate(sizes):
            if not size:
                warnings.warn(f"Length of split at index {k} is 0. This might result in an empty dataset.", stacklevel=2)
    else:
        sizes = [int(n) for n in shares]
    if sum(sizes) != count:
        raise ValueError(f"Sum of input lengths does not equal the length of the input dataset! They are {sizes} and {count}")
    order = (default_generator("cpu") if generator is None else generator).permutation(count).tolist()
    ends = np.cumsum([0, *sizes]).tolist()
    return [Subset(dataset, order[start:end]) for start, end in pairwise(ends)]
