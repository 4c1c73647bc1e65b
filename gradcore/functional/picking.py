"""Reading and writing by index or mask: ``gather``, ``scatter``, ``index_*``, ``masked_*`` and ``*_scatter`` functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from gradcore import _indexing
from gradcore.arguments import with_name
from gradcore.engine.autocast import joining
from gradcore.engine.owners import upload
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional import shape as sh
from gradcore.functional.matrices import diagonal
from gradcore.functional.types import fitted
from gradcore.ops import creation, elementwise, movement, placing, pointwise
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_one_dtype
from gradcore.spec import broadcast_shapes, normalize_dims

Tensor = Any


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Elements at the positions ``index`` along ``dim``; the result has the index's shape.

    In 2-d with ``dim`` 0, result[i, j] = input[index[i, j], j]. The index's other sizes are at most the input's. On the CPU,
    raises IndexError for an index that is negative or too large; on a GPU, it reads NaN, or 0 for integers.
    """
    d = sh.dim_of(dim, input)
    x, places = sh.atleast_1d(input, index)
    if x.spec.ndim != places.spec.ndim:
        raise SpecError("Index tensor must have the same number of dimensions as input tensor, but got "
                        f"{index.spec.ndim} and {input.spec.ndim}")
    for k, (n, m) in enumerate(zip(places.spec.shape, x.spec.shape, strict=True)):
        if k != d and n > m:
            raise SpecError(f"Size does not match at dimension {k} expected index {list(index.spec.shape)} to be no larger "
                            f"than self {list(input.spec.shape)} apart from dimension {d}")
    return sh.reshape(placing.gathered(x, places, d, wrap=False), index.spec.shape)


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements at indices of the flattened tensor; the result has the index's shape."""
    return movement.take(sh.reshape(input, -1), index, dim=0)


# -- along a dimension ---------------------------------------------------------------------------------------------------


def source_of(name: str, x: Tensor, index: Tensor, src: Any) -> Any:
    """The values to write: the leading part of ``src`` with the index's shape, or a number as a 0-d tensor."""
    if not isinstance(src, Value):
        return creation.new_full(x, (), src)
    if src.spec.ndim != index.spec.ndim or any(n < m for n, m in zip(src.spec.shape, index.spec.shape, strict=True)):
        raise SpecError(f"{name}: Expected index {list(index.spec.shape)} to be no larger than src {list(src.spec.shape)}")
    for d, n in enumerate(index.spec.shape):
        src = src if src.spec.shape[d] == n else movement.narrow(src, d, 0, n)
    return src


def scatter_by(name: str, op: Any, x: Tensor, dim: int, index: Tensor, src: Any) -> None:
    """Write ``src``, a tensor or a number, along ``dim`` at the positions ``index`` by an op that takes the dimension."""
    d = sh.dim_of(dim, x)
    src = source_of(name, x, index, src)
    target, places = sh.atleast_1d(x, index)
    values = sh.atleast_1d(src) if index.spec.ndim == 0 else src
    if places.spec.ndim != target.spec.ndim:
        raise SpecError(f"Index tensor must have the same number of dimensions as self tensor, but got {index.spec.ndim} and "
                        f"{x.spec.ndim}")
    slices = placing.OF_SLICES.get(op) if values.spec.dtype == target.spec.dtype else None
    row = None if slices is None else placing.expanded_from(places, target.spec, d)
    if slices is None or row is None:
        op(target, places, values, dim=d)
    else:
        slices(target, row, values, dim=d, wrap=False)


def scatter_(input: Tensor, dim: int, index: Tensor, src: Any = None, value: Any = None, *,
             reduce: str | None = None) -> Tensor:
    """Write ``src``, a tensor or a number, along ``dim`` at the positions ``index``; of repeated positions, the last wins.

    With ``reduce="add"``, add it. Raises NotImplementedError for ``"multiply"``, which :func:`scatter_reduce` has as
    ``"prod"``.
    """
    if reduce not in (None, "add"):
        raise NotImplementedError(f"scatter with reduce={reduce!r}: only None and 'add' are supported; use scatter_reduce")
    scatter_by("scatter", placing.put_along_ if reduce is None else placing.add_along_, input, dim, index,
             value if src is None else src)
    return input


