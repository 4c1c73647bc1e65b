"""Sample calls on arrays of half a megabyte or more: large enough to detect a temporary of one byte per element."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.ops import all_ops
from gradcore.overwriting import OVERWRITING
from tests import rows_losses, rows_optimizers, rows_order, rows_recurrent
from tests.rows import Operand, Row, bools, bytes_, floats, ints

N, M = 256, 512
F32, F16, I64 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int64)
BIG: list[Row] = []


def add(op: str, *args: Any, **attrs: Any) -> None:
    BIG.append(Row(op, str(len(BIG)), args, attrs))


x, y, t = floats(N, M), floats(N, M, low=0.5), floats(N, M, layout="transposed")
positive = floats(N, M, low=0.2)
wide, tall, row, labels = floats(N, M, layout="sliced"), floats(N * M), floats(M), ints(N, high=M)

for name in ("neg abs sign floor ceil round exp expm1 square sin cos tan sinh cosh arctan relu tanh sigmoid erf clone "
             "gelu isnan isinf isfinite logical_not").split():
    add(name, x)
    add(name, t)
for name in "log log1p log2 log10 sqrt rsqrt reciprocal".split():
    add(name, positive)
for name in ("add sub mul div pow maximum minimum remainder floor_divide eq ne lt le gt ge logical_and logical_or "
             "logical_xor").split():
    for pair in ((positive, y), (positive, floats(M, low=0.5)), (y, t if name != "pow" else y), (y, 1.5), (2, y)):
        add(name, *pair)
for name in ("add_", "sub_", "mul_", "div_"):
    for other in (y, floats(M, low=0.5), 2.0, floats(N, M, low=0.5, layout="transposed")):
        add(name, x, other)
add("where", bools(N, M), x, y)
add("where", bools(N, M), x, 0.0)
add("where", bools(N, 1), t, row)
add("clamp", x, -1.0, 1.0)
add("clamp", t, None, 1)
add("fill_", x, 1.0)
add("copy_", x, t)
add("copy_", x, row)
for name in ("relu_grad", "tanh_grad", "sigmoid_grad"):
    add(name, x, y)
    add(name, x, t)
for by_tanh in (False, True):
    add("gelu", x, tanh=by_tanh)
    add("gelu_grad", x, y, tanh=by_tanh)


def add_pointwise() -> None:
    """Every elementwise op besides those above, on contiguous operands and on others."""
    for name in ("exp2 arcsinh erfc sinc trunc frac nan_to_num silu mish softsign logsigmoid hardsigmoid hardswish "
                 "exp_ sin_ erf_ erfc_ sigmoid_ abs_ trunc_ nan_to_num_ logical_not_").split():
        add(name, x)
        add(name, t)
    within = floats(N, M, low=-0.9, high=0.9)
    for name in "arcsin arccos arctanh".split():
        add(name, within)
    add("arccosh", floats(N, M, low=1.1))
    add("erfinv", within)
    for name in "lgamma digamma lgamma_ digamma_".split():
        add(name, positive)
    within_one = floats(N, M, low=0.0, high=1.0)
    add("polygamma", positive, n=1)
    for name in "gammainc gammaincc standard_gamma_slope".split():
        add(name, positive, positive)
    for name in ("standard_gamma", "poisson"):
        add(name, positive, ints(4, given=(7, 0, 3, 0)))
    add("binomial", positive, within_one, ints(4, given=(7, 0, 3, 0)))
    add("logit", floats(N, M, low=0.1, high=0.9))
    for name in ("fmod fmax fmin arctan2 hypot logaddexp xlogy xlog1py leaky_relu hardshrink softshrink fmod_ arctan2_ hypot_ "
                 "pow_ lt_").split():
        for other in (y, floats(M, low=0.5), t, 1.5):
            add(name, positive, other)
    for name in ("silu_grad mish_grad softsign_grad logsigmoid_grad hardsigmoid_grad hardswish_grad").split():
        add(name, x, y)
        add(name, x, t)
    whole = ints(N, M, high=9)
    for name in "and or xor left_shift right_shift and_ left_shift_".split():
        add(f"bitwise_{name}", whole, whole)
        add(f"bitwise_{name}", whole, 3)
    add("bitwise_not", whole)
    add("leaky_relu_grad", x, y, 0.1)
    add("shrink_grad", x, y, 0.5)
    add("threshold", x, 0.5, 0.0)
    for name, attrs in (("elu", {"alpha": 1.0, "scale": 1.0, "inner": 1.0}), ("softplus", {"beta": 1.0, "threshold": 20.0}),
                        ("hardtanh", {"low": -1.0, "high": 1.0})):
        add(name, t, **attrs)
        add(f"{name}_grad", x, t, **attrs)
    for name in ("lerp", "addcmul", "addcdiv", "lerp_", "addcmul_", "addcdiv_"):
        add(name, x, t, y)
        add(name, x, y, row)
    add("clamp", x, row, y)
    add("masked_fill_", x, bools(N, M, layout="transposed"), 1.0)
    add("masked_fill_", x, bools(M), 1.0)
    made = {r.op for r in BIG}
    for name in OVERWRITING:
        if f"{name}_" not in made:
            alone = [r for r in BIG if r.op == name and isinstance(r.args[0], Operand) and r.args[0].shape == (N, M)]
            assert alone, name
            BIG.append(Row(f"{name}_", str(len(BIG)), alone[0].args, alone[0].attrs))


def add_ordering() -> None:
    """The ops that reorder, write at positions, scan, rank and measure."""
    add("diagonal", x, offset=1, dim1=0, dim2=1)
    for operand in (x, t, wide):
        add("flip", operand, dims=(0, 1))
        add("roll", operand, shifts=(100, -3), dims=(0, 1))
        for dim in (0, 1):
            for reverse in (False, True):
                add("cumsum", operand, dim=dim, reverse=reverse)
                add("recurrence", operand, x, dim=dim, reverse=reverse)
            add("cumprod", operand, dim=dim)
            add("cumextreme", operand, dim=dim, largest=True)
            add("prod", operand, dim=dim, keepdim=False)
            for start, length in ((0, operand.shape[dim]), (5, 3)):
                for descending in (False, True):
                    add("ranked", operand, dim=dim, start=start, length=length, descending=descending)
        for dims in ((0, 1), (0,), (1,)):
            add("var", operand, dims=dims, correction=1, keepdim=False)
            for p in (0, 1, 2, 3, float("inf")):
                add("vector_norm", operand, p=p, dims=dims, keepdim=False)
    add("ranked", tall, dim=0, start=0, length=10, descending=True)
    add("ranked", floats(N * M, layout="expanded"), dim=0, start=0, length=10, descending=True)
    add("cumsum", bools(N, M), dim=1, reverse=False)
    window = {"dim": 1, "size": 4, "step": 2, "dilation": 1}
    add("windows", x, **window)
    add("windows_grad", floats(N, M // 2 - 1, 4), shape=(N, M), **window)
    for name, attrs in (("put_along_", {}), ("add_along_", {}), ("extreme_along_", {"largest": True})):
        add(name, x, ints(N, M // 2, high=M), floats(N, M // 2), dim=1, **attrs)
        add(name, x, ints(N // 2, M, high=N, layout="transposed"), floats(N // 2, M), dim=0, **attrs)
    add("add_at_", x, ints(300, high=N), floats(300, M), dim=0)
    add("add_at_", x, ints(300, high=M), floats(N, 1), dim=1)


def add_decompositions() -> None:
    """Matrices with 256 rows, and many with 4."""
    near_one = tuple((np.eye(256) * 4 + np.full((256, 256), 1 / 256)).reshape(-1).tolist())
    for a in (floats(256, 256, given=near_one), floats(4096, 4, 4)):
        for name in ("inv", "det", "slogdet"):
            add(name, a)
        add("solve", a, a, transpose=True)
    add("cholesky", floats(256, 256, given=near_one))
    for name, attrs in (("eigh", {}), ("svd", {}), ("qr", {}), ("pinv", {"rtol": 1e-6})):
        add(name, floats(256, 256, given=near_one), **attrs)
        add(name, floats(512, 8, 8), **attrs)
    add("svd", floats(512, 64))
    add("svd", floats(64, 512))
    add("qr", floats(512, 64), complete=True)


add_pointwise()
add_ordering()
add_decompositions()

add("full", 1.5, shape=(N, M), dtype=F32)
add("empty", shape=(N, M), dtype=F32)
add("arange", 0.5, 1.0, length=N * M, dtype=F32)
add("arange", 0, 1, length=N * M, dtype=I64)
add("eye", rows=N, columns=M, dtype=F32)
add("cast", x, dtype=np.dtype(np.float64))
add("cast", t, dtype=F16)
add("cast", ints(N, M), dtype=F32)
add("view", x, shape=(N * M,))
add("permute", x, dims=(1, 0))
add("expand", row, shape=(N, M))
add("slice", x, index=((1, 100, 2), (0, M, 1)))
add("slice_grad", floats(100, M), shape=(N, M), index=((1, 100, 2), (0, M, 1)))
add("as_strided", x, shape=(N, M // 2), strides=(M, 2), offset=1)
add("as_strided_grad", floats(N, M // 2), like=(N, M), strides=(M, 2), offset=1)
add("as_strided_grad", floats(4, N, M), like=(N, M), strides=(0, M, 1), offset=0)
add("cleared", x, shape=(N, M // 2), strides=(M, 2), offset=1)
add("write_part", x, floats(N, M // 2), shape=(N, M // 2), strides=(M, 2), offset=1)
add("split", x, sizes=(M // 2, M // 2), dim=1)
add("cat", [x, t], dim=0)
add("cat", [x, t], dim=1)
for shape in ((M,), (N, 1), ()):
    add("sum_to_shape", x, shape=shape)
    add("sum_to_shape", t, shape=shape)
add("sum_to_shape", floats(2, N, M), shape=(2, 1, M))
few, many = ints(300, high=N), ints(2000, high=N)
add("take", x, many, dim=0)
add("take", t, few, dim=1)
add("take_grad", floats(2000, M), many, shape=(N, M), dim=0)
add("take_grad", floats(N, 300), few, shape=(N, M), dim=1)
add("put_", x, few, row, dim=0)
add("put_", x, few, floats(N, 300), dim=1)
add("take_along", x, ints(N, M, high=M), dim=1)
add("take_along", x, ints(N, M, high=N), dim=0)
add("take_along", floats(N * M // 4, 4), ints(N * M // 4, 2, high=4), dim=1)
add("take_along", t, ints(N, M, high=M, layout="transposed"), dim=1)
add("take_along_grad", floats(N * M // 4, 4), ints(N * M // 4, 4, high=2), shape=(N * M // 4, 2), dim=1)
add("take_along_grad", x, ints(N, M, high=M), shape=(N, M), dim=1)
add("take_along_grad", t, ints(N, M, high=N), shape=(N, M), dim=0)

for name in "sum mean amax amin any all logsumexp".split():
    for operand in (x, t, wide):
        for dims in ((0, 1), (0,), (1,)):
            add(name, operand, dims=dims, keepdim=False)
    add(name, floats(N, 4, M // 4), dims=(0, 2), keepdim=True)
add("sum", bools(N, M), dims=(0,), keepdim=False)
add("sum", ints(N, M), dims=(0, 1), keepdim=False)
for name in "argmax argmin max_with_index min_with_index".split():
    for operand in (x, t, wide):
        for dim in (0, 1):
            add(name, operand, dim=dim, keepdim=False)
    add(name, floats(N * M, layout="sliced"), dim=0, keepdim=True)
    add(name, floats(2, N * M, layout="transposed"), dim=1, keepdim=True)
    add(name, floats(16, 64, 512), dim=1, keepdim=True)
for a in (False, True):
    for b in (False, True):
        add("matmul", floats(N, N), floats(N, N), transpose_a=a, transpose_b=b)
        add("matmul", *[bytes_(N, N, given=(3.0,) * N * N) if a else ints(N, N)] * 2, transpose_a=a, transpose_b=b)
        add("matmul", floats(4, 256, 256), floats(256, 256), transpose_a=a, transpose_b=b)
        add("matmul", floats(4, 256, 256), floats(4, 256, 256), transpose_a=a, transpose_b=b)
add("linear", x, floats(256, M), floats(256))
add("linear", floats(4, 128, M), floats(256, M), floats(256))
add("linear", floats(N, N, layout="transposed"), floats(256, N), None)
add("linear", floats(N, M, layout="sliced"), floats(256, M, layout="sliced"), floats(256))
add("linear", floats(N, M, layout="spaced"), floats(256, M), None)
add("linear", floats(4, 128, M), floats(256, M, layout="spaced"), floats(256))
add("matmul", floats(N, M, layout="sliced"), floats(M, N, layout="expanded"))
add("matmul", floats(N, M, layout="spaced"), floats(M, N, layout="spaced"))
add("matmul", floats(N, N, layout="spaced"), floats(N, N, layout="sliced"), transpose_a=True)
for needs in ((True, True, True), (False, True, False)):
    add("linear_grad", floats(N, 256), x, floats(256, M), needs=needs)

for name in ("softmax", "log_softmax"):
    for dim in (0, 1):
        for operand in (x, t):
            add(name, operand, dim=dim)
            add(f"{name}_grad", x, operand, dim=dim)
weight = floats(M, low=0.2)
for reduction in ("mean", "sum", "none"):
    dy = floats(N) if reduction == "none" else floats()
    for extra in ((), (weight,)):
        add("cross_entropy", x, labels, *extra, reduction=reduction)
        add("cross_entropy_grad", dy, x, labels, *extra, reduction=reduction, ignore_index=-100)
        add("cross_entropy", x, labels, *extra, reduction=reduction, ignore_index=3)
        add("cross_entropy_grad", dy, x, labels, *extra, reduction=reduction, ignore_index=3)
for samples, classes in ((N * M // 8, 8), (8, N * M // 8)):
    logits, classes_of = floats(samples, classes), ints(samples, high=classes)
    add("cross_entropy", logits, classes_of, floats(classes, low=0.5))
    add("cross_entropy_grad", floats(), logits, classes_of, floats(classes, low=0.5), reduction="mean", ignore_index=2)
    add("softmax", logits, dim=1)
    add("log_softmax", logits, dim=1)
    add("layer_norm", logits, floats(classes), floats(classes), dims=1, eps=1e-5)
    rows_ = floats(samples, 1)
    add("layer_norm_grad", logits, logits, floats(classes), rows_, rows_, dims=1, needs=(True, True, True))
    add("rms_norm_grad", logits, logits, floats(classes), rows_, dims=1, needs=(True, True))
for reduction in ("mean", "sum"):
    add("mse_loss", x, t, reduction=reduction)
    add("mse_grad", floats(), x, y, reduction=reduction)
add("layer_norm", x, row, row, dims=1, eps=1e-5)
add("layer_norm", t, None, None, dims=1, eps=1e-5)
each = floats(N, 1)
add("layer_norm_grad", x, y, row, each, each, dims=1, needs=(True, True, True))
add("layer_norm_grad", x, y, None, each, each, dims=1, needs=(True, True, True))
add("rms_norm_grad", x, y, None, each, dims=1, needs=(True, True))

add("layer_norm_apply", x, row, row, each, each, dims=1)
for samples, channels, inner, groups in ((8, 32, N * M // 256, 4), (N * M // 32, 32, 1, 8), (1, 4, N * M // 4, 2),
                                         (N * M // 32, 4, 8, 2)):
    given, of_channels, of_groups = floats(samples, channels, inner), floats(channels), floats(samples, groups)
    add("group_norm", given, of_channels, of_channels, groups=groups, eps=1e-5)
    add("group_norm_grad", given, given, of_channels, of_groups, of_groups, groups=groups, needs=(True, True, True))

CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
images, planes_ = floats(32, 16, 32, 32), floats(1, 8, 256, 256)
add("conv2d", images, floats(32, 16, 3, 3), floats(32), **CONV)
add("conv2d", images, floats(32, 16, 1, 1), floats(32), **{**CONV, "padding": (0, 0)})
add("conv2d", planes_, floats(8, 4, 3, 3), None, **{**CONV, "groups": 2, "stride": (2, 2)})
add("conv2d_input_grad", floats(32, 32, 32, 32), floats(32, 16, 3, 3), shape=(32, 16, 32, 32), **CONV)
add("conv2d_input_grad", floats(1, 8, 128, 128), floats(8, 4, 3, 3), shape=(1, 8, 256, 256),
    **{**CONV, "groups": 2, "stride": (2, 2)})
add("conv2d_weight_grad", floats(32, 32, 32, 32), images, shape=(32, 16, 3, 3), **CONV)
add("conv2d_weight_grad", floats(1, 8, 256, 256), planes_, shape=(8, 8, 3, 3), **CONV)
POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
OVER = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
where = bytes_(32, 16, 16, 16, given=(3.0,) * (32 * 16 * 16 * 16))
for big in (images, floats(1, 1, 1024, 512)):
    add("max_pool2d", big, **POOL, ceil_mode=False)
    add("max_pool2d", big, **OVER, ceil_mode=False)
add("max_pool2d_grad", floats(32, 16, 16, 16), where, shape=(32, 16, 32, 32), **POOL)
add("max_pool2d_grad", images, bytes_(32, 16, 32, 32, given=(4.0,) * (32 * 16 * 32 * 32)), shape=(32, 16, 32, 32), **OVER)
add("max_pool2d_take", images, where, **POOL)
add("max_pool2d_places", bytes_(32, 16, 32, 32, given=(4.0,) * (32 * 16 * 32 * 32)), shape=(32, 16, 32, 32), **OVER)
for how in (POOL, OVER):
    average = {"kernel": how["kernel"], "stride": how["stride"], "padding": how["padding"], "ceil_mode": False,
               "count_pad": False, "divisor": None}
    add("avg_pool2d", images, **average)
    add("avg_pool2d_grad", floats(32, 16, 16, 16) if how is POOL else images, shape=(32, 16, 32, 32), **average)
for size in ((1, 1), (5, 7), (50, 60)):
    add("adaptive_avg_pool2d", images, size=size)
    add("adaptive_avg_pool2d_grad", floats(32, 16, *size), shape=(32, 16, 32, 32))
channel = floats(16, low=0.5)
add("batch_norm", images, channel, channel, channel, channel, momentum=0.1, eps=1e-5)
add("batch_norm", x, row, row, row, row, momentum=0.1, eps=1e-5)
add("batch_norm_apply", images, channel, channel, channel, channel)
add("batch_norm_grad", images, images, channel, channel, channel, needs=(True, True, True))
add("batch_norm_grad", x, x, row, row, row, needs=(True, True, True))
state = ints(4, given=(7, 0, 3, 0))
for heads in (floats(4, 8, 256, 64), floats(4, 8, 256, 64, layout="heads"), floats(128, 4, 32, 32, layout="heads")):
    for how in ({"causal": True, "scale": 0.1}, {"causal": False, "scale": 0.1}):
        for extra in ((), (state, 0.3)):
            add("attention", heads, heads, heads, None, *extra, **how)
            add("attention_grad", heads, heads, heads, heads, None, heads, floats(*heads.shape[:3]), *extra, **how)
add("attention", *[floats(1, 1, 1024, 512)] * 3, floats(1024, 1024), causal=False, scale=0.1)
add("embedding", floats(2000, M), ints(N, high=2000), padding=None)
add("embedding_grad", x, ints(N, high=2000), shape=(2000, M), padding=3)
add("embedding_unpadded", floats(2000, M), ints(N, high=2000), padding=3)
# Many positions, of which each would be an object of Python's.
add("take_grad", floats(64 * N, 1), ints(64 * N, high=5000), shape=(5000, 1), dim=0)
add("embedding_grad", floats(16, N, 1), ints(16, N, high=5000), shape=(5000, 1), padding=None)
add("embedding_unpadded", floats(5000, 1), ints(16, N, high=5000), padding=3)
add("cross_entropy", floats(N * M, 3), ints(N * M, high=3, low=-1), ignore_index=-1)
for name in ("tril", "triu"):
    add(name, x, diagonal=1)
    add(name, t, diagonal=-1)

add("advance", state, numel=10)
add("chance", floats(N, M, low=0, high=1), floats(N, M, low=0, high=1))
add("sampling_weights", floats(N, M, low=0.1))
add("dropout", x, state, 0.5)
add("dropout", t, state, 0.5)
for dtype in (F32, np.dtype(np.float64), F16):
    add("uniform", state, -1.0, 1.0, shape=(N, M), dtype=dtype)
    add("normal", state, 0.0, 1.0, shape=(N, M), dtype=dtype)
add("uniform_", x, state, -1.0, 1.0)
add("normal_", x, state, 0.0, 1.0)
SGD = {"dampening": 0.1, "weight_decay": 0.1, "first": False}
ADAM = {"beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
for maximize in (False, True):
    add("sgd_", [x, row], [x, row], [x, row], 0.1, 0.9, nesterov=maximize, maximize=maximize, **SGD)
    add("sgd_", [x, row], [x, row], [], 0.1, 0.0, nesterov=False, maximize=maximize, **SGD)
    add("adam_", [x, row], [x, row], [x, row], [y, floats(M, low=0.5)], 0.1, 3, 0.9, decoupled=maximize, maximize=maximize,
        **ADAM)
    add("amsgrad_", [x, row], [x, row], [x, row], [y, floats(M, low=0.5)], [y, floats(M, low=0.5)], 0.1, 3, 0.9,
        decoupled=maximize, maximize=maximize, **ADAM)

BIG += rows_optimizers.BIG + rows_losses.BIG + rows_recurrent.BIG + rows_order.BIG

assert {r.op for r in BIG} == set(all_ops()), f"ops without a call here: {set(all_ops()) - {r.op for r in BIG}}"
