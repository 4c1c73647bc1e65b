"""The interfaces of the memory stack's layers: segments below the pool, blocks above it, and the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradcore.events import UNTAGGED, Tag
from gradcore.forking import brief
from gradcore.memory.freelist import FreeList

#: Held while a block's list of users grows, since threads on several streams may read one tensor.
_noting = brief()


#: The key under which blocks wait that are small parts of large segments: no request has this size, so they are only merged,
#: and the segment is whole again when the next step needs it in one piece.
PARTS = 0


#: What the blocks of a segment are: small, large, or large ones of optimizer state, which outlives the step that makes it and
#: would pin what the next step needs in one piece.
SMALL_BLOCKS, LARGE_BLOCKS, STATE_BLOCKS = KINDS = range(3)


#: Segments are this far apart in the free lists' address space, so that ranges of two segments never merge. Larger ones are
#: refused: the meta device is asked for sizes that no machine has.
SPACING = 1 << 59


#: A segment forgets its arrays when there are some at so many places: sizes that differ from step to step, as those of texts
#: do, would leave more and more.
_PLACES = 1024


@dataclass(eq=False, slots=True, repr=False)
class Segment:
    """Device memory as a source handed it out. ``memory`` is the object that the device builds arrays over."""

    nbytes: int
    address: int
    memory: Any
    index: int = 0
    kind: int = SMALL_BLOCKS
    #: So many of its bytes may serve what is not needed at the same time as a block of its size.
    in_turn: int = 0
    #: The device's array objects over its bytes, by the offset at which they begin and by spec: the same tensors lie at the
    #: same places in every step, and creating an array costs as much as filling a small one.
    arrays: dict[int, dict[Any, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Segment({self.index}, {self.nbytes} bytes)"


class Home(Protocol):
    """What takes freed blocks."""

    def append(self, block: Block, /) -> None: ...


class Block:
    """A piece of a segment, with one owner at a time.

    Each allocation gives the block a new ``serial``, which is 0 while it has no owner. ``arrays`` are the segment's array
    objects over these bytes, by spec.
    """

    __slots__ = ("segment", "offset", "size", "stream", "home", "serial", "requested", "tag", "node", "keeps", "arrays",
                 "users")

    def __init__(self, segment: Segment, offset: int, size: int, stream: Stream, home: Home, requested: int = 0,
                 tag: Tag = UNTAGGED, node: int = 0) -> None:
        self.segment = segment
        self.offset = offset
        self.size = size
        self.stream = stream
        #: Where the block goes once it is free, as to the list of its stream in which it waits for a request of its size.
        self.home = home
        self.serial = 0
        self.requested = requested
        self.tag = tag
        self.node = node
        self.keeps = 0
        places = segment.arrays
        arrays = places.get(offset)
        if arrays is None:
            if len(places) >= _PLACES:
                places.clear()
            arrays = places[offset] = {}
        self.arrays = arrays
        #: Other streams that use these bytes; they are waited for before the bytes are reused.
        self.users: list[Stream] | None = None

    def use_on(self, stream: Stream) -> None:
        """Note that ``stream`` uses these bytes too: once they are free, the block's own stream waits for it."""
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
    """One queue of device work, with the memory that may be reused on it at once.

    Free lists belong to this object and never to the raw handle, which a driver may give to a later stream.
    """

    __slots__ = ("index", "handle", "driver", "waiting", "free")

    def __init__(self, index: int, handle: Any = None, driver: Driver | None = None) -> None:
        self.index = index
        self.handle = handle
        #: The driver that made it, which also makes its events: those of another device cannot be recorded on it.
        self.driver = driver
        #: Freed blocks by size, or :data:`PARTS`, not merged with their neighbors yet: the next step asks for the same sizes.
        self.waiting: dict[int, list[Block]] = defaultdict(list)
        #: Free memory by kind of segment.
        self.free = [FreeList() for _ in KINDS]

    def __repr__(self) -> str:
        return f"Stream({self.index})"


class Source(Protocol):
    """What segments come from. ``allocate`` raises :class:`~gradcore.errors.SourceExhausted`."""

    def allocate(self, nbytes: int) -> Segment: ...

    def deallocate(self, segment: Segment) -> None: ...


class MemoryResource(Protocol):
    """Anything that hands out blocks.

    ``allocate`` raises :class:`~gradcore.errors.SourceExhausted` or :class:`~gradcore.errors.OutOfMemory`, and has changed
    nothing then. ``release`` gives a block back, once. It is for finalizers: it checks nothing, never waits and never raises.
    """

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block: ...

    @property
    def release(self) -> Callable[[Block], None]: ...


class Driver(Protocol):
    """The driver's calls for streams and events. All of them go through here, so that a mock can take the driver's place."""

    def record(self, stream: Stream) -> Any:
        """A new event behind all work submitted to ``stream`` so far."""

    def wait(self, stream: Stream, event: Any) -> None:
        """Make later work on ``stream`` wait for ``event``, which is destroyed; the host does not wait."""

    def synchronize(self) -> None:
        """Make the host wait for all work on the device."""

    # -- for streams and events of users -------------------------------------------------------------------------------

    def create_stream(self, priority: int) -> Any:
        """The handle of a new stream. A lower number is served first."""

    def stream_done(self, stream: Stream) -> bool: ...

    def synchronize_stream(self, stream: Stream) -> None: ...

    def create_event(self, timing: bool) -> Any: ...

    def destroy_event(self, event: Any) -> None: ...

    def record_event(self, event: Any, stream: Stream) -> None: ...

    def wait_event(self, stream: Stream, event: Any) -> None:
        """As :meth:`wait`, for an event that stays."""

    def event_done(self, event: Any) -> bool: ...

    def synchronize_event(self, event: Any) -> None: ...

    def elapsed(self, first: Any, last: Any) -> float:
        """Milliseconds from one event with timing to another."""
