"""Functions on tensors: arguments as PyTorch takes them, turned into the ops' normal form."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.devices.device import Device, get_device
from gradcore.engine.dispatch import upload
from gradcore.engine.node import Value
from gradcore.errors import DataDependentShape, DimError, SpecError
from gradcore.ops import activation, creation, elementwise, linalg, movement, nn, reduce
from gradcore.ops.op import Op
from gradcore.spec import broadcast_shapes, is_floating, normalize_dim, normalize_dims

Tensor = Any
Dim = int | Sequence[int] | None

#: The dtype of floats that nobody gave one.
_default = {"dtype": np.dtype(np.float32)}


def get_default_dtype() -> np.dtype[Any]:
    return _default["dtype"]


def set_default_dtype(dtype: Any) -> None:
    """The dtype that Python floats and new tensors get. Raises TypeError for one that is not floating."""
    if not is_floating(np.dtype(dtype)):
        raise TypeError(f"only floating-point types are supported as the default type, but got {np.dtype(dtype).name}")
    _default["dtype"] = np.dtype(dtype)


# -- making tensors ----------------------------------------------------------------------------------------------------


def tensor(data: Any, *, dtype: Any = None, device: str | Device | None = None, requires_grad: bool = False) -> Tensor:
    """A fresh tensor with a copy of ``data``: numbers, nested lists, an array or a tensor.

    Python floats become the default dtype, integers int64; an array keeps its dtype. Raises TypeError and ValueError
    for data that is ragged or not numeric.
    """
    if isinstance(data, Value):
        data = data.storage.device.read(data.storage, data.spec)
    plain = not isinstance(data, (np.ndarray, np.generic))
    try:
        values = np.asarray(data)
    except ValueError as error:
        raise ValueError(f"tensor(): expected numbers in a regular shape: {error}") from None
    if values.dtype.kind not in "biuf":
        raise TypeError(f"tensor(): new tensors hold numbers, but got data of dtype {values.dtype}")
    if dtype is not None:
        values = values.astype(np.dtype(dtype))
    elif plain and values.dtype.kind == "f":
        values = values.astype(get_default_dtype())
    result = upload(values, get_device(device), op="tensor")
    result.requires_grad = requires_grad
    return result


def as_tensor(data: Any, dtype: Any = None, device: str | Device | None = None) -> Tensor:
    """``data`` itself where it already is such a tensor, else :func:`tensor` of it."""
    if isinstance(data, Value):
        known: Tensor = data
        return known.to(device=device, dtype=dtype)
    return tensor(data, dtype=dtype, device=device)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the CPU with a copy of the array: bytes that the pool did not hand out would have no owner."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return tensor(array)


def transfer(x: Tensor, device: Device) -> Tensor:
    """A copy of ``x`` on another device; the gradient goes the way back."""
    if device.type == "meta":
        values = np.broadcast_to(np.zeros((), x.spec.dtype), x.spec.shape)
    else:
        values = x.storage.device.read(x.storage, x.spec)
    result = upload(values, device, role="input")
    result.requires_grad = x.requires_grad and x.is_leaf
    if x.requires_grad and not x.is_leaf:
        raise NotImplementedError("moving a tensor with a graph to another device: detach() it first")
    return result


def size_of(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike. Raises TypeError for sizes that are no ints."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    for n in sizes:
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
            raise TypeError(f"a size must be an int, but got {n!r} of type {type(n).__name__} in {sizes}")
    return tuple(int(n) for n in sizes)


def full(size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """A tensor of one value."""
    if dtype is None:
        dtype = np.bool_ if isinstance(fill_value, bool) else np.int64 if isinstance(fill_value, int) else \
            get_default_dtype()
    result = creation.full(fill_value, shape=size_of((size,) if isinstance(size, int) else tuple(size)),
                           dtype=np.dtype(dtype), device=device)
    result.requires_grad = requires_grad
    return result


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    return full(size_of(size), 0, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    return full(size_of(size), 1, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of whatever the pool's bytes happen to be."""
    result = creation.empty(shape=size_of(size), dtype=np.dtype(dtype or get_default_dtype()), device=device)
    result.requires_grad = requires_grad
    return result


