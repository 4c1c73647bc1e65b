"""``DataLoader``: batches of a data set, optionally read ahead by threads."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._random import Generator
from gradcore.devices.availability import cuda_status
from gradcore.engine.owners import upload
from gradcore.engine.state import scoped
from gradcore.ops import movement
from gradcore.utils.data.collate import default_collate, default_convert, pinned
from gradcore.utils.data.dataset import IterableDataset, Subset, TensorDataset
from gradcore.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler


class DataLoader:
    """Iterates over batches of ``dataset``; each iteration is one epoch. ``batch_size=None`` gives single samples,
    their arrays as tensors.

    With ``num_workers``, that many threads read samples ahead, ``prefetch_factor`` batches each. The batches and their order
    are the same as without workers: the random order depends only on the seed of the generator, or of the CPU's. ``collate_fn``
    runs in the iterating thread, so that its allocations are attributed to where the batch is used. With ``pin_memory``,
    tensors are in pinned memory, from which ``to("cuda", non_blocking=True)`` is asynchronous; without a GPU, it warns, and
    only the records are those of pinned memory. ``persistent_workers``, ``in_order`` and ``multiprocessing_context`` have no
    effect.

    Raises ValueError for options that exclude each other.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
                 sampler: Iterable[int] | None = None, batch_sampler: Iterable[list[int]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[list[Any]], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
                 timeout: float = 0, worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
                 generator: Generator | None = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True) -> None:
        if num_workers < 0 or timeout < 0:
            raise ValueError(f"num_workers and timeout must not be negative, but got {num_workers} and {timeout}")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(f"prefetch_factor must be at least 1, but got {prefetch_factor}")
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader with IterableDataset: expected unspecified shuffle, sampler and batch_sampler options")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        self.dataset = dataset
        self.batch_size = None if batch_sampler is not None else batch_size
        self.num_workers = num_workers
        self.timeout = timeout
        self.drop_last = drop_last
        self.generator = generator
        self.worker_init_fn = worker_init_fn
        self.pin_memory = pin_memory
        self.prefetch_factor = prefetch_factor or 2
        self.sampler: Any = sampler
        if sampler is None and not self._iterable:
            self.sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler: Any = batch_sampler
        if batch_sampler is None and batch_size is not None:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        #: Also called with single samples.
        alone = self.batch_sampler is None
        self.collate_fn = collate_fn if collate_fn is not None else default_convert if alone else default_collate

    def __len__(self) -> int:
        """The number of batches, or of samples without batches. Raises TypeError if the data set has no length."""
        if self._iterable:
            samples = len(self.dataset)
            if self.batch_size is None:
                return samples
            return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        if not self.pin_memory:
            return _Epoch(self, self._batches())
        if not cuda_status().available:
            warnings.warn("'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't "
                          "be used.", stacklevel=2)
        return _Epoch(self, map(pinned, self._batches()))

    def _batches(self) -> Iterator[Any]:
        if self._iterable:
            return self._in_turn()
        keys = self.sampler if self.batch_sampler is None else self.batch_sampler
        batched = self.batch_sampler is not None and self.collate_fn is default_collate
        if batched and type(_whole(self.dataset)) is TensorDataset:
            return (_rows(self.dataset, indices) for indices in keys)
        read = self.dataset.__getitem__ if self.batch_sampler is None else self._samples
        found = _read_ahead(read, keys, self) if self.num_workers else map(read, keys)
        return map(self._collated, found)

    def _collated(self, samples: Any) -> Any:
        """A batch by ``collate_fn``, whose tensors are inputs, whoever wrote it."""
        with scoped(role="input"):
            return self.collate_fn(samples)

    def _samples(self, indices: list[int]) -> list[Any]:
        return [self.dataset[k] for k in indices]

    def _in_turn(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        if self.batch_size is None:
            yield from map(self._collated, samples)
            return
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self._collated(batch)


def get_worker_info() -> None:
    """None, as in PyTorch's main process: workers do not iterate an :class:`IterableDataset`, so it need not be split."""


class _Epoch(Iterator[Any]):
    """An iterator over the batches of one epoch, with a length, for progress bars."""

    def __init__(self, loader: DataLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)


def _whole(dataset: Any) -> Any:
    """The data set behind a subset, or a subset of a subset."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def _rows(dataset: Any, indices: list[int]) -> list[Any]:
    """The collated rows of a TensorDataset, or of a subset of one, with one copy per tensor."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[k] for k in indices]
    with scoped(role="input"):
        where = np.asarray(indices, np.int64)
        along = len(where) and bool((np.diff(where) == 1).all()) and where[0] >= 0
        places: dict[Any, Any] = {}
        rows = []
        for t in dataset.tensors:
            device = t.storage.device
            if along:
                rows.append(functional.clone(functional.narrow(t, 0, int(where[0]), len(where))))
            else:
                if device not in places:
                    places[device] = upload(where, device, op="batch", role="temporary")
                rows.append(movement.take(t, places[device], dim=0))
        return rows


def _read_ahead(read: Callable[[Any], Any], keys: Iterable[Any], loader: DataLoader) -> Iterator[Any]:
    """``map(read, keys)`` in order, with threads reading some results ahead."""
    numbers = count()

    def begin() -> None:
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(next(numbers))

    pool = ThreadPoolExecutor(loader.num_workers, "gradcore-loader", begin)
    waiting: deque[Future[Any]] = deque()
    rest = iter(keys)
    try:
        for key in islice(rest, loader.num_workers * loader.prefetch_factor):
            waiting.append(pool.submit(read, key))
        while waiting:
            try:
                result = waiting.popleft().result(loader.timeout or None)
            except TimeoutError:
                raise RuntimeError(f"DataLoader timed out after {loader.timeout} seconds") from None
            for key in islice(rest, 1):
                waiting.append(pool.submit(read, key))
            yield result
    finally:
        for future in waiting:
            future.cancel()
        # Do not wait: a thread that hangs in a read must not block a caller that has stopped iterating.
        pool.shutdown(wait=False, cancel_futures=True)
