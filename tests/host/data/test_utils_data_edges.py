"""Loading data: workers that know of themselves, data sets of whole batches, batches of any type, all as in PyTorch."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.utils import data
from tests.conftest import raises


class Doubled:
    """Samples that are twice their index, and 13 is broken."""

    def __init__(self, count: int = 30) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise KeyError("sample 13 is broken")
        return index * 2


def test_a_worker_knows_which_one_it_is() -> None:
    """Its seed is another one in each epoch, and the same in another run."""
    def seeds(generator: Any = None) -> list[Any]:
        seen: list[Any] = []

        class Asking(Doubled):
            def __getitem__(self, index: int) -> Any:
                info = data.get_worker_info()
                assert info is not None and info.dataset is self and info.num_workers == 2 and info.id in begun
                return info.seed - info.id

        begun: list[int] = []
        loader = data.DataLoader(Asking(8), 2, num_workers=2, worker_init_fn=begun.append, generator=generator)
        for _ in range(3):
            epoch = {int(seed) for batch in loader for seed in batch}
            assert len(epoch) == 1
            seen += epoch
        return seen

    gradcore.manual_seed(0)
    first = seeds()
    assert len(set(first)) == 3 and seeds() == first
    assert set(first).isdisjoint(seeds(gradcore.Generator().manual_seed(-1)))
    assert data.get_worker_info() is None


def test_an_error_at_the_begin_of_a_worker_is_raised_as_it_is() -> None:
    def begin(number: int) -> None:
        raise ValueError(f"worker {number} has no camera")

    with raises(ValueError, "has no camera"):
        list(data.DataLoader(Doubled(), num_workers=2, worker_init_fn=begin))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_after_a_broken_one_can_still_be_had(workers: int) -> None:
    batches = iter(data.DataLoader(Doubled(), 5, num_workers=workers))
    found: list[Any] = []
    while True:
        try:
            found.append(next(batches).tolist())
        except KeyError:
            found.append("broken")
        except StopIteration:
            break
    assert found == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18], "broken", *([2 * k for k in range(n, n + 5)] for n in (15, 20, 25))]


def test_a_timeout_of_a_data_set_is_its_own() -> None:
    class Late(Doubled):
        def __getitem__(self, index: int) -> Any:
            raise TimeoutError("the server does not answer")

    with raises(TimeoutError, "the server does not answer"):
        list(data.DataLoader(Late(), num_workers=1, timeout=20))


@pytest.mark.oracle
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_may_read_whole_batches(torch: Any, workers: int) -> None:
    class Whole(Doubled):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [k * 3 for k in indices]

    found = []
    for library in (gradcore, torch):
        d = library.utils.data
        parts = [Whole(5), d.Subset(Whole(9), [1, 8, 13]), d.Subset(d.Subset(Whole(9), [1, 8, 13]), [2, 0])]
        threads = workers if library is gradcore else 0
        found.append([[b.tolist() for b in d.DataLoader(p, 2, num_workers=threads)] for p in parts])
    assert found[0] == found[1]


class Lines(list[Any]):
    name = "lines"


SAMPLES: list[Any] = [OrderedDict(a=1), UserDict(a=[1, "x"]), defaultdict(int, a=1), Lines([1, 2.5]), range(3), np.str_("a"),
                      (1, 2.5), [1, True], deque([1, 2.5])]


@pytest.mark.oracle
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_batches_have_the_type_of_their_samples(torch: Any, sample: Any) -> None:
    def shown(x: Any) -> Any:
        if isinstance(x, (dict, UserDict)):
            return type(x).__name__, {k: shown(v) for k, v in x.items()}
        if isinstance(x, (list, tuple, deque)):
            return type(x).__name__, [shown(v) for v in x]
        return (str(x.dtype).replace("torch.", ""), x.tolist()) if hasattr(x, "numpy") else x

    found = []
    for library in (gradcore, torch):
        d = library.utils.data
        found.append([shown(f(copy.copy(sample))) for f in (lambda s: d.default_collate([s, s]), d.default_convert)])  # noqa: B023
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("sample", [*SAMPLES[:4], (1, 2.5)], ids=lambda s: type(s).__name__)
def test_pinned_batches_too(sample: Any) -> None:
    plain, = data.DataLoader([sample] * 2, 2)
    pinned, = data.DataLoader([sample] * 2, 2, pin_memory=True)
    assert type(pinned) is type(plain) and getattr(pinned, "name", None) == getattr(plain, "name", None)
    assert len(pinned) == len(plain)


@pytest.mark.oracle
@pytest.mark.parametrize("batch", [[1, 2.5], [2.5, 1], [True, 2], [False, True], [np.float32(1), np.float32(2)]], ids=str)
def test_numbers_have_pytorchs_dtype(torch: Any, batch: list[Any]) -> None:
    ours, theirs = data.default_collate(batch), torch.utils.data.default_collate(batch)
    assert str(theirs.dtype) == f"torch.{ours.dtype}" and ours.tolist() == theirs.tolist()


def test_data_sets_that_come_in_turn_are_chained_by_a_plus() -> None:
    class Stream(data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert [b.tolist() for b in data.DataLoader(Stream() + Stream(), 4)] == [[0, 1, 2, 0], [1, 2]]


@pytest.mark.parametrize(("size", "drop_last"), [(None, False), (2, False), (2, True), (7, True), (9, True)])
def test_data_that_come_in_turn_may_say_how_many(size: int | None, drop_last: bool) -> None:
    class Counted(data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

        def __len__(self) -> int:
            return 7

    loader = data.DataLoader(Counted(), size, drop_last=drop_last)
    assert len(loader) == len(iter(loader)) == len(list(loader))  # type: ignore[arg-type]
    with raises(TypeError, "ConcatDataset does not support IterableDataset"):
        data.ConcatDataset([Counted()])


def test_a_mapping_that_cannot_be_changed_is_made_anew() -> None:
    made = data.default_collate([MappingProxyType({"a": k}) for k in range(2)])
    assert type(made) is MappingProxyType and made["a"].tolist() == [0, 1]


def test_a_sampler_may_say_what_it_gives() -> None:
    class Backwards(data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter((2, 1))

    assert [b.tolist() for b in data.DataLoader(Doubled(3), 2, sampler=Backwards())] == [[4, 2]]


@pytest.mark.parametrize("order", [[9, 10], [10, 0]])
def test_a_row_out_of_range_is_an_index_error(order: list[int]) -> None:
    with raises(IndexError, "10"):
        list(data.DataLoader(data.TensorDataset(gradcore.arange(10)), 2, sampler=order))


def test_an_empty_part_is_told() -> None:
    with pytest.warns(UserWarning, match="Length of split at index 1 is 0. This might result in an empty dataset."):
        assert [len(p) for p in data.random_split([7], [0.5, 0.5])] == [1, 0]
    with raises(ValueError, "Fractions must be between 0 and 1, but got [1.5, -0.5]"):
        data.random_split([7], [1.5, -0.5])


def test_options_are_what_they_were_made_with() -> None:
    loader = data.DataLoader(Doubled(), 2, num_workers=1, persistent_workers=True)
    assert loader.persistent_workers and loader.prefetch_factor == 2 and loader.in_order
    assert data.DataLoader(Doubled()).prefetch_factor is None
    with raises(ValueError, "batch_size attribute should not be set after DataLoader is initialized"):
        loader.batch_size = 3
    with raises(ValueError, "persistent_workers option needs num_workers > 0"):
        data.DataLoader(Doubled(), persistent_workers=True)
    with raises(ValueError, "prefetch_factor option could only be specified with workers"):
        data.DataLoader(Doubled(), prefetch_factor=2)


def test_samplers_refuse_what_they_could_not_do() -> None:
    for count in (0, True):
        with raises(ValueError, f"num_samples should be a positive integer value, but got num_samples={count}"):
            data.WeightedRandomSampler([1.0], count)
    for call in (lambda: iter(data.Sampler()), lambda: data.Dataset()[0]):
        with raises(NotImplementedError, " has no __"):
            call()
    with raises(ValueError, "drop_last should be a boolean value, but got drop_last=3"):
        data.BatchSampler(range(4), 2, 3)  # type: ignore[arg-type]
    with raises(TypeError, "replacement should be a boolean value, but got replacement=5"):
        data.RandomSampler(Doubled(), 5)  # type: ignore[arg-type]
    with raises(ValueError, "replacement should be a boolean value, but got replacement=5"):
        data.WeightedRandomSampler([1.0, 2.0], 2, 5)  # type: ignore[arg-type]
    with raises(ValueError, "num_samples=2 samples cannot be drawn without replacement, since 1 of 2 weights are above 0"):
        data.WeightedRandomSampler([1.0, 0.0], 2, replacement=False)


def test_samplers_say_how_many_they_give() -> None:
    for sampler, count in ((data.RandomSampler(range(5)), 5), (data.RandomSampler(range(5), num_samples=8), 8),
                           (data.SubsetRandomSampler([4, 2]), 2), (data.WeightedRandomSampler([1.0, 2.0], 7), 7),
                           (data.BatchSampler(range(5), 2, False), 3), (data.BatchSampler(range(5), 2, True), 2)):
        assert len(sampler) == len(list(sampler)) == count
    with raises(ValueError, "num_samples should be a positive integer value, but got num_samples=0"):
        data.RandomSampler(range(5), num_samples=0)


def test_independent_draws_are_no_permutations() -> None:
    drawn = list(data.RandomSampler(range(4), replacement=True, num_samples=400))
    assert set(drawn) == {0, 1, 2, 3} and any(len(set(drawn[k:k + 4])) < 4 for k in range(0, 400, 4))


def test_samples_are_tuples_of_rows_and_sets_are_given_in_any_iterable() -> None:
    assert type(data.TensorDataset(gradcore.ones(2))[0]) is tuple
    both = data.ConcatDataset(map(range, (2, 3)))
    assert [both[k] for k in range(len(both))] == [0, 1, 0, 1, 2]


def test_batches_are_inputs_whoever_makes_them() -> None:
    for collate_fn in (None, lambda samples: gradcore.ones(len(samples))):
        batch, = data.DataLoader([1.0, 2.0], 2, collate_fn=collate_fn)
        assert batch.storage.block.tag.role == "input"
    assert data.default_collate([gradcore.ones(2)] * 2).storage.block.tag.role == "input"


def test_workers_read_no_further_ahead_than_they_are_told() -> None:
    begun = threading.Semaphore(0)

    class Counted(Doubled):
        def __getitem__(self, index: int) -> Any:
            begun.release()
            return index

    batches = iter(data.DataLoader(Counted(), None, num_workers=1, prefetch_factor=5))
    assert all(begun.acquire(timeout=30) for _ in range(5)) and not begun.acquire(timeout=0.05)
    next(batches)
    assert begun.acquire(timeout=30) and not begun.acquire(timeout=0.05)


def test_nothing_is_not_drawn_from_at_random() -> None:
    for make in (lambda: data.RandomSampler([]), lambda: data.RandomSampler([], replacement=True),
                 lambda: data.DataLoader([], 2, shuffle=True)):
        with raises(ValueError, "num_samples should be a positive integer value, but got num_samples=0"):
            make()
    # A number of samples that is given would be drawn forever.
    for replacement in (False, True):
        with raises(ValueError, "RandomSampler: cannot draw 3 samples from no data"):
            next(iter(data.RandomSampler([], replacement, 3)))
    assert list(data.DataLoader([], 2)) == []


@pytest.mark.parametrize(("batch", "text"), [
    ("[t.ones(2), 1]", "expected Tensor at entry 1, as at entry 0, but got int"),
    ("[{'a': t.ones(1)}, {'a': 1}]", "expected Tensor at entry 1, as at entry 0, but got int"),
    ("[{'a': 1}, [1]]", "expected Mapping at entry 1, as at entry 0, but got list"),
    ("[(1, 2), 3]", "expected Collection at entry 1, as at entry 0, but got int")])
def test_samples_of_several_kinds_are_no_batch(batch: str, text: str) -> None:
    with raises(TypeError, f"default_collate: {text}"):
        data.default_collate(eval(batch, {"t": gradcore, "np": np}))
    with raises(RuntimeError, "each sample to be equal size, but got [2] at entry 0 and [3] at entry 1"):
        data.default_collate([gradcore.ones(2), gradcore.ones(3)])


@pytest.mark.oracle
@pytest.mark.parametrize("batch", [
    "[np.ones(2), t.ones(2)]", "[np.array(1.0), 2.0]", "[np.ones(2), [1, 2]]", "[[1], np.ones(1)]", "[(1,), t.ones(1)]"])
def test_arrays_and_lists_may_be_in_one_batch(batch: str, torch: Any) -> None:
    ours, theirs = (t.utils.data.default_collate(eval(batch, {"t": t, "np": np})) for t in (gradcore, torch))
    assert type(ours) is list or ours.dtype == theirs.numpy().dtype
    assert [x.tolist() for x in ours] == [x.tolist() for x in theirs]
