"""Conversion of a module's parameters and buffers to another device or dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gradcore._conversions import given_to
from gradcore._tensor import Tensor
from gradcore.dtypes import bfloat16, is_floating
from gradcore.functional import empty_like
from gradcore.nn import paths

C = TypeVar("C", bound="Converted")


class Converted:
    """The part of :class:`Module` that converts its tensors: all that it has, whatever the ``parameters`` of a class leave out.

    Only ``_apply`` calls another method that classes override, as in PyTorch.
    """

    children: Callable[..., Any]

    def _apply(self: C, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> C:
        """Replace the storage of every parameter, gradient and buffer; the tensor objects stay.

        Classes that have tensors elsewhere override this, and convert those too.
        """
        if recurse:
            for child in self.children():
                child._apply(fn)
        for tensor in (*self.__dict__["_parameters"].values(), *self.__dict__["_buffers"].values()):
            if tensor is None:
                continue
            grad = tensor.grad
            tensor.data = fn(tensor.detach())
            if grad is not None:
                grad.data = fn(grad.detach())
        paths.structure_changed()
        return self

    def to(self: C, *args: Any, device: Any = None, dtype: Any = None, non_blocking: Any = False,
           memory_format: Any = None) -> C:
        """Move to a device, a floating dtype, or both, also given by a tensor; integers keep their dtype.

        ``memory_format`` has no effect.
        """
        device, dtype, non_blocking = given_to(args, device, dtype, non_blocking)
        if dtype is not None and not is_floating(np.dtype(dtype)):
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={np.dtype(dtype)}")
        return self._apply(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None,
                                          non_blocking=non_blocking))

    def type(self: C, dst_type: Any) -> C:
        """Convert all parameters and buffers to a dtype, integers too, or to one of PyTorch's classes, which say a device."""
        return self._apply(lambda t: t.type(dst_type))

    def to_empty(self: C, *, device: Any) -> C:
        """Move to a device without copying values, such as a model made on meta."""
        return self._apply(lambda t: empty_like(t, device=device))

    def cpu(self: C) -> C:
        """Move to the CPU."""
        return Converted.to(self, "cpu")

    def cuda(self: C, device: Any = None) -> C:
        """Move to a GPU, given by number or name, by default the current one."""
        return Converted.to(self, device="cuda" if device is None else device)

    def float(self: C) -> C:
        """Convert floating parameters and buffers to float32."""
        return Converted.to(self, np.float32)

    def double(self: C) -> C:
        """Convert floating parameters and buffers to float64."""
        return Converted.to(self, np.float64)

    def half(self: C) -> C:
        """Convert floating parameters and buffers to float16."""
        return Converted.to(self, np.float16)

    def bfloat16(self: C) -> C:
        """Convert floating parameters and buffers to bfloat16. Raises ImportError without the package ml_dtypes."""
        return Converted.to(self, bfloat16())
