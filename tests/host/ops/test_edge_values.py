"""Edge cases of values: empty, infinite, NaN, tied, beyond a dtype's range; the results are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


def slope(t: Any, call: Callable[[Any], Any], *values: float) -> Any:
    """The gradient of the sum of the call's result."""
    x = t.tensor(values, requires_grad=True)
    call(x).sum().backward()
    return x.grad


def whole(t: Any) -> Any:
    return t.tensor([[1, 2], [3, 4]])


#: Calls, each given the library.
SAME: dict[str, Callable[[Any], Any]] = {
    "sign of nan": lambda t: t.sign(t.tensor([math.nan, -2.0, 0.0, 3.0])),
    "sign of nan in place": lambda t: t.tensor([math.nan, -2.0]).sign_(),
    "sign of ints": lambda t: t.tensor([-3, 0, 9]).sign(),
    "slope of abs": lambda t: slope(t, t.abs, math.nan, -2.0, 0.0),
    "slope of std": lambda t: slope(t, t.std, 2.0, 2.0, 2.0),
    "slope of median": lambda t: slope(t, t.median, 0.0, 1.0, 0.0),
    "slope of a median of ties": lambda t: slope(t, t.median, 3.0, 1.0, 3.0, 3.0, 7.0),
    "slope of a median of infinities": lambda t: slope(t, t.median, math.inf, math.inf, 2.0, math.inf),
    "slope of a median of negative infinities": lambda t: tuple(
        slope(t, f, -math.inf, 6.0, -math.inf, 5.0, -math.inf) for f in (t.median, t.nanmedian)),
    "median of nan": lambda t: t.tensor([1.0, math.nan, 2.0], requires_grad=True).median().detach(),
    "slope of 0 ** y": lambda t: slope(t, lambda y: 0 ** y, -1.0, 0.0, 2.0, math.inf, math.nan),
    "loss of a weighted infinite logit": lambda t: t.nn.functional.binary_cross_entropy_with_logits(
        t.tensor([math.inf, -30.0]), t.tensor([0.0, 1.0]), reduction="none", pos_weight=t.tensor(2.0)),
    "loss of an infinite variance": lambda t: slope(t, lambda x: t.nn.functional.gaussian_nll_loss(
        x, x * 0.5, t.tensor([math.inf, 0.0]), reduction="none"), 1.0, 2.0),
    "prelu of endless slopes": lambda t: t.nn.functional.prelu(
        t.tensor([[1.0, 2.0, -3.0, -1.0, 4.0]]), t.tensor([math.inf, math.nan, 2.0, -math.inf, -math.inf])),
    "leaky relu of an infinite slope": lambda t: t.nn.functional.leaky_relu(t.tensor([1.0, 2.0, -3.0, -0.5]), math.inf),
    # On a GPU these count as 0.
    **{f"frexp of subnormal {d}": lambda t, d=d, tiny=tiny: tuple(v.double() for v in t.frexp(t.tensor(
        [tiny, -3 * tiny, 2.0**20 * tiny, 0.75 * 2.0**20 * tiny], dtype=getattr(t, d))))
       for d, tiny in (("float16", 2.0**-24), ("bfloat16", 2.0**-133), ("float32", 2.0**-149), ("float64", 2.0**-1074))},
    **{f"slope of {name} where it is not taken": lambda t, name=name, edge=edge: slope(t, lambda x: t.where(
        x > 1, getattr(t.special, name)(x, t.tensor([edge, math.inf, 2.0, edge])), 0.0), 1.0, 0.5, 3.0, 0.0)
       for name, edge in (("xlogy", 0.0), ("xlog1py", -1.0))},
    "slope of (-2) ** y": lambda t: slope(t, lambda y: (-2) ** y, -1.0, 2.0),
    "argmax kept": lambda t: t.ones(2, 3).argmax(keepdim=True),
    "argmin kept": lambda t: t.argmin(t.tensor([[1, 0], [2, 3]]), None, True),
    "where of 0-d": lambda t: t.where(t.tensor(True)), "where of a false 0-d": lambda t: t.where(t.tensor(False)),
    "nonzero of 0-d": lambda t: t.tensor(3).nonzero(as_tuple=True),
    "chunks of nothing": lambda t: t.zeros(0).chunk(3), "chunks of no columns": lambda t: t.zeros(2, 0).chunk(2, 1),
    "fewer chunks": lambda t: t.zeros(5).chunk(4),
    "kl_div of nothing": lambda t: t.nn.functional.kl_div(t.zeros(0), t.zeros(0), reduction="batchmean"),
    "negative bytes": lambda t: t.tensor([-1, -255, 255], dtype=t.uint8),
    "large floats": lambda t: t.tensor(2**63, dtype=t.float64),
    "large bools": lambda t: t.tensor([300, 0], dtype=t.bool),
    "arange": lambda t: t.arange(0.5, 4.7, 1.2, dtype=t.int64), "arange end": lambda t: t.arange(0, 4.7, dtype=t.int64),
    "addmm of ints": lambda t: t.addmm(whole(t), whole(t), whole(t), alpha=1.5, beta=2.7),
    "addmv of ints": lambda t: t.addmv(t.tensor([1, 2]), whole(t), t.tensor([1, 2]), alpha=0.5),
    "alpha of mixed": lambda t: t.add(t.tensor([1, 2]), t.tensor(1.5), alpha=0.5),
    "alpha of a number": lambda t: t.add(t.tensor([1, 2]), 2.5, alpha=0.5),
    "truncated quotient": lambda t: t.div(t.tensor([2**62 + 1, -7, 7]), t.tensor([1, 2, -2]), rounding_mode="trunc"),
    "truncated quotient of bytes": lambda t: t.div(t.tensor([200, 7], dtype=t.uint8), 3, rounding_mode="trunc"),
    "masked_fill of ints": lambda t: t.tensor([1, 2]).masked_fill(t.tensor([True, False]), 1.5),
    "no ints over 0": lambda t: t.tensor([], dtype=t.int64) // 0, "floats over 0": lambda t: t.tensor([1.0, -1.0]) // 0,
    "one_hot": lambda t: t.nn.functional.one_hot(t.tensor([[0, 2], [1, 1]]), 4),
    "one_hot of 0-d": lambda t: t.nn.functional.one_hot(t.tensor(1), 3),
    "one_hot of none": lambda t: t.nn.functional.one_hot(t.zeros(0, dtype=t.int64), 3),
    "one_hot to the largest": lambda t: t.nn.functional.one_hot(t.tensor([0, 2])),
    "ldexp beyond 2 ** other": lambda t: t.ldexp(t.tensor([1e-30, 0.0, 1e-40, 3.0, 5e37]), t.tensor([130, 200, 150, -3, -200])),
    "ldexp of halves": lambda t: t.ldexp(t.tensor([1.0, 2.0], dtype=t.float16), t.tensor([3, 20])),
    "logaddexp2 of halves": lambda t: t.logaddexp2(*(
        t.tensor(v, dtype=t.float16) for v in ([100.0, 20000.0, 7.0], [100.0, 30000.0, 4.0]))),
    "logaddexp2 of floats and doubles": lambda t: t.logaddexp2(t.tensor([2.0]), t.tensor([3.0], dtype=t.float64)),
    **{f"slope of a quotient's {end} part, by {what}": lambda t, m=mode, b=by: slope(t, (
        lambda x: t.div(x, t.tensor([0.0, 2.0]), rounding_mode=m)) if b else (
        lambda x: t.div(t.tensor([0.0, 7.0]), x, rounding_mode=m)), 0.0, 1.0)
       for end, mode in (("floor", "floor"), ("whole", "trunc")) for what, by in (("x", True), ("y", False))},
    "isclose of the ends": lambda t: t.isclose(t.tensor([-2**63, 2**63 - 1, 5]), t.tensor([2**63 - 1, -2**63, 5])),
    "isclose of bools": lambda t: t.isclose(t.tensor([True, False]), t.tensor([True, True])),
    "isclose of nearly equal ints": lambda t: t.isclose(t.tensor([2**53 + 1]), t.tensor([2**53])),
    "isclose of nearly equal ints, exactly": lambda t: t.isclose(t.tensor([2**53 + 1]), t.tensor([2**53]), 0.0, 0.0),
    "addcmul of ints": lambda t: t.addcmul(*[t.tensor([1, 2])] * 3, value=1.5),
    "addcmul_ of ints": lambda t: t.tensor([1, 2]).addcmul_(*[t.tensor([1, 2])] * 2, value=2.9),
    "addcmul of ints and floats": lambda t: t.addcmul(t.tensor([1, 2]), t.tensor([1.0, 2.0]), t.tensor([1, 2]), value=1.5),
    "alpha of bools": lambda t: t.add(t.tensor([True, False]), t.tensor([True, True]), alpha=2),
    "alpha False of bools": lambda t: t.add(t.tensor([True, False]), t.tensor([True, True]), alpha=False),
    "alpha of a bool": lambda t: t.add(t.tensor([True, False]), True, alpha=2),
    "add_ with alpha of bools": lambda t: t.tensor([True, False]).add_(t.tensor([True, True]), alpha=2),
    "alpha of ints and bools": lambda t: t.add(t.tensor([1, 2]), t.tensor([True, False]), alpha=2),
    **{f"{name} over no dimension of {dtype}": lambda t, n=name, d=dtype: getattr(t, n)(
        t.tensor([[1, 0], [0, 3]], dtype=getattr(t, d)), dim=()) for name in ("any", "all") for dtype in ("bool", "float32")},
    "any over no dimension, kept": lambda t: t.tensor([[True, False]]).any((), True),
    "squeeze of no dimension": lambda t: t.ones(1, 2, 1).squeeze(()), "diff of order 0": lambda t: t.diff(
        t.tensor([1.0, 2.0]), n=0, prepend=t.tensor([5.0]), append=t.tensor([7.0])),
    "sign_ of bools": lambda t: t.tensor([True, False]).sign_(),
    **{f"scatter_reduce of bools, {how}, {own}": lambda t, h=how, o=own: t.tensor([False, True, False]).scatter_reduce(
        0, t.tensor([0, 0, 1]), t.tensor([True, False, False]), h, include_self=o)
       for how in ("sum", "amax", "amin") for own in (True, False)},
    "conversion of floats": lambda t: t.tensor([2.9, -2.9, 127.0], dtype=t.int8),
    "the ends of bytes": lambda t: t.tensor([-128, 127], dtype=t.int8), "a NumPy double": lambda t: t.tensor(np.float64(1.5)),
    "pinverse by rcond": lambda t: (t.pinverse(t.tensor([[1.0, 0.0], [0.0, 0.2]]), 0.3), t.tensor([[4.0]]).pinverse(rcond=1.5)),
    "slope of as_strided with a size of 1": lambda t: slope(t, lambda x: x.as_strided((2, 3, 1), (3, 1, 1)), *[1.0] * 6),
    "unflatten of nothing": lambda t: (t.zeros(0, 4).unflatten(1, (2, -1)), t.zeros(3, 0).unflatten(0, (3, -1)),
                                       t.zeros(0, 3).unflatten(0, (2, -1))),
    **{f"repeat_interleave alone, {dtype}": lambda t, d=dtype: t.repeat_interleave(t.tensor([1, 2, 0, 3], dtype=getattr(t, d)))
       for dtype in ("int64", "int32")},
    "repeat_interleave alone of none": lambda t: t.repeat_interleave(t.zeros(0, dtype=t.int64)),
    "bce_with_logits of floats and doubles": lambda t: t.nn.functional.binary_cross_entropy_with_logits(
        t.tensor([0.5, -40.0]), t.tensor([0.0, 1.0], dtype=t.float64)) * 0 + 1,
    "cosine_similarity of floats and ints": lambda t: t.nn.functional.cosine_similarity(
        t.tensor([[2.0, 0.0]]), t.tensor([[4, 0]])),
    "tensordot with a size of 1": lambda t: t.tensordot(t.ones(2, 1), t.arange(6.0).reshape(3, 2), dims=1),
    "tensordot of bytes with sizes of 1": lambda t: tuple(t.tensordot(
        t.ones(*s, dtype=t.uint8), t.full(r, 100, dtype=t.uint8), dims=1) for s, r in (((2, 1), (3, 2)), ((2, 3), (1, 2)))),
    **{f"round of {d} to {n} decimals": lambda t, d=d, n=n: t.tensor(
        [1.5, -100.0, 60000.0, 3.14159, 2.5e-4, 1234.5], dtype=getattr(t, d)).round(decimals=n)
       for d in ("float16", "float32") for n in (3, 1, -2)},
    "tensordot with sizes of 1 on both sides": lambda t: t.tensordot(
        t.arange(6.0).reshape(2, 3, 1), t.arange(8.0).reshape(1, 4, 2), dims=([1, 2], [0, 1])),
    "slope of a tensordot with a size of 1": lambda t: slope(
        t, lambda x: t.tensordot(x.reshape(2, 1), t.arange(6.0).reshape(3, 2), dims=1) * t.tensor([1.0, 2.0]), 1.0, 2.0),
    **{f"index_add of ints, alpha {a}": lambda t, a=a: t.zeros(3, dtype=t.int64).index_add(
        0, t.tensor([0, 0, 1]), t.tensor([1, 2, 3]), alpha=a) for a in (2.0, 2.5, -1.5, 3)},
    **{f"index_add of bools, alpha {a}": lambda t, a=a: t.tensor([False, True]).index_add(
        0, t.tensor([0, 1]), t.tensor([True, False]), alpha=a) for a in (2, 0.5, -1, 0, False)},
    "searchsorted of ints by a float": lambda t: (t.searchsorted(t.tensor([1, 2, 3]), 2.5), t.bucketize(0.5, t.tensor([0, 1]))),
    **{f"masked_scatter of {shape}": lambda t, s=shape: t.zeros(*s).masked_scatter(
        t.tensor([[True, False, True], [False, True, False]]), t.arange(6.0)) for shape in ((3,), (1,), (2, 1), (2, 2, 3))},
    "slope of a masked_scatter": lambda t: slope(t, lambda x: x.masked_scatter(
        t.tensor([[True, False], [False, False]]), t.tensor([5.0])), 1.0, 2.0),
    **{f"matrix_norm {order} of {shape}": lambda t, o=order, s=shape: t.linalg.matrix_norm(t.zeros(*s), o)
       for order, shape in ((1, (3, 0)), (1, (0, 3)), (math.inf, (0, 3)), (math.inf, (2, 0, 3)), (1, (2, 3, 0)), (1, (0, 0)))},
    "batch_norm of halves": lambda t: t.nn.functional.batch_norm(
        t.tensor([[1.0, 8.0], [3.0, 9.0]], dtype=t.float16), t.zeros(2), t.ones(2), t.tensor([2.0, 3.0]), t.zeros(2)),
    **{f"slope of hardtanh of {dtype}": lambda t, d=dtype: slope(t, lambda x: t.nn.functional.hardtanh(
        x.to(getattr(t, d)), -0.1, np.float64(0.7)), 0.9, 0.05, -0.3) for dtype in ("float16", "bfloat16", "float32")},
    "slope of logit": lambda t: slope(t, t.logit, 0.0, 1.0, 2.0, -1.0, 0.5),
    **{f"{name} of bytes by ints": lambda t, n=name: getattr(t.tensor([1, 250, 7], dtype=t.uint8), n)(t.tensor([5, 200, 7]))
       for name in ("clamp_min_", "clamp_max_", "clamp_min", "clamp_max")},
    "clamp_ of bytes by ints": lambda t: t.tensor([1, 250], dtype=t.uint8).clamp_(t.tensor([5, 6]), t.tensor([200, 90])),
    **{f"{name} of bytes and what none is": lambda t, n=name: getattr(t.tensor([1, 7], dtype=t.uint8), n)(300)
       for name in ("lt_", "eq_", "ge_")},
    **{f"{name} of ints and what none is": lambda t, n=name: getattr(t.tensor([1, 7], dtype=t.int32), n)(math.inf)
       for name in ("lt_", "eq_", "ge")},
    **{f"bools and {kind.__name__}, added": lambda t, k=kind: t.add(t.tensor([True, False]), k(2))
       for kind in (np.float32, np.float64, np.int64, np.uint8, int, float, bool)},
    **{f"{name} with {kind.__name__}": lambda t, n=name, k=kind: getattr(t, n)(t.tensor([3, 5]), k(2))
       for name in ("xlogy", "copysign") for kind in (np.float32, np.int16, float, int)},
    **{f"soft margin of infinities, {d}": lambda t, d=d: t.nn.functional.soft_margin_loss(
        t.tensor([math.inf, -math.inf, -math.inf], dtype=getattr(t, d)), t.tensor([1.0, 1.0, -1.0]), reduction="none")
       for d in ("float32", "float16")},
    **{f"to the power of {e}": lambda t, e=e: t.tensor([-math.inf, -1.0, -0.0, 0.0, 4.0, math.inf, math.nan]) ** e
       for e in (0.5, -0.5)},
    **{f"unique of {dtype} with nan": lambda t, d=dtype: t.unique(
        t.tensor([2.0, math.nan, 1.0, -math.inf, math.nan, 1.0, 0.0, math.nan, -3.0], dtype=getattr(t, d)),
        return_inverse=True, return_counts=True)[::2] for dtype in ("float32", "float16")},
    **{f"threshold of {dtype}": lambda t, d=dtype: t.nn.functional.threshold(
        t.tensor([2**53 + 1, -6, -5, 5, 6], dtype=getattr(t, d)), -5.5, 7.9) for dtype in ("int64", "float64")},
    **{f"{name} of {dtype}": lambda t, n=name, d=dtype: getattr(t, n)(-3.9, 10.9, 7, dtype=getattr(t, d))
       for name in ("linspace", "logspace") for dtype in ("int64", "int32", "int8")},
    "linspace of one byte": lambda t: t.linspace(5, 300, 1, dtype=t.int8),
    "logspace of one int": lambda t: t.logspace(1.2, 3.4, 1, dtype=t.int64),
    **{f"logaddexp2 of {a} and {b}": lambda t, a=a, b=b: t.logaddexp2(t.tensor([2, 2], dtype=getattr(t, a)), t.tensor(
        [2, 2], dtype=getattr(t, b))) * 0 for a, b in (("int64", "float32"), ("float64", "int8"), ("bool", "float32"))},
    **{f"slope of a matrix to the power of 0, {what}": lambda t, s=scale: slope(
        t, lambda x: t.linalg.matrix_power(x.reshape(2, 2) * s, 0), 1.0, math.nan, math.inf, 0.0)
       for what, scale in (("once", 1.0), ("scaled", 2.0))},
    "matrix_power of ints to 0": lambda t: t.linalg.matrix_power(t.ones(2, 2, 2, dtype=t.int64), 0),
    "cosine_similarity of bfloat16 and a 0-d float": lambda t: t.nn.functional.cosine_similarity(
        t.tensor([2.0, 0.0], dtype=t.bfloat16), t.tensor(2.0), dim=0) * 0,
    "cosine_similarity of a float and a 0-d double": lambda t: t.nn.functional.cosine_similarity(
        t.tensor([2.0, 0.0]), t.tensor(2.0, dtype=t.float64), dim=0) * 0,
    "adaptive_avg_pool1d of one sample": lambda t: t.nn.functional.adaptive_avg_pool1d(t.arange(10.0).reshape(2, 5), 3),
    "softsign of ints": lambda t: t.nn.functional.softsign(t.tensor([3, 0, -1])),
    "tanhshrink of ints": lambda t: t.nn.functional.tanhshrink(t.tensor([0, 0])),
    **{f"{name} by bools": lambda t, n=name: getattr(t.nn.functional, n)(t.tensor([3.0, -1.0]), t.tensor([True, False]))
       for name in ("mse_loss", "smooth_l1_loss", "huber_loss")},
    **{f"{name} of {a} by {b}": lambda t, n=name, a=a, b=b: getattr(t.nn.functional, n)(
        t.tensor([3.0, -1.0], dtype=getattr(t, a)), t.tensor([1.0, -1.0], dtype=getattr(t, b)), reduction="none") * 0
       for name in ("huber_loss", "smooth_l1_loss", "soft_margin_loss", "mse_loss", "l1_loss")
       for a, b in (("float32", "float64"), ("float16", "float32"))},
    **{f"multilabel_soft_margin_loss by {b}": lambda t, b=b: t.nn.functional.multilabel_soft_margin_loss(
        t.zeros(2, 3), t.tensor([[1, 0, 1], [0, 0, 1]], dtype=getattr(t, b))) * 0 for b in ("int64", "float64")},
    "bce at the ends": lambda t: t.nn.functional.binary_cross_entropy(t.tensor([0.0, 1.0, 0.5]), t.tensor([0.0, 0.5, 1.0])),
}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", SAME)
def test_the_answer_is_torchs(name: str, torch: Any) -> None:
    ours, theirs = (found if isinstance(found, tuple) else (found,) for found in map(SAME[name], (gradcore, torch)))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert f"torch.{a.dtype.name}" == str(b.dtype)
        np.testing.assert_array_equal(a.numpy(), b.numpy(), strict=True)


