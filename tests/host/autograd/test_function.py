"""Custom autograd functions, hooks on saved tensors, anomaly mode, threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import DeviceError, ModifiedInPlace, NoSecondDerivative, SpecError
from gradcore.events import Mark
from tests.conftest import raises, torch_or_skip
from tests.logs import normalized


def functions(t: Any) -> dict[str, Any]:
    """Scripts over a library, each returning tensors to compare."""
    Function = t.autograd.Function

    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * x * x * scale

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return g * x * x * (3 * ctx.scale), None

    class Both(Function):
        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x.exp(), x * y, (x * 0).detach(), y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(output[0], *inputs)
            ctx.mark_non_differentiable(*output[2:])

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any, *unused: Any) -> Any:
            e, x, y = ctx.saved_tensors
            return g * e + h * y, h * x

    class Doubled(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    class Lazy(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            assert h is None
            return g * 10

    class Counted(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return len(x), x * 2, "doubled"

        @staticmethod
        def backward(ctx: Any, count: Any, g: Any, word: Any) -> Any:
            assert count is None is word
            return g * 10

    class Named(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float = 2.0, other: Any = None) -> Any:
            ctx.scale, ctx.needed = scale, ctx.needs_input_grad
            return x * scale if other is None else x * scale + other

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            assert ctx.needed == ctx.needs_input_grad
            return (g * ctx.scale, None, g * 5)[:len(ctx.needed)]

    class Whole(Function):
        @staticmethod
        def forward(x: Any, scale: float = 3.0, shift: float = 1.0) -> Any:
            return x * scale + shift

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _, ctx.scale, ctx.shift = inputs

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.scale + ctx.shift, None, None

    def leaf() -> Any:
        return t.tensor([1.0, 2.0, -3.0], requires_grad=True)

    def cube() -> list[Any]:
        x = leaf()
        y = Cube.apply(x, 0.5)
        slope, = t.autograd.grad(y.sum(), x, create_graph=True)
        (slope * slope).sum().backward()
        return [y, slope, x.grad]

    def both() -> list[Any]:
        x, y = leaf(), leaf()
        a, b, *others = Both.apply(x, y)
        assert [o.requires_grad for o in others] == [False, False]
        (a * b).sum().backward()
        return [x.grad, y.grad]

    def one_of_two() -> list[Any]:
        x, y = leaf(), leaf()
        Both.apply(x, y)[0].sum().backward()
        return [x.grad, y.grad]

    def dirty() -> list[Any]:
        x = leaf()
        y = x * 3
        view = y[1:]
        z = Doubled.apply(y)
        (z * z).sum().backward()
        return [x.grad, z, view]

    def lazy() -> list[Any]:
        x = leaf()
        Lazy.apply(x)[0].sum().backward()
        return [x.grad]

    def counted() -> list[Any]:
        x = leaf()
        count, y, word = Counted.apply(x)
        assert (count, word) == (3, "doubled")
        y.sum().backward()
        return [x.grad]

    def named() -> list[Any]:
        x, y = leaf(), leaf()
        made = [Named.apply(x), Named.apply(x, scale=4.0), Named.apply(x, scale=4.0, other=y), Named.apply(x, 3.0, other=y)]
        sum(m.sum() for m in made).backward()
        return [*made, x.grad, y.grad]

    def whole() -> list[Any]:
        x = leaf()
        made = [Whole.apply(x), Whole.apply(x, shift=2.0), Whole.apply(x=x, scale=5.0), Whole.apply(x, 7.0, 8.0)]
        sum(m.sum() for m in made).backward()
        for wrong in ({"factor": 1.0}, {"x": x}):
            with raises(TypeError, next(iter(wrong))):
                Whole.apply(x, **wrong)
        return [*made, x.grad]

    return {f.__name__: f for f in (cube, both, one_of_two, dirty, lazy, counted, named, whole)}


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["cube", "both", "one_of_two", "dirty", "lazy", "counted", "named", "whole"])
def test_functions_are_torchs(name: str) -> None:
    for a, b in zip(functions(gradcore)[name](), functions(torch_or_skip())[name](), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-6)


class Twice(gradcore.autograd.Function):
    result: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any, factor: int) -> Any:
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Twice.result(g)


@pytest.mark.parametrize(("result", "kind", "text"), [
    (lambda g: (g, None, g), RuntimeError, "returned an incorrect number of gradients (expected 2, got 3)"),
    (lambda g: (g, g), RuntimeError, "returned a gradient different than None at position 2"),
    (lambda g: (3, None), TypeError, "expected Variable or None (got int)"),
    (lambda g: (gradcore.ones(2), None), SpecError, "gradient at index 0 - got [2] but expected shape compatible with [3]"),
    (lambda g: (g.to("meta"), None), DeviceError, "invalid gradient at index 0 - expected device cpu but got meta")])
def test_what_backward_may_return(result: Any, kind: type[Exception], text: str) -> None:
    Twice.result = staticmethod(result)
    x = gradcore.ones(3, requires_grad=True)
    with raises(kind, text):
        Twice.apply(x, 2).sum().backward()
    Twice.result = staticmethod(lambda g: (g * 2, None, None))
    Twice.apply(x, 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_saved_tensors_go_back_and_are_watched() -> None:
    class Square(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @gradcore.autograd.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    x = gradcore.ones(4, requires_grad=True)
    live = gradcore.memory_requested()
    y = Square.apply(x * 3)
    assert y.grad_fn.name() == "SquareBackward"
    y.sum().backward()
    assert gradcore.memory_requested() == live + y.nbytes + x.grad.nbytes
    with raises(RuntimeError, "Trying to backward through the graph a second time", "SquareBackward"):
        y.sum().backward()
    y = x * 3
    z = Square.apply(y)
    with gradcore.no_grad():
        y.mul_(2)
    with raises(ModifiedInPlace, "'saved 0'", "SquareBackward"):
        z.sum().backward()
    slope, = gradcore.autograd.grad((Square.apply(x) * x).sum(), x, create_graph=True)
    with raises(NoSecondDerivative, "once_differentiable"):
        slope.sum().backward()
    del y, z, slope


def test_one_of_several_gradients_of_a_function() -> None:
    x, y = (gradcore.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))

    class Product(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            return g * y, g * x

    for inputs, slopes in (((x,), [[3, 4]]), ((y,), [[1, 2]]), ((y, x), [[1, 2], [3, 4]])):
        assert [g.tolist() for g in gradcore.autograd.grad(Product.apply(x, y).sum(), inputs)] == slopes
    assert x.grad is None and y.grad is None


def test_what_is_saved_may_be_packed() -> None:
    stored: dict[int, np.ndarray[Any, Any]] = {}

    def pack(x: Any) -> int:
        assert not x.requires_grad and not gradcore.is_grad_enabled()
        stored[len(stored)] = x.numpy().copy()
        return len(stored) - 1

    x = gradcore.tensor([1.0, 2.0], requires_grad=True)
    with gradcore.step() as s:
        with gradcore.autograd.graph.saved_tensors_hooks(pack, lambda k: gradcore.tensor(stored[k])):
            y = (x * x).exp()
        y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.array([1, 2]) * np.exp([1, 4]), rtol=1e-6)
    marks = [(r.what, r.label) for r in normalized(s.raw_log) if isinstance(r, Mark) and r.what in ("pack", "unpack")]
    assert [w for w, _ in marks] == ["pack"] * 3 + ["unpack"] * 3
    with gradcore.autograd.graph.saved_tensors_hooks(pack, lambda k: "nothing"):
        z = x.exp()
    with raises(TypeError, "unpack_hook expected to be a Tensor but got result of type str"):
        z.sum().backward()
    del z
    with gradcore.autograd.graph.saved_tensors_hooks(pack, lambda k: gradcore.tensor(stored[k])):
        y = (x * x).exp()
    slope, = gradcore.autograd.grad(y.sum(), x, create_graph=True)
    # What is unpacked has the place in the graph of what was packed: inputs theirs, outputs their node's.
    curve, = gradcore.autograd.grad(slope.sum(), x)
    np.testing.assert_allclose(curve.numpy(), [6 * np.exp(1), 18 * np.exp(4)], rtol=1e-6)
    with gradcore.autograd.graph.save_on_cpu():
        (x * x).sum().backward()
    with gradcore.autograd.graph.disable_saved_tensors_hooks("not here"), raises(RuntimeError, "not here"):
        gradcore.autograd.graph.save_on_cpu().__enter__()


def test_pack_hooks_get_tensors_that_could_be_recomputed() -> None:
    x, w = gradcore.ones(2, 3), gradcore.ones(4, 3, requires_grad=True)
    y = nn.functional.gelu(nn.functional.linear(x, w))
    with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2):
        v = gradcore.ones(5, 4, requires_grad=True)
        nn.functional.linear(y, v).sum().backward()
    np.testing.assert_allclose(v.grad.numpy(), np.full((5, 4), 4 * y[0, 0].item()), rtol=1e-6)


@pytest.mark.parametrize("function", [gradcore.exp, lambda x: x @ x, lambda x: nn.functional.layer_norm(x, (2,))])
def test_what_is_unpacked_has_the_dtype_that_was_packed(function: Any) -> None:
    x = gradcore.tensor([[1.0, 2.0], [4.0, 3.0]], requires_grad=True)
    with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t):
        function(x).square().sum().backward()
    expected, = gradcore.autograd.grad(function(x).square().sum(), x)
    assert x.grad.dtype == x.dtype and gradcore.allclose(x.grad, expected, rtol=1e-2, atol=2e-2)


def test_the_first_nan_is_named() -> None:
    x = gradcore.tensor([0.0, 1.0], requires_grad=True)
    with gradcore.autograd.detect_anomaly(), raises(RuntimeError, "Function 'SqrtBackward0' returned nan values in its 0th "
                                                    "output", "test_function.py"):
        (x.sqrt() * 0).sum().backward()
    assert not gradcore.autograd.is_anomaly_enabled()
    with gradcore.autograd.set_detect_anomaly(True):
        (x * x).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0]


def test_threads_add_up_in_a_leaf_that_they_share() -> None:
    w = gradcore.ones(64, requires_grad=True)
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(50):
                own = gradcore.full((64,), float(k), requires_grad=True)
                (w * own).sum().backward()
                assert own.grad.tolist() == [1.0] * 64
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and w.grad.tolist() == [50.0 * 6] * 64


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_a_hook_left_is_a_residual_that_the_graph_keeps(device: str) -> None:
    w = gradcore.ones(1000, requires_grad=True, device=device)
    hooks = {"half": lambda: gradcore.autograd.graph.saved_tensors_hooks(lambda t: (t.half(), 1), lambda t: t[0].float()),
             "host": gradcore.autograd.graph.save_on_cpu}
    for name, nbytes in (("half", 2000), ("host", 4000 if device == "cpu" else 0)):
        with gradcore.step(device=device) as step:
            with hooks[name]():
                y = (w * 3).exp().flip(0).sum()
            held = gradcore.graph(y)
            y.backward()
        assert held.nbytes == nbytes, name
        if nbytes:
            assert f"{nbytes:,} bytes packed" in str(held) and step.report.by_role["residual"] >= nbytes
            assert step.report.residual_bytes == step.report.residual_bytes_returned >= nbytes
        assert "input" not in step.report.by_role
