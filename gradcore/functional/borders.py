"""Borders around tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.errors import SpecError
from gradcore.functional import full
from gradcore.ops import creation, movement

__all__ = ["pad"]

Tensor = Any


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Borders of ``value`` (0): pairs of sizes before and after, from the last dimension on; a negative one cuts off.

    Raises NotImplementedError for another mode than "constant".
    """
    if mode != "constant":
        raise NotImplementedError(f"pad(mode={mode!r}) is not supported: only 'constant'")
    ndim = input.spec.ndim
    if len(pad) % 2 or len(pad) > 2 * ndim:
        raise SpecError(f"Padding length must be even and at most twice the number of dimensions of the input, but got "
                        f"{list(pad)} for {ndim} dimensions")
    sides = [(0, 0)] * (ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    inner, outer, shape = [], [], []
    for n, (before, after) in zip(input.spec.shape, sides, strict=True):
        size = n + before + after
        if size < 0:
            raise SpecError(f"The input size {n}, plus negative padding {before} and {after}, resulted in a negative output "
                            f"size of {size}")
        left = max(n - max(-before, 0) - max(-after, 0), 0)
        inner.append((max(-before, 0), left, 1))
        outer.append((max(before, 0), left, 1))
        shape.append(size)
    if any(before < 0 or after < 0 for before, after in sides):
        input = movement.slice(input, index=tuple(inner))
    if tuple(shape) == input.spec.shape:
        return movement.clone(input)
    out = movement.slice_grad(input, shape=tuple(shape), index=tuple(outer))
    if not value:
        return out
    border = full(tuple(shape), value, dtype=out.spec.dtype, device=out.storage.device)
    creation.fill_(movement.slice(border, index=tuple(outer)), 0)
    return out + border
