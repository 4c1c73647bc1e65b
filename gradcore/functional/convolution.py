"""Convolution of sequences, images and volumes, and its transpose: all are made of those of images.

A sequence is an image of height 1. A volume is convolved with its neighboring slices as channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.errors import SpecError
from gradcore.functional.padding import pad
from gradcore.functional.shape import contiguous, squeeze, unsqueeze
from gradcore.functional.sizes import Size, batched, flat, pair, single, triple
from gradcore.ops import arrangement, convolution, elementwise, movement

Tensor = Any
Triple = tuple[int, int, int]

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


def same_padding(padding: str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """What ``padding`` adds to each dimension: nothing for "valid", all that the window takes for "same"."""
    if padding == "valid":
        return [0] * len(stride)
    if padding != "same":
        raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
    if any(step != 1 for step in stride):
        raise SpecError("padding='same' is not supported for strided convolutions")
    return [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> Tensor:
    """Cross-correlation: input [N, C, H, W] or [C, H, W], weight [O, C / groups, kH, kW], bias [O], result [N, O, H', W'].

    ``padding`` is one int, two ints, ``"valid"`` or ``"same"``. Backward keeps only input and weight; the workspace holds 2^18
    elements or one row of windows, whatever the batch size.
    """
    steps, holes = pair("stride", stride), pair("dilation", dilation)
    x, lone = batched("conv2d", input)
    if isinstance(padding, str):
        x, edges = _named_padding(x, weight, padding, steps, holes)
    else:
        edges = pair("padding", padding)
    out = convolution.conv2d(x, weight, bias, stride=steps, padding=edges, dilation=holes, groups=groups)
    return squeeze(out, 0) if lone else out


def _check_channels(name: str, input: Tensor, weight: Tensor, groups: int, taps: str) -> None:
    """Raise :class:`SpecError` for a weight that does not fit: the op would name the shapes that it is given in their place."""
    given, found = list(input.spec.shape), list(weight.spec.shape)
    count = taps.count("k")
    if len(found) != 2 + count:
        raise SpecError(f"{name}: expected weight [O, C / groups, {taps}], but got {found}")
    if given[-1 - count] != found[1] * groups:
        raise SpecError(f"Given groups={groups}, weight of size {found}, expected input{given} to have {found[1] * groups} "
                        f"channels, but got {given[-1 - count]} channels instead")


def _named_padding(x: Tensor, weight: Tensor, padding: str, stride: tuple[int, int],
                   dilation: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    total = same_padding(padding, weight.spec.shape[2:], stride, dilation)
    if any(n % 2 for n in total):
        # With an even window, "same" pads one more element on the right and at the bottom.
        shape = (*x.spec.shape[:2], *(n + t % 2 for n, t in zip(x.spec.shape[2:], total, strict=True)))
        x = movement.slice_grad(x, shape=shape, index=tuple((0, n, 1) for n in x.spec.shape))
    return x, (total[0] // 2, total[1] // 2)


def conv_transpose2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0,
                     output_padding: Size = 0, groups: int = 1, dilation: Size = 1) -> Tensor:
    """Transposed convolution, the gradient of :func:`conv2d` with respect to its input.

    Input [N, C, H, W] or [C, H, W], weight [C, O / groups, kH, kW], bias [O]; result [N, O, H', W'] or [O, H', W'], where
    H' = (H - 1) * stride - 2 * padding + dilation * (kH - 1) + output_padding + 1.
    """
    x, lone = batched("conv_transpose2d", input)
    how = {"stride": pair("stride", stride), "padding": pair("padding", padding), "dilation": pair("dilation", dilation)}
    extra = pair("output_padding", output_padding)
    _check_transposed(x, weight, extra, how["stride"], how["dilation"])
    size = [convolution.covered(*along) + more for *along, more in zip(
        x.spec.shape[2:], weight.spec.shape[2:], *how.values(), extra, strict=True)]
    # Of no images, a result without pixels is one, as in PyTorch.
    if min(size) < min(x.spec.shape[0], 1):
        raise SpecError(f"conv_transpose: input {list(input.spec.shape)} and weight {list(weight.spec.shape)} give a result of "
                        f"({size[0]} x {size[1]}). Output size is too small")
    # With dilation, output_padding may exceed the stride and make room for more windows than the input has: they are zeros.
    more = [e // max(step, 1) for e, step in zip(extra, how["stride"], strict=True)]
    if any(more):
        x = pad(x, (0, more[1], 0, more[0]))
    shape = (x.spec.shape[0], weight.spec.shape[1] * groups, *size)
    out = convolution.conv2d_input_grad(x, weight, shape=shape, groups=groups, **how)
    if bias is not None:
        # Under autocast, the product may have a narrower dtype than the bias.
        out = elementwise.add(out, movement.reshape(movement.cast_to(bias, out.spec), (-1, 1, 1)))
    return squeeze(out, 0) if lone else out


def _check_transposed(x: Tensor, weight: Tensor, extra: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> None:
    """Raise :class:`SpecError` for a weight or an output padding that does not fit."""
    if weight.spec.ndim != x.spec.ndim or x.spec.shape[1] != weight.spec.shape[0]:
        raise SpecError(f"Given transposed=1, weight of size {list(weight.spec.shape)}, [C, O / groups, "
                        f"{', '.join(('kD', 'kH', 'kW')[-len(stride):])}], expected input{list(x.spec.shape)} to have as many "
                        f"channels, but got {x.spec.shape[1]} channels instead")
    if any(not 0 <= n < max(step, reach) for n, step, reach in zip(extra, stride, dilation, strict=True)):
        raise SpecError(f"output padding must be smaller than either stride or dilation, but got output_padding: {extra}, "
                        f"stride: {stride} and dilation: {dilation}")


# -- sequences -------------------------------------------------------------------------------------------------------------


def conv1d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> Tensor:
    """Cross-correlation: input [N, C, L] or [C, L], weight [O, C / groups, k], bias [O]; :func:`conv2d` with a height of 1."""
    sides: Any = padding if isinstance(padding, str) else (0, single("padding", padding))
    x = flat("conv1d", input)
    _check_channels("conv1d", input, weight, groups, "k")
    out = conv2d(x, unsqueeze(weight, -2), bias, (1, single("stride", stride)), sides,
                 (1, single("dilation", dilation)), groups)
    return squeeze(out, -2)


def conv_transpose1d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0,
                     output_padding: Size = 0, groups: int = 1, dilation: Size = 1) -> Tensor:
    """:func:`conv_transpose2d` with a height of 1: input [N, C, L] or [C, L], weight [C, O / groups, k], bias [O]."""
    out = conv_transpose2d(flat("conv_transpose1d", input), unsqueeze(weight, -2), bias, (1, single("stride", stride)),
                           (0, single("padding", padding)), (0, single("output_padding", output_padding)), groups,
                           (1, single("dilation", dilation)))
    return squeeze(out, -2)


# -- volumes ---------------------------------------------------------------------------------------------------------------


def conv3d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> Tensor:
    """Cross-correlation: input [N, C, D, H, W] or [C, D, H, W], weight [O, C / groups, kD, kH, kW], bias [O].

    ``padding`` is one int, three ints, ``"valid"`` or ``"same"``. Computed as a :func:`conv2d` with kD neighboring slices as
    channels, for which the input is copied kD times; backward keeps this copy for the gradient of the weight.
    """
    steps, holes = triple("stride", stride), triple("dilation", dilation)
    x, lone = batched("conv3d", input, 3)
    _check_channels("conv3d", input, weight, groups, "kD, kH, kW")
    o, c, depth, kh, kw = weight.spec.shape
    x, edges = _padded(x, (depth, kh, kw), padding, steps, holes)
    if holes[0] * (depth - 1) + 1 > x.spec.shape[2]:
        raise SpecError(f"Calculated padded input size per channel: {x.spec.shape[2:]}. Kernel size: {(depth, kh, kw)} with "
                        f"dilation {holes}. Kernel size can't be greater than actual input size")
    slices = arrangement.windows(x, dim=2, size=depth, step=steps[0], dilation=holes[0])
    n, _, count, h, w, _ = slices.spec.shape
    images = movement.reshape(movement.permute(slices, dims=(0, 2, 1, 5, 3, 4)), (n * count, c * groups * depth, h, w))
    out = convolution.conv2d(images, movement.reshape(weight, (o, c * depth, kh, kw)), bias, stride=steps[1:], padding=edges,
                             dilation=holes[1:], groups=groups)
    out = contiguous(movement.permute(movement.reshape(out, (n, count, *out.spec.shape[1:])), dims=(0, 2, 1, 3, 4)))
    return squeeze(out, 0) if lone else out


def conv_transpose3d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size = 0,
                     output_padding: Size = 0, groups: int = 1, dilation: Size = 1) -> Tensor:
    """Transposed convolution, the gradient of :func:`conv3d` with respect to its input.

    Input [N, C, D, H, W] or [C, D, H, W], weight [C, O / groups, kD, kH, kW], bias [O]. Computed as a
    :func:`conv_transpose2d` of each slice to kD slices, which are then summed.
    """
    (step, *steps), (side, *sides), (extra, *extras), (reach, *reaches) = (triple(n, v) for n, v in (
        ("stride", stride), ("padding", padding), ("output_padding", output_padding), ("dilation", dilation)))
    x, lone = batched("conv_transpose3d", input, 3)
    _check_transposed(x, weight, (extra, *extras), (step, *steps), (reach, *reaches))
    more, extra = divmod(extra, max(step, 1))
    if more:
        # As in conv_transpose2d.
        x = pad(x, (0, 0, 0, 0, 0, more))
    n, c, count, h, w = x.spec.shape
    _, each, depth, kh, kw = weight.spec.shape
    images = movement.reshape(movement.permute(x, dims=(0, 2, 1, 3, 4)), (n * count, c, h, w))
    out = conv_transpose2d(images, movement.reshape(weight, (c, each * depth, kh, kw)), None, steps, sides, extras, groups,
                           reaches)
    h, w = out.spec.shape[2:]
    slices = movement.permute(movement.reshape(out, (n, count, each * groups, depth, h, w)), dims=(0, 2, 1, 4, 5, 3))
    whole = convolution.covered(count, depth, step, dilation=reach) + extra
    if whole - 2 * side < min(n, 1):
        raise SpecError(f"conv_transpose3d: input {list(input.spec.shape)} and weight {list(weight.spec.shape)} give depth "
                        f"{whole - 2 * side}. Output size is too small")
    out = arrangement.windows_grad(slices, shape=(n, each * groups, whole, h, w), dim=2, size=depth, step=step, dilation=reach)
    if side:
        out = contiguous(movement.narrow(out, 2, side, whole - 2 * side))
    if bias is not None:
        out = elementwise.add(out, movement.reshape(movement.cast_to(bias, out.spec), (-1, 1, 1, 1)))
    return squeeze(out, 0) if lone else out


def _padded(x: Tensor, kernel: Triple, padding: Size | str, stride: Triple, dilation: Triple) -> tuple[Tensor, tuple[int, int]]:
    """The input padded in depth, and the padding of height and width that is left to apply."""
    if isinstance(padding, str):
        total = same_padding(padding, kernel, stride, dilation)
        sides = [n for t in reversed(total) for n in (t // 2, t - t // 2)]
        return (pad(x, sides) if any(sides) else x), (0, 0)
    d, h, w = triple("padding", padding)
    return (pad(x, [0, 0, 0, 0, d, d]) if d else x), (h, w)
