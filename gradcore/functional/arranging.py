"""More functions of shape: flipping, repeating, joining, splitting, grids and combinations, and windows."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.engine.owners import constant, upload
from gradcore.errors import DimError, SpecError
from gradcore.functional import matrices
from gradcore.functional import shape as sh
from gradcore.ops import arrangement, creation, movement, placing, scan

Tensor = Any
Ints = int | Sequence[int]


def _listed(dims: Ints) -> Sequence[int]:
    return dims if isinstance(dims, (Sequence, np.ndarray)) else (dims,)


def _dims(x: Tensor, dims: Ints | None) -> tuple[int, ...]:
    given = () if dims is None else tuple(_listed(dims))
    found = tuple(sh.dim_of(d, x) for d in given)
    if len(set(found)) != len(found):
        raise SpecError(f"dim {found} appears multiple times in the list of dims {given}")
    return found


# -- order -------------------------------------------------------------------------------------------------------------


def flip(input: Tensor, *dims: Any) -> Tensor:
    """A copy with the elements in reverse order along ``dims``, given as a sequence or as separate ints."""
    places = _dims(input, sh.size_of("flip", dims))
    return arrangement.flip(input, dims=places if input.spec.ndim else ())


def fliplr(input: Tensor) -> Tensor:
    """A copy reversed along dimension 1. Raises :class:`SpecError` for fewer than two dimensions."""
    if input.spec.ndim < 2:
        raise SpecError(f"Input must be >= 2-d, but got {input.spec.ndim}-d.")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """A copy reversed along dimension 0. Raises :class:`SpecError` for a 0-d tensor."""
    if not input.spec.ndim:
        raise SpecError("Input must be >= 1-d, but got 0-d.")
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """The tensor rotated ``k`` times by 90 degrees in the plane of two dimensions, from the first towards the second."""
    if len(dims) != 2:
        raise SpecError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    a, b = _dims(input, dims)
    k %= 4
    if k == 0:
        return sh.clone(input)
    if k == 2:
        return flip(input, a, b)
    return flip(sh.transpose(input, a, b), a if k == 1 else b)


def roll(input: Tensor, shifts: Ints, dims: Ints | None = None) -> Tensor:
    """Elements shifted by ``shifts`` along ``dims``, wrapping around; without ``dims``, along the flattened tensor."""
    by = sh.plain(shifts)
    some = tuple(map(sh.plain, by)) if isinstance(by, (tuple, list, np.ndarray)) else (by,)
    for shift in some:
        if type(shift) is not int:
            raise TypeError(f"roll(): argument 'shifts' (position 1) must be tuple of ints, not {type(shift).__name__}")
    if dims is None or (isinstance(dims, Sequence) and not len(dims)):
        if len(some) != 1:
            raise SpecError(f"shifts and dimensions must align: got {len(some)} shifts and no dims")
        flat = arrangement.roll(sh.reshape(input, -1), shifts=some, dims=(0,))
        return sh.reshape(flat, input.spec.shape)
    return arrangement.roll(input, shifts=some, dims=tuple(sh.dim_of(d, input) for d in _listed(dims)))


def moveaxis(input: Tensor, source: Ints, destination: Ints) -> Tensor:
    """A view with the dimensions ``source`` moved to the positions ``destination``; the others keep their order."""
    sources, places = _dims(input, source), _dims(input, destination)
    if len(sources) != len(places):
        raise SpecError(f"movedim: Invalid source or destination dims: source ({sources} dims) should contain the same number "
                        f"of dims as destination ({places} dims)")
    order = [d for d in range(input.spec.ndim) if d not in sources]
    for place, d in sorted(zip(places, sources, strict=True)):
        order.insert(place, d)
    return movement.permute(input, dims=tuple(order) if input.spec.ndim else ())


# -- repeated ----------------------------------------------------------------------------------------------------------


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """A copy with the tensor repeated ``repeats`` times along each dimension.

    Raises :class:`SpecError` for fewer numbers than dimensions.
    """
    counts = sh.size_of("repeat", repeats)
    lead = len(counts) - input.spec.ndim
    if lead < 0:
        raise SpecError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: got "
                        f"{counts} for {list(input.spec.shape)}")
    if builtins.any(n < 0 for n in counts):
        raise SpecError(f"Trying to create tensor with negative dimension: repeats {counts}")
    shape = (1,) * lead + input.spec.shape
    apart = sh.reshape(input, [m for n in shape for m in (1, n)])
    wide = movement.expand(apart, shape=tuple(m for k, n in zip(counts, shape, strict=True) for m in (k, n)))
    made = sh.reshape(wide, [k * n for k, n in zip(counts, shape, strict=True)])
    return sh.apart(made, input)


def tile(input: Tensor, *dims: Any) -> Tensor:
    """:func:`repeat`, with 1 for the leading dimensions that ``dims`` leaves out."""
    counts = sh.size_of("tile", dims)
    return repeat(input, (1,) * (input.spec.ndim - len(counts)) + counts)


def repeat_interleave(input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each element repeated along ``dim``; ``repeats`` is a number or a 1-d tensor.

    The values of a tensor are read on the host, unless ``output_size`` says what their sum is; then they are not checked.
    With a tensor as the only argument, repeats the positions 0, 1, ..., in its dtype.
    """
    if repeats is None:
        repeats, input = input, creation.arange(0, 1, length=input.spec.numel, dtype=input.spec.dtype,
                                                device=input.storage.device)
    if dim is None:
        input, dim = sh.reshape(input, -1), 0
    d = sh.dim_of(dim, input)
    shape = input.spec.shape
    if not shape:
        raise DimError(f"repeat_interleave: dim={d} is given for a 0-d tensor, which has no dimensions: leave it out")
    if isinstance(repeats, (int, np.integer)):
        repeats = int(repeats)
        if repeats < 0:
            raise SpecError(f"Repeats must be non-negative, but got {repeats}")
        if output_size not in (None, shape[d] * repeats):
            raise SpecError(f"repeat_interleave: Invalid output_size, expected {shape[d] * repeats} but got {output_size}")
        wide = movement.expand(sh.unsqueeze(input, d + 1), shape=(*shape[:d + 1], repeats, *shape[d + 1:]))
        return sh.apart(sh.reshape(wide, (*shape[:d], shape[d] * repeats, *shape[d + 1:])), input)
    if repeats.spec.dtype.kind not in "iu" or repeats.spec.ndim > 1:
        raise SpecError(f"repeat_interleave: expected a 1-d tensor of integers as repeats, but got {repeats.spec}")
    if repeats.spec.numel not in (1, shape[d]):
        raise SpecError(f"repeats must have the same size as input along dim, but got repeats.size(0) = {repeats.spec.numel} "
                        f"and input.size({d}) = {shape[d]}")
    if output_size is not None:
        # Each place of the result reads the element whose number is that of the elements which end before it.
        ends = scan.cumsum(movement.expand(sh.reshape(repeats, -1), shape=(shape[d],)), dim=0, reverse=False)
        ending, one = creation.new_full(ends, (output_size + 1,), 0), creation.new_full(ends, (1,), 1)
        placing.add_at_(ending, ends, movement.expand(one, shape=ends.spec.shape), dim=0)
        return movement.take(input, movement.narrow(scan.cumsum(ending, dim=0, reverse=False), 0, 0, output_size), dim=d)
    counts = sh.decisive("repeat_interleave", repeats).reshape(-1)
    if counts.size and counts.min() < 0:
        raise SpecError(f"repeats can not be negative, but got {counts.min()}")
    return movement.take(input, upload(np.repeat(np.arange(shape[d]), counts), input.storage.device), dim=d)


