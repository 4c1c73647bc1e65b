"""Padding, and ``unfold`` and ``fold`` of images, with the signatures of ``torch.nn.functional``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.engine.owners import constant
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import shape as sh
from gradcore.functional.sizes import Size, pair
from gradcore.ops import arrangement, creation, movement
from gradcore.ops.convolution import windows

Tensor = Any


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad a tensor; ``pad`` holds the numbers of elements before and after each dimension, from the last dimension on.

    Negative numbers crop. ``mode`` is ``"constant"``, with ``value``, or ``"reflect"``, ``"replicate"`` or ``"circular"``,
    which repeat elements of the last dimensions of [N, C, ...] or [C, ...]. Raises :class:`SpecError` for pads that do not fit
    the shape.
    """
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognized padding mode {mode}")
    ndim = input.spec.ndim
    if len(pad) % 2 or len(pad) > 2 * ndim:
        raise SpecError(f"Padding length must be divisible by 2 and at most twice the number of dimensions of the input: got "
                        f"{tuple(pad)} for {list(input.spec.shape)}")
    edges = [(ndim - 1 - k, int(pad[2 * k]), int(pad[2 * k + 1])) for k in range(len(pad) // 2)]
    if mode == "constant":
        if isinstance(value, Value):
            if value.spec.ndim or value.requires_grad:
                raise TypeError(f"pad(): expected a number as value, or a 0-d tensor without a gradient, but got {value.spec}"
                                + ", which requires a gradient" * value.requires_grad)
            value = value.item()
        return _surrounded(input, edges, 0.0 if value is None else value)
    if value not in (None, 0):
        raise SpecError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if ndim not in (len(edges) + 1, len(edges) + 2):
        raise NotImplementedError("Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now")
    for d, before, after in edges:
        if before or after:
            places = _positions(input.spec.shape[d], before, after, mode)
            table = constant("pad", places, input)
            input = movement.take(input, table, dim=d)
    return input if any(b or a for _, b, a in edges) else sh.clone(input)


def _surrounded(x: Tensor, edges: list[tuple[int, int, int]], value: float) -> Tensor:
    shape, index = list(x.spec.shape), [(0, n, 1) for n in x.spec.shape]
    for d, before, after in edges:
        if shape[d] + before + after < 0:
            raise SpecError(f"The input size {shape[d]}, plus negative padding {before} and {after}, resulted in a negative "
                            f"output size, which is invalid. Check dimension {d} of your input.")
        cut = max(-before, 0)
        left = shape[d] - cut - max(-after, 0)
        if left < 0:
            raise SpecError(f"Negative padding {before} and {after} crops more than the {shape[d]} elements of dimension {d}")
        x = movement.narrow(x, d, cut, left)
        index[d] = (max(before, 0), x.spec.shape[d], 1)
        shape[d] += before + after
    if tuple(shape) == x.spec.shape:
        return sh.clone(x)
    if value == 0 and math.copysign(1, value) > 0:
        return movement.slice_grad(x, shape=tuple(shape), index=tuple(index))
    out = creation.new_full(x, tuple(shape), value)
    movement.copy_(movement.slice(out, index=tuple(index)), x)
    return out


def _positions(n: int, before: int, after: int, mode: str) -> np.ndarray[Any, Any]:
    """The index, among n elements, of each of the before + n + after padded ones."""
    if mode == "circular":
        # Cropped first: what is repeated is what is left.
        cut = max(-before, 0)
        left = n - cut - max(-after, 0)
        if before > left or after > left or left < 0:
            raise SpecError(f"Padding value causes wrapping around more than once: got padding ({before}, {after}) at a "
                            f"dimension of {n} elements with mode circular")
        return cut + np.arange(-max(before, 0), left + max(after, 0)) % max(left, 1)
    most = n - 1 if mode == "reflect" else n
    if mode != "replicate" and (before > most or after > most):
        raise SpecError(f"Padding size should be less than the corresponding input dimension, but got: padding ({before}, "
                        f"{after}) at a dimension of {n} elements with mode {mode}")
    if n + before + after <= 0 or not n:
        raise SpecError(f"Expected a non-empty dimension, but got {n} elements and padding ({before}, {after})")
    places = np.arange(-before, n + after)
    if mode == "replicate":
        return np.clip(places, 0, n - 1)
    turned = np.abs(places) % max(2 * (n - 1), 1)
    return np.minimum(turned, 2 * (n - 1) - turned)


# -- images as columns -------------------------------------------------------------------------------------------------

#: Rows of windows [N, C, rows, W, kh] as planes [N, C, kh, rows, W], so that rows of an image stay rows, and back.
_PLANES, _ROWS = (0, 1, 4, 2, 3), (0, 1, 3, 4, 2)


def _windows(name: str, *given: Size) -> list[tuple[int, int]]:
    """The kernel size, dilation, padding and stride of windows, a pair each."""
    kernel, dilation, padding, stride = found = list(map(pair, ("kernel_size", "dilation", "padding", "stride"), given))
    if min(*kernel, *dilation, *stride) < 1 or min(padding) < 0:
        raise SpecError(f"{name}: kernel size {kernel}, dilation {dilation} and stride {stride} must be positive, and padding "
                        f"{padding} must not be negative")
    return found


def unfold(input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Tensor:
    """The L windows of images [N, C, H, W] or [C, H, W] as columns [N, C * kh * kw, L] (im2col); one copy besides padding."""
    if input.spec.ndim not in (3, 4):
        raise SpecError(f"Expected 3D or 4D (batch mode) tensor for input with possibly 0 batch size and other non-zero "
                        f"dimensions for input, but got: {list(input.spec.shape)}")
    (kh, kw), (dh, dw), (ph, pw), (sh_, sw) = _windows("unfold", kernel_size, dilation, padding, stride)
    x = input if input.spec.ndim == 4 else sh.unsqueeze(input, 0)
    if ph or pw:
        x = _surrounded(x, [(3, pw, pw), (2, ph, ph)], 0.0)
    x = movement.permute(arrangement.windows(x, dim=2, size=kh, step=sh_, dilation=dh), dims=_PLANES)
    x = movement.permute(arrangement.windows(x, dim=4, size=kw, step=sw, dilation=dw), dims=(0, 1, 2, 5, 3, 4))
    n, c, _, _, rows, columns = x.spec.shape
    out = sh.apart(movement.reshape(x, (n, c * kh * kw, rows * columns)), input)
    return out if input.spec.ndim == 4 else sh.squeeze(out, 0)


def fold(input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0,
         stride: Size = 1) -> Tensor:
    """Sums of overlapping windows, given as columns [N, C * kh * kw, L] or [C * kh * kw, L]: images [N, C, H, W] (col2im)."""
    height, width = pair("output_size", output_size)
    (kh, kw), (dh, dw), (ph, pw), (sh_, sw) = _windows("fold", kernel_size, dilation, padding, stride)
    x = input if input.spec.ndim == 3 else sh.unsqueeze(input, 0)
    tall, wide = height + 2 * ph, width + 2 * pw
    rows, columns = windows(height, kh, sh_, ph, dh), windows(width, kw, sw, pw, dw)
    if x.spec.ndim != 3 or x.spec.shape[1] % (kh * kw) or x.spec.shape[2] != rows * columns:
        raise SpecError(f"Given output_size={(height, width)}, kernel_size={(kh, kw)}, dilation={(dh, dw)}, "
                        f"padding={(ph, pw)}, stride={(sh_, sw)}, expected input of [N, C * {kh * kw}, {rows} * {columns}], "
                        f"but got {list(input.spec.shape)}")
    n, c = x.spec.shape[0], x.spec.shape[1] // (kh * kw)
    x = movement.permute(movement.reshape(x, (n, c, kh, kw, rows, columns)), dims=(0, 1, 2, 4, 5, 3))
    x = arrangement.windows_grad(x, shape=(n, c, kh, rows, wide), dim=4, size=kw, step=sw, dilation=dw)
    x = movement.permute(movement.narrow(x, 4, pw, width) if pw else x, dims=_ROWS)
    x = arrangement.windows_grad(x, shape=(n, c, tall, width), dim=2, size=kh, step=sh_, dilation=dh)
    # A view would hold the padding's bytes as long as the result lives.
    x = sh.contiguous(movement.narrow(x, 2, ph, height)) if ph else x
    return x if input.spec.ndim == 3 else sh.squeeze(x, 0)


__all__ = ["fold", "pad", "unfold"]
