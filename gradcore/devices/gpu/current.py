"""On a machine with several GPUs: makes a device the current one for each call of the runtime and each kernel.

The runtime's current device belongs to a thread, and other libraries change it. A null stream, an allocation, a wait for the
device and a launch are those of the current device. With a single GPU none of this is needed.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from gradcore.devices.availability import driver_library

#: Devices that are known to have a context.
_with_context: set[int] = set()


class OnDevice:
    """The CUDA runtime ``cuda``, with device number ``index`` current during each call, and the former one after it."""

    def __init__(self, cuda: Any, index: int) -> None:
        self._cuda = cuda
        self._index = index

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cuda, name)
        if callable(found) and not isinstance(found, type):
            found = self.wrap(found)
        setattr(self, name, found)
        return found

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which is called with the device current."""
        cuda, index = self._cuda, self._index

        @functools.wraps(function, updated=())
        def call(*arguments: Any) -> Any:
            before = cuda.getDevice()
            if before == index:
                return function(*arguments)
            # The runtime creates a context on a device that becomes current, which takes hundreds of megabytes.
            restored = has_context(before)
            cuda.setDevice(index)
            try:
                return function(*arguments)
            finally:
                if restored:
                    cuda.setDevice(before)

        return call


def has_context(index: int) -> bool:
    """Has this process used device number ``index``? True if the driver cannot tell."""
    if index not in _with_context:
        library, flags, active = driver_library(), ctypes.c_uint(), ctypes.c_int()
        if library is not None and not library.cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active)):
            if not active.value:
                return False
            _with_context.add(index)
    return True
