"""Edge cases of arguments: empty and 0-d tensors, numbers out of a dtype's range, mixed dtypes.

Each gives PyTorch's values, dtype and shape, or raises PyTorch's class of error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.calls import Operands
from gradcore.devices.host.device import make_host
from gradcore.spec import TensorSpec
from tests.conftest import raises
from tests.meta.simulated_cuda import HostCard

LABELLED: tuple[tuple[str, dict[str, float]], ...] = (
    ("nll_loss", {}), ("cross_entropy", {}), ("cross_entropy", {"label_smoothing": 0.5}))

CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax of no rows": lambda t: t.zeros(0, 3).softmax(0), "softmax of empty rows": lambda t: t.zeros(3, 0).softmax(1),
    "softmax of nothing": lambda t: t.zeros(0).softmax(0), "log_softmax of no rows": lambda t: t.zeros(0, 3).log_softmax(0),
    "log_softmax of empty rows": lambda t: t.zeros(3, 0).log_softmax(1),
    "log_softmax of nothing": lambda t: t.zeros(0).log_softmax(0), "logsumexp of nothing": lambda t: t.zeros(0).logsumexp(0),
    "logsumexp of no rows": lambda t: t.zeros(0, 3).logsumexp(0),
    "logsumexp of both": lambda t: t.zeros(3, 0).logsumexp((0, 1)),
    "max of a number": lambda t: t.tensor(3.0).max(0), "min of a number": lambda t: t.tensor(3.0).min(-1, keepdim=True),
    "argmax of a number": lambda t: t.tensor(3.0).argmax(0), "argmin of a number": lambda t: t.tensor(3).argmin(-1, True),
    **{f"{name} of a number outside": lambda t, f=f: f(t.tensor(3.0)) for name, f in {
        "flip": lambda x: x.flip(1), "flatten": lambda x: x.flatten(0, 1), "transpose": lambda x: x.transpose(0, -2),
        "swapaxes": lambda x: x.swapaxes(2, 0), "quantile": lambda x: x.quantile(0.5, 1)}.items()},
    **{f"{name} of a number": lambda t, f=f: f(t.tensor(3.0)) for name, f in {
        "flip": lambda x: x.flip(0), "flatten": lambda x: x.flatten(-1, 0), "transpose": lambda x: x.transpose(0, -1),
        "quantile": lambda x: x.quantile(0.5, -1, True)}.items()},
    **{f"{name} of nothing": lambda t, f=f: f(t.zeros(2, 0)) for name, f in {
        "median": lambda x: x.median(1), "kthvalue": lambda x: x.kthvalue(1), "nanmedian": lambda x: x.nanmedian(1)}.items()},
    "max outside": lambda t: t.tensor(3.0).max(1), "argmax outside": lambda t: t.tensor(3.0).argmax(1),
    "gradient of a number's max": lambda t: slope(t, t.tensor(3.0), lambda x: x.max(0)[0] * 2),
    "gradient of a number's empty window": lambda t: slope(t, t.tensor(3.0), lambda x: x.unfold(0, 0, 1).sum()),
    "movedim of a number": lambda t: t.tensor(2.0).movedim(0, 0),
    "index_select by a number": lambda t: t.arange(3).index_select(0, t.tensor(1)),
    "index_select of a number": lambda t: t.tensor(3.0).index_select(0, t.tensor([0])),
    "index_select of a number by a number": lambda t: t.tensor(3.0).index_select(-1, t.tensor(0)),
    "index_select of a number twice": lambda t: t.tensor(3.0).index_select(0, t.tensor([0, 0])),
    "cat of a legacy empty": lambda t: t.cat([t.tensor([]), t.ones(2, 3)]),
    "cat beside a legacy empty": lambda t: t.cat([t.ones(2, 3), t.tensor([]), t.ones(2, 1)], -1),
    "cat of a legacy empty and ints": lambda t: t.cat([t.tensor([]), t.ones(2, 3, dtype=t.int64)]),
    "cat of a double legacy empty": lambda t: t.cat([t.ones(2, 3), t.tensor([], dtype=t.float64)]),
    "cat of legacy empties": lambda t: t.cat([t.tensor([]), t.tensor([])]),
    "cat of an empty and a vector": lambda t: t.cat([t.tensor([], dtype=t.float64), t.ones(2)]),
    "cat of an empty matrix": lambda t: t.cat([t.zeros(0, 4), t.ones(2, 3)]),
    "cat of numbers": lambda t: t.cat([t.tensor(1.0), t.tensor(2.0)]),
    "gradient beside a legacy empty": lambda t: slope(t, t.ones(2, 3), lambda x: (t.cat([t.tensor([]), x]) * 3).sum()),
    "narrow from the end": lambda t: t.arange(6).narrow(0, -3, 2), "narrow too far": lambda t: t.arange(6).narrow(0, -1, 2),
    "narrow outside": lambda t: t.arange(6).narrow(0, -7, 2), "narrow negative": lambda t: t.arange(6).narrow(0, 0, -1),
    "narrow to nothing": lambda t: t.arange(6).narrow(0, 6, 0), "narrow of a number": lambda t: t.tensor(1.0).narrow(0, 0, 1),
    "split of a number": lambda t: t.tensor(1.0).split(1), "chunk of a number": lambda t: t.tensor(1.0).chunk(1),
    "unbind of a number": lambda t: t.tensor(1.0).unbind(),
    "take_along_dim of all": lambda t: t.take_along_dim(t.arange(6).reshape(2, 3), t.tensor([5, 0])),
    "take_along_dim of all by a matrix": lambda t: t.arange(6).reshape(2, 3).take_along_dim(t.tensor([[5], [0]])),
    "linear by a vector": lambda t: t.nn.functional.linear(t.ones(2, 3), t.arange(3.0)),
    "linear of vectors": lambda t: t.nn.functional.linear(t.ones(3), t.arange(3.0)),
    "linear by a vector and a bias": lambda t: t.nn.functional.linear(t.ones(2, 3), t.ones(3), t.ones(1)),
    "linear by a long vector": lambda t: t.nn.functional.linear(t.ones(2, 3), t.ones(4)),
    "batch_norm of no samples": lambda t: trained(t, t.zeros(0, 3)),
    "batch_norm of no image": lambda t: trained(t, t.zeros(0, 3, 2, 2)),
    "batch_norm of one": lambda t: trained(t, t.zeros(1, 3)),
    "einsum by numbers": lambda t: t.einsum(t.ones(2, 3), [0, 1], t.arange(12.0).reshape(3, 4), [1, 2], [0, 2]),
    "einsum by numbers alone": lambda t: t.einsum(t.ones(2, 3), [30, 1], t.arange(12.0).reshape(3, 4), [1, 2]),
    "einsum by numbers with an Ellipsis": lambda t: t.einsum(t.ones(2, 3), [..., 1], t.arange(3.0), [1], [...]),
    "einsum in another order": lambda t: t.einsum(t.arange(6.0).reshape(2, 3), [30, 5], [5, 30]),
    "einsum by 52": lambda t: t.einsum(t.ones(2, 2), [52, 0]), "einsum of a tensor": lambda t: t.einsum(t.ones(2, 2)),
    "einsum by too few numbers": lambda t: t.einsum(t.ones(2, 2), [0]),
    "Tensor of a list": lambda t: t.Tensor([[1, 2.5]]), "Tensor of a tuple": lambda t: t.Tensor((2, 3)),
    "Tensor of bools": lambda t: t.Tensor([True]), "Tensor of sizes": lambda t: t.Tensor(2, 3).fill_(1),
    "Tensor": lambda t: t.Tensor(),
    "Tensor of a Size": lambda t: t.Tensor(t.Size([2])).fill_(1), "Tensor of an array": lambda t: t.Tensor(np.ones(2)),
    "Tensor of a tensor": lambda t: t.Tensor(t.ones(2, dtype=t.float64)), "Tensor of a float": lambda t: t.Tensor(5.5),
    "Tensor of a bool": lambda t: t.Tensor(True), "Tensor of a string": lambda t: t.Tensor("ab"),
    "Tensor of nothing": lambda t: t.Tensor(None),
    "gradcheck of a tensor": lambda t: t.autograd.gradcheck(lambda x: x * x, t.ones(2, dtype=t.float64).requires_grad_()),
    "gradgradcheck of a tensor": lambda t: t.autograd.gradgradcheck(lambda x: x ** 3, *[
        t.ones(2, dtype=t.float64).requires_grad_() for _ in range(2)]),
    "- of bools": lambda t: -t.tensor([True]), "neg_ of bools": lambda t: t.tensor([True]).neg_(),
    "tensor of None": lambda t: t.tensor(None), "tensor of Nones": lambda t: t.tensor([1, None]), "eye": lambda t: t.eye(-1),
    "eye of no rows": lambda t: t.eye(2, -1), "tensor of a word": lambda t: t.tensor("a"),
    "label_smoothing": lambda t: t.nn.functional.cross_entropy(t.ones(2, 3), t.tensor([0, 1]), label_smoothing=2.0),
    "max of nothing": lambda t: t.zeros(0, 3).max(0), "amax of nothing": lambda t: t.zeros(0, 3).amax(0),
    "amin of all of nothing": lambda t: t.zeros(0).amin(), "argmin of nothing": lambda t: t.zeros(0, 3).argmin(0),
    "indexed by a float": lambda t: square(t)[1.0], "indexed by a word": lambda t: square(t)["a"],
    "indexed by a dict": lambda t: square(t)[{}], "expand": lambda t: t.ones(3).expand(-1, -1, 4),
    **{f"repr of {shape} {dtype}": lambda t, s=shape, d=dtype: repr(t.zeros(*s, dtype=getattr(t, d))).replace(t.__name__, "")
       for shape in ((0, 3), (0,), (2, 0), (1, 0, 2)) for dtype in ("float32", "int64", "bool", "uint8", "float64")},
    "repr of nothing with a gradient": lambda t: repr(t.zeros(0, 3, requires_grad=True)),
    "tanh of ints": lambda t: t.tanh(t.tensor([1, 2])), "Tensor.tanh of bools": lambda t: t.tensor([True, False]).tanh(),
    "F.tanh of ints": lambda t: t.nn.functional.tanh(t.tensor([1, 2], dtype=t.int32)),
    "F.sigmoid of ints": lambda t: t.nn.functional.sigmoid(t.tensor([0, 2])),
    "relu6 of ints": lambda t: t.nn.functional.relu6(t.tensor([-1, 4, 9])),
    "hardtanh of ints": lambda t: t.nn.functional.hardtanh(t.tensor([-5, 0, 9]), -1.5, 2.5),
    "hardtanh of bytes": lambda t: t.nn.functional.hardtanh(t.tensor([1, 9], dtype=t.uint8)),
    "hardtanh of bools": lambda t: t.nn.functional.hardtanh(t.tensor([True])),
    "round of bools": lambda t: t.round(t.tensor([True, False])),
    "sign of bools": lambda t: t.tensor([True, False]).sign(),
    "mse_loss of floats and doubles": lambda t: t.nn.functional.mse_loss(t.ones(2), t.arange(2, dtype=t.float64)),
    "mse_loss of floats and ints": lambda t: t.nn.functional.mse_loss(t.ones(2), t.tensor([3, 4]), reduction="sum"),
    "mse_loss of ints and floats": lambda t: t.nn.functional.mse_loss(t.tensor([3, 4]), t.ones(2)),
    **{f"mse_loss of floats and bools, {r}": lambda t, r=r: t.nn.functional.mse_loss(
        t.ones(2), t.tensor([True, False]), reduction=r) for r in ("mean", "none")},
    "soft_margin_loss of floats and bytes": lambda t: t.nn.functional.soft_margin_loss(
        t.tensor([-40.0, 90.0]), t.tensor([1, 3], dtype=t.uint8)),
    "cumulative_trapezoid of bytes": lambda t: t.cumulative_trapezoid(t.tensor([43, 30, -31], dtype=t.int8), dx=3),
    "rsub of bytes and ints": lambda t: t.rsub(t.tensor([100], dtype=t.int8), t.tensor([100]), alpha=2),
    "rsub of bytes and halves": lambda t: t.rsub(t.tensor([16], dtype=t.int8), t.ones(1, dtype=t.float16), alpha=2.0),
    "rsub of a number by a fraction": lambda t: t.rsub(t.ones(2), 3, alpha=0.5),
    "addcmul of bytes by a negative number": lambda t: t.addcmul(*t.tensor([[1, 2], [1, 1], [1, 0]], dtype=t.uint8), value=-1),
    "isin of bytes": lambda t: [t.isin(t.tensor([1, 4], dtype=t.uint8), 300), t.isin(300, t.tensor([1, 4], dtype=t.uint8)),
                                t.isin(4, t.tensor([1, 4])), t.isin(4, t.tensor([], dtype=t.int64)),
                                t.isin(t.tensor([1, 4]), 4.0)],
    "ldexp_'s gradient by the exponent": lambda t: slope(t, t.ones(2), lambda x: t.full((2,), 3.0).ldexp_(x).sum()),
    "mse_loss's gradient": lambda t: slope(t, t.ones(2), lambda x: t.nn.functional.mse_loss(x, t.ones(2, dtype=t.float64) * 3)),
    "2 ** ints": lambda t: 2 ** t.tensor([-1, 2]),
    "ints ** ints": lambda t: t.tensor([3, -1, -1, 0]) ** t.tensor([-1, -3, -2, -1]),
    "ints ** a negative number": lambda t: t.tensor([2, 3]) ** -1, "bool ** -1": lambda t: t.tensor([True]) ** -1,
    "ints ** a negative 0-d": lambda t: t.tensor([1, 3]) ** t.tensor(-1),
    "pow_": lambda t: t.tensor([1, -1, 3]).pow_(t.tensor([-2, -3, 2])),
    "bytes ** ints": lambda t: t.tensor([1, 3, 2], dtype=t.uint8) ** t.tensor([3, 2, 9], dtype=t.uint8),
    "list of a slice": lambda t: square(t)[[slice(None), 1]], "list of None": lambda t: square(t)[[None, 1]],
    "list of an Ellipsis": lambda t: square(t)[[..., 0]],
    "list of ints": lambda t: square(t)[[1, 0]],
    "list of bools": lambda t: square(t)[[True, False]],
    "writing to a list of a slice": lambda t: written(square(t), [slice(None), 1], 7),
    **{f"{name}, {how}, all ignored, {weight} weights, {options}": lambda t, n=name, r=how, w=weight, o=options: classified(
        t, n, [-100, -100], w, reduction=r, **o) for name, options in LABELLED for how in ("mean", "none")
       for weight in (None, [1.0, 2.0, 0.5])},
    **{f"{name}, an infinite score ignored, {options}": lambda t, n=name, o=options: classified(t, n, [-100, 1], None, **o)
       for name, options in LABELLED},
    **{f"{name}, weights of {shape}, {options}": lambda t, n=name, s=shape, o=options: getattr(t.nn.functional, n)(
        t.ones(2, 3), t.tensor([0, 1]), t.ones(*s), **o) for name, options in LABELLED for shape in ((4,), (1,), (2,), (1, 3))},
    "cross_entropy weight with a gradient": lambda t: t.nn.functional.cross_entropy(
        t.ones(2, 3), t.tensor([0, 1]), t.ones(3, requires_grad=True)),
    **{f"index_fill {places} of {shape}": lambda t, p=places, s=shape: filled(t, p, s)
       for places in ([1, 1], [0, 2, 0], [], [3], [-4]) for shape in ((3,), (2, 3), (2, 3, 2))},
    **{f"index_fill {places} from the end": lambda t, p=places: t.zeros(2, 3).index_fill(1, t.tensor(p), 5.0)
       for places in ([-1], [-3, 2, -1])},
    "index_fill of a number": lambda t: filled(t, [0], ()), "index_fill of a number, by -1": lambda t: t.tensor(
        2.0).index_fill(0, t.tensor(-1), 5.0),
    **{f"convolution of {shape} with {weight}, groups={groups}": lambda t, s=shape, w=weight, g=groups: convolved(t, s, w, g)
       for shape, weight, groups in (
           ((0, 4, 5), (4, 2, 1), 2), ((0, 4, 5), (4, 2, 3), 2), ((0, 4, 5, 5), (4, 2, 1, 1), 2),
           ((0, 4, 3, 3, 3), (4, 2, 1, 1, 1), 2), ((2, 4, 5), (0, 4, 3), 1), ((2, 4, 5), (4, 4, 0), 1))},
    "batch_norm of halves, single statistics": lambda t: halved(t),
    **{f"{name} of {own} by {other}": lambda t, n=name, own=own, o=other: overwritten(t, n, getattr(t, own), getattr(t, o))
       for name in ("mul_", "div_")
       for own, other in (("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"))},
    **{f"linear of {list(shape)}": lambda t, s=shape: multiplied(t, s) for shape in ((0, 3, 0), (2, 3, 0), (0, 2, 2), (2, 0))},
    "second gradient of layer_norm of nothing": lambda t: curvature(
        t, t.ones(4, 0, 2), lambda x: t.nn.functional.layer_norm(x, (0, 2))),
    **{f"norm {order} of {list(shape)} over {dim}": lambda t, o=order, s=shape, d=dim: t.linalg.vector_norm(t.zeros(*s), o, d)
       for order in (np.inf, -np.inf, -1, 2) for shape, dim in (((0,), None), ((3, 0), 1), ((0, 3), 1), ((0,), ()))},
    **{f"conv_transpose{len(shape) - 2}d of {list(shape)} without {padding}": lambda t, s=shape, p=padding: getattr(
        t.nn.functional, f"conv_transpose{len(s) - 2}d")(t.ones(*s), t.ones(1, 1, *(2,) * (len(s) - 2)), padding=p)
       for padding in (1, 2)
       for shape in ((1, 1, 1), (1, 1, 3, 1), (1, 1, 1, 3, 3), (1, 1, 3, 3, 1), (0, 1, 1), (0, 1, 1, 3, 3))},
    **{f"pad by {by}, {mode}": lambda t, b=by, m=mode: t.nn.functional.pad(t.arange(8.0).reshape(1, 2, 4), b, m)
       for by in ((5, 0), (0, 5), (-1, 2), (2, -1), (-4, 0), (3, -5), (-3, -2))
       for mode in ("constant", "circular", "reflect", "replicate")},
    "pad by a value, circular": lambda t: t.nn.functional.pad(t.ones(1, 4), (1, 1), "circular", 2.0),
    "norm of columns": lambda t: t.linalg.norm(t.arange(6.0).reshape(2, 3), 1, 0), "cond of nothing": lambda t: t.linalg.cond(
        t.zeros(2, 0, 0)), "matrix_exp of a row": lambda t: t.linalg.matrix_exp(t.ones(1, 2)),
    **{f"addmm_ of integers, beta {beta}, alpha {alpha}": lambda t, b=beta, a=alpha: square(t).addmm_(
        square(t), square(t), beta=b, alpha=a) for beta, alpha in ((0, 0.5), (0.5, 1), (1.5, 2.5))},
    **{f"{name} of integers, beta {beta}, alpha {alpha}": lambda t, n=name, b=beta, a=alpha: getattr(t.ones(2, 2), n)(
        t.arange(2), t.arange(2) + 1, beta=b, alpha=a) for name in ("addr", "addr_") for beta, alpha in ((0, 1), (0.5, 0.5))},
    "addr of halves beside integers": lambda t: t.addr(t.arange(2), *[t.ones(2, dtype=t.float16)] * 2, beta=0.5),
    "addr of bools": lambda t: t.addr(*[t.tensor([True, False])] * 3, alpha=-1),
    "nan_to_num to None": lambda t: t.tensor([np.nan, np.inf]).nan_to_num(None, 1.0),
    "nan_to_num_ to None": lambda t: t.tensor([np.nan, 2.0], dtype=t.float16).nan_to_num_(None),
    **{f"{name} of halves, weights of floats": lambda t, n=name, a=args: getattr(t.nn.functional, n)(
        t.tensor([[[1.0, 3.0], [2.0, 6.0]]], dtype=t.bfloat16), *a, weight=t.tensor([2.0, 3.0]), bias=t.ones(2))
       for name, args in (("instance_norm", ()), ("group_norm", (1,)))},
    **{f"gradient of {name} at the margin": lambda t, n=name, y=target: slope(
        t, t.tensor([1.0, 0.0, 0.5]), lambda x: getattr(t.nn.functional, n)(x, t.tensor(y)))
       for name, target in (("multi_margin_loss", 0), ("multilabel_margin_loss", [0, -1, -1]))},
    "cross_entropy with no probabilities": lambda t: t.nn.functional.cross_entropy(t.zeros(0, 3), t.zeros(0, 3)),
    "gradient of remainder next to a multiple": lambda t: slope(
        t, t.tensor([0.1, -0.1, 0.1], dtype=t.float64), lambda y: (t.tensor([1.0, 1.0, 0.3], dtype=t.float64) % y).sum()),
    **{f"clamp of {dtype} between {low} and {high}": lambda t, d=dtype, low=low, high=high: t.tensor(
        [3, 0], dtype=getattr(t, d)).clamp(low, high)
       for dtype in ("uint8", "int8") for low, high in ((-200, 2.0), (0.5, 300))},
    "unique_consecutive of a number": lambda t: t.unique_consecutive(t.tensor(3), return_inverse=True, return_counts=True),
    "weights of probabilities with a gradient": lambda t: slope(
        t, t.ones(3), lambda w: t.nn.functional.cross_entropy(t.zeros(2, 3), t.ones(2, 3), w)),
}

#: Operations on a tensor [1, 100] of small integers.
NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "+ 1000": lambda t, x: x + 1000, "+ -1": lambda t, x: x + -1, "1000 -": lambda t, x: 1000 - x,
    "* 200": lambda t, x: x * 200,
    "* -1": lambda t, x: x * -1, "// 1000": lambda t, x: x // 1000, "// -1": lambda t, x: x // -1,
    "% 300": lambda t, x: x % 300,
    "fmod": lambda t, x: x.fmod(300), "& 1000": lambda t, x: x & 1000, "| -1": lambda t, x: x | -1,
    "^ 300": lambda t, x: x ^ 300,
    "300 **": lambda t, x: 300 ** x, "** 300": lambda t, x: x ** 300, "add_": lambda t, x: x.add_(1000),
    "mul_": lambda t, x: x.mul_(-1), "where": lambda t, x: t.where(x > 1, x, -1),
    "where 1000": lambda t, x: t.where(x > 1, x, 10**6),
    "fill_": lambda t, x: x.fill_(-1), "fill_ 300": lambda t, x: x.fill_(10**6),
    "masked_fill": lambda t, x: x.masked_fill(x > 1, -1),
    "masked_fill 300": lambda t, x: x.masked_fill(x > 1, 10**6), "full": lambda t, x: t.full((2,), -1, dtype=x.dtype),
    "full 300": lambda t, x: t.full((2,), 10**6, dtype=x.dtype), "clamp": lambda t, x: x.clamp(-1),
    "clamp 300": lambda t, x: x.clamp(1, 10**6), "== 1000": lambda t, x: x == 1000,
}
CALLS |= {f"{dtype} {name}": lambda t, c=call, d=dtype: c(t, t.tensor([1, 100], dtype=getattr(t, d)))
          for dtype in ("uint8", "int8", "int16") for name, call in NUMBERS.items()}


def square(t: Any) -> Any:
    return t.arange(4).reshape(2, 2)


def written(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def slope(t: Any, x: Any, f: Callable[[Any], Any]) -> Any:
    x.requires_grad_()
    f(x).backward()
    return x.grad


def overwritten(t: Any, name: str, own: Any, other: Any) -> Any:
    """The gradients of what is overwritten, and of an operand of a wider dtype."""
    x, y = t.tensor([1.0, 2.0], dtype=own, requires_grad=True), t.tensor([2.0, 4.0], dtype=other, requires_grad=True)
    return t.autograd.grad(getattr(x.clone(), name)(y).sum(), [x, y])


def multiplied(t: Any, shape: tuple[int, ...]) -> Any:
    """The result of a linear layer, its gradients, and theirs."""
    x, w = t.ones(*shape, requires_grad=True), t.ones(2, shape[-1], requires_grad=True)
    y = t.nn.functional.linear(x, w, t.ones(2))
    dx, dw = t.autograd.grad((y * y).sum(), [x, w], create_graph=True)
    return (y.detach(), dx.detach(), dw.detach(), *t.autograd.grad(dx.sum() + dw.sum(), [x, w]))


def curvature(t: Any, x: Any, f: Callable[[Any], Any]) -> Any:
    """The gradient of the sum of the gradient."""
    x.requires_grad_()
    y = f(x)
    first, = t.autograd.grad((y * y).sum(), x, create_graph=True)
    return t.autograd.grad(first.sum(), x)


def classified(t: Any, name: str, labels: list[int], weight: Any, **options: Any) -> Any:
    """The loss of two rows, and their gradient; the score in front is infinite."""
    x = t.tensor([[-np.inf, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = getattr(t.nn.functional, name)(x, t.tensor(labels), weight if weight is None else t.tensor(weight), **options)
    loss.sum().backward()
    return loss.detach() + 0.0, (x.grad + 0.0).round(decimals=4)


def convolved(t: Any, shape: tuple[int, ...], weight: tuple[int, ...], groups: int) -> Any:
    """The result of a convolution with a bias, and the gradients."""
    x, w, b = (t.ones(*s, requires_grad=True) for s in (shape, weight, weight[:1]))
    y = getattr(t.nn.functional, f"conv{len(shape) - 2}d")(x, w, b, groups=groups)
    (y * 2).sum().backward()
    return y.detach(), x.grad, w.grad, b.grad


def halved(t: Any) -> Any:
    """Batch norm of half precision with statistics and weights of single: the result, the statistics and the gradients."""
    x = t.tensor([[1.0, 2.0], [-1.0, 6.0], [1.0, 2.0], [-1.0, 6.0]], dtype=t.float16, requires_grad=True)
    mean, var, weight = t.zeros(2), t.ones(2), t.ones(2, requires_grad=True)
    y = t.nn.functional.batch_norm(x, mean, var, weight, t.zeros(2), training=True, eps=1e-9)
    (y * t.tensor([[1.0, 2.0], [3.0, 4.0], [2.0, 1.0], [0.0, 3.0]])).sum().backward()
    return y.detach(), mean, var.round(decimals=5), x.grad, weight.grad


def filled(t: Any, places: list[int], shape: tuple[int, ...]) -> Any:
    """Filled with a number, and with a tensor; the gradients by the tensors."""
    x, value = t.ones(shape, requires_grad=True), t.tensor(5.0, requires_grad=True)
    index, dim = t.tensor(places, dtype=t.int64), 1 if len(shape) > 1 else 0
    y = x.index_fill(dim, index, value)
    (y * t.arange(y.numel()).reshape(shape)).sum().backward()
    return x.detach().index_fill_(dim, index, 7.0), y.detach(), x.grad, value.grad


def trained(t: Any, x: Any) -> Any:
    """The result of batch norm in training, the running statistics after it, and the gradients."""
    mean, var, weight, bias = t.zeros(3), t.ones(3), t.ones(3, requires_grad=True), t.ones(3, requires_grad=True)
    y = t.nn.functional.batch_norm(x.requires_grad_(), mean, var, weight, bias, training=True)
    y.sum().backward()
    return y.detach(), mean, var, x.grad, weight.grad, bias.grad


def shown(found: Any) -> Any:
    """Values, shape and dtype of each tensor, and the class of other objects."""
    if isinstance(found, (tuple, list)):
        return [shown(part) for part in found]
    if not hasattr(found, "tolist"):
        return found
    return found.detach().tolist(), tuple(found.shape), str(found.dtype).rpartition(".")[2]


def outcome(t: Any, call: Callable[[Any], Any]) -> Any:
    try:
        return shown(call(t))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        # Its frames would keep tensors alive.
        return error.with_traceback(None)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("name", CALLS)
def test_corners_are_pytorchs(name: str, torch: Any) -> None:
    ours, theirs = outcome(gradcore, CALLS[name]), outcome(torch, CALLS[name])
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs)), f"{ours!r} in place of {theirs!r}"
    else:
        assert not isinstance(ours, Exception), f"{ours!r} in place of {theirs!r}"
        np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_devices_kernels_are_given_numbers_that_fit(kind: str) -> None:
    if kind == "cuda":
        pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")
        from gradcore.devices.gpu import device as gpu

        device: Any = gpu.CudaDevice(0, cuda=HostCard(), strict=True)
    else:
        device = make_host()
    spec = TensorSpec.of((2,), np.uint8)
    given: list[Any] = []
    for name, number in (("add", 1000), ("add_", -1), ("where", -1)):
        written = (0,) if name.endswith("_") else ()
        operands = Operands(name, (spec, int), () if written else (spec,), written, lambda: None)
        device.suited(lambda *arrays: given.append(arrays), operands)[0]("x", number, "out")
    assert given == [("x", 232, "out"), ("x", 255, "out"), ("x", 255, "out")]
    whole = spec.like(np.dtype(np.int64))
    kernel, _ = device.suited(lambda *arrays: given.append(arrays), Operands("pow", (whole, int), (whole,), (), lambda: None))
    with raises(RuntimeError, "Integers to negative integer powers are not allowed", "-2"):
        kernel("x", -2, "out")
    kernel("x", 2**40, "out")
    assert given[3:] == [("x", 2**40, "out")]
