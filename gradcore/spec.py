"""The layout of a tensor without its bytes: shape, dtype, strides and offset.

Specs are interned: two equal specs are one object, so caches keyed by them hash and compare by identity. The arithmetic
of view layouts is here too, since it needs nothing else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradcore.dtypes import FLOAT32, checked_dtype, is_floating
from gradcore.errors import DimError, SpecError
from gradcore.interning import Interned

Shape = tuple[int, ...]

#: One rounding rule for the pool and the planner, in bytes. cudaMalloc aligns to it too.
ROUND = 512

#: Elements of a temporary that fits in a core's L2 cache. Kernels work on pieces of this length; workspaces hold one piece.
PIECE = 32768
#: Elements of a piece of what folds add up: calls for smaller ones cost more than a cache saves.
FOLDED = 16 * PIECE


class Size(tuple[int, ...]):
    """A shape: a tuple of ints with :meth:`numel`. Raises TypeError for an item that is no int, nor counts as one."""

    def __new__(cls, sizes: Iterable[Any] = ()) -> Size:
        found = tuple(sizes)
        for k, n in enumerate(found):
            if not hasattr(n, "__index__"):
                raise TypeError(f"Size() takes an iterable of 'int' (item {k} is '{type(n).__name__}')")
        return super().__new__(cls, map(operator.index, found))

    def numel(self) -> int:
        """The number of elements, the product of the sizes."""
        return math.prod(self)

    def __add__(self, other: Any) -> Any:
        return Size(super().__add__(tuple(other))) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, n: Any) -> Any:
        return Size(super().__mul__(n)) if isinstance(n, (int, np.integer)) else NotImplemented

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Size(found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return f"gradcore.Size({list(self)})"


def adjacent(dims: tuple[int, ...]) -> bool:
    """Are these dimensions, of which there is one at least, one after the other?"""
    return bool(dims) and dims == tuple(range(dims[0], dims[0] + len(dims)))


def round_up(nbytes: int, step: int = ROUND) -> int:
    """``nbytes`` rounded up to a multiple of ``step``; an empty tensor still takes one step."""
    return (nbytes + step - 1) // step * step if nbytes > 0 else step


class TensorSpec:
    """Shape, dtype, strides and offset; strides and offset are in elements, sizes in bytes.

    Make one with :meth:`of` or :meth:`strided`; the constructor is not for callers, since it would not intern.
    """

    __slots__ = ("shape", "dtype", "strides", "offset", "ndim", "numel", "nbytes", "contiguous", "overlapping", "floating",
                 "narrow", "__weakref__")

    shape: Shape
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    offset: int
    ndim: int
    numel: int
    #: Bytes of the elements themselves, whatever the strides: numel x itemsize.
    nbytes: int
    contiguous: bool
    #: Do several elements share one address, as in an expanded tensor?
    overlapping: bool
    #: Is the dtype a floating one? NumPy's own kinds do not count bfloat16 among them.
    floating: bool
    #: Is it a float of 16 bits?
    narrow: bool

    @staticmethod
    def of(shape: Sequence[int], dtype: Any) -> TensorSpec:
        """The contiguous spec of ``shape`` and ``dtype``."""
        shape = tuple(shape)
        return TensorSpec.strided(shape, dtype, contiguous_strides(shape), 0)

    @staticmethod
    def strided(shape: Shape, dtype: Any, strides: tuple[int, ...], offset: int) -> TensorSpec:
        """The spec of a view: ``strides`` and ``offset`` in elements from the start of the storage."""
        key = (shape, dtype, strides, offset)
        found = _interned.get(key)
        if found is None:
            found = TensorSpec()
            found.shape = tuple(map(int, shape))
            found.dtype = checked_dtype(dtype)
            found.strides = tuple(map(int, strides))
            found.offset = int(offset)
            found.ndim = len(shape)
            found.numel = math.prod(found.shape)
            found.nbytes = found.numel * found.dtype.itemsize
            found.contiguous = is_contiguous(found.shape, found.strides)
            found.floating = is_floating(found.dtype)
            found.narrow = found.floating and found.dtype.itemsize == 2
            found.overlapping = not found.contiguous and is_overlapping(found.shape, found.strides)
            found = _interned.one((found.shape, found.dtype, found.strides, found.offset), found)
            if found.dtype is not dtype:
                # A name or another description of the dtype, which may have another hash.
                _interned[key] = found
        return found

    @property
    def span(self) -> tuple[int, int]:
        """Bytes from the start of the storage to the first element in memory, and to the end of the last; 0 if it is empty."""
        if self.numel == 0:
            return 0, 0
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        first, last = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return (self.offset + first) * self.dtype.itemsize, (self.offset + last + 1) * self.dtype.itemsize

    def fits(self, nbytes: int) -> bool:
        """Do all elements lie in a storage of so many bytes?"""
        if self.numel == 0:
            return self.offset * self.dtype.itemsize <= nbytes
        low, high = self.span
        return low >= 0 and high <= nbytes

    def like(self, dtype: Any = None) -> TensorSpec:
        """The contiguous spec of the same shape."""
        return TensorSpec.of(self.shape, self.dtype if dtype is None else dtype)

    def widened(self) -> TensorSpec:
        """The same layout in float32, for a float of 16 bits; else the spec itself."""
        return TensorSpec.strided(self.shape, FLOAT32, self.strides, self.offset) if self.narrow else self

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorSpec.strided, (self.shape, self.dtype, self.strides, self.offset)

    def __repr__(self) -> str:
        text = f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"
        return text if self.contiguous and not self.offset else f"{text} strides {self.strides} offset {self.offset}"


# Weak, or the layouts of texts and pictures of all sizes would pile up.
_interned: Interned[Any, TensorSpec] = Interned()


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Are these row-major strides? Those of dimensions of size 1 do not matter."""
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 0:
            return True
        if n != 1:
            if s != step:
                return False
            step *= n
    return True


