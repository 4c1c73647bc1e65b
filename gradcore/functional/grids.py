"""``grid_sample``, which samples images and volumes at given coordinates, and ``affine_grid``, which makes these."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.engine.owners import constant
from gradcore.errors import SpecError
from gradcore.ops import creation, elementwise, linalg, movement

Tensor = Any

__all__ = ["affine_grid", "grid_sample"]


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Sampling coordinates [N, H, W, 2] of images of ``size`` (N, C, H, W), by affine maps ``theta`` [N, 2, 3].

    For volumes (N, C, D, H, W) and maps [N, 3, 4], the result is [N, D, H, W, 3]. With ``align_corners``, -1 and 1 are the
    centers of the first and the last pixel, else their outer edges. Jaderberg et al., arXiv:1506.02025.
    """
    dims = len(size) - 2
    if dims not in (2, 3):
        raise NotImplementedError("affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. "
                                  f"Got size {tuple(size)}.")
    if not theta.spec.floating:
        raise ValueError(f"Expected theta to have floating point type, but got {theta.spec.dtype.name}")
    if theta.spec.shape != (size[0], dims, dims + 1):
        raise SpecError(f"Expected a batch of {dims}D affine matrices of shape {size[0]}x{dims}x{dims + 1} for size "
                        f"{tuple(size)}. Got {list(theta.spec.shape)}.")
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {tuple(size)}")
    axes = [np.linspace(-1, 1, n) * (1 if align_corners else (n - 1) / n) if n > 1 else np.zeros(1) for n in size[2:]]
    # The first coordinate, x, belongs to the last dimension of an image.
    places = [*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(tuple(size[2:]))]
    base = constant("affine_grid", np.stack(places, -1).reshape(-1, dims + 1).astype(theta.spec.dtype), theta)
    return movement.reshape(linalg.matmul(base, movement.permute(theta, dims=(0, 2, 1))), (size[0], *size[2:], dims))


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> Tensor:
    """Images [N, C, H, W] sampled at coordinates (x, y) in [-1, 1], ``grid`` [N, H', W', 2]: result [N, C, H', W'].

    Also volumes [N, C, D, H, W], at ``grid`` [N, D', H', W', 3]. ``"bilinear"`` interpolates between the 2^d pixels around a
    point, ``"bicubic"`` between the 16 of an image, ``"nearest"`` takes one. Outside, ``"zeros"`` reads 0, ``"border"`` the
    nearest pixel, ``"reflection"`` mirrors the image. For ``align_corners`` see :func:`affine_grid`. Backward keeps these
    pixels of each point, and is deterministic. Raises :class:`SpecError` for ``"bicubic"`` of volumes.
    """
    dims = input.spec.ndim - 2
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: "
                         f"'{mode}'")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError("nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but "
                         f"got: '{padding_mode}'")
    if dims not in (2, 3) or grid.spec.ndim != input.spec.ndim or grid.spec.shape[-1] != dims or (
            grid.spec.shape[0] != input.spec.shape[0]):
        raise SpecError("grid_sampler(): expected an input [N, C, H, W] and a grid [N, H', W', 2], or of 5 dimensions, but "
                        f"got {list(input.spec.shape)} and {list(grid.spec.shape)}")
    if mode == "bicubic" and dims != 2:
        raise SpecError("grid_sampler(): bicubic interpolation only supports 4D input, but got "
                        f"{list(input.spec.shape)}")
    if 0 in input.spec.shape[2:]:
        raise SpecError("grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
                        f"{list(input.spec.shape)}")
    # Coordinates are in the order x, y, z, that of the last dimension first.
    rows = (grid.spec.shape[0], math.prod(grid.spec.shape[1:-1]))
    columns = [movement.reshape(movement.narrow(grid, dims + 1, dims - 1 - d, 1), rows) for d in range(dims)]
    sizes, corners = input.spec.shape[2:], bool(align_corners)
    at = [_place(x, n, corners) for x, n in zip(columns, sizes, strict=True)]
    pixels = _Pixels(input, grid)
    if mode == "bicubic":
        mixed = _mixed(pixels, [_cubic(pixels, d, x, padding_mode, corners) for d, x in enumerate(at)])
        return _images(mixed, grid, input)
    at = [_within(x, n, padding_mode, corners) for x, n in zip(at, sizes, strict=True)]
    if mode == "nearest":
        mixed = pixels([pixels.along(d, elementwise.round(x.detach())) for d, x in enumerate(at)])
    else:
        mixed = _mixed(pixels, [_sides(pixels, d, x, elementwise.floor(x.detach())) for d, x in enumerate(at)])
    return _images(mixed, grid, input)


