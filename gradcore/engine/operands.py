"""Checks and conversion of operands, tensors and Python numbers or lists of them, all on one device, and of attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gradcore.devices.device import Device
from gradcore.dtypes import is_floating
from gradcore.engine.value import PLAIN, Value
from gradcore.errors import DeviceError
from gradcore.ops.movement import clone
from gradcore.ops.op import Op
from gradcore.sharing import same_places, share_elements

#: The tensor class of the floor above, and its subclasses that have been met.
TENSORS: set[type] = set()


def flatten(op: Op, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The operands with lists spliced in, and how many each argument became. Raises TypeError where a list is missing."""
    flat: list[Any] = []
    counts: list[int] = []
    for k, a in enumerate(args):
        if k in op.lists:
            if not isinstance(a, (list, tuple)):
                raise TypeError(f"{op.name}() expects a list of tensors as {op.inputs[k]!r}, but got {type(a).__name__}")
            flat.extend(a)
            counts.append(len(a))
        else:
            flat.append(a)
            counts.append(1)
    return tuple(flat), tuple(counts)


_transfer: Any = None


def install_transfer(transfer: Callable[[Any, Device], Any]) -> None:
    """Tell the engine the function of the floor above that copies a tensor to a device, through which gradients go back."""
    global _transfer
    _transfer = transfer


def together(op: Op, args: tuple[Any, ...], counts: tuple[int, ...] | None) -> list[Any]:
    """The operands on one device: a 0-d tensor on the CPU, which stands for a number, is copied to the device of the others.

    Raises :class:`DeviceError` if it is one of a list, or the op is to write to it, or others are on two devices.
    """
    devices = {a.storage.device.compute: None for a in args if isinstance(a, Value)}
    device = next(d for d in devices if d.type != "cpu")
    places = [k for k, count in enumerate(counts or [1] * len(args)) for _ in range(count)]
    movable = [isinstance(a, Value) and a.storage.device.type == "cpu" and not a.spec.shape
               and k not in op.lists and op.inputs[k] not in op.writes for k, a in zip(places, args, strict=True)]
    if any(isinstance(a, Value) and a.storage.device.compute is not device and not moves
           for a, moves in zip(args, movable, strict=True)):
        first, second, *_ = devices
        raise DeviceError(f"{op.name}: Expected all tensors to be on the same device, but found at least two devices, "
                          f"{first.name} and {second.name}!")
    moved = [_transfer(a, device) if moves else a for a, moves in zip(args, movable, strict=True)]
    return moved if counts is None else grouped(op, moved, counts)


def operands(op: Op, args: tuple[Any, ...], counts: tuple[int, ...] | None) -> list[Any]:
    """The arguments with NumPy's numbers as Python's, and lists regrouped. Raises TypeError for other non-tensors."""
    flat = [_operand(op, a) for a in args]
    return flat if counts is None else grouped(op, flat, counts)


def grouped(op: Op, flat: list[Any], counts: Iterable[int]) -> list[Any]:
    """The arguments of an op that :func:`flatten` made these operands of."""
    args, at = [], 0
    for k, count in enumerate(counts):
        args.append(flat[at:at + count] if k in op.lists else flat[at])
        at += count
    return args


def apart(args: tuple[Any, ...], elementwise: bool) -> list[Any] | None:
    """The operands of an op that writes to the first, with copies of those that share elements with it; None if none does.

    A kernel may read them after it has written them: on a GPU, threads run in any order. An elementwise op may read each
    element at the place that it writes to.
    """
    target, found = args[0], None
    for k, a in enumerate(args):
        if k and type(a) in TENSORS and a.storage is target.storage and not (
                elementwise and (a.spec is target.spec or same_places(target.spec, a.spec))) and share_elements(
                target.spec, a.spec):
            found = list(args) if found is None else found
            found[k] = clone(a)
    return found


def _operand(op: Op, a: Any) -> Any:
    if type(a) in PLAIN or type(a) in TENSORS:
        return a
    if isinstance(a, np.generic) and (a.dtype.kind in "biu" or is_floating(a.dtype)):
        return a.item()
    if isinstance(a, Value):
        TENSORS.add(type(a))
        return a
    for plain in (bool, int, float):
        if isinstance(a, plain):
            return plain(a)
    raise TypeError(f"{op.name}() expects tensors and Python numbers, but got {type(a).__name__}: convert it with "
                    "gradcore.tensor(...)")


def real(x: Any) -> Any:
    """A Python float for a number; a tensor as it is, for the op to read, or to refuse as :func:`numbers` does."""
    return x if isinstance(x, Value) else float(x)


def plain_number(function: str, name: str, x: Any, kind: str = "Number") -> Any:
    """The value of a 0-d tensor that stands for a number, which is read; anything else as it is.

    Raises TypeError for another tensor, and for one that requires a gradient, which would be lost.
    """
    if not isinstance(x, Value):
        return x
    if x.spec.shape or x.edge is not None:
        raise TypeError(f"{function}(): argument {name!r} must be {kind}, not Tensor")
    return x.item()  # type: ignore[attr-defined]


def number(function: str, name: str, x: Any) -> float:
    """:func:`plain_number` as a Python float."""
    x = plain_number(function, name, x, "float")
    if not hasattr(x, "__float__"):
        raise TypeError(f"{function}(): argument {name!r} must be float, not {type(x).__name__}")
    return float(x)


def signs(attrs: Mapping[str, Any]) -> list[str]:
    """The zeros among the attributes as texts: 0.0 and -0.0 are equal and hash alike."""
    return [str(a) for a in attrs.values() if type(a) is float and not a]


def numbers(op: Op, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """By name: the numbers that are given as tensors among the attributes, and are read, as PyTorch reads them.

    Raises TypeError for a tensor that is not 0-d, that requires a gradient, or that stands for anything but a number, which may
    have to be an integer.
    """
    return {name: _number(op, name, a) for name, a in attrs.items() if isinstance(a, Value)}


def _number(op: Op, name: str, a: Any) -> Any:
    kind = str(op.infer.__annotations__.get(name, "Number")).partition(" ")[0]
    if (kind not in ("Number", "float", "int") or (kind == "int" and a.spec.dtype.kind not in "iu")
            or a.spec.shape or a.edge is not None):
        raise TypeError(f"{op.name}(): argument {name!r} must be {kind}, not Tensor")
    return float(a) if kind == "float" else a.item()
