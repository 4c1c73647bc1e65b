"""Operands of several floating-point dtypes and layouts in one call: values and gradients on a GPU are the CPU's.

A kernel that takes a pointer by the dtype or the strides of another operand reads wrong bytes without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore

F = gradcore.nn.functional
Call = Callable[..., Any]

#: By name: the call, and the shapes of its floating-point operands.
CALLS: dict[str, tuple[Call, list[tuple[int, ...]]]] = {
    **{name: (getattr(gradcore, name), [(4, 6), (4, 6)]) for name in (
        "add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "logaddexp", "copysign", "fmod",
        "remainder", "floor_divide", "eq", "lt", "isclose")},
    "broadcast": (lambda a, b: a * b, [(4, 6), (6,)]),
    "0-d": (lambda a, b: a * b, [(4, 6), ()]),
    "transposed": (lambda a, b: a + b.t(), [(4, 6), (6, 4)]),
    "pow": (lambda a, b: (a.abs() + 0.5) ** b, [(4, 6), (4, 6)]),
    "lerp": (gradcore.lerp, [(4, 6), (4, 6), (4, 6)]),
    "addcmul": (lambda a, b, c: gradcore.addcmul(a, b, c, value=0.5), [(4, 6), (4, 6), (4, 6)]),
    "addcdiv": (lambda a, b, c: gradcore.addcdiv(a, b, c + 3.0), [(4, 6), (4, 6), (4, 6)]),
    "where": (lambda a, b: gradcore.where(a > b, a, b), [(4, 6), (4, 6)]),
    "clamp": (lambda a, b: gradcore.clamp(a, min=b), [(4, 6), (4, 6)]),
    "cat": (lambda a, b: gradcore.cat([a, b]), [(4, 6), (3, 6)]),
    "stack": (lambda a, b: gradcore.stack([a, b], 1), [(4, 6), (4, 6)]),
    "add_": (lambda a, b: (a * 1).add_(b), [(4, 6), (4, 6)]),
    "mul_": (lambda a, b: (a * 1).mul_(b), [(4, 6), (4, 6)]),
    "copy_": (lambda a, b: (a * 1).copy_(b), [(4, 6), (6,)]),
    "a part set": (lambda a, b: part_set(a * 1, b), [(4, 6), (6,)]),
    "masked_fill": (lambda a, b: a.masked_fill(a > 0, b), [(4, 6), ()]),
    "mse_loss": (F.mse_loss, [(4, 6), (4, 6)]),
    "l1_loss": (F.l1_loss, [(4, 6), (4, 6)]),
    "smooth_l1_loss": (F.smooth_l1_loss, [(4, 6), (4, 6)]),
    "huber_loss": (F.huber_loss, [(4, 6), (4, 6)]),
    "kl_div": (lambda a, b: F.kl_div(a, b.abs() + 0.1, reduction="batchmean"), [(4, 6), (4, 6)]),
    "poisson_nll_loss": (lambda a, b: F.poisson_nll_loss(a, b.abs()), [(4, 6), (4, 6)]),
    "binary_cross_entropy_with_logits": (lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()), [(4, 6), (4, 6)]),
    "cosine_similarity": (F.cosine_similarity, [(4, 6), (4, 6)]),
    "pairwise_distance": (F.pairwise_distance, [(4, 6), (4, 6)]),
    "cross_entropy": (lambda a, w: F.cross_entropy(a, labels(a), weight=w.abs() + 0.1), [(4, 6), (6,)]),
    "nll_loss": (lambda a, w: F.nll_loss(a, labels(a), weight=w.abs() + 0.1), [(4, 6), (6,)]),
    "prelu": (F.prelu, [(4, 6), (6,)]),
    "matmul": (gradcore.matmul, [(4, 6), (6, 5)]),
    "linear": (F.linear, [(4, 6), (5, 6), (5,)]),
    "addmm": (gradcore.addmm, [(5,), (4, 6), (6, 5)]),
    "bmm": (gradcore.bmm, [(2, 4, 6), (2, 6, 5)]),
    "conv2d": (F.conv2d, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)]),
    "conv_transpose2d": (F.conv_transpose2d, [(2, 3, 6, 6), (3, 4, 3, 3), (4,)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [(4, 6), (6,), (6,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), [(4, 6), (6,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(4, 6, 5), (6,), (6,)]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [(4, 6, 5), (6,), (6,)]),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [(4, 6, 5), (6,), (6,)]),
    "attention": (F.scaled_dot_product_attention, [(2, 4, 8), (2, 4, 8), (2, 4, 8)]),
    "attention with a mask": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), [(2, 4, 8), (4, 4)]),
    "gather and scatter_add": (lambda a, b: a.scatter_add(1, gradcore.zeros(4, 2, dtype=gradcore.int64, device=a.device), b),
                               [(4, 6), (4, 2)]),
    "index_add": (lambda a, b: a.index_add(0, gradcore.tensor([1, 1], device=a.device), b), [(4, 6), (2, 6)]),
}


def part_set(a: Any, b: Any) -> Any:
    a[1:3] = b
    return a


def labels(like: Any) -> Any:
    return gradcore.tensor([0, 2, 5, 1], device=like.device)


def laid_out(values: Any, layout: str, device: str) -> tuple[Any, Call]:
    """A tensor that holds the values, and what views it as them."""
    if layout == "transposed" and values.ndim > 1:
        return gradcore.tensor(np.ascontiguousarray(values.swapaxes(0, -1)), device=device), lambda x: x.transpose(0, -1)
    if layout == "sliced" and values.ndim:
        return gradcore.tensor(np.repeat(values, 2, -1), device=device), lambda x: x[..., 1::2]
    return gradcore.tensor(values, device=device), lambda x: x


def made(name: str, dtypes: tuple[str, ...], layout: str, device: str) -> Any:
    """Result and gradients of a call; the type of the error if it is refused."""
    call, shapes = CALLS[name]
    rng = np.random.default_rng(3)
    held, views = zip(*[laid_out(rng.uniform(-1, 1, shape).astype(np.float32), layout, device) for shape in shapes],
                      strict=True)
    inputs = [x.to(getattr(gradcore, dtypes[k % len(dtypes)])).requires_grad_() for k, x in enumerate(held)]
    try:
        y = call(*[view(x) for x, view in zip(inputs, views, strict=True)])
    except (RuntimeError, TypeError, ValueError) as refused:
        return type(refused)
    if y.requires_grad:
        y.backward(gradcore.tensor(rng.uniform(-1, 1, tuple(y.shape)).astype(np.float32), device=device).to(y.dtype))
    return [y.detach(), *[x.grad for x in inputs]]


@pytest.mark.parametrize(("dtypes", "layout"), [
    (("float16", "float32"), "contiguous"), (("float32", "bfloat16"), "transposed"), (("float64", "float32"), "sliced"),
    (("bfloat16", "float16", "float32"), "contiguous"), (("float32",), "transposed")], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_operands_of_several_dtypes_and_layouts_are_the_cpus(name: str, dtypes: tuple[str, ...], layout: str) -> None:
    expected, found = (made(name, dtypes, layout, device) for device in ("cpu", "cuda"))
    if isinstance(expected, type):
        assert found is expected
        return
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            unit = 2e-5 if ours.dtype.itemsize > 2 else 0.01 if ours.dtype == np.float16 else 0.05
            # What is computed in 16 bits on the way differs by its rounding.
            if any(np.dtype(getattr(gradcore, d)).itemsize == 2 for d in dtypes):
                unit = max(unit, 0.01)
            np.testing.assert_allclose(ours.float().cpu().numpy(), theirs.float().numpy(), rtol=unit, atol=unit)


def test_a_number_and_positions_on_the_cpu() -> None:
    x, there = (gradcore.arange(12.0, device=name).reshape(4, 3).requires_grad_() for name in ("cpu", "cuda"))
    number, rows = gradcore.tensor(2.0, requires_grad=True), gradcore.tensor([0, 2, -1])
    y, found = ((t * number)[rows, gradcore.tensor([0, 1, 1])] + t[rows].sum() / number for t in (x, there))
    assert found.device.type == "cuda" and found.tolist() == y.tolist()
    gradients = [gradcore.autograd.grad(result.sum(), [t, number]) for result, t in ((y, x), (found, there))]
    assert [[g.tolist() for g in pair] for pair in gradients[:1]] == [[g.tolist() for g in pair] for pair in gradients[1:]]
    assert gradients[1][1].device == "cpu"
