"""Tensors whose bytes arrays of other libraries show: which array, made on which line, and whether it alone holds them.

An array keeps the storage alive. Its block's tag names the newest of the arrays for as long as one lives. When nothing but
arrays refers to the storage any more, the bytes change hands: their role is then ``held outside``. That is found out by
:func:`settle`, so that neither ops nor tensors that go pay for it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from gradcore.devices.storage import Storage
from gradcore.engine.recipes import spare
from gradcore.engine.sites import find_site, is_inside
from gradcore.events import HELD_OUTSIDE, Export
from gradcore.forking import brief

#: Libraries that ask for a tensor's bytes from functions in Python: the line that matters is the one that called them.
_LIBRARIES = frozenset(("cupy", "jax", "numba", "numpy", "tensorflow", "torch"))

# Re-entrant: an array may go while the lock is held, by the collector's hand.
_lock = brief()


@dataclass(eq=False, slots=True)
class _Lease:
    """One storage, and the arrays that show it: by the id of what they refer to, the oldest first."""

    storage: Storage
    shown: dict[int, Export] = field(default_factory=dict)
    #: What the bytes were before they were held outside, while they are.
    role: str | None = None


#: Those that are not yet known to be all that holds their storage, by its id: it lives as long as they do.
_leases: dict[int, _Lease] = {}


class Shown:
    """What an array of NumPy's, and whatever is made of it, refers to: it keeps the bytes of a tensor on the CPU alive.

    ``form`` is the name that they were asked for by.
    """

    def __init__(self, tensor: Any, form: str) -> None:
        spec, storage = tensor.spec, tensor.storage
        spare(storage)
        step = spec.dtype.itemsize
        self.__array_interface__ = {
            "version": 3, "shape": spec.shape, "typestr": spec.dtype.str, "data": (tensor.data_ptr(), False),
            "strides": tuple(s * step for s in spec.strides)}
        export = _asked(form)
        key, at = id(self), id(storage)
        with _lock:
            lease = _leases.get(at)
            if lease is None:
                lease = _Lease(storage)
            # Without calls in between, so that no interrupt leaves a lease that nothing ends.
            lease.shown[key] = export
            self._lease = lease
            _leases[at] = lease
            _note(storage, export)

    def __del__(self) -> None:
        if "_lease" not in self.__dict__:
            # It was interrupted while it was made.
            return
        with _lock:
            lease, key = self._lease, id(self)
            newest = next(reversed(lease.shown)) == key
            del lease.shown[key]
            if not lease.shown:
                _leases.pop(id(lease.storage), None)
                _note(lease.storage, None, lease.role)
            elif newest:
                _note(lease.storage, next(reversed(lease.shown.values())))


def note(tensor: Any, form: str) -> None:
    """The address of a tensor's bytes was asked for, by a protocol under which whoever took it holds the tensor itself."""
    spare(tensor.storage)
    _note(tensor.storage, _asked(form))


def settle() -> None:
    """Give the bytes that nothing but arrays of other libraries refers to the role ``held outside``."""
    with _lock:
        for key, lease in list(_leases.items()):
            # The collector may take the last array meanwhile.
            newest = next(reversed(lease.shown.values()), None)
            # One reference is the lease's, one the argument here.
            if newest is not None and sys.getrefcount(lease.storage) <= 2:
                _leases.pop(key, None)
                lease.role = lease.storage.block.tag.role
                _note(lease.storage, newest, HELD_OUTSIDE)


def _note(storage: Storage, export: Export | None, role: str | None = None) -> None:
    """Record in the block's tag which array shares it. Memory that is not the pool's is not accounted for."""
    block = storage.block
    if block.size:
        tag = block.tag
        storage.device.ledger.retag(block, tag._replace(export=export, role=tag.role if role is None else role))


def _asked(form: str) -> Export:
    """The form in which bytes are asked for, with the library that asks if it can be seen, and its caller's line."""
    frame: FrameType | None = sys._getframe(1)
    library = ""
    while frame is not None:
        if not is_inside(frame.f_code):
            name = frame.f_globals.get("__name__", "").partition(".")[0]
            if name not in _LIBRARIES:
                break
            library = library or name
        frame = frame.f_back
    return Export(f"{form} for {library}" if library else form, find_site(frame))