def scatter_add_(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Add ``src`` along ``dim`` at the positions ``index``; repeated positions accumulate."""
    scatter_by("scatter_add", placing.add_along_, input, dim, index, src)
    return input


# -- slices of a dimension -----------------------------------------------------------------------------------------------


def _vector(name: str, index: Tensor) -> Tensor:
    if index.spec.ndim > 1:
        raise DimError(f"{name}(): Index is supposed to be a vector, but got dim: {index.spec.ndim} with shape "
                       f"{list(index.spec.shape)}")
    return sh.atleast_1d(index)


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """Add alpha times the slices of ``source`` to the slices of ``dim`` at ``index``; repeated indices accumulate.

    For integers, ``alpha`` is truncated. Raises RuntimeError for one out of their range.
    """
    alpha = fitted(alpha, source.spec.dtype)
    source = source if alpha == 1 else source * alpha
    placing.add_at_(*slices_of("index_add", input, dim, index, source), dim=sh.dim_of(dim, input), wrap=False)
    return input


def index_copy_(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Write the slices of ``source``, of the same dtype, to the slices of ``dim`` at ``index``."""
    need_one_dtype("index_copy", input=input.spec, source=source.spec)
    placing.put_(*slices_of("index_copy", input, dim, index, source), dim=sh.dim_of(dim, input), wrap=False)
    return input


def slices_of(name: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d, places = sh.dim_of(dim, x), _vector(name, index)
    x, source = sh.atleast_1d(x, source)
    if source.spec.shape != (*x.spec.shape[:d], places.spec.numel, *x.spec.shape[d + 1:]):
        raise DimError(f"{name}: source of shape {list(source.spec.shape)} does not fit {places.spec.numel} slices of "
                       f"dimension {d} of {list(x.spec.shape)}")
    return x, places, source


def index_fill_(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Write a number, or a 0-d tensor, to the slices of ``dim`` at ``index``; negative indices count from the end."""
    if isinstance(value, Value) and value.spec.ndim:
        raise SpecError("index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                        f"{value.spec.ndim} dimension(s).")
    given = value if isinstance(value, Value) else creation.new_full(input, (), value)
    x = sh.atleast_1d(input)
    d, places, given = sh.dim_of(dim, input), _vector("index_fill", index), movement.cast_to(given, input.spec)
    if not given.requires_grad:
        placing.put_(x, places, given, dim=d)
        return input
    # A slice counts once in the value's gradient, even if the index repeats it.
    named = creation.full(False, shape=(x.spec.shape[d],), dtype=np.dtype(bool), device=x.storage.device)
    placing.put_(named, places, creation.new_full(named, (), True), dim=0)
    pointwise.masked_fill_(x, sh.along(named, d, x), given)
    return input


def index_put_(input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Tensor:
    """``input[indices] = values``; with ``accumulate``, values are added, also at repeated positions."""
    _indexing.write(input, tuple(slice(None) if i is None else i for i in indices), values, accumulate=accumulate)
    return input


def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write the elements of ``source`` at the positions ``index`` of the flattened tensor, or add them; of repeated positions,
    the last wins. Raises :class:`SpecError` for another number of elements, another dtype, or an index that is not int64."""
    need_one_dtype("put_", input=input.spec, source=source.spec)
    if index.spec.dtype != np.int64:
        raise SpecError(f"put_(): Expected a long tensor for index, but got {index.spec.dtype.name}")
    if index.spec.numel != source.spec.numel:
        raise SpecError("put_(): Expected source and index to have the same number of elements, but got source.numel() = "
                        f"{source.spec.numel}, index.numel() = {index.spec.numel}")
    if not input.spec.contiguous:
        return movement.copy_(input, put_(sh.clone(input), index, source, accumulate))
    write = placing.add_at_ if accumulate else placing.put_
    write(movement.view(input, shape=(input.spec.numel,)), sh.reshape(index, -1), sh.reshape(source, -1), dim=0)
    return input


# -- by mask -------------------------------------------------------------------------------------------------------------


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of the nonzero elements, [N, ndim] int64, or a tuple of ndim tensors [N]; the values are read on the host."""
    if as_tuple:
        return sh.unbind(sh.nonzero(input if input.spec.ndim else sh.reshape(input, 1)), 1)
    return sh.nonzero(input)


def count_nonzero(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The number of nonzero elements over ``dim``, or of all, int64."""
    return sum(elementwise.ne(input, 0), dims=normalize_dims(dim, input.spec.ndim), keepdim=False)


def _places(mask: Tensor) -> Tensor:
    """Indices where a flattened mask is True, which is read on the host, since their number depends on the values."""
    if mask.spec.dtype.kind != "b":
        raise SpecError(f"masked_select: expected BoolTensor for mask, but got {mask.spec.dtype.name}")
    return upload(np.flatnonzero(sh.decisive("masked_select", mask)), mask.storage.device, op="masked_select")


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """A 1-d tensor of the elements where ``mask`` is True; the two broadcast, and the mask is read on the host."""
    shape = broadcast_shapes(input.spec.shape, mask.spec.shape)
    places = _places(movement.expand(mask, shape=shape))
    return movement.take(sh.reshape(movement.expand(input, shape=shape), -1), places, dim=0)


def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the first elements of ``source`` where ``mask`` is True. Raises :class:`SpecError` if there are too few."""
    if source.spec.dtype != input.spec.dtype:
        raise SpecError(f"masked_scatter: expected self and source to have same dtypes but got {input.spec.dtype.name} and "
                        f"{source.spec.dtype.name}")
    places = _places(movement.expand(mask, shape=input.spec.shape))
    if places.spec.numel > source.spec.numel:
        raise SpecError(f"masked_scatter: expected source to have at least {places.spec.numel} elements, one for each True of "
                        f"the mask, but got {source.spec.numel}")
    given = movement.narrow(sh.reshape(source, -1), 0, 0, places.spec.numel)
    if not input.spec.contiguous:
        return movement.copy_(input, masked_scatter_(sh.clone(input), mask, source))
    placing.put_(movement.view(input, shape=(input.spec.numel,)), places, given, dim=0)
    return input


# -- the same on a copy --------------------------------------------------------------------------------------------------


def _on_a_copy(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def copied(input: Tensor, *args: Any, **attrs: Any) -> Tensor:
        return function(sh.clone(input), *args, **attrs)

    return with_name(copied, name, f"A copy, after ``{name}_``. {function.__doc__}")


scatter, scatter_add = _on_a_copy("scatter", scatter_), joining(_on_a_copy("scatter_add", scatter_add_))
index_add, index_copy = _on_a_copy("index_add", index_add_), _on_a_copy("index_copy", index_copy_)
put = _on_a_copy("put", put_)
index_fill, index_put = _on_a_copy("index_fill", index_fill_), joining(_on_a_copy("index_put", index_put_))
argwhere = sh.nonzero


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of ``input`` with ``masked_scatter_`` applied; the tensor and the mask broadcast."""
    shape = broadcast_shapes(input.spec.shape, mask.spec.shape)
    return masked_scatter_(sh.clone(movement.expand(input, shape=shape)), mask, source)


# -- into a part of a copy -------------------------------------------------------------------------------------------------


def _put(name: str, copy: Tensor, part: Tensor, src: Tensor) -> Tensor:
    if part.spec.shape != src.spec.shape:
        raise SpecError(f"{name}: expected src to have a size equal to the part of self. src size = {list(src.spec.shape)}, "
                        f"part size = {list(part.spec.shape)}")
    movement.copy_(part, src)
    return copy


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of ``input`` with ``src`` written at index ``index`` of ``dim``."""
    copy = sh.clone(input)
    return _put("select_scatter", copy, sh.select(copy, dim, index), src)


def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Tensor:
    """A copy of ``input`` with ``src`` written to the slice ``start:end:step`` of ``dim``."""
    copy = sh.clone(input)
    return _put("slice_scatter", copy, copy[(slice(None),) * sh.dim_of(dim, input) + (slice(start, end, step),)], src)


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of ``input`` with ``src`` written to a diagonal of two dimensions; see :func:`diagonal`."""
    copy = sh.clone(input)
    return _put("diagonal_scatter", copy, diagonal(copy, offset, dim1, dim2), src)


TENSOR_METHODS: dict[str, Callable[..., Any]] = {fn.__name__: fn for fn in (
    scatter_, scatter_add_, index_add_, index_copy_, index_fill_, index_put_, masked_scatter_, put_)}

METHODS = ("gather take put scatter scatter_add index_add index_copy index_fill index_put nonzero argwhere count_nonzero "
           "masked_select masked_scatter select_scatter slice_scatter diagonal_scatter").split()

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
