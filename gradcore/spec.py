"""The layout of a tensor without its bytes: shape, dtype, strides and offset.

Specs are interned: two equal specs are one object, so caches keyed by them hash and compare by identity. The arithmetic
of view layouts and of dtypes is here too, since it needs nothing else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.errors import DimError, SpecError
from gradcore.interning import Interned

Shape = tuple[int, ...]

#: One rounding rule for the pool and the planner, in bytes. cudaMalloc aligns to it too.
ROUND = 512

#: Elements of a temporary that fits in a core's L2 cache. Kernels work on pieces of this length; workspaces hold one piece.
PIECE = 32768


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
            found.shape = tuple(int(n) for n in shape)
            found.dtype = checked_dtype(dtype)
            found.strides = tuple(int(n) for n in strides)
            found.offset = int(offset)
            found.ndim = len(shape)
            found.numel = math.prod(found.shape)
            found.nbytes = found.numel * found.dtype.itemsize
            found.contiguous = is_contiguous(found.shape, found.strides)
            found.floating = is_floating(found.dtype)
            found.narrow = found.floating and found.dtype.itemsize == 2
            found.overlapping = not found.contiguous and is_overlapping(found.shape, found.strides)
            found = _interned.one((found.shape, found.dtype, found.strides, found.offset), found)
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

    def like(self, dtype: Any = None) -> TensorSpec:
        """The contiguous spec of the same shape."""
        return TensorSpec.of(self.shape, self.dtype if dtype is None else dtype)

    def widened(self) -> TensorSpec:
        """The same layout in float32, for a float of 16 bits; else the spec itself."""
        return TensorSpec.strided(self.shape, _FLOAT32, self.strides, self.offset) if self.narrow else self

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
    if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool):
        raise TypeError(f"a dimension must be an int, but got {dim!r} of type {type(dim).__name__}")
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


# -- dtypes: PyTorch's promotion by category ---------------------------------------------------------------------------

_BOOL, _INTEGER, _FLOATING = range(3)
_CATEGORY = {"b": _BOOL, "u": _INTEGER, "i": _INTEGER, "f": _FLOATING}
#: The dtypes of tensors by name, without bfloat16, which needs a package.
DTYPES = {name: np.dtype(name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
                                            "float16", "float32", "float64")}
_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
#: The dtype of Python's floats, and of results that are floats where only integers went in.
_default = [_FLOAT32]


def default_float() -> np.dtype[Any]:
    return _default[0]


def set_default_float(dtype: np.dtype[Any]) -> None:
    """Set the default. Whatever was inferred and cached under the former default must be cleared by the caller."""
    _default[0] = dtype


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Is it float16, bfloat16, float32 or float64?"""
    # The kind comes first, since NumPy computes a dtype's name at every access.
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.name == "bfloat16")


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype that tensors may have. Raises TypeError for another, and for another byte order than the machine's."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found not in DTYPES.values() and not (found.kind == "V" and is_floating(found)):
        raise TypeError(f"a tensor cannot be of dtype {found}: expected one of {', '.join(DTYPES)} or bfloat16")
    return found


def limits(dtype: np.dtype[Any]) -> Any:
    """NumPy's ``finfo`` of a floating dtype, bfloat16 among them."""
    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes
    finfo: Any = ml_dtypes.finfo
    return finfo(dtype)


def bfloat16() -> np.dtype[Any]:
    """The dtype bfloat16, which the package ``ml_dtypes`` adds to NumPy. Raises ImportError without it."""
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("gradcore.bfloat16 needs the package ml_dtypes, which gives NumPy the type: "
                          "pip install 'gradcore[bfloat16]'") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_named(name: Any) -> np.dtype[Any] | None:
    """The dtype of tensors that has this name, None if there is none. Raises ImportError as :func:`bfloat16` does."""
    return bfloat16() if name == "bfloat16" else DTYPES.get(name) if isinstance(name, str) else None


def category(dtype: np.dtype[Any]) -> int:
    """0 for bool, 1 for integers, 2 for floats. Raises TypeError for a dtype that tensors do not have."""
    found = _FLOATING if is_floating(dtype) else _CATEGORY.get(dtype.kind)
    if found is None:
        raise TypeError(f"tensors are of bool, integer and floating types, but got {dtype}")
    return found


def promote(operands: Sequence[TensorSpec | type]) -> np.dtype[Any]:
    """The dtype of a result, by PyTorch's rule: Python scalars, then 0-d tensors, matter only by their category.

    An operand is a spec or the type of a Python number.
    """
    ranks: list[list[np.dtype[Any]]] = [[], [], []]
    for x in operands:
        if isinstance(x, TensorSpec):
            ranks[0 if x.ndim else 1].append(x.dtype)
        else:
            # NumPy's numbers count as Python's.
            ranks[2].append(_default[0] if x is float else _INT64 if x is int else np.dtype(np.bool_) if issubclass(
                x, (bool, np.bool_)) else _INT64 if issubclass(x, (int, np.integer)) else _default[0])
    result: np.dtype[Any] | None = None
    for dtypes in ranks:
        if not dtypes:
            continue
        strongest = functools.reduce(join, dtypes)
        if result is None or category(strongest) > category(result):
            result = strongest
    assert result is not None
    return result


def join(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The smallest dtype that holds both, by PyTorch's rule: an integer never widens a float."""
    if a == b:
        return a
    if is_floating(a) and is_floating(b):
        return _FLOAT32 if a.itemsize == b.itemsize else max(a, b, key=lambda d: d.itemsize)
    return a if is_floating(a) else b if is_floating(b) else np.result_type(a, b)
