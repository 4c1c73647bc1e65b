"""``t_``, ``squeeze_`` and the like: the tensor itself gets another shape, in its graph and in those of its views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import ModifiedInPlace
from tests.conftest import raises


def a_result(t: Any, x: Any) -> Any:
    h = x * 2
    assert h.t_() is h
    return h


def a_view_taken_before(t: Any, x: Any) -> Any:
    h = x * 2
    v = h[0]
    h.t_()
    v.mul_(3)
    return h * h[0, 0]


def a_view_taken_after(t: Any, x: Any) -> Any:
    h = x * 2
    h.transpose_(0, 1)
    h[0].mul_(x[0, :2])
    return h * h


def a_view_itself(t: Any, x: Any) -> Any:
    h = x * 2
    h[:, :2].t_()[0].mul_(3)
    return h


def a_buffer_without_a_graph(t: Any, x: Any) -> Any:
    h = t.zeros(2, 3).t_()
    h[0] = x[:, 0] * 2
    h[2, 1] = x[1, 1]
    return h


def a_buffer_written_to_whole(t: Any, x: Any) -> Any:
    h = t.ones(2, 3).swapaxes_(0, 1)
    v = h[1]
    h.mul_(x.t())
    return h * v


def dimensions_that_come_and_go(t: Any, x: Any) -> Any:
    h = x * 2
    v = h[1]
    h.unsqueeze_(1).unsqueeze_(-1)
    v.mul_(x[0])
    return h.squeeze_(-1).squeeze_() * v


def three_dimensions(t: Any, x: Any) -> Any:
    h = (x * 2).unsqueeze_(0)
    h.swapdims_(0, -1)
    h[0].add_(x[:, :1])
    return h.transpose_(2, 1) * t.arange(2.0)[:, None]


@pytest.mark.oracle
@pytest.mark.parametrize("use", [a_result, a_view_taken_before, a_view_taken_after, a_view_itself, a_buffer_without_a_graph,
                                 a_buffer_written_to_whole, dimensions_that_come_and_go, three_dimensions],
                         ids=lambda f: f.__name__)
def test_values_and_gradients_are_torchs(use: Callable[[Any, Any], Any], torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        x = t.arange(6.0).reshape(2, 3).requires_grad_()
        y = use(t, x)
        (y * t.arange(float(y.numel())).reshape(y.shape)).sum().backward()
        outcomes.append((tuple(y.shape), y._version, y.tolist(), x.grad.tolist()))
    ours, theirs = outcomes
    assert ours[:2] == theirs[:2]
    np.testing.assert_allclose(ours[3], theirs[3], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(ours[2]), np.ravel(theirs[2]), rtol=1e-6)


def test_a_leaf_is_refused_unless_no_graph_is_built() -> None:
    p = gradcore.ones(2, 3, requires_grad=True)
    with raises(RuntimeError, "a leaf Variable that requires grad is being used in an in-place operation."):
        p.t_()
    with raises(RuntimeError, "a view of a leaf Variable that requires grad is being used in an in-place operation."):
        p[:, 0].unsqueeze_(0)
    assert p.shape == (2, 3) and p._version == 0
    before = (p + 1).sum()
    with gradcore.no_grad():
        p.t_()
    (p * gradcore.arange(6.0).view(3, 2)).sum().backward()
    assert p.is_leaf and p.grad.tolist() == [[0, 1], [2, 3], [4, 5]]
    with raises(RuntimeError, "returned an invalid gradient: got [2, 3] but expected shape compatible with [3, 2]"):
        before.backward()


def test_what_backward_keeps_is_outdated() -> None:
    x = gradcore.ones(2, 3, requires_grad=True)
    h = x * 2
    y = (h * h).sum()
    h.unsqueeze_(0)
    with raises(ModifiedInPlace, "by unsqueeze_"):
        y.backward()


def test_other_tensors_that_show_the_bytes_keep_their_shape() -> None:
    x = gradcore.arange(6.0).view(2, 3)
    d = x.detach()
    x.t_()
    x[0, 1] = 7
    assert (x.shape, d.shape, d._version) == ((3, 2), (2, 3), 2) and d.tolist() == [[0, 1, 2], [7, 4, 5]]


def test_bases_whose_elements_do_not_lie_side_by_side_are_refused_before_the_write() -> None:
    x = gradcore.from_numpy(np.ones((3, 4), np.float32)[:, ::2])
    v = x[0]
    with raises(NotImplementedError, "a view of a non-contiguous tensor"):
        x.mul_(gradcore.full((2,), 2.0, requires_grad=True))
    assert x.tolist() == [[1, 1]] * 3 and v.edge is None and x.edge is None


def test_a_detached_tensor_is_written_to_whatever_else_shows_its_bytes() -> None:
    x = gradcore.ones(3, 4).t_()
    row, w = x[0], gradcore.full((), 2.0, requires_grad=True)
    d = x[:, ::2].detach()
    d.mul_(w)
    assert d.requires_grad and not row.requires_grad and row.tolist() == [2, 1, 2]


def test_a_compiled_function_replays_it_for_what_it_makes() -> None:
    @gradcore.compile
    def f(x: Any, w: Any) -> Any:
        h = (x * w).t_()
        h[0].mul_(2)
        return (h * h).sum()

    w = gradcore.ones(2, 3, requires_grad=True)
    for k in range(3):
        w.grad = None
        x = gradcore.arange(6.0).view(2, 3) + k
        f(x, w).backward()
        scale = np.array([8.0, 2, 2])
        np.testing.assert_allclose(w.grad.numpy(), scale * x.numpy() ** 2)
    assert len(f.programs) == len(f.traces) == 1


def test_a_compiled_function_that_does_it_to_an_argument_runs_eagerly() -> None:
    @gradcore.compile
    def f(x: Any) -> Any:
        return x.t_() * 2

    for _ in range(2):
        x = gradcore.ones(2, 3)
        assert f(x).shape == x.shape == (3, 2)
    assert not f.programs and "changes the shape of a tensor from before the run in place" in f.traces[0]


def resized(t: Any) -> list[Any]:
    found = []
    for before, shapes in (((2, 3), [(2, 3), (3, 2), (2,), (4, 2)]), ((0,), [(2, 2)]), ((4,), [(), (1,)]),
                           ((2, 2), [(0, 3), (5,)])):
        x = t.arange(float(np.prod(before))).reshape(before)
        for shape in shapes:
            had = x.numel()
            assert x.resize_(*shape) is x if shape else x.resize_(()) is x
            assert x.is_contiguous()
            found.append((tuple(x.shape), x.flatten()[:had].tolist()))
            x.copy_(t.arange(float(x.numel())).reshape(x.shape))
    y = t.arange(6).reshape(2, 3).t()
    y.resize_as_(t.ones(3, 2))
    found.append((tuple(y.shape), y.tolist()))
    z = t.zeros(2, 2)
    part = z[0]
    z.resize_(3).fill_(1)
    found += [part.tolist(), t.empty(0).resize_as_(z).fill_(2).tolist(), tuple(t.empty(1).resize_(size=(2, 2)).shape)]
    found += [t.arange(6.0).reshape(2, 3).t().resize_(*shape).tolist() for shape in ((6,), (2, 2))]
    found += [t.arange(6.0)[1::2].resize_(n)[:5].tolist() for n in (2, 5, 9)]
    whole = t.zeros(6)
    whole[::2].resize_(3).fill_(1)
    found.append(whole[:4].tolist())
    for call in (lambda: t.ones(2, requires_grad=True).resize_(3), lambda: t.ones(2, requires_grad=True).resize_(2),
                 lambda: (t.ones(2, requires_grad=True) * 2).resize_(1)):
        with raises(RuntimeError, "cannot resize variables that require grad"):
            call()
    return found


@pytest.mark.oracle
def test_resize(torch: Any) -> None:
    assert resized(gradcore) == resized(torch)
    with raises(RuntimeError, "Trying to create tensor with negative dimension -1: [2, -1]"):
        gradcore.ones(2).resize_(2, -1)


def test_a_view_that_grows_is_none_any_more() -> None:
    whole, w = gradcore.zeros(6), gradcore.tensor(2.0, requires_grad=True)
    part = whole[2:4]
    part.resize_(9).zero_()
    part.add_(w)
    assert not whole.requires_grad
    part.sum().backward()
    assert w.grad.item() == 9


def test_a_resized_tensor_in_a_compiled_function() -> None:
    kept = gradcore.zeros(2)

    def f(x: gradcore.Tensor, n: int) -> gradcore.Tensor:
        made = gradcore.zeros(2).resize_(n)
        made.fill_(3)
        return kept.resize_(n).copy_(x[:n] * 2) + made

    compiled = gradcore.compile(f)
    for n in (2, 2, 2, 4, 4, 1, 2):
        assert compiled(gradcore.arange(5.0), n).tolist() == [2.0 * k + 3 for k in range(n)]
        assert kept.tolist() == [2.0 * k for k in range(n)]
