"""Functions of shape: reshaping, views, slices, joining and splitting."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcore.arguments import with_name
from gradcore.blame import shown
from gradcore.dtypes import promote
from gradcore.engine.owners import upload
from gradcore.engine.sites import need_values
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.ops import movement
from gradcore.spec import broadcast_shapes, normalize_dim, normalize_dims, resolve_shape

Tensor = Any
Dim = int | Sequence[int] | None


def dim_of(dim: int, x: Tensor) -> int:
    return normalize_dim(dim, x.spec.ndim)


def size_of(name: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given as ``f(2, 3)`` or ``f((2, 3))``; a tensor of one integer is read. Raises TypeError for others, and none."""
    if not shape:
        raise TypeError(f"{name}() got no sizes or dimensions: give ints, or () for none of them")
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    found = tuple(map(plain, sizes))
    for n in found:
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"a size must be an int, but got {shown(n):.60} of type {type(n).__name__} in {shown(sizes):.99}")
    return found


def listed(tensors: tuple[Any, ...]) -> list[Any]:
    """Tensors given as ``f(x, y)`` or ``f([x, y])``."""
    return list(tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors)


def plain(value: Any) -> Any:
    """A Python int for an integer of NumPy's, and for a tensor of one integer, which is read; anything else as it is."""
    if type(value) is int:
        return value
    read = isinstance(value, np.integer) or (isinstance(value, Value) and value.spec.dtype.kind in "iu")
    return int(value) if read else value


