"""What the kernels of every device share: workspaces, shapes, indices, draws, updates, sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from gradcore.errors import DimError


def split_workspace(workspace: Any, *pieces: tuple[int, Any]) -> list[Any]:
    """One-dimensional arrays of (length, dtype) carved out of a workspace, in order, each 16-byte aligned."""
    arrays, at = [], 0
    for length, dtype in pieces:
        nbytes = length * dtype.itemsize
        arrays.append(workspace[at:at + nbytes].view(dtype))
        at += (nbytes + 15) // 16 * 16
    return arrays


def folded_shape(shape: tuple[int, ...], *dims: int) -> tuple[int, ...]:
    """``shape`` with these dimensions folded to 1."""
    return tuple([1 if d in dims else n for d, n in enumerate(shape)])


def summed(given: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of ``given`` that a sum to ``shape``, which broadcasts to it, goes over."""
    lead = len(given) - len(shape)
    return (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and given[lead + i] != 1))


def basic_view(array: Any, index: tuple[tuple[int, ...], ...]) -> Any:
    """The view of an array for a normalized basic index; see ``ops.movement``."""
    key: list[Any] = []
    for part in index:
        if not part:
            key.append(None)
        elif len(part) == 1:
            key.append(part[0])
        else:
            start, length, step = part
            stop = start + length * step
            key.append(slice(start, stop if stop >= 0 else None, step) if length else slice(0, 0))
    # With an ellipsis the result is an array even if all dimensions are indexed by integers.
    return array[(*key, ...)]


def check_bounds(low: int, high: int, length: int, wrap: bool) -> None:
    """Raise DimError if the smallest or the largest position is out of range."""
    if low < -length * wrap or high >= length:
        raise DimError(f"index {high if high >= length else low} is out of bounds for dimension with size {length}")


def turned(shape: Any, shifts: Any, dims: Any) -> Iterator[tuple[Any, Any]]:
    """The slices that each block of a rolled array is read from and written to."""
    total = [0] * len(shape)
    for n, d in zip(shifts, dims, strict=True):
        total[d] += n
    parts = []
    for n, shift in zip(shape, total, strict=True):
        at = shift % n if n else 0
        parts.append([(slice(0, n - at), slice(at, n)), (slice(n - at, n), slice(0, at))] if at else [(slice(0, n),) * 2])
    for block in itertools.product(*parts):
        yield tuple(b[0] for b in block), tuple(b[1] for b in block)


def blocks_drawn(numel: int) -> int:
    """By how much drawing so many numbers moves a generator's counter."""
    # A block gives at least four doubles; one more block covers the odd number that Box-Muller needs.
    return numel // 4 + 2


def dropout_factor(p: float) -> float:
    """The factor of what dropout keeps."""
    return 0.0 if p >= 1 else 1.0 / (1.0 - p)


def drawn_into(advance: Callable[..., Any], draw: Callable[..., Any], room: bool = False) -> Callable[..., Any]:
    """A kernel that draws into a tensor from the present state, which it copies to the workspace and moves on. With ``room``
    the drawing takes the rest of the workspace."""
    def run(x: Any, state: Any, first: Any, second: Any, workspace: Any) -> None:
        now = workspace[:state.nbytes].view(state.dtype)
        advance(state, now, numel=x.size)
        draw(now, first, second, x, *[workspace[state.nbytes:]] * room, shape=x.shape, dtype=x.dtype)

    return run


def decays(rate: float, weight_decay: float, decoupled: bool) -> tuple[float, float]:
    """What of a parameter an update adds to its gradient, and the factor of the parameter if the decay is decoupled."""
    return (0.0, 1 - rate * weight_decay) if decoupled else (weight_decay, 1.0)


def steps(length: int, backwards: bool) -> range:
    """The positions of a sequence in the order of the steps."""
    return range(length - 1, -1, -1) if backwards else range(length)


def before(t: int, states: Any, first: Any, backwards: bool) -> Any:
    """The state before step ``t``."""
    k = t + 1 if backwards else t - 1
    return states[k] if 0 <= k < len(states) else first
