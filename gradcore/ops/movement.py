"""Ops that move elements, or only show them differently. A view shares its base's storage and launches nothing."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from gradcore.dtypes import default_float, promote
from gradcore.errors import DimError, SpecError
from gradcore.ops.creation import new_full, zeros_of
from gradcore.ops.op import op
from gradcore.ops.shapes import like, with_workspace
from gradcore.spec import TensorSpec, expand_strides, resolve_shape, view_strides
from gradcore.tiling import groups_of

# -- copies ------------------------------------------------------------------------------------------------------------

clone = op("clone", like, may_alias=("x",), x=lambda g: g, again=lambda x: clone(x), doc="A contiguous copy.")


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Does ``shape`` broadcast to just ``to``?"""
    lead = len(to) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, to[lead:], strict=True))


def _cast_spec(x: TensorSpec, *, dtype: Any) -> TensorSpec:
    return x.like(dtype)


cast = op("cast", _cast_spec, again=lambda x, dtype: cast(x, dtype=dtype),
          x=lambda g, x_spec: cast(g, dtype=x_spec.dtype) if x_spec.floating else None)


def _copy_spec(x: TensorSpec, source: TensorSpec) -> TensorSpec:
    if not broadcasts(source.shape, x.shape):
        raise SpecError(f"copy_: the source of shape {list(source.shape)} cannot be broadcast to {list(x.shape)}")
    return x.like()


copy_ = op("copy_", _copy_spec, writes=("x",),
           x=lambda g: zeros_of(g),
           source=lambda g, source_spec: cast_to(sum_to(g, to=source_spec), source_spec))


def as_float(x: Any) -> Any:
    """The tensor itself where its dtype is a floating one, else one of the default dtype."""
    return x if x.spec.floating else cast(x, dtype=default_float())


def cast_to(g: Any, spec: TensorSpec) -> Any:
    return g if g.spec.dtype == spec.dtype else cast(g, dtype=spec.dtype)


# -- views -------------------------------------------------------------------------------------------------------------


