"""Collating samples into a batch, and pinning a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.engine.state import scoped

#: Functions by the type of the samples that they combine, or by several types.
CollateMap = dict[Any, Callable[..., Any]]


def default_collate(batch: Sequence[Any]) -> Any:
    """Combine samples into a batch, with a new first dimension.

    Tensors and arrays, also those of PyTorch, are stacked, numbers become a tensor (floats: float64), strings stay a list, and
    mappings, tuples and lists are combined element by element, into their own types, but that tuples become lists. Raises
    TypeError for samples of another type, or of several, RuntimeError for different lengths or shapes.
    """
    with scoped(role="input"):
        return collate(list(batch), collate_fn_map=default_collate_fn_map)


def collate(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Combine samples by the function that a map has for their type, or for one that they are instances of.

    Mappings, tuples and lists for which there is none are combined element by element. The function is called with the samples
    and with the map, by its name. Raises TypeError for samples of another type.
    """
    first = batch[0]
    if collate_fn_map is not None:
        if (found := _function_for(first, collate_fn_map)) is not None:
            return found(batch, collate_fn_map=collate_fn_map)
        if hasattr(type(first), "__dlpack__"):
            return collate(list(map(functional.tensor, batch)), collate_fn_map=collate_fn_map)
    parts = partial(collate, collate_fn_map=collate_fn_map)
    if isinstance(first, Mapping):
        _check_kind(batch, Mapping)
        return _mapping(first, {key: parts([sample[key] for sample in batch]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(parts, _columns(batch)))
    if isinstance(first, Sequence):
        return _sequence(first, list(map(parts, _columns(batch))))
    raise TypeError(default_collate_err_msg_format.format(type(first)))


def _function_for(sample: Any, functions: CollateMap) -> Callable[..., Any] | None:
    return functions.get(type(sample)) or next(
        (function for kind, function in functions.items() if isinstance(sample, kind)), None)


def stacks(tensors: Sequence[Tensor]) -> bool:
    """Does :func:`default_collate` stack each of these tensors of tuples? A program may have changed what it does."""
    return _function_for((), default_collate_fn_map) is None and all(
        _function_for(t, default_collate_fn_map) is collate_tensor_fn for t in tensors)


default_collate_err_msg_format = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def collate_tensor_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Tensors of one shape, stacked."""
    _check_kind(batch, Tensor)
    _check_shapes(batch)
    return functional.stack(batch)


def collate_numpy_array_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Arrays of one shape, stacked. As in PyTorch, all but the first may be what an array can be made of."""
    arrays = list(map(np.asarray, batch))
    _check_shapes(arrays)
    return functional.tensor(np.stack(arrays))


def collate_numpy_scalar_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """NumPy's numbers as a tensor of their dtype."""
    return functional.tensor(np.asarray(batch))


def collate_float_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Python's floats as a tensor of float64."""
    return functional.tensor(batch, dtype=np.float64)


def collate_int_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Python's integers or bools as a tensor."""
    return functional.tensor(batch)


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Strings as they are."""
    return batch


#: What :func:`default_collate` combines samples with, by type. As in PyTorch, a program may add types of its own.
default_collate_fn_map: CollateMap = {
    Tensor: collate_tensor_fn, np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate_numpy_scalar_fn, float: collate_float_fn, int: collate_int_fn,
    str: collate_str_fn, bytes: collate_str_fn}


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
