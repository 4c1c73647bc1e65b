"""Max pooling over windows at random distances. Graham, Fractional Max-Pooling, arXiv:1412.6071."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore._random import rand
from gradcore.arguments import with_name
from gradcore.errors import SpecError
from gradcore.functional import picking
from gradcore.functional.sizes import Size, batched, sizes
from gradcore.ops import creation, elementwise, movement, reduce

Tensor = Any

__all__ = ["fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
           "fractional_max_pool3d_with_indices"]


def _pooled(dims: int, input: Tensor, kernel_size: Size, output_size: Size | None = None, output_ratio: Any = None,
            return_indices: bool = False, _random_samples: Tensor | None = None) -> Any:
    name = f"fractional_max_pool{dims}d"
    x, lone = batched(name, input, dims)
    n, c, *shape = x.spec.shape
    kernel = sizes("kernel_size", kernel_size, dims)
    if output_size is not None:
        wanted = sizes("output_size", output_size, dims)
    elif output_ratio is None:
        raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
    else:
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * dims
        if len(ratios) != dims:
            raise ValueError(f"{name} requires output_ratio to either be a single number or {dims}, but got {output_ratio}")
        if not all(isinstance(ratio, (int, float)) for ratio in ratios):
            raise TypeError(f"{name}(): output_ratio must be a number, or {dims} of them, but got {output_ratio!r}")
        wanted = tuple(int(size * ratio) for size, ratio in zip(shape, ratios, strict=True))
    if 0 in (c, *shape):
        raise SpecError(f"{name}(): Expected input to have non-zero size for non-batch dimensions, but got "
                        f"{list(x.spec.shape)}")
    for size, k, m in zip(shape, kernel, wanted, strict=True):
        if k < 1 or m < 1 or m + k - 1 > size:
            raise SpecError(f"{name}(): windows of {list(kernel)} for an output of {list(wanted)} do not fit into "
                            f"{list(shape)}: each dimension takes output + window - 1")
    samples = _random_samples
    if samples is None:
        samples = rand(n, c, dims, dtype=x.spec.dtype, device=x.storage.device)
    elif samples.spec.ndim != 3 or samples.spec.shape[0] < n or samples.spec.shape[1:] != (c, dims) or (
            samples.spec.dtype != x.spec.dtype):
        raise SpecError(f"{name}(): expected _random_samples {[n, c, dims]} of {x.spec.dtype.name}, but got {samples.spec}")
    else:
        # As in PyTorch, there may be more than the batch needs.
        samples = movement.narrow(samples, 0, 0, n)
    places = _places(samples, shape, kernel, wanted)
    flat = movement.reshape(x, (n, c, math.prod(shape)))
    count, window = math.prod(wanted), math.prod(kernel)
    seen = movement.reshape(picking.gather(flat, 2, movement.reshape(places, (n, c, count * window))), (n, c, count, window))
    out, best = reduce.max_with_index(seen, dim=3, keepdim=False)
    whole = (c, *wanted) if lone else (n, c, *wanted)
    if not return_indices:
        return movement.reshape(out, whole)
    found = picking.gather(places, 3, movement.reshape(best, (n, c, count, 1)))
    return movement.reshape(out, whole), movement.reshape(found, whole)


def _places(samples: Tensor, shape: list[int], kernel: tuple[int, ...], wanted: tuple[int, ...]) -> Tensor:
    """The positions in a flattened image that each window shows, int64 [N, C, windows, elements of a window]."""
    n, c, dims = samples.spec.shape
    whole, device, rounded = np.dtype(np.int64), samples.storage.device, samples.spec.dtype.type
    total: Any = 0
    for d, (size, k, m) in enumerate(zip(shape, kernel, wanted, strict=True)):
        # Those of images are in the order x, y, and those of volumes z, y, x.
        u = movement.narrow(samples, 2, dims - 1 - d if dims == 2 else d, 1)
        steps = creation.arange(0, 1, length=m, dtype=samples.spec.dtype, device=device)
        # Rounded as PyTorch does, so that windows begin at the same places in 16 bits.
        alpha = float(rounded(float(rounded(size - k)) / float(rounded(m - 1)))) if m > 1 else 0.0
        starts = (movement.cast(elementwise.floor((steps + u) * alpha), dtype=whole)
                  - movement.cast(elementwise.floor(u * alpha), dtype=whole))
        # The last window ends with the image, however the others are rounded.
        last = creation.arange(0, 1, length=m, dtype=whole, device=device)
        starts = elementwise.where(elementwise.eq(last, m - 1), size - k, elementwise.clamp(starts, 0, size - k))
        starts = movement.reshape(starts, (n, c, *(m if e == d else 1 for e in range(dims)), *[1] * dims))
        inside = creation.arange(0, 1, length=k, dtype=whole, device=device)
        inside = movement.reshape(inside, (k, *[1] * (dims - 1 - d)))
        total = total + (starts + inside) * math.prod(shape[d + 1:])
    return movement.reshape(total, (n, c, math.prod(wanted), math.prod(kernel)))


def _of_dims(dims: int, indices: bool) -> Any:
    what = "images [N, C, H, W] or [C, H, W]" if dims == 2 else "volumes [N, C, D, H, W] or [C, D, H, W]"
    name = f"fractional_max_pool{dims}d"

    def pool(input: Tensor, kernel_size: Size, output_size: Size | None = None, output_ratio: Any = None,
             return_indices: bool = False, _random_samples: Tensor | None = None) -> Any:
        return _pooled(dims, input, kernel_size, output_size, output_ratio, indices or return_indices, _random_samples)

    return with_name(pool, name + "_with_indices" * indices, f"""The largest element of each of so many windows of {what}.

    Windows of ``kernel_size`` lie at random distances, which are drawn for each channel; ``output_size`` says how many, or
    ``output_ratio``, its quotient by the input's size. With ``return_indices`` also the index of each maximum in the flattened
    image, int64. ``_random_samples`` [N, C, {dims}] in [0, 1) decide the distances. Raises ValueError without a size and a
    ratio, and :class:`SpecError` for windows that do not fit.
    """)


fractional_max_pool2d, fractional_max_pool2d_with_indices = _of_dims(2, False), _of_dims(2, True)
fractional_max_pool3d, fractional_max_pool3d_with_indices = _of_dims(3, False), _of_dims(3, True)
