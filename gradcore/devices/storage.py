"""Storages: the bytes that a tensor shares with its views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcore.errors import NotCovered
from gradcore.events import BORROW, Tag
from gradcore.memory.resource import Block, Stream

if TYPE_CHECKING:
    from gradcore.devices.device import Device

_new = object.__new__


class Storage:
    """The bytes of a tensor and its views, in one block for life. When the last reference goes, that goes back to the pool.

    ``version`` counts writes, so that a write to a residual after it was kept is noticed; ``written_by`` is the tag of
    the last write, unset before the first.
    """

    __slots__ = ("device", "block", "version", "written_by", "views", "gathered", "__weakref__")

    written_by: Tag
    #: Weak references to recipes that these bytes are kept for, unset before an op has gathered them for its result.
    gathered: list[Any]
    #: The replay of a program that left a gradient in these bytes, and refers to them and to the tensor over them, to leave the
    #: next one there; or None.
    lender: Any = None

    def __init__(self, device: Device, block: Block) -> None:
        self.device = device
        self.block = block
        self.version = 0
        #: Weak references to the views, whose history a recorded write changes, each with whether the graph was recorded when
        #: the view was taken, by the ids of the views; None before the first.
        self.views: dict[int, Any] | None = None

    def __call__(self) -> None:
        """Raise :class:`NotCovered`: in PyTorch ``x.storage`` is a method."""
        raise NotCovered("torch.Tensor.storage is not implemented by gradcore, where x.storage is the memory that views share. "
                         "Nearest: x.storage.nbytes, x.data_ptr() and x.storage_offset()")

    def __del__(self) -> None:
        try:
            block = self.block
        except AttributeError:
            # Allocation failed, or an interrupt came before it.
            return
        self.device.memory.release(block)

    @property
    def serial(self) -> int:
        """The number of these bytes in the log."""
        return self.block.serial

    @property
    def nbytes(self) -> int:
        """Requested bytes."""
        return self.block.requested

    @property
    def extent(self) -> int:
        """The bytes that tensors may show: also those of another library's memory, of which none were requested."""
        return self.block.segment.nbytes if self.block.tag.op == BORROW else self.block.requested


def new_storage(device: Device, nbytes: int, stream: Stream, tag: Tag, node: int) -> Storage:
    """A storage of uninitialized bytes. Raises :class:`~gradcore.errors.OutOfMemory`.

    The storage is created before its block, so that an interrupt never leaves a block without an owner.
    """
    storage: Storage = _new(Storage)
    storage.device = device
    storage.version = 0
    storage.views = None
    storage.block = device.memory.allocate(nbytes, stream, tag, node)
    return storage
