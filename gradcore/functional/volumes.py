"""Convolution of volumes, built on the functions of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.errors import SpecError
from gradcore.functional.images import batched, same_padding, triple
from gradcore.functional.padding import pad
from gradcore.functional.sampling import conv_transpose2d
from gradcore.functional.shape import contiguous, squeeze
from gradcore.ops import arrangement, convolution, elementwise, movement

Tensor = Any
Size = int | Sequence[int]
Triple = tuple[int, int, int]

__all__ = ["conv3d", "conv_transpose3d"]


def conv3d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> Tensor:
    """Cross-correlation: input [N, C, D, H, W] or [C, D, H, W], weight [O, C / groups, kD, kH, kW], bias [O].

    ``padding`` is one int, three ints, ``"valid"`` or ``"same"``. Computed as a :func:`conv2d` with kD neighbouring slices as
    channels, for which the input is copied kD times; backward keeps this copy for the gradient of the weight.
    """
    steps, holes = triple("stride", stride), triple("dilation", dilation)
    x, lone = batched("conv3d", input, 3)
    if weight.spec.ndim != 5:
        raise SpecError(f"conv3d: expected weight [O, C / groups, kD, kH, kW], but got {list(weight.spec.shape)}")
    if x.spec.shape[1] != weight.spec.shape[1] * groups:
        raise SpecError(f"Given groups={groups}, weight of size {list(weight.spec.shape)}, expected input{list(x.spec.shape)} "
                        f"to have {weight.spec.shape[1] * groups} channels, but got {x.spec.shape[1]} channels instead")
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
    out = movement.permute(movement.reshape(out, (n, count, *out.spec.shape[1:])), dims=(0, 2, 1, 3, 4))
    out = contiguous(out)
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
    if weight.spec.ndim != 5 or x.spec.shape[1] != weight.spec.shape[0]:
        raise SpecError(f"Given transposed=1, weight of size {list(weight.spec.shape)}, [C, O / groups, kD, kH, kW], expected "
                        f"input{list(x.spec.shape)} to have as many channels, but got {x.spec.shape[1]} channels instead")
    if not 0 <= extra < max(step, reach):
        raise SpecError(f"output padding must be smaller than either stride or dilation, but got output_padding: "
                        f"{(extra, *extras)}, stride: {(step, *steps)} and dilation: {(reach, *reaches)}")
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
    whole = (count - 1) * step + reach * (depth - 1) + 1 + extra
    if whole - 2 * side < 0:
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
