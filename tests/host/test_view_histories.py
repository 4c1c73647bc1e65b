"""In-place writes to views: which are refused, and whose history they change."""

from __future__ import annotations

import numpy as np

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


def test_a_view_of_a_base_that_is_not_contiguous() -> None:
    base = gradcore.from_numpy(np.ones((3, 4), np.float32).T)
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
