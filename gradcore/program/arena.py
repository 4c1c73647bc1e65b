"""The arena of a program as storages: one for the whole, and one for each part that tensors show."""

from __future__ import annotations

from gradcore.devices.device import Device
from gradcore.devices.storage import Storage
from gradcore.events import TAGS, Tag
from gradcore.memory.arena import range_of, set_aside
from gradcore.program.program import Program
from gradcore.spec import TensorSpec, round_up


class Arena(Storage):
    """Bytes that a plan divides: reserved as long as this lives, allocated as far as ranges of it are open."""

    __slots__ = ()

    @classmethod
    def of(cls, device: Device, nbytes: int, program: Program) -> Arena:
        """Raises :class:`~gradcore.errors.OutOfMemory`."""
        first = program.instructions[0].tag
        tag = TAGS.index(Tag("program", "", first.phase, "arena", first.site, None, TensorSpec.of((nbytes,), "uint8")))
        if device.ledger.pool.largest_free < nbytes:
            # What the traced run left in pieces makes room, instead of lying beside.
            device.ledger.flush()
        block = device.memory.allocate(nbytes, device.current, tag, 0)
        set_aside(device.ledger, block)
        return cls(device, block)


class Part(Storage):
    """A range of an arena that is shown as a storage of its own. The arena lives as long as any of its parts."""

    __slots__ = ("arena", "range")

    def __init__(self, arena: Arena, offset: int, nbytes: int, tag: int, node: int = 0) -> None:
        device = arena.device
        self.arena = arena
        self.range = range_of(device.ledger, arena.block, offset, nbytes, round_up(nbytes), tag, node)
        super().__init__(device, self.range)

    def __del__(self) -> None:
        self.range.let_go(self.device.memory.release)


def moved(spec: TensorSpec, given: TensorSpec) -> TensorSpec:
    """A spec over traced bytes, for bytes that begin at another offset."""
    if not given.offset:
        return spec
    return TensorSpec.strided(spec.shape, spec.dtype, spec.strides,
                              spec.offset + given.offset * given.dtype.itemsize // spec.dtype.itemsize)
