"""Jacobians, Hessians and products with them: values, structures, graphs and errors are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

pytestmark = pytest.mark.oracle


def tensors(t: Any) -> tuple[Any, Any, Any]:
    return t.tensor([[1.0, 2.0], [3.0, 4.0]]), t.tensor([0.5, -1.0]), t.tensor(2.0)


def two(a: Any, b: Any) -> tuple[Any, Any]:
    return (a * b).sin().sum(0), (a ** 2).sum() * b


def one(a: Any, b: Any) -> Any:
    return ((a ** 3).sum(0) * b.exp()).sum()


def cube(a: Any) -> Any:
    return (a ** 3).sum()


#: By name, of the library's functions and of the three tensors.
CASES: dict[str, Any] = {
    "jacobian": lambda t, f, x, y, s: f.jacobian(lambda a: a @ y, x),
    "jacobian of two": lambda t, f, x, y, s: f.jacobian(two, (x, y)),
    "jacobian that is 0": lambda t, f, x, y, s: f.jacobian(lambda a, b: a * 2, (x, y)),
    "jacobian of a number": lambda t, f, x, y, s: f.jacobian(lambda a: a.sum(), s),
    "vjp": lambda t, f, x, y, s: f.vjp(two, (x, y), (t.ones(2), t.ones(2))),
    "vjp without a vector": lambda t, f, x, y, s: f.vjp(lambda a: a.exp().sum(), x),
    "jvp": lambda t, f, x, y, s: f.jvp(two, (x, y), (t.ones(2, 2), t.ones(2))),
    "jvp without a vector": lambda t, f, x, y, s: f.jvp(lambda a: a * y, s),
    "jvp of two, one of them constant": lambda t, f, x, y, s: f.jvp(lambda a: (a * a, y), x, x),
    "vjp of two, one of them constant": lambda t, f, x, y, s: f.vjp(lambda a: (a * 2, y), x, (x, y)),
    "jvp that is 0": lambda t, f, x, y, s: f.jvp(lambda a: y * 2, x, x),
    "hessian": lambda t, f, x, y, s: f.hessian(cube, x), "hessian of two": lambda t, f, x, y, s: f.hessian(one, (x, y)),
    "hessian that is 0": lambda t, f, x, y, s: f.hessian(lambda a: (a * y).sum(), y),
    "hvp": lambda t, f, x, y, s: f.hvp(one, (x, y), (x, y)), "vhp": lambda t, f, x, y, s: f.vhp(one, (x, y), (x, y)),
    "hvp of a linear function": lambda t, f, x, y, s: f.hvp(lambda a: (a * y).sum(), y, y),
    "vhp of a square": lambda t, f, x, y, s: f.vhp(lambda a: (a * a).sum(), y, y),
    "vhp of one": lambda t, f, x, y, s: f.vhp(cube, x, x),
    "vhp of a list of one": lambda t, f, x, y, s: f.vhp(lambda a: cube(a)[None], x, x),
    "hessian of a list of one": lambda t, f, x, y, s: f.hessian(lambda a: cube(a)[None], x)}


class With:
    """A library's functions, with options."""

    def __init__(self, t: Any, **options: Any) -> None:
        self.t, self.options = t, options

    def __getattr__(self, called: str) -> Any:
        return lambda *args: getattr(self.t.autograd.functional, called)(*args, **self.options)


def plain(z: Any) -> Any:
    """Structure, shapes, whether there is a graph, values."""
    if isinstance(z, (tuple, list)):
        return [type(z).__name__, *map(plain, z)]
    return tuple(z.shape), z.requires_grad, (np.round(np.asarray(z.detach()).astype(float), 3) + 0.0).tolist()


@pytest.mark.parametrize("name", CASES)
def test_values_and_structures(name: str, torch: Any) -> None:
    found = [plain(CASES[name](t, t.autograd.functional, *tensors(t))) for t in (gradcore, torch)]
    assert found[0] == found[1]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_strictly_and_where_gradients_are_off(name: str, create_graph: bool, torch: Any) -> None:
    found: list[Any] = []
    for t in (gradcore, torch):
        with t.no_grad():
            try:
                found.append(plain(CASES[name](t, With(t, strict=True, create_graph=create_graph), *tensors(t))))
            except RuntimeError:
                found.append("refused")
    assert found[0] == found[1]


