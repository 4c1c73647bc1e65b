"""Sample calls at sizes where the CUDA kernels change their way: tails, wide rows, columns, rows in parts, many tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests import rows_losses, rows_optimizers
from tests.rows import ROWS, Row, bools, floats, ints

F32 = np.dtype(np.float32)
SIZES: list[Row] = []


def add(op: str, *args: Any, **attrs: Any) -> None:
    SIZES.append(Row(op, f"size {len(SIZES)}", args, attrs))


for n in (1, 3, 4, 5, 255, 1027, 4099):
    add("add", floats(n), floats(n))
    add("mul", floats(n), 1.5)
    add("exp", floats(n))
    add("gt", floats(n), 0.5)
    add("relu_grad", floats(n), floats(n))
    add("where", bools(n), floats(n), 0.0)
    add("mse_loss", floats(n), floats(n), reduction="mean")
    add("uniform", ints(4, given=(7, 0, 3, 0)), -1.0, 2.0, shape=(n,), dtype=F32)
    add("dropout", floats(n), ints(4, given=(7, 0, 3, 0)), 0.3)
# Rows that repeat, of a length that divides an access or does not; a cell; views that begin anywhere.
for shape, row in (((9, 8), (8,)), ((9, 7), (7,)), ((4, 9, 8), (9, 8)), ((4, 9, 7), (4, 1, 7)), ((5, 6), (1,))):
    add("add", floats(*shape), floats(*row))
    add("div", floats(*row, low=0.5), floats(*shape, low=0.5))
add("add", floats(33, 35, layout="transposed"), floats(33, 35))
add("add", floats(33, 35, layout="sliced"), floats(33, 35, layout="transposed"))
add("add", floats(7, 5, 3, layout="transposed"), floats(7, 1, 3))
add("clone", floats(130, 70, layout="transposed"))
add("tril", floats(3, 20, 33), diagonal=-2)
add("triu", floats(3, 33, 20, layout="transposed"), diagonal=4)

WIDE = ((3, 31), (9, 33), (5, 1025), (2, 5000))
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
# One row, and some, in parts; columns, few and many, in parts; bits of whole numbers.
for operand in (floats(20_000), floats(3, 17_000), floats(17_000, 2, layout="transposed")):
    add("sum", operand, dims=(len(operand.shape) - 1,), keepdim=False)
    add("amin", operand, dims=tuple(range(len(operand.shape))), keepdim=False)
for shape in ((300, 33), (2000, 40), (129, 500)):
    add("sum", floats(*shape), dims=(0,), keepdim=False)
    add("sum_to_shape", floats(*shape), shape=(shape[1],))
    add("any", bools(*shape), dims=(0,), keepdim=False)
add("sum", ints(70, 300, low=-9, high=9), dims=(0, 1), keepdim=False)
add("sum", floats(6, 40, 5), dims=(0, 2), keepdim=True)
add("softmax", floats(3, 50, 40), dim=1)
add("as_strided_grad", floats(40, 33), like=(33,), strides=(0, 1), offset=0)
add("layer_norm_grad", floats(300, 40), floats(300, 40), None, floats(300, 1), floats(300, 1, low=0.5), dims=1,
    needs=(True, True, True))

for tail in (1, 4, 6, 1100):
    add("take", floats(9, tail), ints(2, 7, low=-9, high=9), dim=0)
    add("take_grad", floats(2, 300, tail), ints(300, low=-5, high=5), shape=(2, 5, tail), dim=1)
    add("embedding", floats(9, tail), ints(31, high=9), padding=3)
    add("embedding_grad", floats(31, tail), ints(31, high=9), shape=(9, tail), padding=3)
    add("embedding_unpadded", floats(9, tail), ints(31, high=9), padding=3)
    add("put_", floats(4, 9, tail), ints(13, high=9), floats(13, tail), dim=1)
add("take_along", floats(40, 9), ints(40, 5, high=9), dim=1)
add("take_along_grad", floats(40, 5), ints(40, 5, high=9), shape=(40, 9), dim=1)

many = [floats(k % 7 + 1, 3) for k in range(70)] + [floats(9001)]
SGD = {"dampening": 0.1, "weight_decay": 0.1, "nesterov": True, "maximize": False, "first": False}
add("sgd_", many, many, [], 0.1, **{**SGD, "momentum": 0.0, "nesterov": False})
add("sgd_", many, many, many, 0.1, **{**SGD, "momentum": 0.9})
positive = [floats(*o.shape, low=0, high=1) for o in many]
add("adam_", many, many, many, positive, 0.1, 3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, decoupled=True,
    maximize=False)
SIZES += rows_optimizers.MANY + rows_losses.SIZES
add("linear", floats(3, 5, 7), floats(4, 7), floats(4))
add("matmul", floats(2, 3, 4, 5), floats(3, 5, 6), transpose_a=False, transpose_b=False)
add("matmul", floats(2, 1, 4, 5), floats(3, 6, 5), transpose_a=False, transpose_b=True)

#: What runs in float16 as well: storage of two bytes, arithmetic in four.
HALF = [row for row in [*ROWS, *SIZES] if row.op in (
    "add mul relu_grad gelu_tanh sum mean amax softmax log_softmax softmax_grad cross_entropy layer_norm take take_grad cat "
    "clone cast linear matmul uniform dropout maximum where argmax").split() and "dtype" not in row.attrs]

#: Instances that no op launches yet: storage in bfloat16, a bias and its activation in one pass, RMS norm.
UNBOUND = {
    "elementwise": {"map<Then<Relu, Add>, float, 4, float, const float*, Row<float>>",
                    "map<Then<Gelu, Add>, float, 4, float, const float*, Row<float>>",
                    "map<Add, float, 8, bfloat, const bfloat*, const bfloat*>",
                    "map_strided<Copy, float, bfloat, const float*>"},
    "norm": {"layer_norm<bfloat, true>", "layer_norm_dx<float, false>",
             "affine_parts<float, false>"},
    "softmax": {"softmax<bfloat, false>"}, "reduce": {"fold<Sum, bfloat, bfloat>"}, "optim": {"adam<bfloat>", "adam<half>"},
}
