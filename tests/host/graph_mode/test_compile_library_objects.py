"""Compiled functions see what changed in the library's own objects that they refer to: distributions, transforms and data sets,
whose methods, and no code of the user's, read their attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import distributions as D
from gradcore.utils.data import Dataset, Subset, TensorDataset


def affine() -> Any:
    return D.TransformedDistribution(D.Normal(gradcore.zeros(2), gradcore.ones(2)), [D.AffineTransform(gradcore.ones(2), 2.0)])


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "another mean": (lambda: D.Normal(gradcore.zeros(2), gradcore.ones(2)), lambda d: d.log_prob(gradcore.ones(2)),
                     lambda d: setattr(d, "loc", gradcore.ones(2))),
    "other memory": (lambda: D.Normal(gradcore.zeros(2), gradcore.ones(2)), lambda d: d.rsample(),
                     lambda d: setattr(d.scale, "data", gradcore.full((2,), 3.0))),
    "logits": (lambda: D.Categorical(logits=gradcore.zeros(3)), lambda d: d.entropy(),
               lambda d: setattr(d, "logits", gradcore.arange(3.0).log_softmax(0))),
    "a part": (lambda: D.Independent(D.Normal(gradcore.zeros(2), gradcore.ones(2)), 1), lambda d: d.log_prob(gradcore.ones(2)),
               lambda d: setattr(d.base_dist, "loc", gradcore.ones(2))),
    "a number": (lambda: D.Independent(D.Normal(gradcore.zeros(2, 2), gradcore.ones(2, 2)), 1),
                 lambda d: d.log_prob(gradcore.ones(2)), lambda d: setattr(d, "reinterpreted_batch_ndims", 2)),
    "a transform": (affine, lambda d: d.log_prob(gradcore.ones(2)),
                    lambda d: setattr(d.transforms[0], "loc", gradcore.full((2,), 3.0))),
    "a transform's number": (affine, lambda d: d.sample(), lambda d: setattr(d.transforms[0], "scale", 3.0)),
    "tensors": (lambda: TensorDataset(gradcore.arange(4.0)), lambda s: s[1][0] * 2,
                lambda s: setattr(s, "tensors", (gradcore.full((4,), 7.0),))),
    "indices": (lambda: Subset(TensorDataset(gradcore.arange(4.0)), [1, 2]), lambda s: s[0][0] * 2,
                lambda s: s.indices.__setitem__(0, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_of_an_object_of_the_librarys_is_noticed(case: str) -> None:
    make, run, change = CASES[case]
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        of = make()
        call = wrap(lambda of=of: run(of))
        values = []
        for k in range(6):
            if k == 4:
                change(of)
            values.append(call().tolist())
        found.append(values)
        if wrap is gradcore.compile:
            # A program whose memory was replaced, which the distribution has from its maker, is not kept.
            assert (len(call.traces), len(call.programs)) == (2, 1 if case == "other memory" else 2)
    assert found[1] == found[0]


class Labeled(Dataset[int]):
    """One of the user's, which has more than its length depends on."""

    def __init__(self) -> None:
        self.samples, self.epoch, self.files = [1, 2], 0, {}

    def __len__(self) -> int:
        return len(self.samples)


def test_what_nothing_reads_of_a_data_set_of_the_users_does_not_end_a_program() -> None:
    """Guards for all its attributes would be asked at each call, for as many items as it has."""
    samples = Labeled()
    call = gradcore.compile(lambda: gradcore.ones(2) / len(samples))
    for samples.epoch in range(4):
        assert call().tolist() == [0.5] * 2
        samples.files[samples.epoch] = ["a"]
    assert len(call.traces) == len(call.programs) == 1
    samples.samples.append(3)
    assert call().tolist() == gradcore.full((2,), 1 / 3).tolist()


def test_what_gradcore_asks_its_classes_for_no_other_class_answers() -> None:
    """A method ``_decides`` was read as the names of the attributes that count, which ended the call."""
    class Policy:
        scale = 2.0

        def _decides(self) -> None: ...

        _derived = _read_whole = _decides

    policy = Policy()
    call = gradcore.compile(lambda x: x * policy.scale)
    assert call(gradcore.ones(2)).tolist() == [2, 2] and len(call.programs) == 1
