"""Interpolation, and shuffling of pixels and channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.engine.autocast import left_alone, raised
from gradcore.engine.owners import constant
from gradcore.errors import SpecError
from gradcore.functional import transpose
from gradcore.functional.shape import apart, plain
from gradcore.functional.sizes import Size
from gradcore.ops import linalg, movement, pooling
from gradcore.ops.shapes import need_float
from gradcore.tiling import parts_of

__all__ = ["channel_shuffle", "interpolate", "pixel_shuffle", "pixel_unshuffle", "upsample", "upsample_bilinear",
           "upsample_nearest"]

Tensor = Any
#: Weights of a dimension are a matrix if there are fewer.
_LARGE = 1 << 20
#: Modes that interpolate between neighbors, and the number of spatial dimensions that each is for.
_SMOOTH = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


# -- scales ------------------------------------------------------------------------------------------------------------


def interpolate(input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None,
                mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None) -> Tensor:
    """Resize the spatial dimensions of [N, C, ...] to ``size``, or by ``scale_factor``.

    With ``recompute_scale_factor``, a factor only gives the size, whose ratio to the input's is the factor then.

    ``mode`` is ``"nearest"``, by PyTorch's rule, or ``"nearest-exact"``; ``"area"``, the mean of the elements covered;
    ``"linear"``, ``"bilinear"`` or ``"trilinear"`` for one, two or three spatial dimensions; or ``"bicubic"`` for two (Keys,
    Cubic convolution interpolation for digital image processing, 1981, with a = -0.75). With ``align_corners``, the first and
    the last elements keep their positions. Modes that mix elements are a matrix product for each dimension that is not long.
    Raises ValueError unless exactly one of ``size`` and ``scale_factor`` is given, NotImplementedError for another mode.
    """
    smooth = _SMOOTH.get(mode)
    if mode not in ("nearest", "nearest-exact", "area") and smooth != input.spec.ndim - 2:
        raise NotImplementedError(f"interpolate(mode={mode!r}) of an input of {input.spec.ndim} dimensions is not supported: "
                                  "expected 'nearest', 'nearest-exact' or 'area', or 'linear' of 3, 'bilinear' or 'bicubic' of "
                                  "4, 'trilinear' of 5")
    if align_corners is not None and smooth is None:
        raise ValueError(f"align_corners option can only be set with the interpolating modes: {' | '.join(_SMOOTH)}")
    if (size is None) == (scale_factor is None):
        raise ValueError("only one of size or scale_factor should be defined, and one of them must be")
    targets = _targets(input, size, scale_factor, bool(recompute_scale_factor))
    if not mode.startswith("nearest"):
        need_float("interpolate", input=input.spec)
    # Means are of neither of autocast's lists.
    x = input if mode == "area" else raised(input)
    for d, (new, scale) in enumerate(targets, 2):
        x = _resized(x, d, new, scale, mode, bool(align_corners))
    return apart(x, input)


def _targets(input: Tensor, size: Any, factor: Any, recompute: bool) -> list[tuple[int, float]]:
    """The new size and the factor of each spatial dimension. Raises ValueError or :class:`SpecError` for what does not fit."""
    old = input.spec.shape[2:]
    if not old:
        raise SpecError(f"interpolate: expected input [N, C, ...], but got {list(input.spec.shape)}")
    if size is None:
        each = [float(s) for s in ([factor] * len(old) if isinstance(factor, (int, float, np.number)) else factor)]
    elif recompute:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    else:
        given = plain(size)
        each = [given] * len(old) if isinstance(given, int) else [plain(n) for n in given]
    if len(each) != len(old):
        raise SpecError(f"interpolate: expected {len(old)} {'factors' if size is None else 'sizes'} for an input of "
                        f"{list(input.spec.shape)}, but got {each}")
    new: Any = [math.floor(n * s) for n, s in zip(old, each, strict=True)] if size is None else each
    if min(*old, *new) <= 0:
        raise SpecError(f"interpolate: Input and output sizes should be greater than 0, but got input {list(old)} and "
                        f"output {new}")
    return [(m, s if size is None and not recompute else m / n) for m, n, s in zip(new, old, each, strict=True)]


def _resized(x: Tensor, dim: int, new: int, scale: float, mode: str, corners: bool) -> Tensor:
    """One dimension in another size."""
    old = x.spec.shape[dim]
    if mode.startswith("nearest"):
        return _nearest(x, dim, old, new, scale, 0.5 if mode == "nearest-exact" else 0.0)
    if new == old and mode != "bicubic":
        return x
    if mode == "area":
        return _mixed(x, dim, shares(old, new)) if old * new < _LARGE else _pooled(x, dim, new)
    around = _around(mode == "bicubic", old, new, scale, corners)
    return _mixed(x, dim, _weights(old, new, around)) if old * new < _LARGE else _gathered(x, dim, around)


def _nearest(x: Tensor, dim: int, old: int, new: int, scale: float, middle: float) -> Tensor:
    if new == old and scale == 1:
        return x
    if new % old == 0 and scale == new // old:
        # A whole factor repeats each element: an expanded view and one copy, with a sum as its backward.
        lead, tail = x.spec.shape[:dim + 1], x.spec.shape[dim + 1:]
        wide = movement.expand(movement.reshape(x, (*lead, 1, *tail)), shape=(*lead, new // old, *tail))
        return movement.reshape(wide, (*lead[:-1], new, *tail))
    # Computed in float32, as in PyTorch, for the same rounding.
    at = (np.arange(new, dtype=np.float32) + np.float32(middle)) * np.float32(1 / scale)
    places = np.minimum(np.floor(at), old - 1).astype(np.int64)
    return movement.take(x, constant("interpolate", places, x), dim=dim)


def shares(old: int, new: int) -> np.ndarray[Any, Any]:
    """Weights [new, old] of the means over ``new`` parts of ``old`` elements."""
    matrix = np.zeros((new, old))
    for k, (first, last) in enumerate(parts_of(old, new)):
        matrix[k, first:last] = 1 / (last - first)
    return matrix


def _around(cubic: bool, old: int, new: int, scale: float, corners: bool) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """The two elements (four if ``cubic``) around each of ``new`` points, and their weights; the ends repeat outside."""
    places = np.arange(new)
    at = places * ((old - 1) / max(new - 1, 1)) if corners else (places + 0.5) / scale - 0.5
    if not cubic:
        at = np.maximum(at, 0)
    first = np.floor(at).astype(np.int64)
    t, a = at - first, -0.75
    near = [((a + 2) * x - (a + 3)) * x * x + 1 for x in (t, 1 - t)]
    far = [((a * x - 5 * a) * x + 8 * a) * x - 4 * a for x in (t + 1, 2 - t)]
    weights = {-1: far[0], 0: near[0], 1: near[1], 2: far[1]} if cubic else {0: 1 - t, 1: t}
    return [(np.clip(first + offset, 0, old - 1), weight) for offset, weight in weights.items()]


def _weights(old: int, new: int, around: list[tuple[np.ndarray[Any, Any], ...]]) -> np.ndarray[Any, Any]:
    """All weights, [new, old]."""
    matrix = np.zeros((new, old))
    for places, weight in around:
        np.add.at(matrix, (np.arange(new), places), weight)
    return matrix


def _mixed(x: Tensor, dim: int, matrix: np.ndarray[Any, Any]) -> Tensor:
    table = constant("interpolate", matrix.astype(x.spec.dtype), x)
    with left_alone():
        return transpose(linalg.linear(transpose(x, dim, -1), table), dim, -1)


def _pooled(x: Tensor, dim: int, new: int) -> Tensor:
    """The same means without a matrix."""
    turned = transpose(x, dim, -1)
    *lead, old = turned.spec.shape
    means = pooling.adaptive_avg_pool2d(movement.reshape(turned, (1, math.prod(lead), 1, old)), size=(1, new))
    return transpose(movement.reshape(means, (*lead, new)), dim, -1)


def _gathered(x: Tensor, dim: int, around: list[tuple[np.ndarray[Any, Any], ...]]) -> Tensor:
    """The same from the elements themselves, in float32 for 16-bit floats: of a long signal, most weights are 0."""
    wide, shape, total = movement.cast_to(x, x.spec.widened()), (-1, *[1] * (x.spec.ndim - dim - 1)), None
    for places, weight in around:
        index, table = (constant("interpolate", a, x) for a in (places, weight.astype(wide.spec.dtype).reshape(shape)))
        part = movement.take(wide, index, dim=dim) * table
        total = part if total is None else total + part
    return movement.cast_to(total, x.spec)


def upsample(input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None,
             mode: str = "nearest", align_corners: bool | None = None) -> Tensor:
    """The old name of :func:`interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """:func:`interpolate` with ``mode="nearest"``."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """:func:`interpolate` with ``mode="bilinear"`` and ``align_corners=True``."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Rearrange [..., C * r^2, H, W] to [..., C, H * r, W * r]. Shi et al., arXiv:1609.05158."""
    r = upscale_factor
    *lead, c, h, w = _images("pixel_shuffle", input)
    if r < 1 or c % (r * r):
        raise SpecError(f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
                        f"upscale_factor, but input.size(-3)={c} is not divisible by {r * r}")
    k = len(lead)
    split = movement.reshape(input, (*lead, c // (r * r), r, r, h, w))
    mixed = movement.permute(split, dims=(*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return apart(movement.reshape(mixed, (*lead, c // (r * r), h * r, w * r)), input)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Rearrange [..., C, H * r, W * r] to [..., C * r^2, H, W]: the inverse of :func:`pixel_shuffle`."""
    r = downscale_factor
    *lead, c, h, w = _images("pixel_unshuffle", input)
    if r < 1 or h % r or w % r:
        raise SpecError(f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but input.size(-2)={h} "
                        f"and input.size(-1)={w} are not divisible by {r}")
    k = len(lead)
    split = movement.reshape(input, (*lead, c, h // r, r, w // r, r))
    mixed = movement.permute(split, dims=(*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return apart(movement.reshape(mixed, (*lead, c * r * r, h // r, w // r)), input)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """[N, C, ...] with the channels of ``groups`` groups interleaved. Zhang et al., arXiv:1707.01083."""
    shape = input.spec.shape
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise SpecError(f"Number of channels must be divisible by groups. Got {list(shape)} and {groups} groups.")
    grouped = movement.reshape(input, (shape[0], groups, shape[1] // groups, *shape[2:]))
    return apart(movement.reshape(transpose(grouped, 1, 2), shape), input)


def _images(name: str, x: Tensor) -> tuple[int, ...]:
    if x.spec.ndim < 3:
        raise SpecError(f"{name} expects input to have at least 3 dimensions, but got input with {x.spec.ndim} dimension(s)")
    shape: tuple[int, ...] = x.spec.shape
    return shape