# -- joined and parted -------------------------------------------------------------------------------------------------


atleast_1d, atleast_2d, atleast_3d = sh.atleast_1d, sh.atleast_2d, sh.atleast_3d


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along dimension 1; 1-d tensors along dimension 0."""
    parts = [sh.atleast_1d(x) for x in tensors]
    return sh.cat(parts, 0 if parts and parts[0].spec.ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along dimension 0; 1-d tensors become rows."""
    return sh.cat([sh.atleast_2d(x) for x in tensors], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along dimension 2."""
    return sh.cat([sh.atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along dimension 1; 1-d tensors become columns."""
    return sh.cat([sh.reshape(x, (x.spec.numel, 1)) if x.spec.ndim < 2 else x for x in tensors], 1)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts along ``dim``: a number of nearly equal ones, or those between the given indices."""
    if not input.spec.ndim:
        raise SpecError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    d = sh.dim_of(dim, input)
    n = input.spec.shape[d]
    if hasattr(indices_or_sections, "tolist"):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        if indices_or_sections <= 0:
            raise SpecError(f"number of sections must be larger than 0, got {indices_or_sections}")
        each, more = divmod(n, indices_or_sections)
        return sh.split(input, [each + (k < more) for k in range(indices_or_sections)], d)
    if not isinstance(indices_or_sections, (list, tuple)):
        raise TypeError(f"tensor_split(): expected a number of sections, or a tuple of indices, but got "
                        f"{type(indices_or_sections).__name__}")
    ends = [builtins.min(builtins.max(i + n if i < 0 else i, 0), n) for i in indices_or_sections]
    starts, ends = [0, *ends], [*ends, n]
    if starts == sorted(starts):
        return sh.split(input, [b - a for a, b in zip(starts, ends, strict=True)], d)
    return tuple(movement.narrow(input, d, a, builtins.max(b - a, 0)) for a, b in zip(starts, ends, strict=True))


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Views of parts along dimension 1, or 0 of a 1-d tensor; see :func:`tensor_split`."""
    return _parted("hsplit", input, indices_or_sections, 0 if input.spec.ndim == 1 else 1, 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Views of parts along dimension 0; see :func:`tensor_split`."""
    return _parted("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Views of parts along dimension 2; see :func:`tensor_split`."""
    return _parted("dsplit", input, indices_or_sections, 2, 3)


def _parted(name: str, input: Tensor, how: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if input.spec.ndim < least:
        raise SpecError(f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with "
                        f"{input.spec.ndim} dimensions!")
    if isinstance(how, int) and (how <= 0 or input.spec.shape[dim] % how):
        raise SpecError(f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension "
                        f"{input.spec.shape[dim]} is not divisible by the split_size {how}!")
    return tensor_split(input, how, dim)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Views of 1-d tensors expanded to a common grid, one dimension each; ``indexing="xy"`` swaps the first two dimensions."""
    parts = sh.listed(tensors)
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    if builtins.any(x.spec.ndim > 1 for x in parts):
        raise SpecError(f"torch.meshgrid: Expected 0D or 1D tensors, but got {[list(x.spec.shape) for x in parts]}")
    swap = indexing == "xy" and len(parts) > 1
    axes = [1, 0, *range(2, len(parts))] if swap else list(range(len(parts)))
    sizes = [0] * len(parts)
    for x, axis in zip(parts, axes, strict=True):
        sizes[axis] = x.spec.numel
    return tuple(movement.expand(sh.reshape(x, (1,) * axis + (-1,) + (1,) * (len(parts) - axis - 1)), shape=tuple(sizes))
                 for x, axis in zip(parts, axes, strict=True))


def cartesian_prod(*tensors: Any) -> Tensor:
    """The Cartesian product of vectors, as rows [n * m * ..., number of vectors]; a single vector is returned as it is."""
    given = sh.listed(tensors)
    for x in given:
        if x.spec.ndim != 1:
            raise SpecError(f"Expect a 1D vector, but got shape {list(x.spec.shape)}")
    if len({x.spec.dtype for x in given}) > 1:
        raise SpecError(f"meshgrid expects all tensors to have the same dtype, but got {[x.spec.dtype.name for x in given]}")
    if len(given) == 1:
        return given[0]
    return sh.stack([sh.reshape(x, -1) for x in meshgrid(*given)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of ``r`` elements of a vector, in its order, as rows [K, r]; ``with_replacement`` allows repeats."""
    if input.spec.ndim != 1:
        raise SpecError(f"Expect a 1D vector, but got shape {list(input.spec.shape)}")
    if r < 0:
        raise SpecError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return creation.empty(shape=(0,), dtype=input.spec.dtype, device=input.storage.device)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.spec.shape[0]), r)), np.int64).reshape(-1, r)
    return movement.take(input, constant("combinations", places, input), dim=0)