def full_like(x: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    return full(x.spec.shape, fill_value, dtype=dtype or x.spec.dtype, device=device or x.storage.device)


def zeros_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    return empty(x.spec.shape, dtype=dtype or x.spec.dtype, device=device or x.storage.device)


def arange(start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Numbers from ``start`` (0 if only one is given) up to but not including ``end``."""
    if end is None:
        start, end = 0, start
    if dtype is None:
        dtype = np.int64 if builtins.all(isinstance(v, (int, np.integer)) for v in (start, end, step)) else get_default_dtype()
    return creation.arange(start, step, length=creation.length_of_range(start, end, step), dtype=np.dtype(dtype),
                           device=device)


def linspace(start: float, end: float, steps: int, *, dtype: Any = None, device: Any = None) -> Tensor:
    if steps < 0:
        raise SpecError(f"number of steps must be non-negative, but got {steps}")
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    return creation.arange(float(start), step, length=steps, dtype=np.dtype(dtype or get_default_dtype()), device=device)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    return creation.eye(rows=n, columns=n if m is None else m, dtype=np.dtype(dtype or get_default_dtype()),
                        device=device)


# -- elementwise -------------------------------------------------------------------------------------------------------


def _elementwise(op: Op) -> Any:
    def function(x: Tensor, *others: Any) -> Tensor:
        return op(x, *others)  # type: ignore[operator]

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.__doc__ or f"The op {op.name!r}, element by element."
    return function


def add(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """x + alpha * y"""
    return elementwise.add(x, y if alpha == 1 else elementwise.mul(y, alpha))


def sub(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """x - alpha * y"""
    return elementwise.sub(x, y if alpha == 1 else elementwise.mul(y, alpha))


mul, div, neg, pow = map(_elementwise, (elementwise.mul, elementwise.div, elementwise.neg, elementwise.pow))
maximum, minimum = map(_elementwise, (elementwise.maximum, elementwise.minimum))
floor_divide, remainder = map(_elementwise, (elementwise.floor_divide, elementwise.remainder))
eq, ne, lt = map(_elementwise, (elementwise.eq, elementwise.ne, elementwise.lt))
le, gt, ge = map(_elementwise, (elementwise.le, elementwise.gt, elementwise.ge))
logical_and, logical_or = map(_elementwise, (elementwise.logical_and, elementwise.logical_or))
logical_xor, logical_not = map(_elementwise, (elementwise.logical_xor, elementwise.logical_not))
isnan, isinf, isfinite = map(_elementwise, (elementwise.isnan, elementwise.isinf, elementwise.isfinite))
abs, sign, floor = map(_elementwise, (elementwise.abs, elementwise.sign, elementwise.floor))
ceil, round, square = map(_elementwise, (elementwise.ceil, elementwise.round, elementwise.square))
exp, expm1, log = map(_elementwise, (elementwise.exp, elementwise.expm1, elementwise.log))
log1p, log2, log10 = map(_elementwise, (elementwise.log1p, elementwise.log2, elementwise.log10))
sqrt, rsqrt, reciprocal = map(_elementwise, (elementwise.sqrt, elementwise.rsqrt, elementwise.reciprocal))
sin, cos, tan = map(_elementwise, (elementwise.sin, elementwise.cos, elementwise.tan))
sinh, cosh, arctan = map(_elementwise, (elementwise.sinh, elementwise.cosh, elementwise.arctan))
erf, relu, tanh, sigmoid = map(_elementwise, (activation.erf, activation.relu, activation.tanh, activation.sigmoid))


def invert(x: Tensor) -> Tensor:
    """``~x`` of a bool tensor."""
    if x.spec.dtype.kind != "b":
        raise NotImplementedError(f"~ of {x.spec.dtype.name}: only bool tensors are inverted")
    return elementwise.logical_not(x)


def logical(op: Op, x: Tensor, y: Any) -> Tensor:
    """``&``, ``|`` and ``^`` of bool tensors."""
    for operand in (x, y):
        if isinstance(operand, Value) and operand.spec.dtype.kind != "b":
            raise NotImplementedError(f"bitwise {op.name} of {operand.spec.dtype.name}: only bool tensors")
    return op(x, y)  # type: ignore[operator]


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """``x`` where the condition holds, else ``y``."""
    return elementwise.where(condition, x, y)


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return elementwise.where(mask, value, x)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``x`` kept between two numbers."""
    return elementwise.clamp(x, min, max)


# -- reductions --------------------------------------------------------------------------------------------------------


def dim_of(dim: int, x: Tensor) -> int:
    return normalize_dim(dim, x.spec.ndim)


def sum(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over ``dim``, or over everything. Integers and bools are summed as int64."""
    x = x if dtype is None else x.to(dtype)
    return reduce.sum(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.mean(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def var(x: Tensor, dim: Dim = None, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    """Variance: squared distances from the mean over n - correction."""
    dims = normalize_dims(dim, x.spec.ndim)
    centred = x - reduce.mean(x, dims=dims, keepdim=True)
    count = int(np.prod([x.spec.shape[d] for d in dims], dtype=np.int64))
    total = reduce.sum(elementwise.square(centred), dims=dims, keepdim=keepdim)
    return total / float(count - correction) if count > correction else total * float("nan")


def std(x: Tensor, dim: Dim = None, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    return elementwise.sqrt(var(x, dim, keepdim, correction=correction))


def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.amax(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def amin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.amin(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def max(x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
    """The largest value; with ``dim`` a pair of values and indices; of two tensors, the larger element by element."""
    return _extreme(x, dim, keepdim, amax, reduce.max_with_index, elementwise.maximum)


def min(x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
    """The smallest value; see :func:`max`."""
    return _extreme(x, dim, keepdim, amin, reduce.min_with_index, elementwise.minimum)


def _extreme(x: Tensor, dim: Any, keepdim: bool, whole: Any, indexed: Any, pairwise: Any) -> Any:
    if isinstance(dim, Value):
        return pairwise(x, dim)
    return whole(x) if dim is None else indexed(x, dim=dim_of(dim, x), keepdim=keepdim)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Positions of the largest value along ``dim``, or in the flattened tensor."""
    return _arg(reduce.argmax, x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(reduce.argmin, x, dim, keepdim)


def _arg(op: Any, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is not None:
        return op(x, dim=dim_of(dim, x), keepdim=keepdim)
    if x.spec.numel == 0:
        raise DimError(f"{op.name}(): Expected reduction dim to be specified for an empty tensor")
    return op(reshape(x, -1), dim=0, keepdim=False)


def any(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.any(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def all(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.all(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def logsumexp(x: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    return reduce.logsumexp(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def norm(x: Tensor, p: float = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The p-norm over ``dim``."""
    dims = normalize_dims(dim, x.spec.ndim)
    if p == 2:
        return elementwise.sqrt(reduce.sum(elementwise.square(x), dims=dims, keepdim=keepdim))
    if p == float("inf"):
        return reduce.amax(elementwise.abs(x), dims=dims, keepdim=keepdim)
    return elementwise.pow(reduce.sum(elementwise.pow(elementwise.abs(x), p), dims=dims, keepdim=keepdim), 1 / p)


def allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(np.allclose(x.detach().cpu().numpy(), y.detach().cpu().numpy(), rtol, atol, equal_nan))


def equal(x: Tensor, y: Tensor) -> bool:
    """Same shape and same values."""
    return x.spec.shape == y.spec.shape and bool(all(elementwise.eq(x, y)).item())


# -- matrix products ---------------------------------------------------------------------------------------------------


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """NumPy's ``@``: vectors are rows or columns, leading dimensions broadcast."""
    if not isinstance(y, Value):
        raise TypeError(f"matmul takes two tensors, but got {type(y).__name__}")
    if not x.spec.ndim or not y.spec.ndim:
        raise SpecError(f"both arguments to matmul need to be at least 1D, but they are {x.spec.ndim}D and "
                        f"{y.spec.ndim}D")
    row, column = x.spec.ndim == 1, y.spec.ndim == 1
    out = linalg.matmul(unsqueeze(x, 0) if row else x, unsqueeze(y, 1) if column else y)
    out = squeeze(out, -1) if column else out
    return squeeze(out, -1 if column else -2) if row else out


def _product(name: str, ndims: tuple[int, int]) -> Any:
    def function(x: Tensor, y: Tensor) -> Tensor:
        if (x.spec.ndim, y.spec.ndim) != ndims:
            raise SpecError(f"{name}: expected tensors of {ndims[0]} and {ndims[1]} dimensions, but got "
                            f"{list(x.spec.shape)} and {list(y.spec.shape)}")
        return matmul(x, y)

    function.__name__ = function.__qualname__ = name
    return function


mm, bmm = _product("mm", (2, 2)), _product("bmm", (3, 3))
mv, dot = _product("mv", (2, 1)), _product("dot", (1, 1))


# -- shape -------------------------------------------------------------------------------------------------------------


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """A view where the layout allows one, else a copy."""
    return movement.reshape(x, size_of(shape))


def view(x: Tensor, *shape: Any) -> Tensor:
    """A view; raises SpecError where the layout allows none."""
    return movement.view(x, shape=size_of(shape))


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


def movedim(x: Tensor, source: int, destination: int) -> Tensor:
    order = list(range(x.spec.ndim))
    order.insert(dim_of(destination, x), order.pop(dim_of(source, x)))
    return movement.permute(x, dims=tuple(order))


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
    return split(x, -(-x.spec.shape[dim_of(dim, x)] // chunks) or 1, dim)


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(squeeze(part, dim) for part in split(x, 1, dim)) if x.spec.shape[dim_of(dim, x)] else ()


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of ``dim`` at the integer positions of a 1-d ``index``."""
    if index.spec.ndim != 1:
        raise SpecError(f"index_select(): Index is supposed to be a vector, but got shape {list(index.spec.shape)}")
    return movement.take(x, index, dim=dim_of(dim, x))


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


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) over its sum along ``dim``."""
    return nn.softmax(x, dim=dim_of(dim, x))


def log_softmax(x: Tensor, dim: int) -> Tensor:
    return nn.log_softmax(x, dim=dim_of(dim, x))


def nonzero(x: Tensor) -> Tensor:
    """Positions of what is not zero, [N, ndim] int64: the values are read on the host, for N depends on them."""
    if x.storage.device.type == "meta":
        raise DataDependentShape("nonzero: the shape of the result depends on values, and meta has none")
    values = x.storage.device.read(x.storage, x.spec)
    return upload(np.argwhere(values).astype(np.int64), x.storage.device, op="nonzero", role="output")


#: Functions that are methods of a tensor, too.
METHODS = (
    "add sub mul div neg pow maximum minimum floor_divide remainder eq ne lt le gt ge logical_and logical_or "
    "logical_xor logical_not isnan isinf isfinite abs sign floor ceil round square exp expm1 log log1p log2 log10 sqrt "
    "rsqrt reciprocal sin cos tan sinh cosh arctan erf relu tanh sigmoid masked_fill clamp sum mean var std amax amin "
    "max min argmax argmin any all logsumexp norm allclose equal matmul mm bmm mv dot reshape view flatten unflatten "
    "squeeze unsqueeze permute transpose t movedim expand expand_as broadcast_to narrow select contiguous clone split "
    "chunk unbind index_select take_along_dim softmax log_softmax nonzero").split()
