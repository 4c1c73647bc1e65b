"""Samplers, which set the order of samples. Random orders are drawn on the host, and depend only on the generator's seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from gradcore._random import Generator, default_generator

T = TypeVar("T", covariant=True)


class Sampler(Generic[T]):
    """Base class, an iterable of indices. Subclasses define ``__iter__``, and ``__len__`` if it is known."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__()")


class _Drawn(Sampler[int]):
    """Base of random samplers, which draw from the given generator, or the CPU's."""

    def __init__(self, generator: Generator | None) -> None:
        self.generator = generator

    def _sampler_stream(self) -> np.random.Generator:
        return (default_generator("cpu") if self.generator is None else self.generator).host_stream()


class SequentialSampler(Sampler[int]):
    """The indices 0, 1, 2, ..."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(_Drawn):
    """All indices in random order, repeated up to ``num_samples``; with ``replacement``, independent draws.

    Raises ValueError if there is nothing to draw from.
    """

    def __init__(self, data_source: Any, replacement: bool = False, num_samples: int | None = None,
                 generator: Generator | None = None) -> None:
        super().__init__(generator)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples <= 0):
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        if not self.num_samples:
            raise ValueError("num_samples should be a positive integer value, but got num_samples=0, the length of the data")

    @property
    def num_samples(self) -> int:
        """How many indices are drawn: those asked for, or as many as there are samples."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        count, wanted = len(self.data_source), self.num_samples
        if not count:
            raise ValueError(f"RandomSampler: cannot draw {wanted} samples from no data")
        if self.replacement:
            return iter(self._sampler_stream().integers(0, count, wanted).tolist())
        return self._sampler_orders(count, wanted)

    def _sampler_orders(self, count: int, wanted: int) -> Iterator[int]:
        while wanted > 0:
            order = self._sampler_stream().permutation(count).tolist()
            yield from order[:wanted]
            wanted -= count

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Drawn):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        super().__init__(generator)
        self.indices = indices

    def __iter__(self) -> Iterator[int]:
        return (self.indices[k] for k in self._sampler_stream().permutation(len(self.indices)).tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Drawn):
    """``num_samples`` indices, with probabilities proportional to ``weights``. Raises ValueError for invalid weights."""

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True,
                 generator: Generator | None = None) -> None:
        super().__init__(generator)
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1 or not (self.weights >= 0).all() or not self.weights.sum() > 0:
            raise ValueError(f"weights should be a 1d sequence of numbers above 0, but got shape {list(self.weights.shape)}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        if not replacement and num_samples > np.count_nonzero(self.weights):
            raise ValueError(f"num_samples={num_samples} samples cannot be drawn without replacement, since "
                             f"{np.count_nonzero(self.weights)} of {len(self.weights)} weights are above 0")
        self.num_samples = num_samples
        self.replacement = replacement

    def __iter__(self) -> Iterator[int]:
        shares = self.weights / self.weights.sum()
        return iter(self._sampler_stream().choice(len(shares), self.num_samples, self.replacement, shares).tolist())

    def __len__(self) -> int:
        return self.num_samples


def grouped(items: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Lists of ``size`` items, in order; the last may be shorter, unless ``drop_last`` drops it."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        if len(group) == size or not drop_last:
            yield group


class BatchSampler(Sampler[list[int]]):
    """Lists of ``batch_size`` indices of another sampler; the last may be shorter, unless ``drop_last`` drops it."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return grouped(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
