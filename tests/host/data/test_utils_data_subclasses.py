"""Loaders that repeat their sampler, and samples of a program's own types in batches: as in PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


class Squares:
    """A data set for either library."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return np.float32(index), index * index


class Repeated:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def _read(batches: Any) -> Any:
    return [[x.tolist() for x in batch] for batch in batches]


def one_iterator_for_all_epochs(t: Any) -> Any:
    class Loader(t.utils.data.DataLoader):
        sampler: Any
        batch_sampler: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            if self.batch_sampler is None:
                self.sampler = Repeated(self.sampler)
            else:
                self.batch_sampler = Repeated(self.batch_sampler)
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.sampler) if self.batch_sampler is None else len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    loader = Loader(Squares(), batch_size=2)
    with raises(ValueError, "batch_sampler attribute should not be set after Loader is initialized"):
        loader.batch_sampler = None
    return [len(loader), _read(loader), _read(loader), loader._auto_collation, loader._index_sampler is loader.batch_sampler]


def iterators_that_are_counted(t: Any) -> Any:
    class Loader(t.utils.data.DataLoader):
        made = 0

        def _get_iterator(self) -> Any:
            self.made += 1
            return super()._get_iterator()

    loader = Loader(Squares(), batch_size=None)
    return [len(list(loader)), len(list(loader)), loader.made, loader._auto_collation]


def samples_of_ones_own_type(t: Any) -> Any:
    path = importlib.import_module(f"{t.__name__}.utils.data._utils.collate")

    class Point:
        def __init__(self, at: float) -> None:
            self.at = at

    class Near(Point):
        pass

    def points(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return t.tensor([point.at for point in batch])

    def padded(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return t.nn.utils.rnn.pad_sequence(batch, batch_first=True)

    samples = [{"p": Near(1.0), "n": [1, "a"]}, {"p": Near(2.0), "n": [2, "b"]}]
    own = path.collate(samples, collate_fn_map={Point: points, **path.default_collate_fn_map})
    path.default_collate_fn_map[Point] = points
    try:
        batch = t.utils.data.default_collate([(Point(3.0), 1.5), (Point(4.0), 2.5)])
    finally:
        del path.default_collate_fn_map[Point]
    sequences = path.collate([t.ones(1), t.ones(2)], collate_fn_map={t.Tensor: padded})
    for given in (None, {int: points}):
        with raises(TypeError, "batch must contain tensors, numpy arrays, numbers, dicts or lists; found"):
            path.collate([Point(1.0)], collate_fn_map=given)
    return [own["p"].tolist(), own["n"][0].tolist(), list(own["n"][1]), [x.tolist() for x in batch], str(batch[1].dtype)[-7:],
            sequences.tolist(), len(path.default_collate_fn_map)]


def rows_of_tensors(t: Any) -> Any:
    path = importlib.import_module(f"{t.__name__}.utils.data._utils.collate")
    loader = t.utils.data.DataLoader(t.utils.data.TensorDataset(t.arange(4)), batch_size=2)
    found = [_read(loader)]
    for kind in (t.Tensor, tuple):
        own = {**path.default_collate_fn_map}
        path.default_collate_fn_map[kind] = lambda batch, *, collate_fn_map=None: len(batch)
        try:
            found.append(list(loader))
        finally:
            path.default_collate_fn_map.clear()
            path.default_collate_fn_map.update(own)
    return [*found, _read(loader)]


CASES: list[Callable[[Any], Any]] = [one_iterator_for_all_epochs, iterators_that_are_counted, samples_of_ones_own_type,
                                          rows_of_tensors]


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_a_subclass_or_a_type_of_ones_own_is_pytorchs(case: Callable[[Any], Any], torch: Any) -> None:
    assert case(gradcore) == case(torch)
