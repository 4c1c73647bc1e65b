"""Sample calls at sizes where the CUDA kernels take different paths: tails, wide rows, columns, split rows, many tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests import rows_losses, rows_optimizers, rows_recurrent
from tests.rows import ROWS, Row, bools, bytes_, floats, ints

F32 = np.dtype(np.float32)
SIZES: list[Row] = []
#: In single precision only: in double, they need more shared memory than a multiprocessor has.
SINGLE: list[Row] = []


def add(op: str, *args: Any, **attrs: Any) -> None:
    SIZES.append(Row(op, f"size {len(SIZES)}", args, attrs))


add("sign_", bools(5))
add("clamp_", bytes_(4, given=(1, 7, 250, 90)), ints(4, given=(5, 6, 7, 8)), ints(4, given=(200, 6, 100, 95)))
for n in (1, 3, 4, 5, 255, 1027, 4099):
    add("add", floats(n), floats(n))
    add("mul", floats(n), 1.5)
    add("exp", floats(n))
    add("gt", floats(n), 0.5)
    add("relu_grad", floats(n), floats(n))
    add("where", bools(n), floats(n), 0.0)
    add("mse_loss", floats(n), floats(n), reduction="mean")
    add("uniform", ints(4, given=(7, 0, 3, 0)), -1.0, 2.0, shape=(n,), dtype=F32)
    add("uniform_", floats(n), ints(4, given=(7, 0, 3, 0)), -1.0, 2.0)
    add("normal_", floats(n), ints(4, given=(7, 0, 3, 0)), -1.0, 2.0)
    add("dropout", floats(n), ints(4, given=(7, 0, 3, 0)), 0.3)
# Tensors of one element, as counts, norms of gradients and clipping factors are.
one, count = floats(1, low=0.5), ints(1, given=(3,))
for args in ((one, 1e-6), (count, count), (count, 1)):
    add("add", *args)
add("div", 1.0, one)
add("minimum", one, 1.0)
add("mul", floats(1027), one)
add("where", bools(1027), 0.0, floats(1027))
# Broadcast rows whose length is a multiple of an access or not; a single element; views at any offset.
for shape, row in (((9, 8), (8,)), ((9, 7), (7,)), ((4, 9, 8), (9, 8)), ((4, 9, 7), (4, 1, 7)), ((5, 6), (1,))):
    add("add", floats(*shape), floats(*row))
    add("div", floats(*row, low=0.5), floats(*shape, low=0.5))
add("add", floats(33, 35, layout="transposed"), floats(33, 35))
add("add", floats(33, 35, layout="sliced"), floats(33, 35, layout="transposed"))
add("add", floats(7, 5, 3, layout="transposed"), floats(7, 1, 3))
add("clone", floats(130, 70, layout="transposed"))
add("clone", floats(2, 3, 35, 20, layout="transposed"))
add("clone", floats(2, 3, 64, 80, layout="transposed"))
add("clone", floats(136, 72, layout="transposed"))
add("clone", floats(64, 128, layout="transposed"))
add("clone", floats(64, 3, 2, 128, layout="transposed"))
add("clone", bools(272, 48, layout="transposed"))
add("cast", floats(72, 136, layout="transposed"), dtype=F32)
add("cast", bools(32, 80, layout="transposed"), dtype=F32)
add("cast", floats(33, 17, layout="transposed"), dtype=F32)
# Contiguous elements, or one element broadcast; rows that are not a multiple of an access, or begin at any offset.
add("clone", floats(2, 3, 5, 16, layout="heads"))
add("mul", floats(3, 5, 16), floats(5, 1))
add("sub", floats(3, 1), floats(3, 32))
add("where", bools(3, 16), floats(3, 1), 0.0)
add("add", floats(6, 16, layout="sliced"), floats(6, 16))
add("gt", floats(2, 3, 5, 16, layout="heads"), floats(2, 3, 5, 1))
add("tril", floats(3, 20, 33), diagonal=-2)
add("triu", floats(3, 33, 20, layout="transposed"), diagonal=4)

# Rows of few or many accesses of 16 bytes or one element; held in registers or too long for that.
WIDE = ((3, 31), (9, 33), (5, 1025), (2, 5000), (37, 3), (70, 10), (9, 60), (40, 64), (6, 192), (2, 8208), (2, 1041))
for shape in WIDE:
    for name in ("sum", "amax", "logsumexp", "mean"):
        add(name, floats(*shape), dims=(1,), keepdim=False)
        add(name, floats(*shape, layout="transposed"), dims=(1,), keepdim=True)
    add("argmax", floats(*shape), dim=1, keepdim=False)
    add("min_with_index", floats(*shape, layout="transposed"), dim=1, keepdim=False)
    for name in ("softmax", "log_softmax"):
        for dim in (0, 1):
            add(name, floats(*shape, low=-20, high=20), dim=dim)
            add(f"{name}_grad", floats(*shape), floats(*shape, low=0, high=1), dim=dim)
    classes = ints(shape[0], high=shape[1])
    add("cross_entropy", floats(*shape), classes, reduction="mean")
    add("cross_entropy", floats(*shape), classes, floats(shape[1], low=0.5), reduction="none")
    add("cross_entropy_grad", floats(), floats(*shape), classes, floats(shape[1], low=0.5), reduction="mean", ignore_index=-1)
    add("layer_norm", floats(*shape), floats(shape[1]), floats(shape[1]), dims=1, eps=1e-5)
    add("layer_norm_apply", floats(*shape), floats(shape[1]), None, floats(shape[0], 1), floats(shape[0], 1), dims=1)
    add("layer_norm_grad", floats(*shape), floats(*shape), floats(shape[1]), floats(shape[0], 1),
        floats(shape[0], 1, low=0.5), dims=1, needs=(True, True, True))
    add("rms_norm_grad", floats(*shape), floats(*shape), floats(shape[1]), floats(shape[0], 1, low=0.5), dims=1,
        needs=(True, True))
# Rows of which a share is not defined, and of which some shares are 0.
for width in (5, 8, 300):
    ends = [(-math.inf,) * width, (math.inf, *(1.0,) * (width - 1)), (1.0, math.nan, *(2.0,) * (width - 2)),
            (*(-math.inf,) * (width - 1), 3.0), (6e4, *(-6e4,) * (width - 1))]
    for name in ("softmax", "log_softmax"):
        add(name, floats(5, width, given=sum(ends, ())), dim=1)
    add("logsumexp", floats(5, width, given=sum(ends, ())), dims=(1,), keepdim=False)
# Rows for a thread, a warp and a block, in one block and in several; few labels, which every block counts, and many.
for shape in ((600, 10), (513, 32), (4500, 33), (20, 33), (301, 40), (1, 3000)):
    for case in (floats(shape[1], low=0.5), None):
        classes = ints(shape[0], low=-1, high=shape[1])
        for reduction in ("mean", "sum"):
            add("cross_entropy", floats(*shape), classes, case, reduction=reduction, ignore_index=-1)
        add("cross_entropy_grad", floats(), floats(*shape), classes, case, reduction="mean", ignore_index=-1)
for case in (floats(3), None):
    # All ignored: the total weight is 0.
    add("cross_entropy_grad", floats(), floats(5, 3), ints(5, low=-1, high=0), case, reduction="mean", ignore_index=-1)
add("cross_entropy_grad", floats(700), floats(700, 3), ints(700, high=3), reduction="none", ignore_index=-1)
# No images, and no channels.
for shape, weight in (((0, 4, 5, 5), (4, 2, 1, 1)), ((0, 4, 5, 5), (4, 2, 3, 3)), ((2, 0, 5, 5), (4, 0, 3, 3))):
    out = (shape[0], 4, 6 - weight[2], 6 - weight[2])
    how = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 2}
    add("conv2d", floats(*shape), floats(*weight), floats(4), **how)
    add("conv2d_input_grad", floats(*out), floats(*weight), shape=shape, **how)
    for with_bias in (False, True):
        add("conv2d_weight_grad", floats(*out), floats(*shape), shape=weight, bias=with_bias, **how)
for case in ({"kernel": (2, 3), "stride": (1, 2), "padding": (1, 1)}, {"kernel": (3, 2), "stride": (1, 1), "padding": (0, 0)}):
    add("max_pool2d", floats(2, 2, 4, 5, given=(1, math.nan, 0, -1, 2, math.nan, math.nan, 3, -math.inf, 1) * 8), **case,
        dilation=(1, 1), ceil_mode=False)
# Windows of 2 by 2 side by side, of rows of whole accesses and of others.
for shape in ((2, 3, 6, 16), (1, 2, 4, 12), (3, 1, 5, 16), (2, 2, 4, 6), (0, 2, 4, 16)):
    count, half = math.prod(shape), (*shape[:2], shape[2] // 2, shape[3] // 2)
    how = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    special = tuple((1.0, 1.0, math.nan, -math.inf, 2.0, -math.inf, 0.0)[k * k % 7] for k in range(count))
    add("max_pool2d", floats(*shape), **how, ceil_mode=False)
    add("max_pool2d", floats(*shape, given=special), **how, ceil_mode=False)
    taps = bytes_(*half, given=tuple(k * k % 4 for k in range(math.prod(half))))
    add("max_pool2d_grad", floats(*half), taps, shape=shape, **how)
for divisor in (None, 3):
    # The mean of whole images.
    how = {"kernel": (33, 40), "stride": (1, 1), "padding": (0, 0), "ceil_mode": False, "count_pad": False, "divisor": divisor}
    add("avg_pool2d", floats(3, 5, 33, 40), **how)
    add("avg_pool2d_grad", floats(3, 5, 1, 1), **how, shape=(3, 5, 33, 40))
# Joined with accesses of 16 bytes or one element; within rows, as whole rows, strided; more tensors than one launch takes.
for shape in ((3, 5, 8), (2, 4, 6), (3, 16, 1)):
    parts_of = [(*shape[:2], n * shape[2]) for n in (1, 3, 2)]
    add("cat", [floats(*s) for s in parts_of], dim=2)
    add("cat", [floats(shape[0], n, shape[2]) for n in (4, 8, 1)], dim=1)
    for layout in ("transposed", "sliced"):
        add("cat", [floats(*shape, layout=layout), floats(*shape)], dim=1)
        add("cat", [floats(*shape, layout=layout), floats(*shape, layout=layout)], dim=2)
add("cat", [floats(2, 3, 5, 8, layout="heads"), floats(2, 3, 9, 8, layout="heads")], dim=2)
add("cat", [floats(2, 3, 5, 8, layout="heads"), floats(2, 3, 5, 8, layout="heads")], dim=1)
add("cat", [floats(4, k % 3 * 4, 5) for k in range(15)], dim=1)
add("cat", [floats(2, k % 3 + 1) for k in range(13)], dim=1)
add("cat", [bools(3, 16), bools(3, 32)], dim=1)
add("cat", [ints(2, 4), ints(2, 2)], dim=1)
# One row, and several, split; few and many columns, split; integers.
for operand in (floats(20_000), floats(3, 17_000), floats(17_000, 2, layout="transposed")):
    add("sum", operand, dims=(len(operand.shape) - 1,), keepdim=False)
    add("amin", operand, dims=tuple(range(len(operand.shape))), keepdim=False)
    add("argmax", operand, dim=0, keepdim=False)
    add("min_with_index", operand, dim=len(operand.shape) - 1, keepdim=True)
for shape in ((300, 33), (2000, 40), (129, 500)):
    add("sum", floats(*shape), dims=(0,), keepdim=False)
    add("sum_to_shape", floats(*shape), shape=(shape[1],))
    add("any", bools(*shape), dims=(0,), keepdim=False)
# The first of equal elements wins, whichever block, thread or access finds it; NaN wins over all.
for values in ((-math.inf,), (5, 7, 7, 3), (1, 2, math.nan, math.inf, math.nan), (-math.inf, -math.inf, 0)):
    for width in (3, 64, 333):
        add("argmax", floats(2, width, given=(values * 333)[:width] * 2), dim=1, keepdim=False)
        add("min_with_index", floats(2, width, given=(values * 333)[:width] * 2), dim=1, keepdim=False)
add("argmin", ints(50_000, low=0, high=9), dim=0, keepdim=False)
add("sum", ints(70, 300, low=-9, high=9), dims=(0, 1), keepdim=False)
add("sum", floats(6, 40, 5), dims=(0, 2), keepdim=True)
add("softmax", floats(3, 50, 40), dim=1)
add("pow", ints(7, given=(0, 2, -1, 1, -1, 3, -2)), ints(7, given=(-1, -2, -1, -3, -2, 2, 3)))
for exponent in (0.5, -0.5):
    add("pow", floats(6, given=(-math.inf, -1, -0.0, 0, 4, math.inf)), exponent)
add("as_strided_grad", floats(40, 33), like=(33,), strides=(0, 1), offset=0)
add("layer_norm_grad", floats(300, 40), floats(300, 40), None, floats(300, 1), floats(300, 1, low=0.5), dims=1,
    needs=(True, True, True))
# Columns that take more than one pass; more rows than the workspace has room for blocks; no gradient of the input.
for shape, first in (((3, 2100), True), ((260, 1025), True), ((300, 40), False), ((3, 7), False)):
    add("layer_norm_grad", floats(*shape), floats(*shape), floats(shape[1]), floats(shape[0], 1),
        floats(shape[0], 1, low=0.5), dims=1, needs=(first, True, True))
# The same without a mean.
for shape in ((300, 40), (3, 2100), (260, 1025), (30, 8)):
    add("rms_norm_grad", floats(*shape), floats(*shape), None if shape[1] == 40 else floats(shape[1]),
        floats(shape[0], 1, low=0.5), dims=1, needs=(shape[0] != 30, True))

# Groups in registers or too long for them, with channels that begin at multiples of 16 bytes and others; many samples.
for shape, groups in (((3, 8, 4, 4), 2), ((2, 6, 5, 7), 3), ((70, 8), 4), ((2, 4, 1100), 2), ((1, 3, 2080), 1),
                      ((300, 33, 4), 11), ((2, 64, 32, 16), 2)):
    for weight in (floats(shape[1]), None):
        add("group_norm", floats(*shape), weight, weight, groups=groups, eps=1e-5)
        add("group_norm_grad", floats(*shape), floats(*shape), weight, floats(shape[0], groups),
            floats(shape[0], groups, low=0.5), groups=groups, needs=(shape[0] < 70 or weight is None, True, True))
add("group_norm_grad", floats(0, 4, 3), floats(0, 4, 3), floats(4), floats(0, 2), floats(0, 2), groups=2, needs=(True,) * 3)
add("group_norm_grad", floats(2, 4, 0), floats(2, 4, 0), floats(4), floats(2, 2), floats(2, 2), groups=2, needs=(True,) * 3)

for tail in (1, 4, 6, 1100):
    add("take", floats(9, tail), ints(2, 7, low=-9, high=9), dim=0)
    add("take_grad", floats(2, 300, tail), ints(300, low=-5, high=5), shape=(2, 5, tail), dim=1)
    add("embedding", floats(9, tail), ints(31, high=9), padding=3)
    add("embedding_grad", floats(31, tail), ints(31, high=9), shape=(9, tail), padding=3)
    add("embedding_unpadded", floats(9, tail), ints(31, high=9), padding=3)
    add("put_", floats(4, 9, tail), ints(13, high=9), floats(13, tail), dim=1)
add("take_along", floats(40, 9), ints(40, 5, high=9), dim=1)
add("take_along_grad", floats(40, 5), ints(40, 5, high=9), shape=(40, 9), dim=1)
# So many positions that they are sorted: by one, two and three digits, with sums within a run, over two runs, and over many.
for count, high, length, tail in ((70_000, 900, 1000, 1), (20_000, 3, 4000, 33), (100, 70_000, 70_000, 2),
                                  (1, 60_000, 60_000, 2)):
    add("embedding_grad", floats(count, tail), ints(count, high=high), shape=(length, tail), padding=1)
    add("put_", floats(2, length, tail), ints(count, low=-high, high=high), floats(count, tail), dim=1)
    add("add_at_", floats(2, length, tail), ints(count, low=-high, high=high), floats(2, 1, tail), dim=1)
# Each place looks at more positions than a block tests at once.
add("embedding_grad", floats(2500, 300), ints(2500, high=9), shape=(9, 300), padding=3)
add("add_at_", floats(9, 300), ints(2500, high=9), floats(2500, 300), dim=0)
# Parts of sums are wider than the elements.
add("add_at_", bytes_(300, given=(1,) * 300), ints(9000, high=300), bytes_(9000, given=(7,) * 9000), dim=0)
# Sorted, in rows of whole accesses and of others.
for count, high, tail in ((17_000, 3, 40), (16_000, 290, 132), (15_500, 300, 66)):
    add("embedding_grad", floats(count, tail), ints(count, high=high), shape=(300, tail), padding=2)
    add("add_at_", floats(300, tail), ints(count, high=high), floats(count, tail), dim=0)
add("take_grad", floats(2, 500, 600, 1), ints(500, 600, low=-250, high=250), shape=(2, 250, 1), dim=1)
add("take_along_grad", floats(3, 8000, 2), ints(3, 8000, 2, high=300), shape=(3, 2000, 2), dim=1)
for largest in (True, False):
    add("extreme_along_", floats(3, 300, 2, layout="transposed"), ints(2, 8000, 2, high=300), floats(2, 8000, 2), dim=1,
        largest=largest)
for name in ("add_along_", "put_along_"):
    add(name, floats(3, 3000, 2, layout="transposed"), ints(2, 8000, 2, high=300), floats(2, 1, 2), dim=1)

for shape in ((3, 33), (40, 300), (2, 5000)):
    add("cumprod", floats(*shape, given=tuple(0.0 if k % shape[1] == 0 else 10.0 for k in range(shape[0] * shape[1]))), dim=1)
    add("cumextreme", floats(*shape, given=(math.nan, *range(shape[0] * shape[1] - 1))), dim=1, largest=False)
    for name, attrs in (("cumsum", {"reverse": False}), ("cumsum", {"reverse": True}), ("cumprod", {}),
                        ("cumextreme", {"largest": True}), ("cumextreme", {"largest": False})):
        near_one = floats(*shape, low=0.99, high=1.01)
        add(name, near_one, dim=1, **attrs)
        add(name, floats(*shape[::-1], low=0.99, high=1.01, layout="transposed"), dim=0, **attrs)
    for reverse in (False, True):
        add("recurrence", floats(*shape), floats(*shape, low=-1, high=1), dim=1, reverse=reverse)
        add("recurrence", floats(*shape), floats(*shape, low=-1, high=1), dim=0, reverse=reverse)
    add("prod", floats(*shape, low=0.99, high=1.01), dim=1, keepdim=False)
    add("var", floats(*shape), dims=(1,), correction=1, keepdim=True)
    add("var", floats(*shape, low=98, high=102), dims=(1,), correction=0.5, keepdim=False)
    add("vector_norm", floats(*shape), p=2, dims=(0, 1), keepdim=False)
    for descending in (False, True):
        add("ranked", ints(*shape, high=40), dim=1, start=0, length=shape[1], descending=descending)
        add("ranked", floats(*shape), dim=0, start=1, length=1, descending=descending)
# Lines of a whole tile, and of a tile and one more; several tiles, the last one not full, in both directions.
for shape, dim in (((2, 2048), 1), ((2049, 2), 0), ((10_001,), 0)):
    for descending in (False, True):
        add("ranked", ints(*shape, high=500), dim=dim, start=0, length=shape[dim], descending=descending)
        add("ranked", floats(*shape), dim=dim, start=5, length=2000, descending=descending)
for step, dilation in ((1, 1), (2, 1), (1, 3), (5, 1)):
    add("windows_grad", floats(10, 8, 3), shape=(10 * step + 2 * dilation, 8), dim=0, size=3, step=step, dilation=dilation)
add("add_at_", floats(4, 9, 300), ints(13, high=9), floats(13, 300), dim=1)
add("add_along_", floats(40, 9), ints(40, 5, high=9), floats(40, 5), dim=1)

many = [floats(k % 7 + 1, 3) for k in range(70)] + [floats(9001)]
SGD = {"dampening": 0.1, "weight_decay": 0.1, "nesterov": True, "maximize": False, "first": False}
add("sgd_", many, many, [], 0.1, 0.0, **{**SGD, "nesterov": False})
add("sgd_", many, many, many, 0.1, 0.9, **SGD)
positive = [floats(*o.shape, low=0, high=1) for o in many]
ADAM = {"beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "decoupled": True, "maximize": False}
add("adam_", many, many, many, positive, 0.1, 3, 0.9, **ADAM)
add("amsgrad_", many, many, many, positive, [floats(*o.shape, low=0, high=1) for o in many], 0.1, 3, 0.9, **ADAM)
SIZES += rows_optimizers.MANY + rows_losses.SIZES + rows_recurrent.SIZES
add("linear", floats(3, 5, 7), floats(4, 7), floats(4))
add("matmul", floats(2, 3, 4, 5), floats(3, 5, 6), transpose_a=False, transpose_b=False)
add("matmul", floats(2, 1, 4, 5), floats(3, 6, 5), transpose_a=False, transpose_b=True)

# Full and partial tiles of a product; split windows; kernels of one column; windows that overlap and that do not; few channels.
for x, w, stride, padding, dilation, groups in (
        ((2, 3, 9, 11), (70, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1), ((3, 6, 12, 8), (8, 3, 3, 2), (2, 1), (0, 1), (1, 2), 2),
        ((2, 20, 7, 7), (5, 20, 1, 1), (1, 1), (0, 0), (1, 1), 1), ((1, 2, 40, 40), (3, 2, 5, 5), (3, 3), (2, 2), (1, 1), 1),
        ((3, 20, 9, 8), (33, 20, 3, 3), (1, 1), (1, 1), (1, 1), 1), ((2, 70, 6, 8), (40, 35, 2, 3), (2, 2), (1, 0), (1, 2), 2),
        ((2, 6, 20, 17), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6), ((2, 3, 40, 30), (6, 1, 5, 3), (2, 1), (2, 0), (1, 2), 3)):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    out = tuple((x[2 + d] + 2 * padding[d] - dilation[d] * (w[2 + d] - 1) - 1) // stride[d] + 1 for d in (0, 1))
    add("conv2d", floats(*x), floats(*w), floats(w[0]), **how)
    add("conv2d_input_grad", floats(x[0], w[0], *out), floats(*w), shape=x, **how)
    add("conv2d_weight_grad", floats(x[0], w[0], *out), floats(*x), shape=w, **how)
    add("conv2d_weight_grad", floats(x[0], w[0], *out), floats(*x), shape=w, bias=True, **how)
# Channels of one block and of several; more partial results than a block combines, and elements that are far apart.
for shape in ((2, 3, 5, 7), (4, 70, 33, 2), (5, 3, 31, 37), (9001, 2), (2, 3, 33800), (9001, 30)):
    channel = [floats(shape[1]), floats(shape[1], low=0.5)]
    add("batch_norm", floats(*shape), *channel, *channel, momentum=0.1, eps=1e-5)
    add("batch_norm_apply", floats(*shape), *channel, *channel)
    for needs in ((True, True, True), (False, True, True)):
        add("batch_norm_grad", floats(*shape), floats(*shape), channel[0], *channel, needs=needs)
# Full and partial tiles of queries and keys; heads of each width; masks that are broadcast, or mask all keys of a query.
for lead, length, keys, width, values, causal, mask, drop in (
        ((2, 2), 35, 67, 5, 7, False, None, 0.0), ((1, 2), 67, 67, 33, 40, True, None, 0.3),
        ((1, 1), 40, 33, 64, 64, True, (1, 33), 0.0), ((2, 3), 17, 20, 16, 16, False, (3, 1, 20), 0.5),
        ((2, 1), 33, 9, 4, 4, False, "hidden", 0.1), ((1, 1), 3, 8, 2, 2, False, None, 1.0),
        ((1, 1), 20, 50, 100, 128, False, None, 0.2)):
    target = SINGLE if max(width, values) > 64 else SIZES
    for layout in ("plain", "sliced", "heads"):
        q, k, v = (floats(*lead, n, e, layout=layout) for n, e in ((length, width), (keys, width), (keys, values)))
        m = None if mask is None else floats(*mask) if mask != "hidden" else floats(length, keys, given=tuple(
            -np.inf if row % 4 == 1 or (row + key) % 3 == 0 else 0.0 for row in range(length) for key in range(keys)))
        drops = (ints(4, given=(7, 0, 3, 0)), drop) if drop else ()
        how = {"causal": causal, "scale": width ** -0.5}
        target += [Row("attention", f"size {length} {width} {layout}", (q, k, v, m, *drops), how),
                   Row("attention_grad", f"size {length} {width} {layout}",
                       (floats(*lead, length, values, layout=layout), q, k, v, m, floats(*lead, length, values),
                        floats(*lead, length, low=3.0, high=5.0), *drops), how)]

#: Elimination, and sums of logarithms over many steps, run in at least single precision.
DECOMPOSED = frozenset("inv solve det slogdet cholesky eigh svd qr pinv ctc_loss ctc_loss_grad".split())
_RECURRENT = frozenset(row.op for row in rows_recurrent.NARROW)
#: A call of each op on floats, stored in two bytes and computed in four, and all sizes of the ops that round in between.
_FIRST = [*{row.op: row for row in reversed(ROWS) if any(o.kind == "float" for o in row.operands())
            and "dtype" not in row.attrs and not row.declared.view and row.op not in DECOMPOSED | _RECURRENT}.values()]
_NARROW_SIZES = frozenset((
    "sum mean var softmax layer_norm layer_norm_grad rms_norm rms_norm_grad group_norm group_norm_grad batch_norm "
    "batch_norm_grad cross_entropy cross_entropy_grad cat embedding_grad add_at_ "
    "conv2d conv2d_input_grad conv2d_weight_grad attention attention_grad windows_grad").split())
BFLOAT = [*_FIRST, *[row for row in (*SIZES, *SINGLE) if row.op in _NARROW_SIZES], *rows_recurrent.NARROW]
#: Ops that also run in float16, by the same templates.
_HALF_OPS = frozenset((
    "add mul relu_grad gelu_tanh sum mean amax softmax log_softmax softmax_grad cross_entropy cross_entropy_grad layer_norm "
    "rms_norm_grad take take_grad cat clone cast linear matmul uniform dropout maximum where argmax conv2d conv2d_input_grad "
    "conv2d_weight_grad max_pool2d "
    "batch_norm attention attention_grad silu silu_grad mish elu elu_grad softplus hardtanh leaky_relu lerp addcmul "
    "masked_fill_ exp2 flip roll cumsum ranked windows_grad var adam_ amsgrad_ square_sum scale_ extreme_along_").split())
#: Values whose squares overflow float16.
_LARGE = floats(5, 70, low=-300.0, high=300.0)
HALF = [*[row for row in BFLOAT if row.op in _HALF_OPS | _RECURRENT],
        *[Row("vector_norm", f"large {p}", (_LARGE,), {"p": p, "dims": (1,), "keepdim": False})
          for p in (0, 0.5, 1, 2, 3, math.inf, -math.inf)],
        Row("var", "large", (_LARGE,), {"dims": (1,), "correction": 1, "keepdim": False}),
        # Whose means take more bytes in single precision than a piece of the rows.
        Row("var", "many short rows", (floats(600_000, 2),), {"dims": (1,), "correction": 1, "keepdim": False})]

#: Instances that no op launches alone: a bias and its activation in one pass, gelu and cross-entropy with their gradients,
#: and the first kernels that the tests of bfloat16 use.
UNBOUND = {
    "elementwise": {"map<Then<Relu, Add>, float, 4, float, const float*, Row<float>>",
                    "map<Then<Gelu, Add>, float, 4, float, const float*, Row<float>>",
                    "with_slopes<Gelu, GeluGrad, float, 4, float>", "with_slopes<GeluTanh, GeluTanhGrad, float, 1, float>",
                    "with_slopes<Gelu, GeluGrad, float, 8, half>",
                    "map<Add, float, 8, bfloat, const bfloat*, const bfloat*>",
                    "map_strided<Copy, float, 1, bfloat, const float*>"},
    "mailbox": {"bring"}, "product": {f"small_product<{then}>" for then in range(5)},
    "norm": {"layer_norm<bfloat, 8>"},
    # Rounded to TF32, which a setting chooses.
    "convolution": {f"{name}<float, {height}, 1{rest}>" for height in (32, 64) for name, rest in (
        ("conv2d", ""), ("conv2d_input_grad", ", 0"), ("conv2d_input_grad", ", 1"), ("conv2d_weight_grad", ""))},
    "loss": {f"cross_entropy<{kind}, long long, 1, true>" for kind in ("float", "double", "half", "bfloat")},
    "softmax": {"softmax<bfloat, false, 8>"}, "reduce": {"fold<Sum, bfloat, bfloat>"},
    "optim": {"step<AdamOf<false>, bfloat>", "step<AdamOf<false>, half>"},
}
