"""``gradcore.device``: looks devices up by name, and is the type of all of them for ``isinstance``."""

from __future__ import annotations

from typing import Any

from gradcore.devices.device import Device, get_device
from gradcore.errors import DeviceError


class _Naming(type):
    """Metaclass: calling the class looks a device up, and every device is an instance of it."""

    def __call__(cls, type: str | int | Device | None = None, index: int | None = None) -> Device:
        if index is None:
            return get_device(type)
        if not isinstance(type, str) or ":" in type:
            raise DeviceError(f"type (string) must not include an index because index was passed explicitly: got {type!r}")
        return get_device(f"{type}:{index}")

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Device)


#: In errors about arguments.
_Naming.__call__.__qualname__ = "device"


class device(metaclass=_Naming):
    """The device called ``type`` (``cpu``, ``meta``, ``cuda``, ``cuda:1``, or 1 for that), made at first use; None is ``cpu``.

    ``index`` may be given by itself: ``device("cuda", 1)``. Inside ``with device(...):`` new tensors that name no device are
    made there. Raises :class:`DeviceError` for an unknown name, and for a device that this machine does not have.
    """