def is_overlapping(shape: Shape, strides: tuple[int, ...]) -> bool:
    """May two elements share an address? Conservative: some interleaved layouts that share none count as overlapping too."""
    reach = 1
    for step, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if n and step < reach:
            return True
        reach += (n - 1) * step
    return False


def normalize_dim(dim: int, ndim: int) -> int:
    """``dim`` counted from the front; raises :class:`DimError` in the words PyTorch uses."""
    if type(dim) is not int:
        # NumPy's integers, and tensors of one integer, which are read.
        if isinstance(dim, (bool, np.bool_)) or not hasattr(dim, "__index__"):
            raise TypeError(f"a dimension must be an int, but got {dim!r} of type {type(dim).__name__}")
        dim = operator.index(dim)
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise DimError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {dim})")
    return int(dim % span)


def normalize_dims(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """A sorted tuple of distinct dimensions; ``None`` and ``()`` mean all of them, as in PyTorch."""
    if dim is None:
        return tuple(range(ndim))
    if not isinstance(dim, Sequence):
        one = normalize_dim(dim, ndim)
        return (one,) if ndim else ()
    dims = tuple(normalize_dim(d, ndim) for d in dim)
    if len(set(dims)) != len(dims):
        raise SpecError(f"dim {sorted(dims)} appears multiple times in the list of dims {tuple(dim)}")
    return tuple(sorted(dims)) if dims and ndim else tuple(range(ndim))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The broadcast shape by NumPy's rule. Raises :class:`SpecError` with PyTorch's text where there is none."""
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for i, n in enumerate(shape, ndim - len(shape)):
            if n != 1 and result[i] != n:
                if result[i] != 1:
                    given = " and ".join(str(list(s)) for s in shapes)
                    raise SpecError(
                        f"The size of tensor a ({result[i]}) must match the size of tensor b ({n}) at non-singleton "
                        f"dimension {i}: cannot broadcast {given}")
                result[i] = n
    return tuple(result)


def expand_strides(spec: TensorSpec, shape: Shape) -> tuple[int, ...]:
    """Strides that read ``spec`` as ``shape``; a broadcast dimension gets stride 0."""
    lead = len(shape) - spec.ndim
    strides = [0] * lead
    for i, (n, s) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        strides.append(s if n == shape[lead + i] else 0)
    return tuple(strides)


def resolve_shape(shape: Sequence[int], numel: int) -> Shape:
    """``shape`` with its one -1 replaced by a size. Raises :class:`SpecError` where it cannot hold ``numel`` elements."""
    sizes = [int(n) for n in shape]
    if math.prod(sizes) == numel and min(sizes, default=0) >= 0:
        return tuple(sizes)
    unknown = [i for i, n in enumerate(sizes) if n == -1]
    if len(unknown) > 1:
        raise SpecError(f"only one dimension can be inferred, but got shape {sizes}")
    if any(n < -1 for n in sizes):
        raise SpecError(f"invalid shape dimension in {sizes}: sizes must be -1 or at least 0")
    known = math.prod(n for n in sizes if n != -1)
    if not unknown or known == 0 or numel % known:
        raise SpecError(f"shape '{sizes}' is invalid for input of size {numel}")
    sizes[unknown[0]] = numel // known
    return tuple(sizes)


def view_strides(spec: TensorSpec, shape: Shape) -> tuple[int, ...] | None:
    """Strides that show ``spec`` as ``shape`` without a copy, or None where there are none.

    Old and new dimensions are matched group by group from the front; a group must be contiguous within itself.
    """
    if spec.numel == 0 or spec.contiguous:
        return contiguous_strides(shape)
    old = [(n, s) for n, s in zip(spec.shape, spec.strides, strict=True) if n != 1]
    strides, i = [0] * len(shape), 0
    j = 0
    while j < len(shape):
        if shape[j] == 1:
            strides[j] = 1
            j += 1
            continue
        group, want = [j], shape[j]
        have = old[i][0]
        i += 1
        while have != want:
            if have < want:
                if old[i - 1][1] != old[i][0] * old[i][1]:
                    return None
                have *= old[i][0]
                i += 1
            else:
                j += 1
                group.append(j)
                want *= shape[j]
        step = old[i - 1][1]
        for k in reversed(group):
            strides[k] = step
            step *= shape[k]
        j += 1
    return tuple(strides)
