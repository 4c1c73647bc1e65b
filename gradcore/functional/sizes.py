"""Sizes of windows, and the dimensions of what they move over: sequences, images and volumes, with a batch or without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from gradcore.errors import SpecError
from gradcore.functional.shape import plain, unsqueeze

Tensor = Any
Size = int | Sequence[int]


def _parts(value: Any) -> tuple[Any, ...]:
    value = plain(value)
    return tuple(map(plain, value)) if isinstance(value, Iterable) else (value,)


def sizes(name: str, value: Size, dims: int) -> Any:
    """An int for each of one to three dimensions, from one int or as many ints. Raises :class:`SpecError` for anything else."""
    if isinstance(value, int):
        return (value,) * dims
    parts = _parts(value)
    parts = parts * dims if len(parts) == 1 else parts
    if len(parts) != dims or not all(isinstance(n, int) for n in parts):
        expected = ("one int", "an int or a pair of ints", "an int or three ints")[dims - 1]
        raise SpecError(f"{name} must be {expected}, but got {value!r}")
    return parts


def sizes_kept(name: str, output_size: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """An output size for each dimension of ``shape``; None keeps one. Raises :class:`SpecError` for another number of sizes."""
    given = plain(output_size)
    wanted = _parts(output_size) if isinstance(given, Iterable) else (given,) * len(shape)
    if len(wanted) != len(shape) or not all(m is None or isinstance(m, int) for m in wanted):
        raise SpecError(f"{name}: output_size must be an int or {len(shape)} of them, but got {output_size!r}")
    return tuple(n if m is None else m for n, m in zip(shape, wanted, strict=True))


pair, triple = partial(sizes, dims=2), partial(sizes, dims=3)


def single(name: str, value: Size) -> int:
    """The only int of one dimension. Raises :class:`SpecError` for anything else."""
    parts = _parts(value)
    if len(parts) != 1 or not isinstance(parts[0], int):
        raise SpecError(f"{name} must be an int or one int in a tuple, but got {value!r}")
    return parts[0]


def need_batches(name: str, x: Tensor, dims: int) -> bool:
    """Whether N is missing of [N, C, ...] with ``dims`` spatial dimensions. Raises :class:`SpecError` for another number."""
    if x.spec.ndim not in (dims + 1, dims + 2):
        raise SpecError(f"Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input to {name}, but got input of size: "
                        f"{list(x.spec.shape)}")
    return bool(x.spec.ndim == dims + 1)


def batched(name: str, x: Tensor, dims: int = 2) -> tuple[Tensor, bool]:
    """The input as [N, C, ...], and whether N was missing and is 1."""
    lone = need_batches(name, x, dims)
    return unsqueeze(x, 0) if lone else x, lone


def flat(name: str, x: Tensor) -> Tensor:
    """[N, C, L] as [N, C, 1, L], or [C, L] as [C, 1, L]."""
    need_batches(name, x, 1)
    return unsqueeze(x, -2)