def test_the_loss_of_a_sure_and_right_logit_has_digits() -> None:
    for dtype, precision in ((np.float32, 1e-6), (np.float64, 1e-14)):
        values = np.array([0.5, 5.0, 10.0, 15.0, 20.0, 30.0, 80.0], dtype)
        x, ones = gradcore.tensor(values), gradcore.ones(7, dtype=dtype)
        f = gradcore.nn.functional
        for found in (f.binary_cross_entropy_with_logits(x, ones, reduction="none"),
                      f.binary_cross_entropy_with_logits(-x, 1 - ones, reduction="none"),
                      f.soft_margin_loss(x, ones, reduction="none"), f.soft_margin_loss(-x, -ones, reduction="none")):
            np.testing.assert_allclose(found.numpy(), np.log1p(np.exp(-values.astype(np.float64))), precision)


@pytest.mark.oracle
def test_distinct_bfloat16_numbers_are_in_order(torch: Any) -> None:
    # NumPy sorts a NaN of this dtype anywhere.
    for values in ([2.0, math.nan, 1.0, -math.inf, math.nan, 1.0, 0.0], [[0.5, math.nan, 0.5], [1.0, 1.0, 0.5]]):
        ours, theirs = (t.unique(t.tensor(values, dtype=t.bfloat16), return_inverse=True, return_counts=True)
                        for t in (gradcore, torch))
        assert ours[0].dtype == gradcore.bfloat16
        np.testing.assert_array_equal(ours[0].float().numpy(), theirs[0].float().numpy())
        np.testing.assert_array_equal(ours[2].numpy(), theirs[2].numpy())


