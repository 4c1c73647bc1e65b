"""Writing at integer positions, along one dimension or into whole slices of it: over what is there, or added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.errors import DimError, SpecError
from gradcore.ops.creation import new_full
from gradcore.ops.movement import broadcasts, clone, reshape, slice, sum_to, take, take_along, take_result
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import with_workspace
from gradcore.spec import TensorSpec
from gradcore.tiling import Groups, groups_of


def _check_positions(name: str, x: TensorSpec, index: TensorSpec, dim: int) -> None:
    if index.dtype.kind not in "iu":
        raise SpecError(f"{name}: Expected dtype int64 for index, but got {index.dtype.name}")
    if not 0 <= dim < x.ndim:
        raise DimError(f"{name}: dimension {dim} of {list(x.shape)}")


def _check_values(name: str, values: TensorSpec, shape: Sequence[int], x: TensorSpec) -> None:
    if not broadcasts(values.shape, shape):
        raise SpecError(f"{name}: values of shape {list(values.shape)} cannot be broadcast to {list(shape)}, which "
                        "is written")
    if values.dtype != x.dtype:
        raise SpecError(f"{name}: Expected self.dtype to be equal to src.dtype, but got {x.dtype.name} and {values.dtype.name}")


def _put_spec(x: TensorSpec, index: TensorSpec, values: TensorSpec, *, dim: int, wrap: bool = True) -> Any:
    shape = take_result(x, index, dim)
    if not broadcasts(values.shape, shape):
        raise SpecError(f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing "
                        f"result of shape {list(shape)}")
    groups = groups_of(index.numel, x.shape[dim], 0, x.dtype)
    return with_workspace(x, groups.nbytes if groups else index.numel * 8)


def _along_spec(x: TensorSpec, index: TensorSpec, values: TensorSpec, row: int, dim: int) -> Inferred:
    _check_positions("scatter", x, index, dim)
    if index.ndim != x.ndim:
        raise SpecError(f"Index tensor must have the same number of dimensions as self tensor, but got {index.ndim} and "
                        f"{x.ndim}")
    for d, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)):
        if d != dim and n > m:
            raise SpecError(f"Expected index {list(index.shape)} to be no larger than self {list(x.shape)} apart from "
                            f"dimension {dim}")
    _check_values("scatter", values, index.shape, x)
    return _with_groups(x, groups_of(index.numel, x.shape[dim], row, x.dtype, blocks=False))


def _put_along_spec(x: TensorSpec, index: TensorSpec, values: TensorSpec, *, dim: int) -> Inferred:
    return _along_spec(x, index, values, 0, dim)


def _add_along_spec(x: TensorSpec, index: TensorSpec, values: TensorSpec, *, dim: int) -> Inferred:
    return _along_spec(x, index, values, 1, dim)


def _extreme_along_spec(x: TensorSpec, index: TensorSpec, values: TensorSpec, *, dim: int, largest: bool) -> Inferred:
    if x.dtype.itemsize == 1:
        raise SpecError(f"extreme_along_: expected elements of two bytes or more, which a GPU exchanges at once, but got {x}")
    return Inferred(_along_spec(x, index, values, 0, dim).outputs)


def _slices_spec(x: TensorSpec, index: TensorSpec, values: TensorSpec, *, dim: int, wrap: bool = True) -> Inferred:
    _check_positions("index_add", x, index, dim)
    _check_values("index_add", values, (*x.shape[:dim], *index.shape, *x.shape[dim + 1:]), x)
    return _with_groups(x, groups_of(index.numel, x.shape[dim], x.numel // max(x.shape[dim], 1), x.dtype))


def _with_groups(x: TensorSpec, groups: Groups | None) -> Inferred:
    return Inferred((x.like(),), workspace=groups.nbytes if groups else None)


def expanded_from(index: Any, x_spec: TensorSpec, dim: int) -> Any:
    """The vector of positions along ``dim`` that was expanded to the index, one for each slice of x; None if there is none."""
    shape, n = index.spec.shape, x_spec.ndim
    if len(shape) != n or index.spec.numel <= shape[dim] or any(
            shape[d] != x_spec.shape[d] or (shape[d] > 1 and index.spec.strides[d]) for d in range(n) if d != dim):
        return None
    first = slice(index, index=tuple((0, size if d == dim else 1, 1) for d, size in enumerate(shape)))
    return reshape(first, (shape[dim],))


def gathered(x: Any, index: Any, dim: int, wrap: bool = True) -> Any:
    """:func:`take_along`, of whole slices where that is the same: the index is not copied then."""
    places = expanded_from(index, x.spec, dim)
    return take_along(x, index, dim=dim, wrap=wrap) if places is None else take(x, places, dim=dim, wrap=wrap)


put_ = op("put_", _put_spec, writes=("x",),
          x=lambda g, index, dim: put_(clone(g), index, new_full(g, (), 0.0), dim=dim),
          values=lambda g, index, values_spec, dim: sum_to(take(g, index, dim=dim), to=values_spec))
put_along_ = op("put_along_", _put_along_spec, writes=("x",),
                x=lambda g, index, dim: put_along_(clone(g), index, new_full(g, (), 0.0), dim=dim),
                values=lambda g, index, values_spec, dim: sum_to(gathered(g, index, dim), to=values_spec),
                doc="x[.., index[.., i, ..], ..] = values[.., i, ..] along ``dim``; of repeated positions the last wins.")
add_along_ = op("add_along_", _add_along_spec, writes=("x",),
                x=lambda g: g,
                values=lambda g, index, values_spec, dim: sum_to(gathered(g, index, dim), to=values_spec),
                doc="As put_along_, but added to what is there; repeated positions add up.")
extreme_along_ = op("extreme_along_", _extreme_along_spec, writes=("x",),
                    doc="As put_along_, but the largest or the smallest of what is there and of all values; NaN is both.")
add_at_ = op("add_at_", _slices_spec, writes=("x",),
             x=lambda g: g,
             values=lambda g, index, values_spec, dim: sum_to(take(g, index, dim=dim), to=values_spec),
             doc="x[.., index[k], ..] += values[.., k, ..] for every position k; repeated positions add up.")

#: What does the same as an op for one dimension, if all other dimensions share its positions.
OF_SLICES = {put_along_: put_, add_along_: add_at_}
