"""The bytes of a tensor and its views: who goes last gives them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcore.memory.resource import Block, Stream

if TYPE_CHECKING:
    from gradcore.devices.device import Device

_new = object.__new__


class Storage:
    """Bytes of one tensor and its views. The last reference to go gives the block back to the pool.

    ``version`` counts writes, so that a residual that was written to since it was kept is noticed; ``written_by`` is
    the tag of the last write, unset before the first.
    """

    __slots__ = ("device", "block", "version", "written_by", "views", "__weakref__")

    written_by: int

    def __init__(self, device: Device, block: Block) -> None:
        self.device = device
        self.block = block
        self.version = 0
        #: Weak references to the views that were taken, for writes to tell them; None before the first.
        self.views: list[Any] | None = None

    def __del__(self) -> None:
        try:
            block = self.block
        except AttributeError:
            # There was no memory for it, or an interrupt came before.
            return
        self.device.memory.release(block)

    @property
    def serial(self) -> int:
        """The number that the log knows these bytes by."""
        return self.block.serial

    @property
    def nbytes(self) -> int:
        """Requested bytes."""
        return self.block.requested


def new_storage(device: Device, nbytes: int, stream: Stream, tag: int, node: int = 0) -> Storage:
    """A storage of bytes that nobody has written. Raises :class:`~gradcore.errors.OutOfMemory`.

    The storage is there before its block: an interrupt finds no block that nobody would give back.
    """
    storage: Storage = _new(Storage)
    storage.device = device
    storage.version = 0
    storage.views = None
    storage.block = device.memory.allocate(nbytes, stream, tag, node)
    return storage
