"""Writes by users' functions, which they declare with ``mark_dirty``, by pack hooks, and to gradients that functions return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import ModifiedInPlace
from tests.conftest import raises


class Sine(gradcore.autograd.Function):
    """Writes through NumPy, which no op sees."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.cos())
        array = x.detach().numpy()
        np.sin(array, out=array)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


def test_a_declared_write_is_noticed_by_nodes_that_kept_the_tensor() -> None:
    x = gradcore.tensor([0.5, 1.0], requires_grad=True)
    y = x * 2
    kept = (y * y).sum()
    assert Sine.apply(y) is y and y._version == 1
    with raises(ModifiedInPlace, "is at version 1; expected version 0 instead", "test_function_dirty.py", "by Sine"):
        kept.backward()
    y.sum().backward()
    np.testing.assert_allclose(x.grad.tolist(), 2 * np.cos([1.0, 2.0]), rtol=1e-6)
    del y, kept


def test_a_declared_write_counts_without_a_graph() -> None:
    w, x = gradcore.ones(2, requires_grad=True), gradcore.ones(2)
    product = (w * x).sum()
    Sine.apply(x)
    with raises(ModifiedInPlace, "by Sine"):
        product.backward()
    del product


def test_what_was_written_to_must_be_returned() -> None:
    class Lost(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.mark_dirty(x)
            return y * x.mul_(2)

    for x in (gradcore.ones(2), gradcore.ones(2, requires_grad=True) * 1):
        with raises(RuntimeError, "Lost: Some elements marked as dirty during the forward method were not returned as output"):
            Lost.apply(x, gradcore.ones(2, requires_grad=True))


@pytest.mark.oracle
@pytest.mark.parametrize("written", [lambda b, v: b, lambda b, v: v, lambda b, v: b.view(2, 2).t()],
                         ids=["the base", "the view", "another view"])
def test_a_declared_write_reaches_the_views_and_the_base(written: Callable[[Any, Any], Any], torch: Any) -> None:
    gradients = []
    for library in (gradcore, torch):
        class Tripled(library.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.mark_dirty(x)
                return x.mul_(3)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 3

        a = library.ones(4, requires_grad=True)
        b = a * 1
        view = b[1:3]
        x = written(b, view)
        assert Tripled.apply(x) is x
        ((b * library.arange(4)).sum() + (view * 10).sum()).backward()
        gradients.append(a.grad.tolist())
    assert gradients[0] == gradients[1]


def test_a_pack_hook_must_not_write_to_what_it_packs() -> None:
    x = gradcore.ones(2, requires_grad=True)
    held = gradcore.memory_requested()
    for write in (lambda t: t.add_(1), lambda t: t[:1].zero_()):
        with raises(RuntimeError, "A saved tensor pack hook is modifying its input in place"), \
                gradcore.autograd.graph.saved_tensors_hooks(write, lambda t: t):
            (x * 2).exp()
    assert gradcore.memory_requested() == held


class Doubled(gradcore.autograd.Function):
    """Twice the sum of its inputs. It returns one tensor as the gradient of each, which it holds, too."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.slope = gradcore.full((2,), 2.0)
        return (x + y) * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return ctx.slope, ctx.slope


def test_gradients_are_not_the_tensors_that_a_function_returns() -> None:
    x, y = gradcore.ones(2, requires_grad=True), gradcore.ones(2, requires_grad=True)
    loss = Doubled.apply(x, y).sum()
    loss.backward(retain_graph=True)
    x.grad.mul_(10)
    assert y.grad.tolist() == [2, 2]
    x.grad = y.grad = None
    # The next cotangent of the product must not be added to what the function holds.
    z = x * y
    both = Doubled.apply(z, z).sum() + (z * 3).sum()
    for total in (7, 14):
        both.backward(retain_graph=True)
        assert x.grad.tolist() == [total] * 2
    loss.backward()
    assert y.grad.tolist() == [16, 16]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float64"])
def test_a_gradient_of_another_dtype_is_summed_as_numbers(dtype: str) -> None:
    class Expanded(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return gradcore.ones(300, 2, dtype=getattr(gradcore, dtype))

    x = gradcore.ones(2, requires_grad=True)
    Expanded.apply(x).sum().backward()
    assert x.grad.dtype == x.dtype and x.grad.tolist() == [300.0] * 2


@pytest.mark.oracle
@pytest.mark.parametrize("declare", ["save_for_backward", "mark_dirty", "mark_non_differentiable"])
def test_only_tensors_are_declared(declare: str, torch: Any) -> None:
    said = []
    for t in (gradcore, torch):
        def forward(ctx: Any, x: Any) -> Any:
            getattr(ctx, declare)(x, 3)
            return x

        function = type("Third", (t.autograd.Function,), {"forward": staticmethod(forward)})
        with pytest.raises((TypeError, RuntimeError)) as failure:
            function.apply(t.ones(2, requires_grad=True) * 1)
        said.append((failure.type, str(failure.value).partition(" but ")[0]))
        if t is gradcore:
            assert str(failure.value).endswith("but argument 1 is of type int")
        del failure
    assert said[0] == said[1]


@pytest.mark.parametrize("lacking, text", [("forward", "implement the forward function"),
                                           ("backward", "implement the backward method"),
                                           ("setup_context", "positional argument")])
def test_what_a_function_lacks_is_named(lacking: str, text: str) -> None:
    both = {"forward": staticmethod(lambda x: x * 2) if lacking == "setup_context" else staticmethod(lambda ctx, x: x * 2),
            "backward": staticmethod(lambda ctx, g: g)}
    function = type("Half", (gradcore.autograd.Function,), {k: v for k, v in both.items() if k != lacking})
    with raises(TypeError if lacking == "setup_context" else NotImplementedError, text):
        function.apply(gradcore.ones(2, requires_grad=True)).sum().backward()


def assigned(t: Any) -> Any:
    """Columns are filled one by one, behind ops that read the earlier ones: as torchdiffeq does."""
    class Assign(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scratch: Any, value: Any, index: Any) -> Any:
            ctx.index = index
            scratch.data[index] = value
            return scratch

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g[ctx.index], None

    w = t.tensor([1.0, 2.0, 3.0], dtype=t.float64, requires_grad=True)
    k = Assign.apply(t.zeros(3, 4, dtype=t.float64), w.sin(), (..., 0))
    for i in range(3):
        y = (k[..., :i + 1] * t.arange(1.0, i + 2, dtype=t.float64) * w.sum()).sum(-1)
        k = Assign.apply(k, y.cos(), (..., i + 1))
    (k * k[0]).sum().backward()
    return w.grad.tolist(), k.tolist()


@pytest.mark.oracle
def test_writes_through_data_within_a_function_do_not_count(torch: Any) -> None:
    for ours, theirs in zip(assigned(gradcore), assigned(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-12)


def test_other_writes_within_a_function_count() -> None:
    class Written(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, through: Any) -> Any:
            through(x)[0] = 5
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, None

    w = gradcore.ones(2, requires_grad=True)
    for made, through in ((w * 2, lambda x: x.data), (w.detach().clone().add_(1), lambda x: x)):
        y = (made * w).sum()
        Written.apply(made, through)
        with raises(ModifiedInPlace, "expected version"):
            y.backward()
    written = w.detach().clone().add_(1)
    y = (written * w).sum()
    Written.apply(written, lambda x: x.data)
    y.backward()
    assert w.grad.tolist() == [5, 2]
    y = (written * w).sum()
    written.data[0] = 6
    with raises(ModifiedInPlace, "expected version"):
        y.backward()


def test_what_reads_after_a_write_through_data_sees_later_writes() -> None:
    class Filled(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, made: Any, squares: Any) -> Any:
            made.data.view(-1).mul_(2)
            made.data[0].add_(1)
            with gradcore.enable_grad():
                shown = made.detach().requires_grad_()
                squares += shown, shown.square().sum()
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, None, None

    for later in (False, True):
        made, squares = gradcore.tensor([1.0, 2.0]).add_(0), []
        before = made._version
        Filled.apply(gradcore.ones(1, requires_grad=True), made, squares)
        assert made._version == before
        if later:
            made.add_(100)
        with raises(ModifiedInPlace, "expected version") if later else nullcontext():
            squares[1].backward()
        assert later or squares[0].grad.tolist() == [6, 8]


def test_a_write_beside_one_through_data_counts() -> None:
    class Both(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, made: Any) -> Any:
            made.data.mul_(2)
            made.mul_(2)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, None

    w, made = gradcore.ones(2, requires_grad=True), gradcore.ones(2).add_(0)
    y = (made * w).sum()
    Both.apply(w, made)
    with raises(ModifiedInPlace, "expected version"):
        y.backward()


def test_a_function_keeps_nothing_that_was_asked_for_its_data() -> None:
    found = []

    class Many(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            for _ in range(3):
                (x + 1).data.mul_(2)
                found.append(gradcore.memory_allocated())
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    Many.apply(gradcore.ones(2, requires_grad=True))
    assert len({*found}) == 1
