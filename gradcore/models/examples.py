"""The arrays of a training batch, as a model's example makes them, or stand-ins of the same shapes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Example = Callable[[int], tuple[Array, Array]]
Shapes = tuple[tuple[int, ...], tuple[int, ...]]

#: Batches of up to this many samples are made even if only their shapes are wanted.
MADE = 64
#: The batch sizes whose shapes are extrapolated to larger ones.
_SMALL = (1, 2, 3)


def as_array(given: Any) -> Array:
    """An array or a tensor as an array; for a meta tensor, zeros of its shape."""
    if not hasattr(given, "detach"):
        try:
            made = np.asarray(given)
        except ValueError as error:
            raise _several(given) from error
        if made.dtype == object or (isinstance(given, tuple) and any(hasattr(part, "shape") for part in given)):
            raise _several(given)
        return made
    if given.device == "meta":
        return _stand_in(given.shape, given.dtype)
    # A copy, since a view would keep the tensor's storage alive beside that of the batch.
    return np.array(given.detach().cpu().numpy())


def _several(given: Any) -> TypeError:
    """The error for a value that is more than one array."""
    return TypeError(f"x and y must be one array or tensor each, but one is a {type(given).__name__} of "
                     f"{', '.join(type(part).__name__ for part in (given.values() if isinstance(given, dict) else given))}: "
                     "pass one array, and split it in the loss function; y may also be an input")


def batch(example: Example, name: str, batch_size: int, shapes_only: bool, any_size: bool = True) -> tuple[Array, Array]:
    """x and y of a batch of ``batch_size``, as ``example`` makes them.

    With ``shapes_only``, the values are arbitrary, and a batch of more than 64 samples is not made, since it might not fit in
    memory: each dimension is extrapolated linearly from batches of 1, 2 and 3 samples. Raises ValueError if the dimensions are
    not linear in the batch size, and for a batch smaller than that, such as a slice of too small a data set. ``any_size`` is
    False for an example that has only this batch.
    """
    if not any_size:
        return _made(example, name, batch_size)
    if shapes_only and batch_size > MADE:
        small = {n: _made(example, name, n) for n in (*_SMALL, MADE)}
        dtypes = [a.dtype for a in small[1]]
        expected = _carried_on({n: _shapes(arrays) for n, arrays in small.items()}, name, batch_size)
        x, y = (_stand_in(shape, dtype) for shape, dtype in zip(expected, dtypes, strict=True))
        return x, y
    made = _made(example, name, batch_size)
    try:
        expected = _carried_on({n: _shapes(_made(example, name, n)) for n in _SMALL}, name, batch_size)
    except Exception:
        # An example that cannot make such small batches, or is not linear, is trusted for this one.
        return made
    for shape, given in zip(expected, _shapes(made), strict=True):
        if len(shape) == len(given) and any(a < b for a, b in zip(given, shape, strict=True)):
            raise ValueError(f"{name} returned x and y of shapes {_listed(_shapes(made))} for a batch of {batch_size}, but "
                             f"expected {_listed(expected)} after its batches of 1, 2 and 3. Does it have too few samples?")
    return made


def _made(example: Example, name: str, batch_size: int) -> tuple[Array, Array]:
    given = example(batch_size)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"{name}: the function of the batch size must return (x, y), but returned {type(given).__name__}"
                        + (f" of {len(given)}" if isinstance(given, (tuple, list)) else ""))
    x, y = map(as_array, given)
    return x, y


def _carried_on(small: dict[int, Shapes], name: str, batch_size: int) -> Shapes:
    """The shapes of a batch of ``batch_size``, extrapolated linearly from those of 1, 2 and 3 samples."""
    found = []
    for which in (0, 1):
        shapes = {n: both[which] for n, both in small.items()}
        first, second = shapes[1], shapes[2]
        line = lambda n, a=first, b=second: tuple(p + (q - p) * (n - 1) for p, q in zip(a, b, strict=False))
        if any(shape != line(n) for n, shape in shapes.items()) or any(a > b for a, b in zip(first, second, strict=False)):
            *others, last = shapes
            raise ValueError(f"{name} returned {'xy'[which]} of shapes {', '.join(str(list(s)) for s in shapes.values())} for "
                             f"batches of {', '.join(map(str, others))} and {last}: to predict the shapes of a batch of "
                             f"{batch_size}, each dimension must be linear in the number of samples")
        found.append(line(batch_size))
    return found[0], found[1]


def _shapes(arrays: tuple[Array, Array]) -> Shapes:
    return arrays[0].shape, arrays[1].shape


def _listed(shapes: Shapes) -> str:
    return f"{list(shapes[0])} and {list(shapes[1])}"


def _stand_in(shape: Any, dtype: Any) -> Array:
    """An array of any size that takes no memory, by broadcasting."""
    if math.prod(shape) * np.dtype(dtype).itemsize > sys.maxsize:
        raise ValueError(f"a batch with an array of shape {list(shape)} is too large, with more bytes than 64 bits can count")
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))
