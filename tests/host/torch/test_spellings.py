"""Dimensions and counts in other spellings: NumPy's integers, tensors of one integer, lists, ``Size``, several in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore

#: Calls of a library with x [2, 3] and a spelling of 1.
BY_DIM: dict[str, Callable[..., Any]] = {
    "sum": lambda t, x, i: x.sum(i), "mean": lambda t, x, i: x.mean(dim=i), "argmax": lambda t, x, i: x.argmax(i),
    "softmax": lambda t, x, i: t.nn.functional.softmax(x, i), "cumsum": lambda t, x, i: x.cumsum(i),
    "unsqueeze": lambda t, x, i: x.unsqueeze(i), "squeeze": lambda t, x, i: x[:, :1].squeeze(i),
    "transpose": lambda t, x, i: x.transpose(i, 0), "flatten": lambda t, x, i: x.unsqueeze(0).flatten(i),
    "select": lambda t, x, i: x.select(i, 0), "narrow": lambda t, x, i: x.narrow(i, i, i),
    "cat": lambda t, x, i: t.cat([x, x], i), "stack": lambda t, x, i: t.stack([x, x], dim=i),
    "split": lambda t, x, i: x.split(1, i)[2], "chunk": lambda t, x, i: x.chunk(3, i)[1],
    "unbind": lambda t, x, i: x.unbind(i)[2],
    "roll": lambda t, x, i: x.roll(i, i), "flip": lambda t, x, i: x.flip(i), "movedim": lambda t, x, i: x.movedim(i, 0),
    "topk": lambda t, x, i: x.topk(1, i).values, "sort": lambda t, x, i: x.sort(i, True).values,
    "gather": lambda t, x, i: x.gather(i, t.tensor([[2], [0]])),
    "index_select": lambda t, x, i: x.index_select(i, t.tensor([2])),
    "std": lambda t, x, i: x.std(i), "norm": lambda t, x, i: x.norm(2, i), "aminmax": lambda t, x, i: x.aminmax(dim=i).max,
    "permute": lambda t, x, i: x.permute(i, 0), "amax of several": lambda t, x, i: x.amax((0, i)),
    "polygamma": lambda t, x, i: (x + 1).polygamma(i), "unfold": lambda t, x, i: x.unfold(i, i, i)}
SPELLINGS: dict[str, Callable[[Any], Any]] = {
    "np.int64": lambda t: np.int64(1), "np.int32": lambda t: np.int32(1), "a tensor": lambda t: t.tensor(1)}
#: Calls in which lists, tuples and rows mean the same.
ROWS: dict[str, Callable[..., Any]] = {
    "squeeze": lambda t: t.ones(1, 1, 2).squeeze(0, 1), "squeeze a list": lambda t: t.ones(1, 1, 2).squeeze([0, 1]),
    "squeeze_": lambda t: t.ones(1, 1, 2).squeeze_(0, 1), "sum of a Size": lambda t: t.ones(2, 3).sum(t.Size([0, 1])),
    "roll": lambda t: t.arange(6.0).reshape(2, 3).roll([1, 1], [0, 1])}


def numbers(t: Any, call: Callable[..., Any], *more: Any) -> Any:
    made = call(t, *more)
    return made.tolist(), tuple(made.shape)


@pytest.mark.oracle
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", BY_DIM)
def test_spellings_of_an_int_are_pytorchs(name: str, spelling: str, torch: Any) -> None:
    made = [numbers(t, BY_DIM[name], t.arange(6.0).reshape(2, 3), SPELLINGS[spelling](t)) for t in (gradcore, torch)]
    assert made[0][1] == made[1][1]
    np.testing.assert_allclose(made[0][0], made[1][0], rtol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ROWS)
def test_rows_and_lists_are_pytorchs(name: str, torch: Any) -> None:
    assert numbers(gradcore, ROWS[name]) == numbers(torch, ROWS[name])


@pytest.mark.parametrize("dim", [True, np.bool_(True), 1.0, "1", gradcore.float32], ids=repr)
def test_what_is_no_integer_is_no_dimension(dim: Any) -> None:
    with pytest.raises(TypeError, match="a dimension must be an int, but got"):
        gradcore.ones(2, 3).sum(dim)


@pytest.mark.parametrize("data", [1.0, [0, 1]], ids=repr)
def test_a_tensor_of_something_else_is_no_dimension(data: Any) -> None:
    with pytest.raises(TypeError, match="only integer tensors of a single element"):
        gradcore.ones(2, 3).sum(gradcore.tensor(data))  # type: ignore[arg-type]


def test_a_dimension_in_a_tensor_is_read_so_it_cannot_be_traced() -> None:
    where = gradcore.tensor(1)
    compiled = gradcore.compile(lambda x: x.sum(where))
    with pytest.raises(gradcore.TraceError):
        compiled(gradcore.ones(2, 3))