# -- windows -----------------------------------------------------------------------------------------------------------


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of the windows of ``size`` elements of ``dimension``, one every ``step``; windows are a new last dimension."""
    return arrangement.windows(input, dim=sh.dim_of(dimension, input), size=sh.plain(size), step=sh.plain(step),
                               dilation=1)


# -- second names, and forms of others -----------------------------------------------------------------------------------


def ravel(input: Tensor) -> Tensor:
    """The tensor flattened to one dimension: a view of a contiguous one, else a copy."""
    return sh.reshape(sh.contiguous(input), -1)


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """``input`` viewed with the shape of ``other``."""
    return movement.view(input, shape=other.spec.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """``input`` reshaped to the shape of ``other``."""
    return sh.reshape(input, other.spec.shape)


def adjoint(input: Tensor) -> Tensor:
    """A view with the last two dimensions swapped."""
    return sh.transpose(input, -2, -1)


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of ``split_sizes`` elements along ``dim``; see :func:`split`."""
    return sh.split(input, list(split_sizes), dim)


def tril_(input: Tensor, diagonal: int = 0) -> Tensor:
    """``tril`` in place; returns the tensor."""
    return movement.copy_(input, matrices.tril(input, diagonal))


def triu_(input: Tensor, diagonal: int = 0) -> Tensor:
    """``triu`` in place; returns the tensor."""
    return movement.copy_(input, matrices.triu(input, diagonal))


concat = concatenate = sh.cat
swapaxes = swapdims = sh.transpose
movedim, row_stack = moveaxis, vstack

METHODS = ("flip fliplr flipud rot90 roll moveaxis movedim tile repeat_interleave tensor_split hsplit vsplit dsplit ravel "
           "adjoint split_with_sizes swapaxes swapdims").split()
#: Methods of a tensor that are not functions of the package.
TENSOR_METHODS = {fn.__name__: fn for fn in (repeat, unfold, view_as, reshape_as, tril_, triu_)}

__all__ = [  # noqa: PLE0604 - strings all
    *METHODS, "atleast_1d", "atleast_2d", "atleast_3d", "cartesian_prod", "column_stack", "combinations", "concat",
    "concatenate", "dstack", "hstack", "meshgrid", "row_stack", "vstack"]