def _view_spec(x: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
    shape = resolve_shape(shape, x.numel)
    strides = view_strides(x, shape)
    if strides is None:
        raise SpecError(f"view size is not compatible with input tensor's size and stride: {list(x.shape)} with strides "
                        f"{x.strides} cannot be shown as {list(shape)}. Use .reshape(...) instead.")
    return TensorSpec.strided(shape, x.dtype, strides, x.offset)


def _permute_spec(x: TensorSpec, *, dims: tuple[int, ...]) -> TensorSpec:
    if sorted(dims) != list(range(x.ndim)):
        raise SpecError(f"permute: dims {dims} are not an order of the {x.ndim} dimensions of {list(x.shape)}")
    return TensorSpec.strided(tuple(x.shape[d] for d in dims), x.dtype, tuple(x.strides[d] for d in dims), x.offset)


def _expand_spec(x: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
    lead = len(shape) - x.ndim
    if lead < 0:
        raise SpecError(f"expand: {list(x.shape)} has more dimensions than {list(shape)}")
    sizes = tuple(x.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(shape))
    if min(sizes, default=0) < 0:
        raise SpecError(f"The expanded size of the tensor ({min(sizes)}) isn't allowed: expected sizes of at least 0, or -1 "
                        f"for a dimension of {list(x.shape)}, but got {list(shape)}")
    if not broadcasts(x.shape, sizes):
        raise SpecError(f"The expanded size of the tensor {list(sizes)} must match the existing size {list(x.shape)}")
    return TensorSpec.strided(sizes, x.dtype, expand_strides(x, sizes), x.offset)


#: One dimension of a basic index: (start, length, step > 0) of a slice; (position,) takes the dimension away; () adds one.
Basic = tuple[tuple[int, ...], ...]


def _slice_spec(x: TensorSpec, *, index: Basic) -> TensorSpec:
    shape, strides, offset, d = [], [], x.offset, 0
    for part in index:
        if not part:
            shape.append(1)
            strides.append(0)
            continue
        offset += part[0] * x.strides[d] if x.shape[d] else 0
        if len(part) == 3:
            shape.append(part[1])
            strides.append(x.strides[d] * part[2])
        d += 1
    return TensorSpec.strided((*shape, *x.shape[d:]), x.dtype, (*strides, *x.strides[d:]), offset)


def _slice_grad_spec(dy: TensorSpec, *, shape: tuple[int, ...], index: Basic) -> TensorSpec:
    return TensorSpec.of(shape, dy.dtype)


view = op("view", _view_spec, view=True, x=lambda g, x_spec: reshape(g, x_spec.shape),
          again=lambda x, shape: view(x, shape=shape))
permute = op("permute", _permute_spec, view=True,
             x=lambda g, dims: permute(g, dims=tuple(map(dims.index, range(len(dims))))),
             again=lambda x, dims: permute(x, dims=dims))
expand = op("expand", _expand_spec, view=True, x=lambda g, x_spec: sum_to(g, to=x_spec),
            again=lambda x, shape: expand(x, shape=shape))
# The gradient of what leaves nothing out, such as a new dimension, is a view.
slice = op("slice", _slice_spec, view=True, x=lambda g, x_spec, index: reshape(g, x_spec.shape)
           if g.spec.numel == x_spec.numel else slice_grad(g, shape=x_spec.shape, index=index),
           again=lambda x, index: slice(x, index=index))
slice_grad = op("slice_grad", _slice_grad_spec, dy=lambda g, index: slice(g, index=index),
                again=lambda dy, shape, index: slice_grad(dy, shape=shape, index=index),
                doc="Zeros of ``shape`` with dy at ``index``.")


def _as_strided_spec(x: TensorSpec, *, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> TensorSpec:
    """The spec of a part of ``x``, a contiguous tensor, with strides and offset in elements from its first."""
    if len(shape) != len(strides):
        raise SpecError(f"as_strided: expected a stride for each size, but got sizes {list(shape)} and strides {list(strides)}")
    part = TensorSpec.strided(tuple(shape), x.dtype, tuple(strides), x.offset + offset)
    end = TensorSpec.strided(tuple(shape), x.dtype, tuple(strides), offset).span[1]
    if not x.contiguous or offset < 0 or min((*shape, *strides), default=0) < 0 or end > x.nbytes:
        raise SpecError(f"as_strided: sizes {list(shape)}, strides {list(strides)} and storage offset {offset} do not lie "
                        f"inside a contiguous tensor of shape {list(x.shape)}; got {x}")
    return part


def _as_strided_grad_spec(dy: TensorSpec, *, like: tuple[int, ...], strides: tuple[int, ...], offset: int) -> TensorSpec:
    reach = 1
    for n, s in sorted(zip(dy.shape, strides, strict=True), key=lambda part: part[1]):
        if n > 1 and s < reach and s:
            raise SpecError(f"as_strided: elements of sizes {list(dy.shape)} and strides {list(strides)} overlap: their "
                            "gradient is not implemented")
        reach = max(reach, (n - 1) * s + 1)
    return TensorSpec.of(like, dy.dtype)


def _cleared_spec(x: TensorSpec, *, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> TensorSpec:
    return x.like()


def _write_part_spec(x: TensorSpec, part: TensorSpec, *, shape: tuple[int, ...], strides: tuple[int, ...],
                     offset: int) -> TensorSpec:
    return x


def _flat(g: Any) -> Any:
    return g if g.spec.contiguous else clone(g)


as_strided = op("as_strided", _as_strided_spec, view=True,
                x=lambda g, x_spec, strides, offset: as_strided_grad(g, like=x_spec.shape, strides=strides, offset=offset))
as_strided_grad = op("as_strided_grad", _as_strided_grad_spec,
                     dy=lambda g, dy_spec, strides, offset: as_strided(_flat(g), shape=dy_spec.shape, strides=strides,
                                                                       offset=offset),
                     doc="Zeros of shape ``like`` with dy added at the strided elements; a stride of 0 adds up.")
cleared = op("cleared", _cleared_spec,
             x=lambda g, attrs: cleared(_flat(g), **attrs),
             contiguous=True, doc="x with zeros at the strided elements.")
write_part = op("write_part", _write_part_spec, view=True,
                x=lambda g, attrs: cleared(_flat(g), **attrs),
                part=lambda g, attrs: as_strided(_flat(g), **attrs),
                doc="x after ``part``, which shows some of its bytes, was written: nothing moves, history does.")


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """A view where the layout allows one, else a copy."""
    shape = resolve_shape(shape, x.spec.numel)
    if shape == x.spec.shape:
        return x
    return view(x if x.spec.contiguous or view_strides(x.spec, shape) is not None else clone(x), shape=shape)


def column(x: Any) -> Any:
    """Each element as a row of one."""
    return reshape(x, (*x.spec.shape, 1))


def _sum_to_spec(x: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
    if not broadcasts(shape, x.shape):
        raise SpecError(f"sum_to: {list(x.shape)} does not reduce to {list(shape)}")
    return TensorSpec.of(shape, x.dtype)


sum_to_shape = op("sum_to_shape", _sum_to_spec, x=lambda g, x_spec: expand(g, shape=x_spec.shape),
                  doc="Sum over the dimensions that broadcasting added.")


def sum_to(g: Any, to: Any) -> Any:
    """The cotangent of an operand that was broadcast (and promoted); ``g`` itself where it was not.

    ``to`` is the operand's spec, or the type of a Python number, which wants no gradient.
    """
    if g.spec is to:
        return g
    if not isinstance(to, TensorSpec):
        return None
    if g.spec.shape != to.shape:
        g = sum_to_shape(g, shape=to.shape)
    return g if g.spec.dtype == to.dtype or not to.floating else cast(g, dtype=to.dtype)


# -- several tensors ---------------------------------------------------------------------------------------------------


def _cat_spec(tensors: Sequence[TensorSpec], *, dim: int) -> TensorSpec:
    if not tensors:
        raise SpecError("cat: expected a non-empty list of tensors")
    first = tensors[0]
    for t in tensors:
        if t.ndim != first.ndim or t.shape[:dim] + t.shape[dim + 1:] != first.shape[:dim] + first.shape[dim + 1:]:
            raise SpecError(f"Sizes of tensors must match except in dimension {dim}: got {list(first.shape)} and "
                            f"{list(t.shape)}")
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in tensors), *first.shape[dim + 1:])
    return TensorSpec.of(shape, promote(tensors))


def _cat_rule(g: Any, tensors_spec: Sequence[TensorSpec], dim: int) -> list[Any]:
    starts = np.cumsum([0, *[s.shape[dim] for s in tensors_spec]]).tolist()
    parts = [narrow(g, dim, start, s.shape[dim]) for start, s in zip(starts, tensors_spec, strict=False)]
    return [sum_to(part, to=s) for part, s in zip(parts, tensors_spec, strict=True)]


def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    """A view of ``length`` elements of ``dim`` from ``start``."""
    return slice(x, index=tuple((0, n, 1) for n in x.spec.shape[:dim]) + ((start, length, 1),))


def _split_spec(x: TensorSpec, *, sizes: tuple[int, ...], dim: int) -> tuple[TensorSpec, ...]:
    if any(n < 0 for n in sizes):
        # The part before it would reach beyond the tensor.
        raise SpecError("split_with_sizes expects split_sizes have only non-negative entries, but got "
                        f"split_sizes={list(sizes)}")
    if sum(sizes) != x.shape[dim]:
        raise SpecError(f"split_with_sizes expects split_sizes to sum exactly to {x.shape[dim]} (input tensor's size at "
                        f"dimension {dim}), but got split_sizes={list(sizes)}")
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    return tuple(_slice_spec(x, index=tuple((0, n, 1) for n in x.shape[:dim]) + ((start, n, 1),))
                 for start, n in zip(starts, sizes, strict=True))


def _split_rule(gs: tuple[Any, ...], x_spec: TensorSpec, sizes: tuple[int, ...], dim: int) -> Any:
    """The cotangents of the parts, side by side; those that have none are zero, neighbors in one."""
    given = [k for k, g in enumerate(gs) if g is not None]
    lead, tail = x_spec.shape[:dim], x_spec.shape[dim + 1:]
    if len(given) == 1:
        index = (*((0, m, 1) for m in lead), (builtins.sum(sizes[:given[0]]), sizes[given[0]], 1))
        return slice_grad(gs[given[0]], shape=x_spec.shape, index=index)
    like, parts = gs[given[0]], []
    for absent, run in groupby(zip(gs, sizes, strict=False), key=lambda part: part[0] is None):
        if absent:
            parts.append(new_full(like, (*lead, builtins.sum(n for _, n in run), *tail), 0.0))
        else:
            parts += [g for g, _ in run]
    return cat(parts, dim=dim)


cat = op("cat", _cat_spec, tensors=_cat_rule, again=lambda tensors, dim: cat(tensors, dim=dim), gathers=True)
split = op("split", _split_spec, view=True, x=_split_rule, again=lambda x, sizes, dim: split(x, sizes=sizes, dim=dim))

# -- integer indexing --------------------------------------------------------------------------------------------------


def take_result(x: TensorSpec, index: TensorSpec, dim: int) -> tuple[int, ...]:
    if index.dtype.kind not in "iu":
        raise SpecError(f"tensors used as indices must be integers, but got {index.dtype.name}")
    if not 0 <= dim < x.ndim:
        raise DimError(f"take: dimension {dim} of {list(x.shape)}")
    return (*x.shape[:dim], *index.shape, *x.shape[dim + 1:])


def _take_spec(x: TensorSpec, index: TensorSpec, *, dim: int, wrap: bool = True) -> Any:
    return with_workspace(TensorSpec.of(take_result(x, index, dim), x.dtype), index.numel * 8)


def _take_grad_spec(dy: TensorSpec, index: TensorSpec, *, shape: tuple[int, ...], dim: int) -> Any:
    out = TensorSpec.of(shape, dy.dtype)
    groups = groups_of(index.numel, shape[dim], out.numel // max(shape[dim], 1), out.dtype)
    return with_workspace(out, groups.nbytes if groups else index.numel * 8)


def _embedding_spec(weight: TensorSpec, index: TensorSpec, *, padding: int | None) -> Any:
    if weight.ndim != 2:
        raise SpecError(f"'weight' must be 2-D, but got {list(weight.shape)}")
    return _take_spec(weight, index, dim=0)


def _embedding_grad_spec(dy: TensorSpec, index: TensorSpec, *, shape: tuple[int, ...], padding: int | None) -> Any:
    return _take_grad_spec(dy, index, shape=shape, dim=0)


embedding = op("embedding", _embedding_spec, contiguous=True,
               weight=lambda g, index, weight_spec, padding: embedding_grad(g, index, shape=weight_spec.shape,
                                                                            padding=padding),
               doc="Rows of a table; the one called padding has no gradient.")
embedding_grad = op("embedding_grad", _embedding_grad_spec, contiguous=True,
                    dy=lambda g, index, padding: embedding_unpadded(g, index, padding=padding))
embedding_unpadded = op("embedding_unpadded", _embedding_spec, contiguous=True,
                        weight=lambda g, index, weight_spec, padding: embedding_grad(g, index, shape=weight_spec.shape,
                                                                                     padding=padding),
                        doc="Rows of a table, with zeros for the one called padding.")
take = op("take", _take_spec, contiguous=True,
          x=lambda g, index, x_spec, dim: take_grad(g, index, shape=x_spec.shape, dim=dim),
          again=lambda x, index, attrs: take(x, index, **attrs),
          doc="Elements of ``dim`` at integer positions; with ``wrap`` negative ones count from the end.")
take_grad = op("take_grad", _take_grad_spec, contiguous=True,
               dy=lambda g, index, dim: take(g, index, dim=dim),
               doc="Zeros of ``shape`` with dy added at the positions.")


def _take_along_spec(x: TensorSpec, index: TensorSpec, *, dim: int, wrap: bool = True) -> Any:
    take_result(x, index, dim)
    if index.ndim != x.ndim:
        raise SpecError(f"take_along: the index has {index.ndim} dimensions and the tensor {x.ndim}")
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise SpecError(f"take_along: the index {list(index.shape)} is larger than {list(x.shape)} apart from dimension {dim}")
    return TensorSpec.of(index.shape, x.dtype)


def _take_along_grad_spec(dy: TensorSpec, index: TensorSpec, *, shape: tuple[int, ...], dim: int) -> Any:
    groups = groups_of(index.numel, shape[dim], 1, dy.dtype, blocks=False)
    return with_workspace(TensorSpec.of(shape, dy.dtype), groups.nbytes) if groups else TensorSpec.of(shape, dy.dtype)


take_along = op("take_along", _take_along_spec, contiguous=True,
                x=lambda g, index, x_spec, dim: take_along_grad(g, index, shape=x_spec.shape, dim=dim),
                doc="out[.., i, ..] = x[.., index[.., i, ..], ..] along ``dim``; the other sizes are the index's.")
take_along_grad = op("take_along_grad", _take_along_grad_spec, contiguous=True,
                     dy=lambda g, index, dim: take_along(g, index, dim=dim))
