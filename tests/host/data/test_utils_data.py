"""Data sets, samplers and batches: PyTorch's results, equal with threads, equal for a seed."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.events import LAUNCH, typed
from gradcore.utils import data
from tests.conftest import raises


class Squares(data.Dataset[Any]):
    """Samples (k, k^2 as an array), which record the threads that read them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.threads.add(threading.current_thread().name)
        if index == 13:
            raise KeyError("sample 13 is broken")
        return index, np.full(2, index * index, np.float32)


def rows(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": 20},
                                     {"batch_size": None}, {"sampler": [3, 1, 4, 1]}, {"batch_sampler": [[1, 2], [3], []]},
                                     {"batch_size": 3, "sampler": range(9, 0, -2)}], ids=str)
def test_batches_in_order_are_pytorchs(torch: Any, options: dict[str, Any]) -> None:
    if "batch_sampler" in options:
        options = {"batch_sampler": [[1, 2], [3]]}
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    found = []
    for library in (gradcore, torch):
        d = library.utils.data
        loader = d.DataLoader(d.TensorDataset(library.tensor(values), library.tensor(np.arange(10))), **options)
        found.append([[t.tolist() for t in batch] for batch in loader])
        assert len(loader) == len(found[-1])
    assert found[0] == found[1]


@pytest.mark.oracle
def test_collating_is_pytorchs(torch: Any) -> None:
    Point = namedtuple("Point", "x y")
    samples = [{"a": k, "b": [0.5 * k, "name"], "c": (np.ones(3) * k, k > 1), "d": Point(np.float32(k), np.int32(k))}
               for k in range(3)]
    ours, theirs = data.default_collate(samples), torch.utils.data.default_collate(samples)

    def shown(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: shown(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return type(x).__name__, [shown(v) for v in x]
        return x if isinstance(x, str) else (str(x.dtype).replace("torch.", ""), x.tolist())

    assert shown(ours) == shown(theirs)
    # A data set of PyTorch's gives its tensors.
    image = torch.ones(2, 3, dtype=torch.float16)
    images, classes = data.default_collate([(image, 1), (image, 2)])
    assert isinstance(images, gradcore.Tensor) and (images.dtype, images.shape) == (gradcore.float16, (2, 2, 3))
    assert classes.tolist() == [1, 2] and isinstance(data.default_convert([image])[0], gradcore.Tensor)
    with raises(TypeError, "batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class 'object'>"):
        data.default_collate([object()])
    with raises(RuntimeError, "should be of equal size, but got [1, 2]"):
        data.default_collate([[1], [1, 2]])


def test_a_shuffled_epoch_depends_on_the_seed_alone() -> None:
    def epochs(seed: int, workers: int = 0, generator: Any = None) -> list[list[list[int]]]:
        gradcore.manual_seed(seed)
        loader = data.DataLoader(Squares(12), 5, shuffle=True, num_workers=workers, generator=generator)
        return [rows(loader), rows(loader)]

    first = epochs(1)
    assert sorted(k for batch in first[0] for k in batch) == list(range(12)) and first[0] != first[1]
    gradcore.randn(100)
    assert epochs(1) == first and epochs(1, 3) == first and epochs(2) != first
    own = gradcore.Generator().manual_seed(5)
    third = epochs(1, generator=own)
    assert epochs(2, generator=own.manual_seed(5)) == third != first


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_give_the_same_batches_in_order(workers: int) -> None:
    plain, threaded = Squares(13), Squares(13)
    begun: list[int] = []
    loader = data.DataLoader(threaded, 3, num_workers=workers, prefetch_factor=2, worker_init_fn=begun.append)
    assert [[t.tolist() for t in b] for b in loader] == [[t.tolist() for t in b] for b in data.DataLoader(plain, 3)]
    assert threaded.threads and all(name.startswith("gradcore-loader") for name in threaded.threads)
    assert plain.threads == {threading.current_thread().name} and begun == list(range(len(begun))) and begun


def test_an_error_in_a_worker_is_raised_and_the_rest_is_let_go() -> None:
    loader = data.DataLoader(Squares(30), 2, num_workers=2)
    with raises(KeyError, "sample 13 is broken"):
        rows(loader)
    assert [len(iter(data.DataLoader(Squares(12), 5, num_workers=n, drop_last=n == 1))) for n in (0, 1)] == [3, 2]
    ahead = iter(data.DataLoader(Squares(12), 2, num_workers=2))
    next(ahead)
    del ahead
    release = threading.Event()

    class Slow(Squares):
        def __getitem__(self, index: int) -> Any:
            release.wait(20)
            return super().__getitem__(index)

    with raises(RuntimeError, "DataLoader timed out after 0.05 seconds"):
        rows(data.DataLoader(Slow(3), num_workers=1, timeout=0.05))
    release.set()


def test_batches_are_input_and_allocated_by_the_thread_that_iterates() -> None:
    ledger = gradcore.device("cpu").ledger
    x = gradcore.ones(10, 4)
    for loader in (data.DataLoader(data.TensorDataset(x), 4), data.DataLoader(data.TensorDataset(x), 4, shuffle=True),
                   data.DataLoader(data.TensorDataset(x), 4, num_workers=2), data.DataLoader(Squares(8), 4, num_workers=2)):
        before = set(ledger.live)
        batch = next(iter(loader))
        assert {b.tag.role for s, b in ledger.live.items() if s not in before} <= {"input", "temporary"}
        assert batch[-1].storage.block.tag.role == "input" and batch[-1].storage is not x.storage
        del batch
        assert set(ledger.live) == before


def test_subsets_of_tensors_are_read_by_whole_batches_to_the_same_rows() -> None:
    values = np.arange(24).reshape(12, 2)
    whole = data.TensorDataset(gradcore.tensor(values), gradcore.tensor(np.arange(12)))
    part = data.Subset(data.Subset(whole, [7, 3, 9, 1, 5, 11]), [5, 0, 2, 3])
    loader = data.DataLoader(part, 3)
    ledger = gradcore.device("cpu").ledger
    log = ledger.begin_log()
    x, y = next(iter(loader))
    ledger.end_log()
    assert [typed(r).invocation.op for r in log if r[0] == LAUNCH] == ["take", "take"]
    assert y.tolist() == [11, 7, 9] and x.tolist() == values[[11, 7, 9]].tolist()
    assert [[t.tolist() for t in b] for b in loader] == [
        [t.tolist() for t in b] for b in data.DataLoader(part, 3, collate_fn=lambda batch: data.default_collate(batch))]


@pytest.mark.oracle
def test_a_subset_is_asked_for_several_samples_by_a_list(torch: Any) -> None:
    for library in (gradcore, torch):
        d = library.utils.data
        part = d.Subset(d.Subset(d.TensorDataset(library.arange(9)), [1, 8, 3]), [2, 0])
        assert part[[0, 1]][0].tolist() == [3, 1] and part[1][0].item() == 1


def test_sets_and_splits() -> None:
    a, b = Squares(5), Squares(3)
    both = a + b
    assert len(both) == 8 and [both[k][0] for k in (0, 4, 5, 7, -1)] == [0, 4, 0, 2, 2]
    assert [s[0] for s in (data.Subset(a, [3, 1])[0], data.Subset(a, [3, 1])[1])] == [3, 1]
    gradcore.manual_seed(0)
    parts = data.random_split(Squares(10), [0.65, 0.35])
    assert [len(p) for p in parts] == [7, 3] and sorted(i for p in parts for i in p.indices) == list(range(10))
    gradcore.manual_seed(0)
    assert [p.indices for p in data.random_split(Squares(10), [7, 3])] == [p.indices for p in parts]
    with raises(IndexError, "index 8 is out of range of 8 samples"):
        both[8]
    with raises(ValueError, "They are [4, 4] and 10"):
        data.random_split(Squares(10), [4, 4])
    for other, kind in ([1.0, 2.0], "list"), (np.ones(2), "numpy.ndarray"), (None, "NoneType"):
        with raises(TypeError, f"expects tensors, but got {kind}: convert it with gradcore.tensor(...)"):
            data.TensorDataset(gradcore.ones(2), other)  # type: ignore[arg-type]
    with raises(ValueError, "Size mismatch between tensors: expected one length, but got [2, 3]"):
        data.TensorDataset(gradcore.ones(2), gradcore.ones(3))
    with raises(ValueError, "datasets should not be an empty iterable"):
        data.ConcatDataset([])


@pytest.mark.oracle
@pytest.mark.parametrize("threads", [0, 2])
def test_single_samples_are_pytorchs(torch: Any, threads: int) -> None:
    Pair = namedtuple("Pair", "x y")
    sample = Pair({"array": np.arange(3), "number": np.float32(2), "name": "a", "own": 1.5, "names": np.array(["a"])},
                  (1, [np.ones((), bool), None, b"b"]))

    def shown(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: shown(v) for k, v in x.items()}
        if isinstance(x, (tuple, list)):
            return type(x).__name__, [shown(v) for v in x]
        return (str(x.dtype).replace("torch.", ""), x.tolist()) if hasattr(x, "dtype") and not isinstance(x, np.generic) else x

    ours, = data.DataLoader([sample], batch_size=None, num_workers=threads)
    theirs, = torch.utils.data.DataLoader([sample], batch_size=None)
    assert shown(ours) == shown(theirs) and isinstance(ours.x["array"], gradcore.Tensor)


@pytest.mark.oracle
def test_sets_beside_and_behind_each_other(torch: Any) -> None:
    class Counting(data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            assert data.get_worker_info() is None
            return iter(range(3))

    assert list(data.DataLoader(data.ChainDataset([Counting(), [7, 8]]), None, in_order=False)) == [0, 1, 2, 7, 8]
    assert len(data.ChainDataset([[1], [2, 3]])) == 3
    shown = []
    for library in (gradcore, torch):
        stack = library.utils.data.StackDataset
        pair, named = stack([1, 2, 3], library.tensor([4, 5, 6])), stack(a=[1, 2], b=["x", "y"])
        texts = [len(pair), [(a, b.item()) for a, b in (pair[k] for k in range(3))], named[1]]
        for call in (lambda: stack([1], [1, 2]), lambda: stack([1], a=[1]), stack):  # noqa: B023
            with pytest.raises(ValueError) as caught:
                call()
            texts.append(str(caught.value).partition(":")[0])
        shown.append(texts)
    assert shown[0] == shown[1]


def test_samplers() -> None:
    gradcore.manual_seed(0)
    drawn = list(data.RandomSampler(range(5), replacement=True, num_samples=4000))
    assert len(drawn) == 4000 and (np.bincount(drawn) > 700).all()
    twice = list(data.RandomSampler(range(5), num_samples=8))
    assert sorted(twice[:5]) == list(range(5)) and len(twice) == 8
    assert sorted(data.SubsetRandomSampler([7, 8, 9])) == [7, 8, 9]
    heavy = np.bincount(list(data.WeightedRandomSampler([1, 0, 3], 4000)), minlength=3)
    assert heavy[1] == 0 and 2.5 < heavy[2] / heavy[0] < 3.5
    assert sorted(data.WeightedRandomSampler([1.0, 2, 3], 3, replacement=False)) == [0, 1, 2]
    batches = data.BatchSampler(data.SequentialSampler(range(7)), 3, False)
    assert list(batches) == [[0, 1, 2], [3, 4, 5], [6]] and len(batches) == 3


def test_samples_that_come_in_turn() -> None:
    class Stream(data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

    assert [b.tolist() for b in data.DataLoader(Stream(), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [b.tolist() for b in data.DataLoader(Stream(), 3, drop_last=True)] == [[0, 1, 2], [3, 4, 5]]
    assert list(data.DataLoader(Stream(), batch_size=None)) == list(range(7))
    assert list(data.DataLoader(Stream(), 3, collate_fn=sum)) == [3, 12, 6]
    with raises(TypeError, "has no len()"):
        len(data.DataLoader(Stream(), 3))


def test_options_that_exclude_each_other_are_told() -> None:
    d = Squares(3)

    class Stream(data.IterableDataset[int]):
        pass

    for make, text in ((lambda: data.DataLoader(d, 0), "batch_size should be a positive integer value, but got batch_size=0"),
                       (lambda: data.DataLoader(d, shuffle=True, sampler=[1]), "mutually exclusive with shuffle"),
                       (lambda: data.DataLoader(d, 2, batch_sampler=[[1]]), "mutually exclusive with batch_size"),
                       (lambda: data.DataLoader(d, None, drop_last=True), "mutually exclusive with drop_last"),
                       (lambda: data.DataLoader(d, num_workers=-1), "must not be negative, but got -1"),
                       (lambda: data.DataLoader(d, prefetch_factor=0), "prefetch_factor must be at least 1, but got 0"),
                       (lambda: data.DataLoader(d, num_workers=1, timeout=-2), "must not be negative, but got 1 and -2"),
                       *((lambda named=named: data.DataLoader(Stream(), **named), "expected unspecified shuffle")
                         for named in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]})),
                       (lambda: data.BatchSampler(d, True, False), "positive integer value, but got batch_size=True"),
                       (lambda: data.RandomSampler(d, num_samples=2.5), "positive integer value, but got num_samples=2.5"),
                       (lambda: data.RandomSampler(d, num_samples=0), "positive integer value, but got num_samples=0"),
                       (lambda: data.WeightedRandomSampler([-1.0, 2], 3), "numbers above 0")):
        with raises(ValueError, text):
            make()
    with raises(NotImplementedError, "Stream has no __iter__()"):
        list(data.DataLoader(Stream(), 3))


def stacked(library: Any) -> list[Any]:
    data = library.utils.data

    class Many(data.Dataset):  # type: ignore[misc,name-defined]
        def __init__(self, lost: int = 0) -> None:
            self.lost = lost

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return 10 * index

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [100 * k for k in indices][self.lost:]

    both = data.StackDataset(Many(), [5, 6, 7, 8])
    named = data.StackDataset(a=Many(), b=[5, 6, 7, 8])
    with pytest.raises(ValueError, match=r"output size mismatch\. Expected 2, got 1"):
        data.StackDataset(Many(1)).__getitems__([0, 1])
    batches = [[x.tolist() for x in batch] for batch in data.DataLoader(both, batch_size=3)]
    return [both.__getitems__([0, 2]), named.__getitems__([1]), named[1], batches]


@pytest.mark.oracle
def test_stacked_data_sets_give_samples_at_once_as_pytorchs(torch: Any) -> None:
    assert stacked(gradcore) == stacked(torch)


def parts(library: Any) -> list[Any]:
    data = library.utils.data

    class Tenfold(data.Subset[int]):  # type: ignore[misc,name-defined]
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * k for k in super().__getitems__(indices)]

    inner = data.Subset(range(10, 20), [3, 5, 7])
    return [inner.__getitems__([2, 0]), Tenfold(inner, [2, 1]).__getitems__([1, 0]), list(Tenfold(inner, [2, 1]))]


@pytest.mark.oracle
def test_subsets_give_samples_at_once_as_pytorchs(torch: Any) -> None:
    assert parts(gradcore) == parts(torch)


def test_a_subset_that_overrides_getitem_is_asked_for_each_sample() -> None:
    class Negated(data.Subset[int]):
        def __getitem__(self, index: int) -> int:
            return -int(super().__getitem__(index))

    assert Negated([1, 2, 3], [2, 0]).__getitems__([0, 1]) == [-3, -1]


@pytest.mark.parametrize("name", ["Dataset", "IterableDataset", "DataLoader", "Sampler", "Subset", "ConcatDataset",
                                  "ChainDataset", "StackDataset"])
def test_classes_of_samples_are_generic_as_in_pytorch(name: str) -> None:
    """They stand so in annotations, which Python evaluates, and are derived from so."""
    kind = getattr(data, name)

    class Own(kind[gradcore.Tensor]):  # type: ignore[misc]
        pass

    assert issubclass(Own, kind)
