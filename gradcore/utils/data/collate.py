"""Collating samples into a batch, and pinning a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.engine.state import scoped


def default_collate(batch: Sequence[Any]) -> Any:
    """Combine samples into a batch, with a new first dimension.

    Tensors and arrays, also those of PyTorch, are stacked, numbers become a tensor (floats: float64), strings stay a list, and
    mappings, tuples and lists are combined element by element, into their own types, but that tuples become lists. Raises
    TypeError for samples of another type, or of several, RuntimeError for different lengths or shapes.
    """
    with scoped(role="input"):
        return _collate(list(batch))


def _collate(batch: Sequence[Any]) -> Any:
    first = batch[0]
    if isinstance(first, Tensor):
        _check_kind(batch, Tensor)
        _check_shapes(batch)
        return functional.stack(batch)
    if isinstance(first, np.ndarray):
        # As in PyTorch, the others may be what an array can be made of.
        arrays = list(map(np.asarray, batch))
        _check_shapes(arrays)
        return functional.tensor(np.stack(arrays))
    if hasattr(type(first), "__dlpack__"):
        return _collate(list(map(functional.tensor, batch)))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, np.generic):
        return functional.tensor(np.asarray(batch))
    if isinstance(first, (bool, int, float)):
        return functional.tensor(batch, dtype=np.float64 if isinstance(first, float) else None)
    if isinstance(first, Mapping):
        _check_kind(batch, Mapping)
        return _mapping(first, {key: _collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(_collate, _columns(batch)))
    if isinstance(first, Sequence):
        return _sequence(first, list(map(_collate, _columns(batch))))
    raise TypeError("default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
                    f"{type(first)}")


def default_convert(data: Any) -> Any:
    """A sample with its arrays, also PyTorch's tensors, and NumPy numbers as tensors, which share memory where they can; tuples
    become lists.

    Strings, Python's numbers and other objects stay as they are.
    """
    if data.dtype.kind not in "SUO" if isinstance(data, (np.ndarray, np.generic)) else hasattr(type(data), "__dlpack__"):
        return functional.as_tensor(data)
    return _by_parts(default_convert, data)


def _by_parts(convert: Callable[[Any], Any], data: Any) -> Any:
    """A mapping or sequence with its parts converted; anything else as it is."""
    if isinstance(data, Mapping):
        return _mapping(data, {key: convert(part) for key, part in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(convert, data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _sequence(data, list(map(convert, data)))
    return data


def _mapping(like: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """A mapping of the same type, which may have more than its items; a dict if there can be none."""
    if type(like) is dict:
        return parts
    with suppress(TypeError):
        if not isinstance(like, MutableMapping):
            return type(like)(parts)  # type: ignore[call-arg]
        made = copy.copy(like)
        made.update(parts)
        return made
    return parts


def _sequence(like: Sequence[Any], parts: list[Any]) -> Any:
    """A sequence of the same type; a list for a tuple, as in PyTorch, and if there can be none."""
    if isinstance(like, tuple) or type(like) is list:
        return parts
    with suppress(TypeError):
        if not isinstance(like, MutableSequence):
            return type(like)(parts)  # type: ignore[call-arg]
        made = copy.copy(like)
        # Not by a slice, which a deque has not.
        for k, part in enumerate(parts):
            made[k] = part
        return made
    return parts


def pinned(batch: Any) -> Any:
    """A batch with its tensors in pinned memory.

    Objects are copied by their ``pin_memory`` method, if they have one; other mappings and sequences element by element.
    """
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return type(batch)(map(pinned, batch))
    return _by_parts(pinned, batch)


def _check_kind(batch: Sequence[Any], kind: Any) -> None:
    for k, sample in enumerate(batch):
        if not isinstance(sample, kind):
            raise TypeError(f"default_collate: expected {kind.__name__} at entry {k}, as at entry 0, but got "
                            f"{type(sample).__name__}")


def _check_shapes(batch: Sequence[Any]) -> None:
    shapes = [list(sample.shape) for sample in batch]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RuntimeError(f"default_collate: stack expects each sample to be equal size, but got {shapes[0]} at entry 0 "
                               f"and {shape} at entry {k}: pad them, or give the DataLoader a collate_fn that does")


def _columns(batch: Sequence[Any]) -> list[tuple[Any, ...]]:
    _check_kind(batch, Collection)
    lengths = {len(sample) for sample in batch}
    if len(lengths) > 1:
        raise RuntimeError(f"each element in list of batch should be of equal size, but got {sorted(lengths)}")
    return list(zip(*batch, strict=True))
