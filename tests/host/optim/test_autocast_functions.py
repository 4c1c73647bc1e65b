"""``custom_fwd`` and ``custom_bwd``: an ``autograd.Function`` in autocast regions; regions that end within a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.amp import custom_bwd, custom_fwd
from gradcore.engine import autocast
from gradcore.utils.checkpoint import checkpoint
from tests.conftest import raises


def seen_by(t: Any, cast: str | None, region: bool, dtype: str = "float32") -> list[Any]:
    """The dtypes that forward and backward of a function see, of the result and of the gradients."""
    seen: list[Any] = []

    class Product(t.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        @t.amp.custom_fwd(device_type="cpu", cast_inputs=None if cast is None else getattr(t, cast))
        def forward(ctx: Any, a: Any, b: Any, others: Any = ()) -> Any:
            ctx.save_for_backward(a, b)
            seen.extend([a.dtype, *[x.dtype for x in others], (a @ b).dtype, t.is_autocast_enabled("cpu")])
            return a @ b

        @staticmethod
        @t.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Any) -> Any:
            a, b = ctx.saved_tensors
            x = t.ones(2, 2)
            seen.extend([g.dtype, (x @ x).dtype, t.is_autocast_enabled("cpu")])
            return g @ b.to(g.dtype).t(), a.to(g.dtype).t() @ g, None

    a, b = (t.ones(2, 2, dtype=getattr(t, dtype), requires_grad=True) for _ in range(2))
    with t.autocast("cpu", enabled=region):
        y = Product.apply(a, b, (t.ones(1), t.ones(1, dtype=t.int64)))
    y.sum().backward()
    return [str(x).rpartition(".")[2] for x in (*seen, y.dtype, a.grad.dtype, b.grad.dtype)]


@pytest.mark.oracle
@pytest.mark.parametrize("region", [False, True])
@pytest.mark.parametrize(("cast", "dtype"), [(None, "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"),
                                            ("float32", "float64")])
def test_forward_and_backward_run_in_pytorchs_regions(cast: str | None, dtype: str, region: bool, torch: Any) -> None:
    assert seen_by(gradcore, cast, region, dtype) == seen_by(torch, cast, region, dtype)


def test_named_tuples_are_cast_as_such() -> None:
    class Pair(NamedTuple):
        x: Any
        name: str

    forward = custom_fwd(lambda ctx, pair: pair, device_type="cpu", cast_inputs=np.float16)
    with gradcore.autocast("cpu"):
        found = forward(type("Context", (), {})(), Pair(gradcore.ones(2), "x"))
    assert type(found) is Pair and found.x.dtype == np.float16 and found.name == "x"


def test_a_device_type_is_a_str() -> None:
    for decorate in (custom_fwd, custom_bwd):
        with raises(ValueError, "Expected `device_type` of type `str`"):
            decorate(lambda ctx: None, device_type=gradcore.device("cpu"))
    assert gradcore.amp.is_autocast_available("cuda") and not gradcore.amp.is_autocast_available("tpu")
    assert gradcore.cuda.amp.custom_fwd(lambda ctx, x: x)(type("Context", (), {})(), 3) == 3


class Square(gradcore.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2 * ctx.saved_tensors[0]


def in_a_hook(layer: nn.Module, x: Any) -> Any:
    def look(g: Any) -> None:
        with gradcore.autocast("cpu", np.float16), gradcore.no_grad():
            layer(x)

    y = layer(x)
    y.register_hook(look)
    return y


@pytest.mark.parametrize("within", [
    lambda layer, x: checkpoint(layer, x, use_reentrant=False), lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    lambda layer, x: Square.apply(layer(x)), in_a_hook], ids=["checkpoint", "reentrant checkpoint", "custom_bwd", "hook"])
def test_a_region_goes_on_after_a_backward_in_it(within: Callable[[nn.Module, Any], Any]) -> None:
    layer = nn.Linear(4, 4)
    with gradcore.autocast("cpu", np.float16):
        for _ in range(3):
            x = gradcore.ones(4, 4, requires_grad=True)
            y = within(layer, x)
            y.sum().backward()
            assert layer(x).dtype == np.float16 and layer(x).exp().dtype == np.float32
    assert layer(x).dtype == np.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_run_again_in_its_region_leaves_the_rest_of_backward_in_none(reentrant: bool) -> None:
    x, w = (gradcore.tensor(np.random.default_rng(k).normal(size=(8, 8)), dtype=gradcore.float32) for k in range(2))
    layer, found = nn.Linear(8, 8), []
    for run in (layer, lambda y: checkpoint(layer, y, use_reentrant=reentrant)):
        w = w.detach().requires_grad_()
        y = x @ w
        with gradcore.autocast("cpu"):
            z = run(y)
        z.float().sum().backward()
        found.append(w.grad.tolist())
    assert found[0] == found[1] and not autocast._open


@pytest.mark.oracle
def test_products_of_integers_are_not_cast(torch: Any) -> None:
    for t in (gradcore, torch):
        with t.autocast("cpu"):
            assert (t.ones(2, 2, dtype=t.int32) @ t.ones(2, 2, dtype=t.int32)).dtype == t.int32
