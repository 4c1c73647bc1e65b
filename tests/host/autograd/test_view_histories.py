"""In-place writes to views: which are refused, and whose history they change."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


def test_only_the_view_that_was_taken_in_no_grad_mode_is_refused() -> None:
    base = gradcore.ones(4)
    with gradcore.no_grad():
        unrecorded = base[:2]
    recorded, w = base[2:], gradcore.full((2,), 3.0, requires_grad=True)
    with raises(RuntimeError, "A view was created in no_grad mode and is being modified inplace with grad mode enabled"):
        unrecorded.mul_(w)
    recorded.mul_(w)
    base.sum().backward()
    # Each of the two was 1 and is multiplied once.
    assert base.tolist() == [1, 1, 3, 3] and w.grad.tolist() == [1, 1]


def returned_views(t: Any) -> dict[str, Callable[[Any], Any]]:
    """Ways to a view with a history of its own, which a write would mix up with that of its base."""

    def function(forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
        class Tripled(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return forward(x)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g.reshape(2, 2) * 3

        made: Callable[[Any], Any] = Tripled.apply
        return made

    def without_recording(x: Any) -> Any:
        with t.no_grad():
            return x[:]

    return {"a view of the argument": function(lambda x: x.reshape(-1)), "the argument": function(lambda x: x),
            "a view of a new tensor": function(lambda x: (x * 2).t()), "no_grad": without_recording}


@pytest.mark.oracle
@pytest.mark.parametrize("way", returned_views(gradcore))
def test_a_write_never_mixes_up_the_histories_of_a_base_and_a_view_with_one_of_its_own(way: str, torch: Any) -> None:
    writes: dict[str, Callable[[Any, Any], Any]] = {
        "the base": lambda base, view: base.mul_(2), "a part of the base": lambda base, view: base[0].mul_(2),
        "the view": lambda base, view: view.mul_(2), "a part of the view": lambda base, view: view[:1].mul_(2)}
    reads: dict[str, Callable[[Any, Any], Any]] = {
        "the base": lambda base, view: base, "the view": lambda base, view: view,
        "a part of the view": lambda base, view: view[1:]}
    for (write, writing), (read, reading) in itertools.product(writes.items(), reads.items()):
        outcomes = []
        for t in (gradcore, torch):
            x = t.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            base = x * 1
            view = returned_views(t)[way](base)
            try:
                writing(base, view)
                (reading(base, view) * x.detach().flatten()[0]).sum().backward()
                outcomes.append(x.grad.tolist())
            except RuntimeError as error:
                assert re.search("view.*(created in no_grad mode|created inside a custom Function)", str(error)), error
                outcomes.append("refused")
        assert outcomes[0] == outcomes[1], (write, read)


@pytest.mark.oracle
@pytest.mark.parametrize("make", [lambda x: x.repeat(2), lambda x: x @ x.new_ones(4, 2)], ids=["repeat", "matmul"])
def test_a_result_is_no_view_though_the_last_op_of_its_function_takes_one(make: Callable[[Any], Any], torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        x, w = t.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True), t.tensor(3.0, requires_grad=True)
        with t.no_grad():
            unrecorded = make(x)
        unrecorded[1:].mul_(w)
        unrecorded.mul_(w)
        recorded, seen = make(x), []
        recorded.register_hook(lambda g, seen=seen: seen.append(g.tolist()))
        recorded[::2] += 1
        (unrecorded.sum() + recorded.square().sum()).backward()
        outcomes.append((unrecorded.tolist(), seen, x.grad.tolist(), w.grad.tolist()))
    assert outcomes[0] == outcomes[1]


def test_a_function_writes_to_no_leaf() -> None:
    class Doubled(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

    x = gradcore.ones(4, requires_grad=True)
    with raises(RuntimeError, "a view of a leaf Variable that requires grad is being used in an in-place operation."):
        Doubled.apply(x[:2])
    assert x.is_leaf


def test_a_view_of_a_base_that_is_not_contiguous() -> None:
    base = gradcore.from_numpy(np.ones((3, 8), np.float32)[:, ::2].T)
    row, w = base[0], gradcore.ones(3, requires_grad=True)
    with raises(NotImplementedError, "an in-place write with a gradient to a view of a non-contiguous tensor"):
        row.mul_(w)


def test_a_base_that_begins_within_its_storage() -> None:
    x = gradcore.tensor([1.0, 2.0, 3.0, 4.0])
    base = x[1:].detach()
    part, w = base[1:], gradcore.ones(2, requires_grad=True)
    part.mul_(w)
    (base * gradcore.tensor([5.0, 6.0, 7.0])).sum().backward()
    # What was written were 3 and 4, which are read with 6 and 7.
    assert w.grad.tolist() == [18, 28] and x.grad is None
