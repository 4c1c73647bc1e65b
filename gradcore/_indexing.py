"""``x[index]`` and ``x[index] = value``: basic indices are views, integer tensors gather and scatter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.device import Device
from gradcore.engine.node import Value
from gradcore.engine.owners import upload
from gradcore.errors import DimError, SpecError
from gradcore.ops import creation, elementwise, movement
from gradcore.spec import TensorSpec


def read(x: Any, index: Any) -> Any:
    """A view for slices, integers, None and Ellipsis; a copy as soon as one index is an integer tensor."""
    basic, tensors = _parse(x, index)
    if basic != _whole(x.spec):
        x = movement.slice(x, index=basic)
    elif not tensors:
        return movement.view(x, shape=x.spec.shape)
    if not tensors:
        return x
    x, position, dim = _one_index(x, tensors)
    return movement.take(x, position, dim=dim)


def write(x: Any, index: Any, value: Any) -> None:
    """Write into the part that ``index`` shows; the value broadcasts to it."""
    basic, tensors = _parse(x, index)
    part = movement.slice(x, index=basic) if basic != _whole(x.spec) else x
    if not tensors:
        if isinstance(value, Value):
            movement.copy_(part, value)
        else:
            creation.fill_(part, value) if not isinstance(value, (np.ndarray, list, tuple)) else movement.copy_(
                part, upload(np.asarray(value, x.spec.dtype), x.storage.device))
        return
    if not isinstance(value, Value):
        value = upload(np.asarray(value, x.spec.dtype), x.storage.device)
    if len(tensors) > 1:
        if not part.spec.contiguous:
            raise SpecError("writing through several integer tensors needs a contiguous tensor; clone() it first")
        part, position, dim = _one_index(part, tensors)
        movement.put_(part, position, value, dim=dim)
        return
    (dim, position), = tensors
    movement.put_(part, position, movement.cast_to(value, part.spec), dim=dim)


def _whole(spec: TensorSpec) -> movement.Basic:
    return tuple((0, n, 1) for n in spec.shape)


def _parse(x: Any, index: Any) -> tuple[movement.Basic, list[tuple[int, Any]]]:
    """The basic part, and the integer tensors with the dimensions (after the basic part) that they index."""
    items = list(index) if isinstance(index, tuple) else [index]
    given = sum(1 for i in items if i is not None and i is not Ellipsis)
    ellipses = sum(1 for i in items if i is Ellipsis)
    if ellipses > 1:
        raise DimError("an index can only have a single ellipsis ('...')")
    if given > x.spec.ndim:
        raise DimError(f"too many indices for tensor of dimension {x.spec.ndim}: got {given}")
    if not ellipses:
        items.append(Ellipsis)
    basic: list[tuple[int, ...]] = []
    tensors: list[tuple[int, Any]] = []
    d = out = 0
    for item in items:
        if item is Ellipsis:
            for n in x.spec.shape[d:d + x.spec.ndim - given]:
                basic.append((0, n, 1))
                out += 1
            d += x.spec.ndim - given
            continue
        if item is None:
            basic.append(())
            out += 1
            continue
        n = x.spec.shape[d]
        if isinstance(item, slice):
            start, stop, step = item.indices(n)
            if step < 0:
                raise SpecError("step must be greater than zero: flip() a dimension instead")
            basic.append((start, max(math.ceil((stop - start) / step), 0), step))
            out += 1
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            if not -n <= item < n:
                raise DimError(f"index {item} is out of bounds for dimension {d} with size {n}")
            basic.append((int(item) % n,))
        else:
            tensors.append((out, _index_tensor(item, x.storage.device)))
            basic.append((0, n, 1))
            out += 1
        d += 1
    return tuple(basic), tensors


def _index_tensor(item: Any, device: Device) -> Any:
    if isinstance(item, Value):
        if item.spec.dtype.kind == "b":
            raise NotImplementedError("boolean indices give shapes that depend on data: use where() or masked_fill()")
        if item.spec.dtype.kind not in "iu":
            raise DimError(f"tensors used as indices must be integers, but got {item.spec.dtype.name}")
        return item
    if isinstance(item, bool):
        raise NotImplementedError("boolean indices are not supported: use where()")
    array = np.asarray(item)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"an index must be an int, a slice, None, Ellipsis or integers, but got {type(item).__name__} "
                        f"{item!r}")
    return upload(array.astype(np.int64), device)


def _one_index(x: Any, tensors: list[tuple[int, Any]]) -> tuple[Any, Any, int]:
    """Several index tensors as one: adjacent dimensions are merged, others brought to the front first (NumPy's rule)."""
    dims = [d for d, _ in tensors]
    if len(tensors) == 1:
        return x, tensors[0][1], dims[0]
    first = dims[0]
    if dims != list(range(first, first + len(dims))):
        rest = [d for d in range(x.spec.ndim) if d not in dims]
        x = movement.permute(x, dims=(*dims, *rest))
        first = 0
    sizes = x.spec.shape[first:first + len(dims)]
    position: Any = None
    for (_, index), n in zip(tensors, sizes, strict=True):
        # Counted from the front, so that merging the dimensions keeps its meaning.
        counted = elementwise.where(elementwise.lt(index, 0), index + n, index)
        position = counted if position is None else position * n + counted
    shape = (*x.spec.shape[:first], math.prod(sizes), *x.spec.shape[first + len(dims):])
    return movement.reshape(x, shape), position, first
