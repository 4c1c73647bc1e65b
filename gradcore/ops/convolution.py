"""Convolution over two dimensions, as matrix products of pieces of the input laid out by window (im2col).

Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks for Document Processing, 2006.
"""

from __future__ import annotations

import math
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.movement import expand, reshape
from gradcore.ops.op import Inferred, joint, op
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float, need_one_dtype
from gradcore.spec import TensorSpec
from gradcore.tiling import ALONE, SHARE, Pair, WidePieces, is_pointwise, tiles_alone, windows_at_once


def windows(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many windows fit along one dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def covered(count: int, kernel: int, stride: int, padding: int = 0, dilation: int = 1) -> int:
    """The least size along one dimension that has so many windows: the inverse of :func:`windows`."""
    return (count - 1) * stride + dilation * (kernel - 1) + 1 - 2 * padding


def _check(x: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair, groups: int) -> None:
    if len(x) != 4 or len(weight) != 4:
        raise SpecError(f"conv2d: expected input [N, C, H, W] and weight [O, C / groups, kH, kW], but got {list(x)} and "
                        f"{list(weight)}")
    if groups < 1 or min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise SpecError(f"conv2d: stride {stride}, dilation {dilation} and groups {groups} must be positive and padding "
                        f"{padding} must not be negative")
    if not weight[0] or not min(weight[2:]):
        raise SpecError(f"conv2d: expected a weight [O, C / groups, kH, kW] with an output channel and a kernel of 1 or more, "
                        f"but got {list(weight)}")
    if x[1] != weight[1] * groups:
        raise SpecError(f"Given groups={groups}, weight of size {list(weight)}, expected input{list(x)} to have "
                        f"{weight[1] * groups} channels, but got {x[1]} channels instead")
    if weight[0] % groups:
        raise SpecError(f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of "
                        f"size {list(weight)} instead")
    if min(_out(x, weight, stride, padding, dilation)) < 1:
        raise SpecError(f"Calculated padded input size per channel: ({x[2] + 2 * padding[0]} x {x[3] + 2 * padding[1]}). "
                        f"Kernel size: ({weight[2]} x {weight[3]}) with dilation {dilation}. Kernel size can't be greater "
                        "than actual input size")


def _out(x: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    h, w = (windows(x[2 + d], weight[2 + d], stride[d], padding[d], dilation[d]) for d in (0, 1))
    return h, w


def _piece_elements(x: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair) -> int:
    """Elements of a laid-out piece and what goes with it, whatever the batch."""
    if is_pointwise(weight, stride, padding):
        return 0
    rows, width = _out(x, weight, stride, padding, dilation)
    if stride == (1, 1):
        return WidePieces.of(x, weight, padding, dilation, rows).elements(x[1], weight[0], weight) + 32
    depth = x[1] * weight[2] * weight[3]
    images, some = windows_at_once(depth, x[0], rows, width)
    return images * depth * some * width


def _conv_spec(x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *, stride: Pair, padding: Pair,
               dilation: Pair, groups: int) -> Inferred:
    _check(x.shape, weight.shape, stride, padding, dilation, groups)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise SpecError(f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with "
                        f"{weight.shape[0]} elements, but got bias of size {list(bias.shape)} instead")
    need_float("conv2d", input=x, weight=weight, bias=bias)
    need_one_dtype("conv2d", input=x, weight=weight, bias=bias)
    shape = (x.shape[0], weight.shape[0], *_out(x.shape, weight.shape, stride, padding, dilation))
    return Inferred((TensorSpec.of(shape, x.dtype),), (),
                    _piece_elements(x.shape, weight.shape, stride, padding, dilation) * x.dtype.itemsize)


def _input_grad_spec(dy: TensorSpec, weight: TensorSpec, *, shape: tuple[int, ...], stride: Pair, padding: Pair,
                     dilation: Pair, groups: int) -> Inferred:
    need_float("conv_transpose2d", input=dy, weight=weight)
    need_one_dtype("conv_transpose2d", input=dy, weight=weight)
    _check(shape, weight.shape, stride, padding, dilation, groups)
    return Inferred((TensorSpec.of(shape, dy.dtype),), (),
                    _piece_elements(shape, weight.shape, stride, padding, dilation) * dy.dtype.itemsize)


def _weight_grad_spec(dy: TensorSpec, x: TensorSpec, *, shape: tuple[int, ...], stride: Pair, padding: Pair,
                      dilation: Pair, groups: int, bias: bool = False) -> Inferred:
    _check(x.shape, shape, stride, padding, dilation, groups)
    rows, width = dy.shape[2:]
    if stride == (1, 1):
        elements = WidePieces.of(x.shape, shape, padding, dilation, rows).elements(x.shape[1], shape[0], shape)
    else:
        depth = x.shape[1] * shape[2] * shape[3]
        images, some = windows_at_once(depth, x.shape[0], rows, width)
        elements = images * some * width * (depth + dy.shape[1])
    # The pieces, then a product and the sum of products.
    sums = math.prod(shape) + (shape[0] if bias else 0)
    elements += 2 * sums
    # On a GPU as many shares of the windows as give each multiprocessor a tile: 2 MB or so, since large weights have few.
    tiles = groups * tiles_alone(shape[0] // groups, math.prod(shape[1:]), dy.widened().dtype.itemsize)[1]
    elements = max(elements, sums * min(ALONE // max(tiles, 1), dy.shape[0] * rows * width // SHARE))
    shapes = [shape, shape[:1]] if bias else [shape]
    return Inferred(tuple(TensorSpec.of(s, dy.dtype) for s in shapes), (), elements * dy.dtype.itemsize + 80)


def _parameters_rule(g: Any, x: Any, weight_spec: TensorSpec, needs: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    if all(needs):
        return conv2d_weight_grad(g, x, shape=weight_spec.shape, bias=True, **attrs)
    return (conv2d_weight_grad(g, x, shape=weight_spec.shape, **attrs) if needs[0] else None,
            sum(g, dims=(0, 2, 3), keepdim=False) if needs[1] else None)


def _weight_grad_rule(gs: Any, dy: Any, x: Any, dy_spec: TensorSpec, x_spec: TensorSpec, needs: tuple[bool, ...],
                      shape: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Any:
    """The gradient of the weight is linear in dy and in x, and that of the bias in dy."""
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    g, g_bias = gs if len(gs) > 1 else (*gs, None)
    to_dy = to_x = None
    if needs[0] and g is not None:
        to_dy = conv2d(x, g, g_bias, **how)
    elif needs[0]:
        to_dy = expand(reshape(g_bias, (shape[0], 1, 1)), shape=dy_spec.shape)
    if needs[1] and g is not None:
        to_x = conv2d_input_grad(dy, g, shape=x_spec.shape, **how)
    return to_dy, to_x


conv2d = op("conv2d", _conv_spec, joint("weight", "bias", x=("weight",))(_parameters_rule), contiguous=True,
            x=lambda g, weight, x_spec, attrs: conv2d_input_grad(g, weight, shape=x_spec.shape, **attrs),
            flops=lambda weight, out: 2 * out.numel * math.prod(weight.shape[1:]),
            doc="The workspace holds a piece of the input laid out by window, and does not grow with the batch.")
conv2d_input_grad = op(
    "conv2d_input_grad", _input_grad_spec, contiguous=True,
    dy=lambda g, weight, stride, padding, dilation, groups: conv2d(
        g, weight, None, stride=stride, padding=padding, dilation=dilation, groups=groups),
    weight=lambda g, dy, weight_spec, stride, padding, dilation, groups: conv2d_weight_grad(
        dy, g, shape=weight_spec.shape, stride=stride, padding=padding, dilation=dilation, groups=groups),
    flops=lambda dy, weight: 2 * dy.numel * math.prod(weight.shape[1:]),
    doc="The transpose of conv2d: what each window was given is added up where the window lay.")
conv2d_weight_grad = op(
    "conv2d_weight_grad", _weight_grad_spec, joint("dy", "x", dy=("x",), x=("dy",))(_weight_grad_rule), contiguous=True,
    flops=lambda dy, shape: 2 * dy.numel * math.prod(shape[1:]),
    doc="Also the gradient of the bias, dy summed, if ``bias`` is true.")
