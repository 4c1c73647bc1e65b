"""Layers that undo max pooling, compared with PyTorch's: an autoencoder, repeated indices, repr, errors, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional as F
from tests.conftest import raises


def autoencoder(library: Any, dims: int) -> tuple[Any, Any]:
    pool, undo = (getattr(library.nn, f"Max{name}ool{dims}d") for name in ("P", "Unp"))
    return pool(3, 2, 1, return_indices=True), undo(3, 2, 1)


@pytest.mark.oracle
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_an_autoencoder_is_pytorchs(torch: Any, dims: int) -> None:
    image = np.random.default_rng(0).normal(size=(2, 3, *(7, 8, 6)[:dims])).astype(np.float32)
    results = []
    for library in (gradcore, torch):
        x = library.tensor(image, requires_grad=True)
        pool, undo = autoencoder(library, dims)
        y = undo(*pool(x), output_size=x.size())
        (y * y * y).sum().backward()
        results.append((y.detach().numpy(), x.grad.numpy(), repr(undo), list(undo.state_dict())))
    for ours, theirs in zip(*results, strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        else:
            assert ours == theirs


@pytest.mark.oracle
@pytest.mark.parametrize("call", [
    lambda t, x, i: t.nn.functional.max_unpool2d(x, i[:, :1], 2), lambda t, x, i: t.nn.functional.max_unpool2d(x, i.int(), 2),
    lambda t, x, i: t.nn.functional.max_unpool2d(x[0, 0], i[0, 0], 2),
    lambda t, x, i: t.nn.functional.max_unpool2d(x, i, 2, output_size=(9, 6)),
    lambda t, x, i: t.nn.functional.max_unpool2d(x, i, 2, output_size=(4, 6, 6)),
    lambda t, x, i: t.nn.functional.max_unpool2d(x, i, 2, padding=5), lambda t, x, i: t.nn.MaxUnpool3d(2)(x[0], i[0]),
    lambda t, x, i: t.nn.functional.max_unpool2d(x[:, :0], i[:, :0], 2)])
def test_errors_are_pytorchs(torch: Any, call: Any) -> None:
    texts = []
    for library in (gradcore, torch):
        x, i = library.ones(2, 2, 3, 3), library.zeros(2, 2, 3, 3, dtype=library.int64)
        with raises((ValueError, RuntimeError)) as error:
            call(library, x, i)
        texts.append(error.text)
        del x, i, error
    # PyTorch has its own names of the functions and of dtypes.
    ours, theirs = (t.replace("max_unpooling", "max_unpool").replace("int32", "Int").replace("2d", "1d") for t in texts)
    assert ours.partition("d")[2][-40:] == theirs.partition("d")[2][-40:]


def test_an_index_out_of_range_raises() -> None:
    x = gradcore.ones(1, 2, 2)
    for given in (4, -1):
        with raises(IndexError, "out of bounds"):
            F.max_unpool2d(x, gradcore.full((1, 2, 2), given, dtype=gradcore.int64), 1)


def test_backward_keeps_the_indices_alone() -> None:
    undo = nn.MaxUnpool2d(2)
    x = gradcore.ones(1, 3, 4, 4, requires_grad=True)
    y = undo(x * 1, gradcore.zeros(1, 3, 4, 4, dtype=gradcore.int64))
    assert y.shape == (1, 3, 8, 8) and gradcore.graph(y).nbytes == 3 * 16 * 8
