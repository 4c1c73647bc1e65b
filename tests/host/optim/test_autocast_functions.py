"""``custom_fwd`` and ``custom_bwd``: an ``autograd.Function`` in autocast regions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcore
from gradcore.amp import custom_bwd, custom_fwd
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
