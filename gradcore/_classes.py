"""PyTorch's old classes of tensors, one for each dtype and kind of device, and the constructor that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcore import dtypes, functional
from gradcore.devices.device import get_device, set_default_device
from gradcore.engine.value import Value
from gradcore.spec import Size

Tensor = Any

#: What PyTorch calls each dtype in the names of the classes.
WORDS = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64", "Char": "int8", "Short": "int16",
         "Int": "int32", "Long": "int64", "Byte": "uint8", "Bool": "bool"}


def constructed(data: tuple[Any, ...], dtype: Any, device: Any) -> Tensor:
    """What PyTorch's old constructor makes: from a sequence, a tensor with copies of the values; from sizes, an uninitialized
    tensor; a given tensor itself, of whatever dtype it is. Raises TypeError for anything else.
    """
    first = data[0] if len(data) == 1 else None
    if isinstance(first, Value):
        return first
    if isinstance(first, (list, tuple, range, np.ndarray)) and not isinstance(first, Size):
        return functional.tensor(first, dtype=dtype, device=device)
    if isinstance(first, Size) or all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in data):
        return functional.empty(*(data or (0,)), dtype=dtype, device=device)
    raise TypeError("new(): data must be a sequence, a tensor or sizes, but got " + ", ".join(type(n).__name__ for n in data))


class TensorClass(type):
    """The type of :class:`FloatTensor` and its like. They have no instances of their own: a call of one makes a tensor of its
    dtype on its kind of device, by the old constructor, and a tensor is an instance of the class that fits it.
    """

    word: str
    place: str

    @property
    def dtype(cls) -> np.dtype[Any]:
        """Raises ImportError for bfloat16 without the package ml_dtypes."""
        return dtypes.bfloat16() if cls.word == "BFloat16" else np.dtype(WORDS[cls.word])

    def __call__(cls, *data: Any, size: Any = None, device: Any = None) -> Tensor:
        where = get_device(cls.place if device is None else device)
        if where.type != cls.place:
            raise RuntimeError(f"legacy constructor expects device type: {cls.place} but device type: {where.type} was passed")
        made = constructed((Size(size),) if size is not None else data, cls.dtype, where)
        if not isinstance(made, cls):
            raise TypeError(f"new(): expected a {cls!r}, but got a {class_name(made)}")
        return made

    def __instancecheck__(cls, x: Any) -> bool:
        return (isinstance(x, Value) and x.spec.dtype.name == WORDS[cls.word]
                and x.storage.device.compute.type == cls.place)

    def __repr__(cls) -> str:
        return f"<class {_full_name(cls.word, cls.place)!r}>"


#: As the errors about its data call it.
TensorClass.__call__.__qualname__ = "new"

def _full_name(word: str, place: str) -> str:
    return ".".join(("torch", *[place] * (place != "cpu"), f"{word}Tensor"))


def class_name(x: Tensor) -> str:
    """The name of PyTorch's class for a tensor, such as ``torch.FloatTensor``."""
    word = next(word for word, dtype in WORDS.items() if dtype == x.spec.dtype.name)
    return _full_name(word, x.storage.device.compute.type)


_ABOUT = ("Tensors of PyTorch's type {0} on ``{1}``, by its old constructor: from a sequence, or uninitialized from sizes.\n\n"
          "A tensor of that dtype on that kind of device is an instance.")
#: By kind of device and name, such as FloatTensor.
CLASSES: Mapping[str, Mapping[str, TensorClass]] = {
    place: {f"{word}Tensor": TensorClass(f"{word}Tensor", (), {
        "word": word, "place": place, "__doc__": _ABOUT.format(word, place)}) for word in WORDS}
    for place in ("cpu", "cuda")}


def class_of(kind: Any) -> TensorClass | None:
    """The class that a name such as ``torch.cuda.FloatTensor`` or the class itself stands for; None for anything else."""
    if isinstance(kind, TensorClass):
        return kind
    path, _, name = kind.rpartition(".") if isinstance(kind, str) else ("", "", "")
    return CLASSES.get({"torch": "cpu", "torch.cuda": "cuda"}.get(path, ""), {}).get(name)


def set_default_tensor_type(t: Any) -> None:
    """Make tensors that name no dtype and no device those of a class or its name, such as ``torch.cuda.FloatTensor``.

    Raises TypeError for anything else and for a class of integers, :class:`DeviceError` without that device.
    """
    kind = class_of(t)
    if kind is None:
        raise TypeError(f"invalid type object: {t!r}; expected a class such as gradcore.FloatTensor, or its name")
    functional.set_default_dtype(kind.dtype)
    set_default_device(None if kind.place == "cpu" else kind.place)
