"""``out=``: results are written to a tensor that is there, beside PyTorch's; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

#: Calls of a library, two matrices x and y [3, 3] and a function that makes a tensor of other values: of a shape and a dtype.
CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "add": lambda t, x, y, new: t.add(x, y, alpha=2, out=new(3, 3)),
    "add_to_double": lambda t, x, y, new: t.add(x, y, out=new(3, 3, dtype="float64")),
    "sub_mul_div_pow": lambda t, x, y, new: t.sub(t.mul(x, y, out=new(3, 3)),
                                                  t.div(x, t.pow(y, 2, out=new(3, 3)), out=x), out=y),
    "max_of_two": lambda t, x, y, new: (t.max(x, y, out=x), t.maximum(x, y, out=new(0))),
    "max": lambda t, x, y, new: t.max(x, 1, out=(new(3), new(3, dtype="int64"))),
    "sort_topk": lambda t, x, y, new: (*t.sort(x, out=(new(3, 3), new(3, 3, dtype="int64"))),
                                       *t.topk(x, 2, out=[new(0), new(0, dtype="int64")])),
    "sum_mean": lambda t, x, y, new: (t.sum(x, 0, out=new(3)), t.mean(x, dim=1, keepdim=True, out=new(3, 1)),
                                       t.amax(x, 1, out=new(3))),
    "products": lambda t, x, y, new: (t.matmul(x, y, out=new(3, 3)), t.mm(x, y, out=new(3, 3)),
                                       t.bmm(x[None], y[None], out=new(0))),
    "exp_in_place": lambda t, x, y, new: t.exp(x, out=x),
    "compared": lambda t, x, y, new: (t.gt(x, y, out=new(3, 3, dtype="bool")), t.eq(x, y, out=new(3, 3))),
    "cat_stack_where": lambda t, x, y, new: (t.cat([x, y], out=new(6, 3)), t.stack([x, y], 1, out=new(0)),
                                             t.where(x > y, x, y, out=new(3, 3))),
    "part": lambda t, x, y, new: (t.neg(x[0], out=y[1]), y)[1],
    "clamp_cumsum": lambda t, x, y, new: (t.clamp(x, 0, 1, out=new(3, 3)), t.cumsum(x, 1, out=x)),
    "inverse": lambda t, x, y, new: t.linalg.inv(x + 3 * t.eye(3), out=y),
    "norm": lambda t, x, y, new: t.norm(x, dim=1, out=new(3)),
    "made": lambda t, x, y, new: (t.eye(3, out=new(3, 3, dtype="float64")), t.zeros(3, out=new(3, dtype="int64")),
                                  t.ones((2, 2), out=new(0)), t.arange(4, out=new(4)), t.full((3,), 0.5, out=new(3)),
                                  t.linspace(0, 1, 5, out=new(5)))}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CALLS)
def test_results_are_pytorchs(name: str, torch: Any) -> None:
    data = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    results = []
    for t in (gradcore, torch):
        given = [t.tensor(d) for d in data]
        made = CALLS[name](t, *given, lambda *size, dtype="float32", t=t: t.full(size, 1, dtype=getattr(t, dtype)))
        made = made if isinstance(made, tuple) else (made,)
        results.append([(x.dtype, x.numpy()) for x in (*made, *given)])
    for (ours, a), (theirs, b) in zip(*results, strict=True):
        assert f"torch.{ours.name}" == str(theirs) and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_tensor_that_is_given_is_returned() -> None:
    x, y = gradcore.ones(2), gradcore.zeros(2)
    assert gradcore.add(x, x, out=y) is y and y.tolist() == [2, 2]
    assert gradcore.rand(2, out=y) is y and gradcore.sum(x, out=(z := gradcore.zeros(()))) is z
    values, places = gradcore.zeros(()), gradcore.zeros((), dtype=gradcore.int64)
    both = gradcore.max(x, 0, out=(values, places))
    assert both.values is values and both.indices is places and values.item() == 1
    p = gradcore.ones(2, requires_grad=True)
    with gradcore.no_grad():
        assert gradcore.mul(p, 3, out=p) is p and p.tolist() == [3, 3] and p.requires_grad


def test_a_tensor_without_elements_keeps_its_device_and_dtype() -> None:
    out = gradcore.empty(0, dtype=gradcore.float64, device="meta")
    gradcore.add(gradcore.ones(3), 1, out=out)
    assert (out.shape, out.dtype, out.device.type) == ((3,), gradcore.float64, "meta")


def test_a_compiled_function_writes_there_too() -> None:
    kept = gradcore.zeros(3)

    @gradcore.compile
    def add(x: Any) -> Any:
        gradcore.maximum(kept, x, out=kept)
        return kept + 1

    for x, y in (([1.0, 5, 2], [2, 6, 3]), ([3.0, 4, 1], [4, 6, 3]), ([0.0, 7, 9], [4, 8, 10])):
        assert add(gradcore.tensor(x)).tolist() == y
    assert "eager" not in add.explain()


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda x: gradcore.add(x, x, out=gradcore.zeros(3)), RuntimeError,
     "add(): the result has shape [2, 2], but out has [3]: give one of the result's shape, or one without elements"),
    (lambda x: gradcore.add(x, x, out=gradcore.zeros(2, 2, dtype=gradcore.int64)), RuntimeError,
     "add(): result type float32 can't be cast to the desired output type int64"),
    (lambda x: gradcore.cat([x.requires_grad_()], out=gradcore.zeros(2, 2)), RuntimeError,
     "cat(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires"),
    (lambda x: gradcore.exp(x, out=gradcore.zeros(2, 2, requires_grad=True)), RuntimeError, "exp(): functions with out=..."),
    (lambda x: gradcore.exp(x, out=x.requires_grad_() * 2), RuntimeError, "exp(): functions with out=..."),
    (lambda x: gradcore.exp(x, out=[1]), TypeError, "exp(): argument 'out' must be Tensor, not list"),
    (lambda x: gradcore.max(x, 0, out=x), ValueError, "max(): argument 'out' must be 2 tensors, but got 1"),
    (lambda x: gradcore.sum(x, 0, axis=1, out=x), TypeError, "sum() got multiple values for argument 'dim'")])
def test_what_is_refused(call: Callable[..., Any], kind: type[Exception], text: str) -> None:
    with raises(kind, text):
        call(gradcore.ones(2, 2))
