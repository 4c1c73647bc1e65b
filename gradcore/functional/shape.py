"""Tensors in other shapes, and parts of them: views where the layout allows one."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.engine.owners import upload
from gradcore.errors import DataDependentShape, SpecError
from gradcore.ops import movement
from gradcore.spec import broadcast_shapes, normalize_dim, normalize_dims

Tensor = Any
Dim = int | Sequence[int] | None


def dim_of(dim: int, x: Tensor) -> int:
    return normalize_dim(dim, x.spec.ndim)


def size_of(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike. Raises TypeError for sizes that are no ints."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    for n in sizes:
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
            raise TypeError(f"a size must be an int, but got {n!r} of type {type(n).__name__} in {sizes}")
    return tuple(int(n) for n in sizes)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """A view where the layout allows one, else a copy."""
    return movement.reshape(x, size_of(shape))


def view(x: Tensor, *shape: Any) -> Tensor:
    """A view; raises SpecError where the layout allows none."""
    return movement.view(x, shape=size_of(shape))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The last two dimensions with zeros above the diagonal, or above the one ``diagonal`` beside it."""
    return movement.tril(x, diagonal=diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The last two dimensions with zeros below the diagonal, or below the one ``diagonal`` beside it."""
    return movement.triu(x, diagonal=diagonal)


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """A view with sizes, strides and offset in elements of the storage. Raises SpecError for what is not inside ``x``.

    ``x`` must be contiguous. Elements that overlap without being an expanded dimension have no gradient.
    """
    start = x.spec.offset if storage_offset is None else storage_offset
    return movement.as_strided(x, shape=tuple(size), strides=tuple(stride), offset=start - x.spec.offset)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if not x.spec.ndim:
        return reshape(x, 1)
    start, end = dim_of(start_dim, x), dim_of(end_dim, x)
    if start > end:
        raise SpecError(f"flatten() has invalid args: start_dim {start_dim} cannot come after end_dim {end_dim}")
    merged = int(np.prod(x.spec.shape[start:end + 1], dtype=np.int64))
    return movement.reshape(x, (*x.spec.shape[:start], merged, *x.spec.shape[end + 1:]))


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    d = dim_of(dim, x)
    return movement.reshape(x, (*x.spec.shape[:d], *sizes, *x.spec.shape[d + 1:]))


def squeeze(x: Tensor, dim: Dim = None) -> Tensor:
    """Without its dimensions of size 1, or without those named."""
    dims = range(x.spec.ndim) if dim is None else normalize_dims(dim, x.spec.ndim)
    gone = {d for d in dims if x.spec.shape[d] == 1}
    return movement.slice(x, index=tuple((0,) if d in gone else (0, n, 1) for d, n in enumerate(x.spec.shape)))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    d = normalize_dim(dim, x.spec.ndim + 1)
    return movement.slice(x, index=tuple((0, n, 1) for n in x.spec.shape[:d]) + ((),))


def permute(x: Tensor, *dims: Any) -> Tensor:
    return movement.permute(x, dims=tuple(dim_of(d, x) for d in size_of(dims)))


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(x.spec.ndim))
    if order:
        a, b = dim_of(dim0, x), dim_of(dim1, x)
        order[a], order[b] = order[b], order[a]
    return movement.permute(x, dims=tuple(order))


def t(x: Tensor) -> Tensor:
    if x.spec.ndim > 2:
        raise SpecError(f"t() expects a tensor with <= 2 dimensions, but self is {x.spec.ndim}D")
    return transpose(x, 0, 1) if x.spec.ndim == 2 else x


def expand(x: Tensor, *shape: Any) -> Tensor:
    """A view in which dimensions of size 1 are repeated without a copy; -1 leaves one as it is."""
    return movement.expand(x, shape=size_of(shape))


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    return movement.expand(x, shape=other.spec.shape)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    return movement.expand(x, shape=tuple(shape))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    shape = broadcast_shapes(*(x.spec.shape for x in tensors))
    return tuple(movement.expand(x, shape=shape) for x in tensors)


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    d = dim_of(dim, x)
    if not 0 <= start <= start + length <= x.spec.shape[d]:
        raise SpecError(f"start ({start}) + length ({length}) exceeds dimension size ({x.spec.shape[d]}).")
    return movement.narrow(x, d, start, length)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    return x[(builtins.slice(None),) * dim_of(dim, x) + (index,)]


def contiguous(x: Tensor) -> Tensor:
    return x if x.spec.contiguous else movement.clone(x)


def clone(x: Tensor) -> Tensor:
    """A copy of its own storage; gradients pass through."""
    return movement.clone(x)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One after the other along ``dim``."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise SpecError("cat(): expected a non-empty list of Tensors")
    return movement.cat(list(tensors), dim=dim_of(dim, tensors[0]))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Along a new dimension."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise SpecError("stack expects a non-empty list of Tensors")
    shapes = {x.spec.shape for x in tensors}
    if len(shapes) > 1:
        raise SpecError(f"stack expects each tensor to be equal size, but got {sorted(map(list, shapes))}")
    return cat([unsqueeze(x, dim) for x in tensors], normalize_dim(dim, tensors[0].spec.ndim + 1))


def split(x: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts along ``dim``: of one size, or of the sizes given."""
    d = dim_of(dim, x)
    n = x.spec.shape[d]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size <= 0:
            raise SpecError(f"split expects split_size be positive, but got split_size={size}")
        sizes = [builtins.min(size, n - at) for at in range(0, n, size)] or [0]
    else:
        sizes = list(split_size_or_sections)
    return movement.split(x, sizes=tuple(sizes), dim=d)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    if chunks <= 0:
        raise SpecError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    n = x.spec.shape[dim_of(dim, x)]
    return split(x, -(-n // chunks) if n else [0] * chunks, dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(squeeze(part, dim) for part in split(x, 1, dim)) if x.spec.shape[dim_of(dim, x)] else ()


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of ``dim`` at the integer positions of a 1-d ``index``.

    Raises IndexError for a position outside, a negative one too, on the CPU; on a GPU it reads NaN, of integers 0.
    """
    if index.spec.ndim != 1:
        raise SpecError(f"index_select(): Index is supposed to be a vector, but got shape {list(index.spec.shape)}")
    return movement.take(x, index, dim=dim_of(dim, x), wrap=False)


def take_along_dim(x: Tensor, indices: Tensor, dim: int) -> Tensor:
    """Elements along ``dim`` at positions of ``indices``, whose other sizes broadcast against ``x``."""
    d = dim_of(dim, x)
    if indices.spec.ndim != x.spec.ndim:
        raise SpecError(f"take_along_dim(): input and indices should have the same number of dimensions, but got "
                        f"{x.spec.ndim} and {indices.spec.ndim}")
    shape = broadcast_shapes(x.spec.shape[:d] + (1,) + x.spec.shape[d + 1:],
                             indices.spec.shape[:d] + (1,) + indices.spec.shape[d + 1:])
    wide = (*shape[:d], indices.spec.shape[d], *shape[d + 1:])
    return movement.take_along(contiguous(movement.expand(x, shape=(*shape[:d], x.spec.shape[d], *shape[d + 1:]))),
                               contiguous(movement.expand(indices, shape=wide)), dim=d)


def nonzero(x: Tensor) -> Tensor:
    """Positions of what is not zero, [N, ndim] int64: the values are read on the host, for N depends on them."""
    if x.storage.device.type == "meta":
        raise DataDependentShape("nonzero: the shape of the result depends on values, and meta has none")
    values = x.storage.device.read(x.storage, x.spec)
    return upload(np.argwhere(values).astype(np.int64), x.storage.device, op="nonzero", role="output")
