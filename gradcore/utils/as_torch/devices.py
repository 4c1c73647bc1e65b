"""PyTorch's devices: gradcore's, and GPUs and the like that are named where there are none."""

from __future__ import annotations

import re
from typing import Any

import gradcore
from gradcore.devices.device import Device, get_device
from gradcore.errors import DeviceError


class AbsentDevice(str):
    """``cuda:1`` on a machine without it: packages compare and keep the name, and whoever uses it gets a DeviceError."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        return int(self.partition(":")[2]) if ":" in self else None

    def __enter__(self) -> Any:
        return get_device(self).__enter__()

    def __exit__(self, *error: Any) -> None:
        """Not reached, as ``__enter__`` raises."""


class _Naming(type(gradcore.device)):  # type: ignore[misc]
    def __call__(cls, type: Any = None, index: int | None = None) -> Any:
        try:
            return super().__call__(type, index)
        except DeviceError:
            name = f"cuda:{type}" if isinstance(type, int) else type if index is None else f"{type}:{index}"
            if re.fullmatch(r"(cuda|mps|xpu|hpu|mtia|xla)(:\d+)?", str(name)) is None:
                raise
            return AbsentDevice(name)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, (Device, AbsentDevice))


class device(gradcore.device, metaclass=_Naming):
    """``gradcore.device``, but that one may be named that is not there, as in the default of an argument or a comparison."""
