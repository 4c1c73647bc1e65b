"""``DataLoader``: batches of a data set, optionally read ahead by threads."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any, Generic, NamedTuple

import numpy as np

from gradcore import functional
from gradcore._random import Generator, default_generator
from gradcore.devices.availability import cuda_status
from gradcore.engine.owners import upload
from gradcore.engine.state import scoped
from gradcore.ops import movement
from gradcore.utils.data.collate import default_collate, default_convert, pinned, stacks
from gradcore.utils.data.dataset import IterableDataset, Subset, T, TensorDataset, samples_of
from gradcore.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler, grouped

#: Attributes that other ones were made from.
_FIXED = frozenset(("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"))


class DataLoader(Generic[T]):
    """Iterates over batches of ``dataset``; each iteration is one epoch. ``batch_size=None`` gives single samples,
    their arrays as tensors.

    With ``num_workers``, that many threads read samples ahead, ``prefetch_factor`` batches each. The batches and their order
    are the same as without workers: the random order depends only on the seed of the generator, or of the CPU's. If a data set
    has ``__getitems__(indices)``, it is asked for the samples of a batch at once. ``collate_fn``
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
        if not num_workers and prefetch_factor is not None:
            raise ValueError("prefetch_factor option could only be specified with workers: let num_workers > 0, otherwise set "
                             "prefetch_factor to None")
        if not num_workers and persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")
        self._loader_iterable = isinstance(dataset, IterableDataset)
        if self._loader_iterable and (shuffle or sampler is not None or batch_sampler is not None):
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
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        #: How many iterations have begun.
        self._loader_epochs = 0
        self.sampler: Any = sampler
        if sampler is None and not self._loader_iterable:
            self.sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler: Any = batch_sampler
        if batch_sampler is None and batch_size is not None:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        #: Also called with single samples.
        alone = self.batch_sampler is None
        self.collate_fn = collate_fn if collate_fn is not None else default_convert if alone else default_collate
        self.__initialized = True

    #: By PyTorch's name, as Python spells it outside, loaders that repeat their sampler unset it to put theirs in its place.
    __initialized = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__initialized:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """The number of batches, or of samples without batches. Raises TypeError if the data set has no length."""
        if self._loader_iterable:
            samples = len(self.dataset)
            if self.batch_size is None:
                return samples
            return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
        return len(self._index_sampler)

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        """What is iterated over: indices, or lists of them."""
        return self.batch_sampler if self._auto_collation else self.sampler

    def __iter__(self) -> Iterator[Any]:
        return self._get_iterator()

    def _get_iterator(self) -> Iterator[Any]:
        self._loader_epochs += 1
        if not self.pin_memory:
            return _Epoch(self, self._loader_batches())
        if not cuda_status().available:
            warnings.warn("'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't "
                          "be used.", stacklevel=3)
        return _Epoch(self, map(pinned, self._loader_batches()))

    def _loader_batches(self) -> Iterator[Any]:
        if self._loader_iterable:
            return self._loader_in_turn()
        keys = self._index_sampler
        batched = self._auto_collation and self.collate_fn is default_collate
        behind = _behind(self.dataset)[0]
        if batched and type(behind) is TensorDataset and stacks(behind.tensors):
            return (_rows(self.dataset, indices) for indices in keys)
        read = self.dataset.__getitem__ if self.batch_sampler is None else self._loader_samples
        found = _ReadAhead(read, keys, self) if self.num_workers else map(read, keys)
        return map(self._loader_collated, found)

    def _loader_collated(self, samples: Any) -> Any:
        """A batch by ``collate_fn``, whose tensors are inputs, whoever wrote it."""
        with scoped(role="input"):
            return self.collate_fn(samples)

    def _loader_samples(self, indices: list[int]) -> list[Any]:
        return list(samples_of(self.dataset, indices))

    def _loader_in_turn(self) -> Iterator[Any]:
        yield from map(self._loader_collated, self.dataset if self.batch_size is None else
                       grouped(self.dataset, self.batch_size, self.drop_last))


class _Epoch(Iterator[Any]):
    """An iterator over the batches of one epoch, with a length, for progress bars."""

    def __init__(self, loader: DataLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)


def _behind(dataset: Any, indices: Iterable[int] = ()) -> tuple[Any, Any]:
    """The data set behind a subset, or a subset of a subset, and the indices there of samples with these."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[k] for k in indices]
    return dataset, indices


def _rows(dataset: Any, indices: list[int]) -> list[Any]:
    """The collated rows of a TensorDataset, or of a subset of one, with one copy per tensor."""
    dataset, indices = _behind(dataset, indices)
    with scoped(role="input"):
        where = np.asarray(indices, np.int64)
        along = len(where) and bool((np.diff(where) == 1).all()) and where[0] >= 0 and where[-1] < len(dataset)
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


class WorkerInfo(NamedTuple):
    """What a thread that reads samples may ask of itself. ``seed`` is another one for each thread and epoch."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """The :class:`WorkerInfo` of the present thread, None if it reads samples for no ``DataLoader``.

    None also where an :class:`IterableDataset` is iterated: that is done by the thread that iterates over the loader, once, so
    the data set need not be split.
    """
    return getattr(_worker, "info", None)


class _ReadAhead(Iterator[Any]):
    """``map(read, keys)`` in order, with threads reading some results ahead.

    An error is raised in its turn; the results after it can still be had.
    """

    def __init__(self, read: Callable[[Any], Any], keys: Iterable[Any], loader: DataLoader) -> None:
        self._read = _in_workers(read, loader)
        self._timeout = loader.timeout or None
        self._pool = ThreadPoolExecutor(loader.num_workers, "gradcore-loader")
        self._waiting: deque[Future[Any]] = deque()
        self._rest = iter(keys)
        self._submit(loader.num_workers * (loader.prefetch_factor or 2))

    def _submit(self, count: int) -> None:
        for key in islice(self._rest, count):
            self._waiting.append(self._pool.submit(self._read, key))

    def __next__(self) -> Any:
        if not self._waiting:
            self._close()
            raise StopIteration
        future = self._waiting.popleft()
        try:
            return future.result(self._timeout)
        except TimeoutError:
            if future.done():
                raise
            self._close()
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        finally:
            # An error that it holds has this frame in its traceback.
            del future
            self._submit(1)

    def _close(self) -> None:
        self._rest = iter(())
        while self._waiting:
            self._waiting.popleft().cancel()
        # Do not wait: a thread that hangs in a read must not block a caller that has stopped iterating.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __del__(self) -> None:
        # It may have no pool, if there was none to be had.
        if hasattr(self, "_rest"):
            self._close()


def _in_workers(read: Callable[[Any], Any], loader: DataLoader) -> Callable[[Any], Any]:
    """``read`` for threads, which makes each a worker the first time."""
    numbers = count()
    generator = default_generator("cpu") if loader.generator is None else loader.generator
    # The order of samples does not depend on the number of workers, so nothing is drawn.
    words = [word % 2**64 for word in (*generator.place, loader._loader_epochs)]
    first = int(np.random.SeedSequence(words).generate_state(1)[0])

    def read_in_worker(key: Any) -> Any:
        info = getattr(_worker, "info", None)
        if info is None:
            number = next(numbers)
            info = _worker.info = WorkerInfo(number, loader.num_workers, first + number, loader.dataset)
            _worker.ready = False
        if not _worker.ready:
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(info.id)
            _worker.ready = True
        return read(key)

    return read_in_worker
