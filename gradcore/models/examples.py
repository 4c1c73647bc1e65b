"""The batch that a model's example makes, as arrays, or as stand-ins of the same shapes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from gradcore import trees

Array = np.ndarray[Any, Any]
#: Arguments: a tuple, or a dict by name. Each is an array, a list, tuple or dict of them, or any other value.
Batch = tuple[Any, ...] | dict[str, Any]
Example = Callable[[int], Any]

#: Batches of up to this many samples are made even if only their shapes are wanted.
MADE = 64
#: The batch sizes whose shapes are extrapolated to larger ones.
_SMALL = (1, 2, 3)


def as_batch(given: Any, name: str) -> Batch:
    """What a model gave as its batch, with arrays for tensors and for lists of numbers. One array is one argument.

    Raises TypeError for what is no batch.
    """
    if isinstance(given, dict) and all(isinstance(k, str) for k in given):
        return {k: _arrays(v, f"batch[{k!r}]", name) for k, v in given.items()}
    if isinstance(given, (tuple, list)):
        return tuple(_arrays(v, f"batch[{k}]", name) for k, v in enumerate(given))
    if hasattr(given, "shape"):
        return _arrays(given, "batch", name),
    raise TypeError(f"{name}: the batch must be a tuple, a dict with names as keys, or an array, but is {type(given).__name__}")


def _arrays(given: Any, where: str, name: str) -> Any:
    if hasattr(given, "detach"):
        if given.device == "meta":
            return _stand_in(given.shape, given.dtype)
        # A copy, since a view would keep the tensor's storage alive beside that of the batch.
        return np.array(given.detach().cpu().numpy())
    if isinstance(given, dict):
        return {k: _arrays(v, f"{where}[{k!r}]", name) for k, v in given.items()}
    several = isinstance(given, (list, tuple))
    if several and not all(isinstance(leaf, (bool, int, float)) for leaf in trees.leaves(given)):
        place = count()
        return trees.mapped(given, lambda v: _arrays(v, f"{where}[{next(place)}]", name))
    if not several and not hasattr(given, "shape"):
        return given
    try:
        made = np.asarray(given)
    except ValueError as error:
        raise TypeError(f"{name}: {where} has lists of different lengths, which are no array: {error}") from error
    if made.dtype == object:
        raise TypeError(f"{name}: {where} is an array of objects: expected one of numbers")
    return made


def parts(tree: Any, where: str = "batch") -> Iterator[tuple[str, Any]]:
    """All that is no list, tuple or dict, with the words that name it, such as ``batch[1]['boxes']``."""
    if isinstance(tree, (list, tuple, dict)):
        for k, v in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from parts(v, f"{where}[{k!r}]")
    else:
        yield where, tree


def batch(example: Example, name: str, batch_size: int, shapes_only: bool, any_size: bool = True) -> Batch:
    """A batch of ``batch_size`` samples, as ``example`` makes it.

    With ``shapes_only``, the values are arbitrary, and a batch of more than 64 samples is not made, since it might not fit in
    memory: dimensions and ints are extrapolated linearly from batches of 1, 2 and 3 samples. Only one whose structure changes
    with the number of samples, such as a list of arrays for each, is. Raises ValueError if the dimensions are not linear in the
    batch size, and for a batch smaller than that, such as a slice of too small a data set. ``any_size`` is False for an example
    that has only this batch.
    """
    if not any_size:
        return as_batch(example(batch_size), name)
    if shapes_only and batch_size > MADE:
        carried = _carried_on({n: as_batch(example(n), name) for n in (*_SMALL, MADE)}, name, batch_size)
        return as_batch(example(batch_size), name) if carried is None else carried
    made = as_batch(example(batch_size), name)
    try:
        expected = _carried_on({n: as_batch(example(n), name) for n in _SMALL}, name, batch_size)
    except Exception:
        # An example that cannot make such small batches, or is not linear, is trusted for this one.
        return made
    if expected is not None and _outline(expected) == _outline(made):
        for (where, wanted), (_, given) in zip(parts(expected), parts(made), strict=True):
            if isinstance(given, np.ndarray) and any(a < b for a, b in zip(given.shape, wanted.shape, strict=False)):
                raise ValueError(f"{name} returned {where} of shape {list(given.shape)} for a batch of {batch_size}, but "
                                 f"expected {list(wanted.shape)} after those of 1, 2 and 3. Does it have too few samples?")
    return made


def _outline(tree: Any) -> list[tuple[str, type]]:
    return [(where, type(part)) for where, part in parts(tree)]


def _carried_on(small: dict[int, Batch], name: str, batch_size: int) -> Batch | None:
    """A batch of ``batch_size``, extrapolated linearly from smaller ones; None if their structures differ."""
    first, *others = small.values()
    if any(_outline(other) != _outline(first) for other in others):
        return None
    carried: list[Any] = []
    for made in zip(*map(parts, small.values()), strict=True):
        where, values = made[0][0], [value for _, value in made]
        if isinstance(values[0], np.ndarray):
            shape = _line({n: a.shape for n, a in zip(small, values, strict=True)}, f"{where} of shapes", name, batch_size)
            carried.append(_stand_in(shape, values[0].dtype))
        else:
            carried += _line({n: (v,) for n, v in zip(small, values, strict=True)}, f"{where} as", name, batch_size)
    return trees.filled(first, carried)


def _line(small: dict[int, tuple[Any, ...]], what: str, name: str, batch_size: int) -> tuple[Any, ...]:
    """The tuple of ``batch_size``, where ints grow linearly from those of smaller ones, and other values are the same."""
    first, second = small[1], small[2]

    def at(n: int) -> tuple[Any, ...]:
        return tuple(p + (q - p) * (n - 1) if type(p) is type(q) is int and p <= q else p
                     for p, q in zip(first, second, strict=False))

    if any(found != at(n) for n, found in small.items()):
        *sizes, last = small
        raise ValueError(f"{name} returned {what} {', '.join(str(list(found)) for found in small.values())} for batches of "
                         f"{', '.join(map(str, sizes))} and {last}: to predict the shapes of a batch of {batch_size}, each "
                         "dimension must be linear in the number of samples")
    return at(batch_size)


def _stand_in(shape: Any, dtype: Any) -> Array:
    """An array of any size that takes no memory, by broadcasting."""
    if math.prod(shape) * np.dtype(dtype).itemsize > sys.maxsize:
        raise ValueError(f"a batch with an array of shape {list(shape)} is too large, with more bytes than 64 bits can count")
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))
