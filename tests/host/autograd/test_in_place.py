"""In-place ops under autograd: every combination gives PyTorch's gradients or PyTorch's error, never a wrong number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import ModifiedInPlace
from tests.conftest import raises

#: Uses of x before the write, each of which keeps something different.
READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "keeps x": lambda t, x, w: x * x,
    "keeps other": lambda t, x, w: x * w,
    "keeps both": lambda t, x, w: (x * w) / (x * x + 1),
    "keeps result": lambda t, x, w: x.exp(),
    "keeps nothing": lambda t, x, w: x + w,
    "keeps sign": lambda t, x, w: x.relu(),
    "keeps a view": lambda t, x, w: x.t() @ x,
    "keeps scalar": lambda t, x, w: x * 3,
    "reduces": lambda t, x, w: (x * x).sum(0),
    "does nothing": lambda t, x, w: x.sum() * 0,
}

#: The write.
WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mul_": lambda t, x, v: x.mul_(v),
    "add_": lambda t, x, v: x.add_(v),
    "div_": lambda t, x, v: x.div_(v),
    "sub_": lambda t, x, v: x.sub_(v),
    "mul_ number": lambda t, x, v: x.mul_(2.0),
    "copy_": lambda t, x, v: x.copy_(v),
    "zero_": lambda t, x, v: x.zero_(),
    "fill_": lambda t, x, v: x.fill_(0.5),
    "setitem": lambda t, x, v: x.__setitem__(0, v[0]),
    "setitem number": lambda t, x, v: x.__setitem__(Ellipsis, 1.5),
    "twice": lambda t, x, v: x.mul_(v).add_(v),
    "exp_": lambda t, x, v: x.exp_(),
    "atan2_": lambda t, x, v: x.atan2_(v),
    "addcmul_": lambda t, x, v: x.addcmul_(v, v),
    "masked_fill_": lambda t, x, v: x.masked_fill_(v.detach() > 1, 0.25),
    "setitem mask": lambda t, x, v: x.__setitem__(x.detach() > 1, 0.5),
    "index_add_": lambda t, x, v: x.index_add_(0, t.zeros(v.shape[0]).long(), v),
    "scatter_": lambda t, x, v: x.scatter_(0, t.zeros(*v[:1].shape).long(), v[:1]),
}

#: How the bytes are written: directly, through a view, through a base whose view is read later, bypassing autograd.
ROUTES: dict[str, Callable[[Any, Any], Any]] = {
    "direct": lambda t, y: y,
    "row": lambda t, y: y[0:1],
    "column": lambda t, y: y[:, 1],
    "transposed": lambda t, y: y.t(),
    "flat": lambda t, y: y.view(-1),
    "strided": lambda t, y: y[::2, 1:],
    "view of a view": lambda t, y: y.t()[1:],
    "detach": lambda t, y: y.detach(),
    "data": lambda t, y: y.data,
}

#: Reads after the write.
AFTER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "whole": lambda t, y, view: (y * y).sum(),
    "view": lambda t, y, view: (view * view).sum(),
    "an earlier view": lambda t, y, view: view.exp().sum() + y.sum(),
}

CASES = list(itertools.product(READS, WRITES, ROUTES, AFTER))


def outcome(t: Any, case: tuple[str, str, str, str], recorded: bool, value_wants: bool) -> Any:
    """The gradients of x, w and v, or the kind of error."""
    read, write, route, after = case
    rng = np.random.default_rng(0)
    leaf, w, v = (t.tensor(rng.uniform(0.5, 1.5, (3, 3)), requires_grad=True) for _ in range(3))
    if not value_wants:
        v = v.detach()
    try:
        y = leaf * 1.0
        seen = ROUTES["row"](t, y) if after == "an earlier view" else ROUTES[route](t, y)
        early = READS[read](t, y, w).sum()
        if recorded:
            target = ROUTES[route](t, y)
            WRITES[write](t, target, ROUTES[route](t, v))
        else:
            with t.no_grad():
                WRITES[write](t, ROUTES[route](t, y), ROUTES[route](t, v))
        loss = early + AFTER[after](t, y, seen)
        loss.backward()
    except RuntimeError as error:
        return "in place" if "modified by an inplace operation" in str(error) else str(error)[:40]
    # PyTorch leaves None where an operand was overwritten; zeros say the same.
    return [np.zeros((3, 3)) if p.grad is None else np.asarray(p.grad.tolist()) for p in (leaf, w, v)
            if p.requires_grad]


@pytest.mark.oracle
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "no_grad"])
def test_no_combination_is_silently_wrong(route: str, recorded: bool, torch: Any) -> None:
    tried = 0
    for case in CASES:
        if case[2] != route:
            continue
        for wants in (True, False):
            theirs, ours = outcome(torch, case, recorded, wants), outcome(gradcore, case, recorded, wants)
            tried += 1
            where = (*case, recorded, wants)
            if isinstance(theirs, str):
                # Where PyTorch raises an error, a number is right only if it is that of a graph that kept a copy.
                assert isinstance(ours, str) or case[0] in ("keeps scalar",), (where, theirs, ours)
            elif route == "data" and ours == "in place":
                # PyTorch does not detect a write through .data, and gives the gradient of overwritten numbers.
                continue
            else:
                assert not isinstance(ours, str), (where, ours)
                for a, b in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=str(where))
    assert tried == 2 * len(CASES) // len(ROUTES)


def test_a_leaf_and_its_views_are_not_written_to() -> None:
    x = gradcore.ones(3, 3, requires_grad=True)
    with raises(RuntimeError, "a leaf Variable that requires grad is being used in an in-place operation."):
        x.add_(1)
    with raises(RuntimeError, "a view of a leaf Variable that requires grad is being used in an in-place operation."):
        x[0].add_(1)
    with gradcore.no_grad():
        x[0].add_(1)
    assert x._version == 1


def test_a_view_taken_without_recording_is_not_written_to() -> None:
    y = gradcore.ones(3, 3, requires_grad=True) * 1
    with gradcore.no_grad():
        view = y[0]
    with raises(RuntimeError, "mul_: A view was created in no_grad mode and is being modified inplace with grad mode enabled"):
        view.mul_(gradcore.ones(3, requires_grad=True))
    # The written tensor need not have a graph: that of the base would not include it.
    for write in (lambda v: v.mul_(2.0), lambda v: v.fill_(2), lambda v: v.copy_(gradcore.ones(3)),
                  lambda v: v[:2].zero_(), lambda v: v.__setitem__(0, 3.0)):
        with raises(RuntimeError, "A view was created in no_grad mode and is being modified inplace with grad mode enabled"):
            write(view)
    assert y.tolist() == gradcore.ones(3, 3).tolist()
    with gradcore.no_grad():
        view.mul_(2.0)
    view.detach().mul_(2.0)
    assert y[0].tolist() == [4.0] * 3
    x = gradcore.ones(3, requires_grad=True)
    with gradcore.no_grad():
        view = x[:2]
    with raises(RuntimeError, "a view of a leaf Variable that requires grad is being used in an in-place operation."):
        view.fill_(1)
    del y, view


def test_a_write_of_history_into_a_plain_tensor() -> None:
    """A buffer that is filled row by row has the graphs of its rows."""
    x = gradcore.tensor([1.0, 2.0, 3.0], requires_grad=True)
    table = gradcore.zeros(3, 3)
    for i in range(3):
        table[i] = x * float(i)
    (table * table).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [10.0, 20.0, 30.0]
    assert table.grad_fn.name() == "WritePartBackward0" and table[0].grad_fn.name() == "SliceBackward0"


def test_a_kept_tensor_that_was_written_to_is_named() -> None:
    x = gradcore.ones(3, requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    y[1:].mul_(3)
    with raises(ModifiedInPlace, "modified by an inplace operation", "'y', float32[3], kept by MulBackward0",
                "expected version 0", "by mul_", "test_in_place.py"):
        z.backward()
    del y, z


def test_views_that_are_gone_are_forgotten() -> None:
    weight = gradcore.ones(4, 4, requires_grad=True)
    for _ in range(200):
        weight.t()
    assert len(weight.storage.views) <= 16


def test_a_view_of_a_view_does_not_look_through_all_others() -> None:
    """Rows that are kept and viewed, as in ``for row in x``, took the square of their number."""
    class Views(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError

        items = values = copy = __iter__

    x = gradcore.ones(100, 4, requires_grad=True)
    rows = x.unbind()
    x.storage.views = Views(x.storage.views)
    parts = [row.view(2, 2) for row in rows[:20]]
    x.storage.views = dict.copy(x.storage.views)
    assert all(part.base is x for part in parts) and len(x.storage.views) >= 120