def test_the_slopes_of_sinc_near_0_have_digits() -> None:
    # PyTorch's have few, and its second slope at 0 is NaN.
    for dtype, precision in ((gradcore.float32, 1e-4), (gradcore.float64, 1e-10)):
        x = gradcore.tensor([0.0, 1e-4, 0.02, 0.0202], dtype=dtype, requires_grad=True)
        first, = gradcore.autograd.grad(gradcore.sinc(x).sum(), x, create_graph=True)
        second, = gradcore.autograd.grad(first.sum(), x)
        u = (math.pi * np.array([0.0, 1e-4, 0.02, 0.0202])) ** 2
        ones = -math.pi ** 2 / 3 * (1 - u / 10 + u ** 2 / 280 - u ** 3 / 15120)
        twos = -math.pi ** 2 / 3 * (1 - u * 3 / 10 + u ** 2 * 5 / 280 - u ** 3 * 7 / 15120)
        np.testing.assert_allclose(first.detach().numpy(), ones * x.detach().numpy(), rtol=precision)
        np.testing.assert_allclose(second.numpy(), twos, rtol=precision)
    x = gradcore.tensor([1e-3, 0.1], dtype=gradcore.float16, requires_grad=True)
    gradcore.sinc(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [-0.00329, -0.3257], rtol=1e-3)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "floor_divide_", "remainder_", "fmod_", "div", "div_"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_an_integer_over_0_is_refused(dtype: str, name: str, torch: Any) -> None:
    how = {"rounding_mode": "trunc"} if name.startswith("div") else {}
    for t in (gradcore, torch):
        x, y = (t.tensor(v, dtype=getattr(t, dtype)) for v in ([4, 5], [2, 0]))
        for divisor in (0, y):
            with raises(RuntimeError, "ZeroDivisionError"):
                getattr(x, name)(divisor, **how)
        assert t is torch or x.tolist() == [4, 5]