def _images(mixed: Tensor, grid: Tensor, input: Tensor) -> Tensor:
    """The channels of all points, [N, K, C], as images."""
    dims = input.spec.ndim - 2
    out = movement.reshape(mixed, (*grid.spec.shape[:-1], input.spec.shape[1]))
    out = movement.permute(out, dims=(0, dims + 1, *range(1, dims + 1)))
    return out if out.spec.contiguous else movement.clone(out)


def _place(x: Tensor, n: int, corners: bool) -> Tensor:
    """A coordinate in [-1, 1] converted to pixels, with 0 at the center of the first pixel."""
    return (x + 1.0) * ((n - 1) / 2) if corners else ((x + 1.0) * float(n) - 1.0) * 0.5


def _within(x: Tensor, n: int, padding_mode: str, corners: bool) -> Tensor:
    """Where the pixel at a coordinate is read: as it is for zeros, else inside."""
    if padding_mode == "reflection":
        low, span = (0.0, float(n - 1)) if corners else (-0.5, float(n))
        if not span:
            return x * 0.0
        turned = elementwise.remainder(x - low, 2 * span)
        x = elementwise.where(elementwise.gt(turned, span), 2 * span - turned, turned) + low
    if padding_mode == "zeros":
        return x
    inside = elementwise.clamp(x.detach(), 0.0, float(n - 1))
    if not x.requires_grad:
        return inside
    # No gradient at the ends either, as in PyTorch: the image goes on as it ends there.
    between = elementwise.logical_and(elementwise.gt(inside, 0.0), elementwise.lt(inside, float(n - 1)))
    return elementwise.where(between, x, inside)


class _Pixels:
    """The pixels of images as rows of channels, to be read at integer coordinates [N, K] in each dimension; zeros outside."""

    def __init__(self, input: Tensor, grid: Tensor) -> None:
        n, c, *self.sizes = input.spec.shape
        self.steps = [math.prod(self.sizes[d + 1:]) for d in range(len(self.sizes))]
        # One more line of each image, of zeros, is what points outside read.
        x = movement.permute(input, dims=(0, *range(2, input.spec.ndim), 1))
        padded = movement.slice_grad(x, shape=(n, self.sizes[0] + 1, *self.sizes[1:], c),
                                     index=tuple((0, m, 1) for m in x.spec.shape))
        each = math.prod(self.sizes) + self.steps[0]
        self.rows = movement.reshape(padded, (n * each, c))
        #: The row at which each image begins, and that of its zeros.
        self.first = movement.reshape(
            creation.arange(0, each, length=n, dtype=np.dtype(np.int64), device=grid.storage.device), (n, 1))
        self.outside = self.first + math.prod(self.sizes)

    def along(self, d: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which coordinates are inside in one dimension, and what they add to the row: the image's first in the first one."""
        # NaN fails both comparisons, so it is outside too.
        here = elementwise.logical_and(elementwise.ge(x, 0), elementwise.le(x, self.sizes[d] - 1))
        place = movement.cast(elementwise.where(here, x, 0.0), dtype=np.dtype(np.int64)) * self.steps[d]
        return here, place if d else place + self.first

    def __call__(self, at: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The pixels [N, K, C]; zeros also for the neighbor beyond the last pixel, whose weight is 0."""
        inside, places = at[0]
        for here, place in at[1:]:
            inside, places = elementwise.logical_and(inside, here), places + place
        return movement.take(self.rows, elementwise.where(inside, places, self.outside), dim=0)


Sides = tuple[tuple[Tensor, tuple[Tensor, Tensor]], ...]


def _sides(pixels: _Pixels, d: int, x: Tensor, low: Tensor) -> Sides:
    """For a dimension the share and the place of the lower neighbor, and of the upper one."""
    return (1.0 - (x - low), pixels.along(d, low)), (x - low, pixels.along(d, low + 1.0))


def _cubic(pixels: _Pixels, d: int, x: Tensor, padding_mode: str, corners: bool) -> Sides:
    """The shares and the places of four neighbors. Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981."""
    low = elementwise.floor(x.detach())
    t = x - low

    def far(t: Tensor) -> Tensor:
        return ((-0.75 * t + 3.75) * t - 6.0) * t + 3.0

    def near(t: Tensor) -> Tensor:
        return (1.25 * t - 2.25) * t * t + 1.0

    shares = far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)
    return tuple((share, pixels.along(d, _within(low + float(k - 1), pixels.sizes[d], padding_mode, corners)))
                 for k, share in enumerate(shares))


def _mixed(pixels: _Pixels, sides: Sequence[Sides]) -> Tensor:
    """The weighted sum of the pixels around each point, which are those of all dimensions' neighbors."""
    total = None
    for corner in itertools.product(*sides):
        share = functools.reduce(operator.mul, [share for share, _ in corner])
        part = pixels([place for _, place in corner]) * movement.reshape(share, (*share.spec.shape, 1))
        total = part if total is None else total + part
        # Not held while the next corner is read.
        del part, share
    return total
