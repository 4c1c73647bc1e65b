"""What every layer of the memory stack speaks: segments below the pool, blocks above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gradcore.forking import brief
from gradcore.memory.freelist import FreeList

#: Held while a block's list of users is made longer: threads on several streams may read one tensor.
_noting = brief()


class Segment:
    """A piece of device memory as its source handed it out. ``memory`` is whatever the device builds arrays over."""

    __slots__ = ("index", "nbytes", "address", "memory", "small")

    def __init__(self, nbytes: int, address: int, memory: Any) -> None:
        self.index = 0
        self.nbytes = nbytes
        self.address = address
        self.memory = memory
        self.small = False

    def __repr__(self) -> str:
        return f"Segment({self.index}, {self.nbytes} bytes)"


class Block:
    """A piece of a segment, in one life at a time.

    ``serial`` is the number of the present life, 0 between lives, so a handle ``(block, serial)`` from an earlier one
    is recognised. ``arrays`` is the device's cache of array objects over these bytes, one a spec: the same block
    comes back step after step, and making an array costs as much as filling it.
    """

    __slots__ = ("segment", "offset", "size", "stream", "home", "serial", "requested", "tag", "node", "keeps", "arrays",
                 "users")

    def __init__(self, segment: Segment, offset: int, size: int, stream: Stream) -> None:
        self.segment = segment
        self.offset = offset
        self.size = size
        self.stream = stream
        #: Where the block waits, once it is free, for its size to be asked for again.
        self.home = stream.waiting.setdefault(size, [])
        self.serial = 0
        self.requested = 0
        self.tag = 0
        self.node = 0
        self.keeps = 0
        self.arrays: dict[Any, Any] = {}
        #: Other streams that use these bytes and must be waited for before they are reused.
        self.users: list[Stream] | None = None

    def begin(self, serial: int, requested: int, tag: int, node: int) -> None:
        """A new life, for a new owner."""
        self.serial = serial
        self.requested = requested
        self.tag = tag
        self.node = node

    def use_on(self, stream: Stream) -> None:
        """Work on another stream touches these bytes: once they are free, their own stream waits for it."""
        if stream is self.stream or (self.users is not None and stream in self.users):
            return
        with _noting:
            self.users = [*(self.users or ()), stream]

    @property
    def address(self) -> int:
        return self.segment.address + self.offset

    def __repr__(self) -> str:
        return f"Block(segment {self.segment.index}, offset {self.offset}, {self.size} bytes, serial {self.serial})"


class Stream:
    """One queue of device work, and the blocks that may be reused on it at once.

    Free lists hang on this object and never on the raw handle, which a driver uses again for another stream.
    """

    __slots__ = ("index", "handle", "waiting", "small", "large")

    def __init__(self, index: int, handle: Any = None) -> None:
        self.index = index
        self.handle = handle
        #: Freed blocks by exact size, not yet merged with their neighbours: a step asks for the same sizes again.
        self.waiting: dict[int, list[Block]] = {}
        self.small = FreeList()
        self.large = FreeList()

    def __repr__(self) -> str:
        return f"Stream({self.index})"


class Source(Protocol):
    """Where segments come from. ``allocate`` raises :class:`~gradcore.errors.SourceExhausted`."""

    def allocate(self, nbytes: int) -> Segment: ...

    def deallocate(self, segment: Segment) -> None: ...


class MemoryResource(Protocol):
    """Anything that hands out blocks.

    ``allocate`` raises :class:`~gradcore.errors.SourceExhausted` or :class:`~gradcore.errors.OutOfMemory` and then has
    changed nothing; ``deallocate`` raises :class:`~gradcore.errors.StaleBlock` for a handle that is not live. ``release``
    is the way of a finaliser that holds the only handle: it checks nothing, waits for nobody and raises nothing.
    """

    def allocate(self, nbytes: int, stream: Stream, tag: int = 0, node: int = 0) -> Block: ...

    def deallocate(self, block: Block, serial: int) -> None: ...

    @property
    def release(self) -> Callable[[Block], None]: ...


class Driver(Protocol):
    """The calls about streams and events. Everything that touches a driver passes here, so a mock can stand in."""

    def record(self, stream: Stream) -> Any:
        """A new event that stands behind all work submitted to ``stream`` so far."""

    def wait(self, stream: Stream, event: Any) -> None:
        """Later work on ``stream`` waits for ``event``, which is not needed again; the host does not wait."""

    def synchronize(self) -> None:
        """The host waits for all work on the device."""

    # -- what a user's own streams and events need besides -------------------------------------------------------------

    def create_stream(self, priority: int) -> Any:
        """The handle of a new stream. A lower number is served first."""

    def stream_done(self, stream: Stream) -> bool: ...

    def synchronize_stream(self, stream: Stream) -> None: ...

    def create_event(self, timing: bool) -> Any: ...

    def destroy_event(self, event: Any) -> None: ...

    def record_event(self, event: Any, stream: Stream) -> None: ...

    def wait_event(self, stream: Stream, event: Any) -> None:
        """As :meth:`wait`, for an event that is used again."""

    def event_done(self, event: Any) -> bool: ...

    def synchronize_event(self, event: Any) -> None: ...

    def elapsed(self, first: Any, last: Any) -> float:
        """Milliseconds from one event with timing to another."""