def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The tensor in another shape: a view if the layout allows, else a copy. One size may be -1."""
    result = movement.reshape(input, size_of("reshape", sizes if shape is None else (shape,)))
    # Of the same shape it is the input itself, but what is made in no_grad mode has no graph.
    return input.detach() if result is input and input.edge is not None and not local.state.grad else result


def view(input: Tensor, *sizes: Any, size: Any = None, dtype: None = None) -> Tensor:
    """A view in another shape. Raises :class:`SpecError` if the layout does not allow one."""
    if dtype is not None or (sizes and isinstance(sizes[0], np.dtype)):
        raise NotImplementedError("view(dtype), which shows the same bytes as another dtype, is not implemented by gradcore: "
                                  "convert the values with x.to(dtype), or on the CPU share the bytes by "
                                  "gradcore.from_numpy(x.detach().numpy().view(dtype))")
    return movement.view(input, shape=size_of("view", sizes if size is None else (size,)))


def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """A view of given sizes, strides and storage offset, in elements. Raises :class:`SpecError` if it reaches out of ``input``.

    ``input`` must be contiguous. Views whose elements overlap, other than by expanded dimensions, have no gradient.
    """
    start = input.spec.offset if storage_offset is None else storage_offset
    local.state.placed = local.state.placed or storage_offset is not None
    return movement.as_strided(input, shape=tuple(size), strides=tuple(stride), offset=start - input.spec.offset)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The tensor with dimensions ``start_dim`` to ``end_dim`` merged into one; a view where the strides allow."""
    start, end = dim_of(start_dim, input), dim_of(end_dim, input)
    if not input.spec.ndim:
        return reshape(input, 1)
    if start > end:
        raise SpecError(f"flatten() has invalid args: start_dim {start_dim} cannot come after end_dim {end_dim}")
    merged = math.prod(input.spec.shape[start:end + 1])
    return movement.reshape(input, (*input.spec.shape[:start], merged, *input.spec.shape[end + 1:]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """``dim`` split into several dimensions of the given sizes, one of which may be -1."""
    d = dim_of(dim, input)
    n = input.spec.shape[d] if input.spec.ndim else 1
    if not sizes:
        raise SpecError(f"unflatten: sizes must be non-empty, but got {sizes}")
    try:
        sizes = resolve_shape(sizes, n)
    except SpecError:
        raise SpecError(f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} ({n}) in the "
                        f"input tensor {list(input.spec.shape)}") from None
    return movement.reshape(input, (*input.spec.shape[:d], *sizes, *input.spec.shape[d + 1:]))


def squeeze(input: Tensor, dim: Dim = None, *more: int) -> Tensor:
    """A view without dimensions of size 1: all, or those in ``dim``, or in a row: ``squeeze(0, 1)``."""
    # An empty ``dim`` means no dimensions here, not all.
    dims = range(input.spec.ndim) if dim is None else normalize_dims((dim, *more) if more else dim, input.spec.ndim)  # type: ignore[arg-type]
    dims = () if isinstance(dim, Sequence) and not dim else dims
    gone = {d for d in dims if input.spec.shape[d] == 1}
    return movement.slice(input, index=tuple((0,) if d in gone else (0, n, 1) for d, n in enumerate(input.spec.shape)))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A view with a new dimension of size 1 at ``dim``."""
    d = normalize_dim(dim, input.spec.ndim + 1)
    return movement.slice(input, index=tuple((0, n, 1) for n in input.spec.shape[:d]) + ((),))


def _row(x: Tensor) -> Tensor:
    return x if x.spec.ndim else reshape(x, 1)


def _plane(x: Tensor) -> Tensor:
    return x if x.spec.ndim > 1 else unsqueeze(_row(x), 0)


def _block(x: Tensor) -> Tensor:
    return x if x.spec.ndim > 2 else unsqueeze(_plane(x), -1)


def _at_least(name: str, widened: Callable[[Tensor], Tensor]) -> Any:
    def function(*tensors: Any) -> Any:
        if len(tensors) == 1 and not isinstance(tensors[0], (list, tuple)):
            return widened(tensors[0])
        return tuple(map(widened, tensors[0] if len(tensors) == 1 else tensors))

    return with_name(function, name, f"A tensor with {name[8]} dimensions or more; of several, or of a list, a tuple of them.")


atleast_1d, atleast_2d, atleast_3d = map(_at_least, ("atleast_1d", "atleast_2d", "atleast_3d"), (_row, _plane, _block))


def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """A view whose dimensions are those of ``input`` in the given order."""
    return movement.permute(input, dims=tuple(dim_of(d, input) for d in size_of("permute", order if dims is None else (dims,))))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions swapped."""
    order = list(range(input.spec.ndim))
    a, b = dim_of(dim0, input), dim_of(dim1, input)
    if order:
        order[a], order[b] = order[b], order[a]
    return movement.permute(input, dims=tuple(order))


def t(input: Tensor) -> Tensor:
    """A view of a matrix with its dimensions swapped; 0-d and 1-d tensors as they are."""
    if input.spec.ndim > 2:
        raise SpecError(f"t() expects a tensor with <= 2 dimensions, but self is {input.spec.ndim}D")
    return transpose(input, 0, 1) if input.spec.ndim == 2 else input


def expand(input: Tensor, *size: Any) -> Tensor:
    """A view with dimensions of size 1 expanded to ``size``, without a copy; -1 keeps a size."""
    return movement.expand(input, shape=size_of("expand", size))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """A view expanded to the shape of ``other``; see :func:`expand`."""
    return movement.expand(input, shape=other.spec.shape)


def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """A view expanded to a shape; see :func:`expand`."""
    return movement.expand(input, shape=tuple(size))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of tensors expanded to their common shape; a tensor that has it is itself, as in PyTorch."""
    shape = broadcast_shapes(*(x.spec.shape for x in tensors))
    return tuple(x if x.spec.shape == shape else movement.expand(x, shape=shape) for x in tensors)


def _need_dims(message: str, x: Tensor) -> None:
    if not x.spec.ndim:
        raise SpecError(message)


def apart(result: Tensor, input: Tensor) -> Tensor:
    """``result``, or a copy if it shows the bytes of ``input``, for functions whose results are never views."""
    return movement.clone(result) if result.storage is input.storage else result


def along(vector: Tensor, d: int, x: Tensor) -> Tensor:
    """A view of a vector [n] that broadcasts along dimension ``d`` of ``x``."""
    return movement.reshape(vector, (vector.spec.numel, *[1] * (x.spec.ndim - d - 1)))


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of ``length`` elements of ``dim`` from ``start`` on; a negative ``start`` counts from the end."""
    _need_dims("narrow() cannot be applied to a 0-dim tensor.", input)
    d = dim_of(dim, input)
    n = input.spec.shape[d]
    start, length = int(plain(start)), plain(length)
    if length < 0:
        raise SpecError(f"narrow(): length must be non-negative, but got {length}.")
    if not -n <= start <= n:
        raise DimError(f"start out of range (expected to be in range of [{-n}, {n}], but got {start})")
    start = start + n if start < 0 else start
    if start + length > n:
        raise SpecError(f"start ({start}) + length ({length}) exceeds dimension size ({n}).")
    return movement.narrow(input, d, start, length)


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """A view of the slice at one index of ``dim``, without that dimension."""
    if isinstance(index, Value) and index.spec.numel != 1:
        raise TypeError(f"select(): argument 'index' must be int, not {index.spec.numel} of them: use index_select")
    return input[(builtins.slice(None),) * dim_of(dim, input) + (index,)]


def contiguous(x: Tensor) -> Tensor:
    """The tensor itself if it is contiguous, else a contiguous copy."""
    return x if x.spec.contiguous else movement.clone(x)


def clone(input: Tensor) -> Tensor:
    """A copy with its own storage; gradients pass through."""
    return movement.clone(input)


def _need_list(name: str, tensors: Any) -> None:
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not {type(tensors).__name__}")


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors concatenated along ``dim``; empty 1-d tensors are skipped."""
    _need_list("cat", tensors)
    if not tensors:
        raise SpecError("cat(): expected a non-empty list of Tensors")
    for k, x in enumerate(tensors):
        _need_dims(f"zero-dimensional tensor (at position {k}) cannot be concatenated", x)
    parts = list(tensors)
    if builtins.any(x.spec.ndim != 1 for x in parts):
        dtype = promote([x.spec for x in parts])
        kept = [x for x in parts if x.spec.shape != (0,)]
        parts = parts if len(kept) == len(parts) else [x.to(dtype) for x in kept]
    return movement.cat(parts, dim=dim_of(dim, parts[0]))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dimension ``dim``."""
    _need_list("stack", tensors)
    if not tensors:
        raise SpecError("stack expects a non-empty list of Tensors")
    shape, *others = {x.spec.shape for x in tensors}
    if others:
        raise SpecError(f"stack expects each tensor to be equal size, but got {sorted(map(list, (shape, *others)))}")
    d = normalize_dim(dim, len(shape) + 1)
    # Parts joined along a dimension lie in the order of a new one before it, so only a new last one takes an op for each part.
    joined = cat([unsqueeze(x, d) for x in tensors] if d == len(shape) else tensors, d)
    return reshape(joined, *shape[:d], len(tensors), *shape[d:])


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts along ``dim``: of one size (the last may be smaller), or of the sizes given."""
    _need_dims("split expects at least a 1-dimensional tensor", tensor)
    d = dim_of(dim, tensor)
    n, size = tensor.spec.shape[d], plain(split_size_or_sections)
    if isinstance(size, int):
        if size < (n > 0):
            raise SpecError(f"split expects split_size be positive, but got split_size={size} for a dimension of size {n}")
        size = [builtins.min(size, n - at) for at in range(0, n, size or 1)] or [0]
    return movement.split(tensor, sizes=tuple(size), dim=d)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """``chunks`` views along ``dim``, or fewer; the last may be shorter."""
    chunks = plain(chunks)
    if chunks <= 0:
        raise SpecError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    _need_dims("chunk expects at least a 1-dimensional tensor", input)
    n = input.spec.shape[dim_of(dim, input)]
    return split(input, -(-n // chunks) if n else [0] * chunks, dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices of ``dim``, without that dimension."""
    if not input.spec.ndim:
        raise DimError(f"Dimension specified as {dim} but tensor has no dimensions")
    return tuple(squeeze(part, dim) for part in split(input, 1, dim)) if input.spec.shape[dim_of(dim, input)] else ()


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of ``dim`` at the integers ``index``, a vector or 0-d; of a 0-d tensor, its only element.

    On the CPU, raises IndexError for an index that is negative or too large; on a GPU, it reads NaN, or 0 for integers.
    """
    if index.spec.ndim > 1:
        raise DimError(f"index_select(): Index is supposed to be a vector, but got shape {list(index.spec.shape)}")
    if not input.spec.ndim and index.spec.numel != 1:
        raise SpecError(f"index_select(): Index to scalar can have only 1 value, got {index.spec.numel} value(s)")
    found = movement.take(_row(input), _row(index), dim=dim_of(dim, input), wrap=False)
    return found if input.spec.ndim else reshape(found, ())


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Elements along ``dim`` at ``indices``, whose other dimensions broadcast with the input's; without ``dim``, both flat."""
    if dim is None:
        return take_along_dim(reshape(input, -1), reshape(indices, -1), 0)
    d = dim_of(dim, input)
    if indices.spec.ndim != input.spec.ndim:
        raise SpecError(f"take_along_dim(): input and indices should have the same number of dimensions, but got "
                        f"{input.spec.ndim} and {indices.spec.ndim}")
    shape = broadcast_shapes(input.spec.shape[:d] + (1,) + input.spec.shape[d + 1:],
                             indices.spec.shape[:d] + (1,) + indices.spec.shape[d + 1:])
    wide = (*shape[:d], indices.spec.shape[d], *shape[d + 1:])
    return movement.take_along(contiguous(movement.expand(input, shape=(*shape[:d], input.spec.shape[d], *shape[d + 1:]))),
                               contiguous(movement.expand(indices, shape=wide)), dim=d)


def nonzero(input: Tensor) -> Tensor:
    """Indices of the nonzero elements, [N, ndim] int64; the values, on which N depends, are read on the host."""
    return upload(np.argwhere(decisive("nonzero", input)).astype(np.int64), input.storage.device, op="nonzero", role="output")


def decisive(name: str, x: Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor, which decide the shape of a result. Raises :class:`DataDependentShape` on meta."""
    need_values(name, x.storage.device)
    return x.storage.device.read(x.storage, x.spec)


__all__ = [
    "as_strided", "broadcast_tensors", "broadcast_to", "cat", "chunk", "clone", "contiguous", "dim_of", "expand", "expand_as",
    "flatten", "index_select", "narrow", "permute", "reshape", "select", "size_of", "split", "squeeze", "stack", "t",
    "take_along_dim", "transpose", "unbind", "unflatten", "unsqueeze", "view"]
METHODS = sorted({*__all__} - {"broadcast_tensors", "cat", "dim_of", "size_of", "stack"})