def _zeros(t: Any, x: Any) -> Any:
    return t.zeros(x.shape)


#: Functions that pass the cotangent for some elements, and give 0 for others whatever it is.
GATES: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda t, x, name=name: getattr(t.nn.functional, name)(x) for name in (
        "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "hardtanh", "hardswish", "hardsigmoid", "softshrink",
        "hardshrink")},
    **{name: lambda t, x, name=name: getattr(x, name)() for name in ("abs", "sign", "floor", "ceil", "round", "trunc")},
    "threshold": lambda t, x: t.nn.functional.threshold(x, 0.1, 5.0),
    "maximum": lambda t, x: t.maximum(x, _zeros(t, x)), "minimum": lambda t, x: t.minimum(_zeros(t, x), x),
    "clamp": lambda t, x: x.clamp(-1, 1), "x ** 0": lambda t, x: x ** 0, "fmax": lambda t, x: t.fmax(x, _zeros(t, x)),
    "logaddexp": lambda t, x: t.logaddexp(x, _zeros(t, x)), "overwritten": lambda t, x: (x * 1).copy_(_zeros(t, x)) + 0 * x,
    "masked_fill": lambda t, x: x.masked_fill(x > 0, 0.0), "where": lambda t, x: t.where(x > 0, x, _zeros(t, x)),
}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("cotangent", [1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", GATES)
def test_what_does_not_pass_is_0_whatever_comes(name: str, cotangent: float, compiled: bool, torch: Any) -> None:
    def slopes(t: Any, x: Any) -> Any:
        y = GATES[name](t, x)
        return t.autograd.grad(y, x, t.full(y.shape, cotangent))[0]

    for values in ([-3.0, -1.0, -0.3, 0.0, 0.3, 1.0, 3.0, 6.0, 7.0], [math.nan, math.inf, -2.0, -0.0]):
        expected = slopes(torch, torch.tensor(values, requires_grad=True))
        ours = gradcore.compile(lambda x: slopes(gradcore, x)) if compiled else lambda x: slopes(gradcore, x)
        x = gradcore.tensor(values, requires_grad=True)
        for _ in range(2 if compiled else 1):
            found = ours(x)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_integers_are_counted_by_histc() -> None:
    """As the experts of a network are on a GPU; PyTorch refuses it on the CPU."""
    x = np.array([0, 1, 1, 3, 5, -1, 2, 3], np.int32)
    found = gradcore.histc(gradcore.tensor(x), bins=4, min=0, max=3)
    assert found.dtype == gradcore.int32 and found.tolist() == np.histogram(x, 4, (0, 3))[0].tolist() == [1, 2, 1, 2]
    assert gradcore.tensor(x).long().histc(3).tolist() == np.histogram(x, 3)[0].tolist()


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["elu", "selu", "celu", "silu", "softplus", "mish", "gelu", "hardswish", "logsigmoid",
                                  "softsign"])
def test_the_second_gradient_of_an_activation_is_pytorchs_where_its_pieces_meet(name, torch):
    found = []
    for library in (gradcore, torch):
        x = library.tensor([-3.0, -0.5, -0.0, 0.0, 0.5, 3.0], dtype=library.float64, requires_grad=True)
        slope, = library.autograd.grad(getattr(library.nn.functional, name)(x).sum(), x, create_graph=True)
        curve, = library.autograd.grad(slope.sum(), x)
        found.append([slope.detach().numpy(), curve.numpy()])
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


#: Functions of a number whose sign is seen where it is 0.
SIGNS: dict[str, Callable[[Any, Any, float], Any]] = {
    "pad": lambda t, x, zero: t.nn.functional.pad(x, (1, 1), value=zero),
    "hardtanh": lambda t, x, zero: t.nn.functional.hardtanh(x, zero, 2.0),
    "hardtanh_": lambda t, x, zero: t.nn.functional.hardtanh_(x, zero, 2.0),
    "nan_to_num": lambda t, x, zero: t.nan_to_num(x / 0, nan=zero, posinf=zero, neginf=zero),
    "nan_to_num_": lambda t, x, zero: (x / 0).nan_to_num_(nan=zero, posinf=zero, neginf=zero),
    "addcmul": lambda t, x, zero: t.addcmul(t.full((2,), -0.0), x, x, value=zero),
    "addcdiv": lambda t, x, zero: t.addcdiv(t.full((2,), -0.0), x, x, value=zero),
    "softplus": lambda t, x, zero: t.nn.functional.softplus(x, zero),
    "clamp": lambda t, x, zero: x.clamp(zero, 2.0), "full_like": lambda t, x, zero: t.full_like(x, zero),
}


@pytest.mark.oracle
@pytest.mark.parametrize("first", [0.0, -0.0])
@pytest.mark.parametrize("name", SIGNS)
def test_a_zero_has_its_own_sign_after_the_other(name: str, first: float, torch: Any) -> None:
    gradcore.device("cpu").calls.clear()
    for zero in (first, -first):
        found, expected = (SIGNS[name](t, t.tensor([-1.0, -2.0]), zero) for t in (gradcore, torch))
        assert str(found.tolist()) == str(expected.tolist())