@pytest.mark.parametrize("name", CASES)
def test_with_create_graph_they_can_be_differentiated(name: str, torch: Any) -> None:
    def gradients(t: Any) -> list[Any]:
        x, y, s = leaves = [z.requires_grad_() for z in tensors(t)]

        made, todo = [], [CASES[name](t, With(t, create_graph=True), x, y, s)]
        while todo:
            z = todo.pop()
            if isinstance(z, tuple):
                todo += z
            elif z.requires_grad:
                made.append((z * z).sum())
        # A derivative that is constant has a graph in PyTorch, whose gradients are 0, and none here.
        if made:
            sum(made[1:], made[0]).backward()
        return [None if z.grad is None or not z.grad.numpy().any() else z.grad.numpy() for z in leaves]

    for ours, theirs in zip(gradients(gradcore), gradients(torch), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("call", [
    lambda f, x, y: f.vjp(lambda a: a, x), lambda f, x, y: f.jvp(lambda a: a, x), lambda f, x, y: f.hessian(lambda a: a, x),
    lambda f, x, y: f.jacobian(lambda a: y * 2, x, strict=True), lambda f, x, y: f.vjp(lambda a: a, x, y),
    lambda f, x, y: f.jacobian(lambda a: 3, x), lambda f, x, y: f.hvp(lambda a: a, x, x),
    lambda f, x, y: f.jacobian(cube, [1.0]), lambda f, x, y: f.jacobian(cube, [x]), lambda f, x, y: f.vjp(cube, x, [x]),
    lambda f, x, y: f.jvp(lambda a: [a], x, x), lambda f, x, y: f.vhp(lambda a: [a.sum()], x, x),
    lambda f, x, y: f.hvp(lambda a: (a.sum(),) * 2, x, x), lambda f, x, y: f.hessian(lambda a: [a.sum()], x)])
def test_refusals(call: Any, torch: Any) -> None:
    kinds = []
    for t in (gradcore, torch):
        x, y, _ = tensors(t)
        with pytest.raises((RuntimeError, TypeError)) as failure:
            call(t.autograd.functional, x, y)
        kinds.append(failure.type)
        del failure
    assert kinds[0] is kinds[1]


def test_an_output_of_nothing_and_another_strategy() -> None:
    y = gradcore.ones(3)
    assert gradcore.autograd.functional.jacobian(lambda a: a[:0] * 2, y).shape == (0, 3)
    with raises(NotImplementedError, "forward-mode"):
        gradcore.autograd.functional.jacobian(cube, y, strategy="forward-mode")


def test_inputs_stay_as_they_are() -> None:
    x = gradcore.ones(2, requires_grad=True)
    before = gradcore.memory_requested()
    gradcore.autograd.functional.hessian(cube, x)
    assert x.grad is None and gradcore.memory_requested() == before


def beside_its_argument(t: Any) -> list[Any]:
    y = t.tensor([0.5, -1.0], requires_grad=True)
    slopes = t.autograd.functional.jacobian(lambda a: a * y, y, create_graph=True)
    product = t.autograd.functional.vjp(lambda a: (a * y).sum(), y, create_graph=True)[1]
    (slopes.sum() + product.sum()).backward()
    return [plain(z) for z in (slopes, product, y.grad)]


def test_an_argument_that_the_function_also_refers_to_is_a_constant_there(torch: Any) -> None:
    assert beside_its_argument(gradcore) == beside_its_argument(torch)


@pytest.mark.parametrize("fast", [False, True])
def test_gradcheck_reaches_parameters_that_the_function_has_from_a_module(fast: bool, torch: Any) -> None:
    for t in (gradcore, torch):
        layer, x = t.nn.Linear(2, 2).double(), t.tensor([[1.0, 2.0]], dtype=t.float64, requires_grad=True)
        before = [p.tolist() for p in layer.parameters()]
        for check in (t.autograd.gradcheck, t.autograd.gradgradcheck):
            assert check(lambda x, *parameters, layer=layer: layer(x).sin(), (x, *layer.parameters()), fast_mode=fast)
        assert [p.tolist() for p in layer.parameters()] == before


@pytest.mark.parametrize("fast", [False, True])
def test_gradcheck_refuses_a_function_that_loses_the_graph(fast: bool, torch: Any) -> None:
    for t in (gradcore, torch):
        x = t.tensor([1.0, 2.0], dtype=t.float64, requires_grad=True)
        assert t.autograd.gradcheck(lambda x: x.detach() * 0, x, fast_mode=fast)
        with pytest.raises(RuntimeError):
            t.autograd.gradcheck(lambda x: x.detach(), x, fast_mode=fast)
