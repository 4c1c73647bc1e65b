"""The arena of a program as a storage, its parts as storages of their own, and specs shifted to where a run's bytes begin."""

from __future__ import annotations

from typing import Any

from gradcore.devices.device import Device
from gradcore.devices.storage import Storage
from gradcore.events import PROGRAM, Tag
from gradcore.memory.arena import Range, range_of, set_aside
from gradcore.program.program import Program
from gradcore.spec import TensorSpec, round_up

#: Kernels of a GPU may depend on the alignment of a tensor up to this many bytes.
ALIGNED = 256


class Arena(Storage):
    """Memory that a plan divides into ranges: reserved as long as this lives, counted as allocated where ranges are open."""

    __slots__ = ()

    @classmethod
    def of(cls, device: Device, nbytes: int, program: Program) -> Arena:
        """An arena of ``nbytes`` bytes for a program. Raises :class:`~gradcore.errors.OutOfMemory`."""
        first = program.instructions[0].tag
        tag = Tag(PROGRAM, "", first.phase, "arena", first.site, None, TensorSpec.of((nbytes,), "uint8"))
        if device.ledger.pool.largest_free < nbytes:
            # The pool's fragments, left by the traced run, would otherwise stay reserved beside the arena.
            device.ledger.flush()
        block = device.memory.allocate(nbytes, device.current, tag, 0)
        set_aside(device.ledger, block)
        return cls(device, block)


class Part(Storage):
    """A range of an arena as a storage of its own. The arena lives as long as any of its parts."""

    __slots__ = ("arena", "replay")
    block: Range
    replay: Any

    def __init__(self, arena: Arena, offset: int, nbytes: int, tag: Tag, node: int = 0) -> None:
        device = arena.device
        self.arena = arena
        #: A weak reference to the replay that leaves a gradient here, if one does.
        self.replay = None
        super().__init__(device, range_of(device.ledger, arena.block, offset, nbytes, round_up(nbytes), tag, node))

    @property
    def lender(self) -> Any:
        replay = None if self.replay is None else self.replay()
        return replay if replay is not None and replay.lends(self) else None

    def __del__(self) -> None:
        try:
            block = self.block
        except AttributeError:
            # An interrupt came before it.
            return
        block.let_go(self.device.memory.release)


def shift(given: TensorSpec, traced: TensorSpec) -> int:
    """How many bytes further on in its storage a tensor of a run begins than that of the traced run did."""
    return given.offset * given.dtype.itemsize - traced.offset * traced.dtype.itemsize


def moved(spec: TensorSpec, by: int) -> TensorSpec:
    """``spec``, shifted by a number of bytes: for bytes that do not begin where the traced ones did."""
    if not by:
        return spec
    return TensorSpec.strided(spec.shape, spec.dtype, spec.strides, spec.offset + by // spec.dtype.itemsize)
