"""``x[index]`` and ``x[index] = value``: basic indices give views; integer tensors and masks gather and scatter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.device import Device, get_device
from gradcore.devices.kernels import check_bounds
from gradcore.engine.dlpack import gpu_of
from gradcore.engine.owners import made_of_numbers, upload
from gradcore.engine.sites import need_values
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional.creation import over_gpu
from gradcore.ops import creation, in_place, movement, placing, pointwise
from gradcore.spec import TensorSpec


def read(x: Any, index: Any) -> Any:
    """``x[index]``: a view for slices, integers, None and Ellipsis; a copy if any index is a tensor, list or mask."""
    basic, tensors = _parse(x, index)
    if basic != _whole(x.spec):
        x = movement.slice(x, index=basic)
    elif not tensors:
        return movement.view(x, shape=x.spec.shape)
    if not tensors:
        return x
    x, position, dim, count = _one_index(x, tensors)
    return movement.take(_merged(x, dim, count), position, dim=dim)


def _without_ones(value: Any, ndim: int) -> Any:
    """A value without leading dimensions of 1 beyond ``ndim``."""
    extra = value.spec.ndim - ndim
    if extra <= 0 or set(value.spec.shape[:extra]) != {1}:
        return value
    return movement.reshape(value, value.spec.shape[extra:])


def write(x: Any, index: Any, value: Any, accumulate: bool = False) -> None:
    """``x[index] = value``, or ``+=`` with ``accumulate``; the value broadcasts to the indexed part.

    A number written through a single mask needs no positions, so nothing is read on the host.
    """
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if _is_mask(index) and index.spec.shape == x.spec.shape[:index.spec.ndim] and not accumulate and not (
            isinstance(value, Value) and value.spec.ndim) and not isinstance(value, (np.ndarray, list, tuple)):
        given = movement.cast_to(value, x.spec) if isinstance(value, Value) else value
        mask = index if x.storage.device.type == "cpu" else index.to(x.storage.device)
        mask = movement.reshape(mask, (*index.spec.shape, *(1,) * (x.spec.ndim - index.spec.ndim)))
        pointwise.masked_fill_(x, mask, given)
        return
    basic, tensors = _parse(x, index)
    part = movement.slice(x, index=basic) if basic != _whole(x.spec) else x
    if not tensors:
        if accumulate:
            in_place.add_(part, value)
        elif isinstance(value, Value):
            part.copy_(_without_ones(value, part.spec.ndim))
        elif isinstance(value, (np.ndarray, list, tuple)):
            movement.copy_(part, _uploaded(value, x))
        else:
            creation.fill_(part, value)
        return
    value = movement.cast_to(value if isinstance(value, Value) else _uploaded(value, x), part.spec)
    part, position, dim, count = _one_index(part, tensors)
    merged = _merged(part, dim, count)
    value = _without_ones(value, merged.spec.ndim - 1 + position.spec.ndim)
    (placing.add_at_ if accumulate else placing.put_)(merged, position, value, dim=dim)
    if merged.storage is not part.storage:
        movement.copy_(part, movement.reshape(merged, part.spec.shape))


def _uploaded(values: Any, like: Any) -> Any:
    return upload(np.asarray(values, like.spec.dtype), like.storage.device, numbers=made_of_numbers(values))


def _is_mask(item: Any) -> bool:
    return isinstance(item, Value) and item.spec.dtype.kind == "b"


def _whole(spec: TensorSpec) -> movement.Basic:
    return tuple((0, n, 1) for n in spec.shape)


#: A dimension of the basic part's result; a tensor of positions; and the number of dimensions, from that on, that these
#: positions index as one.
Indexed = tuple[int, Any, int]


def _parse(x: Any, index: Any) -> tuple[movement.Basic, list[Indexed]]:
    """The basic part of an index, and its integer tensors with the dimensions that they index. Raises :class:`DimError`."""
    index = tuple(index) if isinstance(index, list) and any(map(_is_basic, index)) else index
    items = [_item(i) for i in (index if isinstance(index, tuple) else [index])]
    given = sum(i.ndim if isinstance(i, _Mask) else i is not None and i is not Ellipsis for i in items)
    ellipses = sum(1 for i in items if i is Ellipsis)
    if ellipses > 1:
        raise DimError("an index can only have a single ellipsis ('...')")
    if given > x.spec.ndim:
        raise DimError(f"too many indices for tensor of dimension {x.spec.ndim}: got {given}")
    if not ellipses:
        items.append(Ellipsis)
    basic: list[tuple[int, ...]] = []
    tensors: list[Indexed] = []
    alone = sum(map(_is_advanced, items)) == 1
    # The next dimension of x, and the next one of the basic part's result.
    d = out = 0
    for item in items:
        if item is Ellipsis:
            rest = x.spec.shape[d:d + x.spec.ndim - given]
            basic += [(0, n, 1) for n in rest]
            d += len(rest)
            out += len(rest)
        elif item is None:
            basic.append(())
            out += 1
        elif isinstance(item, _Mask):
            tensors += item.indexed(x, d, out, alone)
            # A mask without dimensions adds a dimension, of one element or none.
            basic += [(0, n, 1) for n in item.shape] or [()]
            d += item.ndim
            out += max(item.ndim, 1)
        else:
            n = x.spec.shape[d]
            if isinstance(item, slice):
                start, stop, step = item.indices(n)
                if step < 0:
                    raise SpecError("step must be greater than zero: use flip() to reverse a dimension")
                basic.append((start, max(math.ceil((stop - start) / step), 0), step))
                out += 1
            elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
                if not -n <= item < n:
                    raise DimError(f"index {item} is out of bounds for dimension {d} with size {n}")
                basic.append((int(item) % n,))
            else:
                tensors.append((out, _index_tensor(item, n, x.storage.device), 1))
                basic.append((0, n, 1))
                out += 1
            d += 1
    return tuple(basic), tensors


class _Mask:
    """A boolean index, whose values are read on the host since the shape of the result depends on them."""

    def __init__(self, values: np.ndarray[Any, Any], plain: bool = False) -> None:
        self.values, self._plain = values, plain
        self.shape, self.ndim = values.shape, values.ndim

    def indexed(self, x: Any, d: int, out: int, alone: bool) -> list[Indexed]:
        """The positions of True, for dimensions of ``x`` from ``d`` on, which are those from ``out`` on in the basic part."""
        if self.shape != x.spec.shape[d:d + self.ndim]:
            raise DimError(f"The shape of the mask {list(self.shape)} at index {d} does not match the shape of the indexed "
                           f"tensor {list(x.spec.shape)}")
        if not self.ndim:
            return [(out, self._upload(np.zeros(np.count_nonzero(self.values), np.int64), x), 1)]
        if alone:
            # It is the only tensor in the index, so that its dimensions can be indexed as one.
            return [(out, self._upload(np.flatnonzero(self.values), x), self.ndim)]
        return [(out + k, self._upload(places, x), 1) for k, places in enumerate(np.nonzero(self.values))]

    def _upload(self, places: np.ndarray[Any, Any], x: Any) -> Any:
        return upload(places, x.storage.device, numbers=self._plain)


def _item(item: Any) -> Any:
    """An index, with masks as :class:`_Mask`. Raises :class:`DataDependentShape` for a mask on meta."""
    if item is None or item is Ellipsis or (isinstance(item, (slice, int, np.integer)) and not isinstance(item, bool)):
        return item
    if not isinstance(item, Value) and (number := gpu_of(item)) is not None:
        item, _ = over_gpu(item, get_device(f"cuda:{number}"))
    if _is_mask(item):
        need_values("a boolean index", item.storage.device, instead="use where()")
        return _Mask(item.storage.device.read(item.storage, item.spec))
    if not isinstance(item, Value):
        array = np.asarray(item)
        if array.dtype.kind == "b":
            return _Mask(array, made_of_numbers(item))
    return item


def _is_basic(item: Any) -> bool:
    """Does a list with this item mean a tuple of indices? As in PyTorch now, lists of lists or tensors are stacked instead."""
    return item is None or item is Ellipsis or isinstance(item, slice)


def _is_advanced(item: Any) -> bool:
    """Is it a mask, a list or a tensor?"""
    return not (item is None or item is Ellipsis or isinstance(item, (slice, int, np.integer)))


def _index_tensor(item: Any, length: int, device: Device) -> Any:
    """Positions in a dimension as a tensor. Those from the host are checked here, since GPU kernels do not check them.

    As in PyTorch, a tensor of positions may be on the CPU wherever the indexed one is.
    """
    if isinstance(item, Value):
        home = item.storage.device
        if item.spec.dtype.kind not in "iu":
            raise DimError(f"tensors used as indices must be integers or bools, but got {item.spec.dtype.name}")
        if home.type != "cpu" or device.type == "cpu":
            return item
        item = home.read(item.storage, item.spec)
    array = np.asarray(item)
    if array.dtype.kind not in "iu" and array.size:
        kind = TypeError if isinstance(item, (str, bytes, list, tuple, np.ndarray)) else DimError
        raise kind(f"an index must be an int, a slice, None, Ellipsis, integers or bools, but got {type(item).__name__} "
                   f"{item!r}")
    if array.size:
        check_bounds(int(array.min()), int(array.max()), length, True)
    return upload(array.astype(np.int64), device, numbers=made_of_numbers(item))


def _one_index(x: Any, tensors: list[Indexed]) -> tuple[Any, Any, int, int]:
    """Combines index tensors into one: a view of ``x`` with the indexed dimensions adjacent, positions in these as one
    dimension, the first of them, and their number.

    Dimensions that are not adjacent are moved to the front, as in NumPy, except that 0-d tensors do not count, as in PyTorch.
    """
    if len(tensors) == 1:
        dim, position, count = tensors[0]
        return x, position, dim, count
    dims = [d for d, _, _ in tensors]
    # A 0-d tensor counts as an integer, which does not affect where the dimensions go.
    wide = [d for d, index, _ in tensors if index.spec.ndim]
    rest = [d for d in range(x.spec.ndim) if d not in dims]
    apart = not wide or any(wide[0] < d < wide[-1] for d in rest)
    first = 0 if apart else sum(d < wide[0] for d in rest)
    order = (*rest[:first], *dims, *rest[first:])
    if order != tuple(range(x.spec.ndim)):
        x = movement.permute(x, dims=order)
    position = None
    for k, (_, index, _) in enumerate(tensors):
        n = x.spec.shape[first + k]
        # Taking from the positions of the dimension checks the index and makes negative ones positive.
        places = creation.arange(0, 1, length=n, dtype=np.dtype(np.int64), device=x.storage.device)
        counted = movement.take(places, index, dim=0)
        try:
            position = counted if position is None else position * n + counted
        except SpecError:
            shapes = ", ".join(str(list(index.spec.shape)) for _, index, _ in tensors)
            raise DimError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}") from None
    return x, position, first, len(tensors)


def _merged(x: Any, first: int, count: int) -> Any:
    """``x`` with ``count`` dimensions from ``first`` on merged into one; a view if the layout allows it."""
    if count == 1:
        return x
    shape = x.spec.shape
    return movement.reshape(x, (*shape[:first], math.prod(shape[first:first + count]), *shape[first + count:]))
