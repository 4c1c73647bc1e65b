"""The records of the log, and the owners and calls that they name.

On the hot path a record is a plain tuple ``(kind, ...)`` of ints, strings and nested tuples of ints, with a :class:`Tag` or an
:class:`Invocation`, which live as long as anything names them; :func:`typed` turns one into its named form for readers.
Nothing here can hold an array: a record that did would pin its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

from gradcore.cells import name_of_file
from gradcore.interning import Interned
from gradcore.spec import TensorSpec

#: The segment number of blocks over memory that is not the pool's. Such a block counts as 0 bytes; its tag's spec has the size.
OUTSIDE = -1
#: The op in the tags of such blocks.
BORROW = "borrow"
#: The op in the tags of memory that a compiled function's program owns.
PROGRAM = "program"

RESERVE, UNRESERVE, ALLOC, FREE, KEEP, DROP, LAUNCH, RETAG, MARK, VIEW, UPLOAD, READ = range(12)

#: The position of the tag in those kinds of records that have one.
TAG_AT = {ALLOC: 7, LAUNCH: 2, RETAG: 2, VIEW: 2}

#: What a mark may say in the log of a step.
MARKS = ("begin", "end", "pack", "unpack")

#: Why a residual was dropped.
CONSUMED, DIED = 0, 1
DROP_REASONS = ("consumed", "graph died")

#: The role of bytes that no tensor holds any more, but only another library's array that was made from one.
HELD_OUTSIDE = "held outside"
ROLES = ("parameter", "buffer", "gradient", "input", "output", "residual", "temporary", "workspace",
         "optimizer state", "communication", "arena", HELD_OUTSIDE)
#: Roles that follow from what a tensor is, rather than from where its memory came from.
LASTING = frozenset(("parameter", "buffer", "gradient", "optimizer state"))

#: The file name, as in tracebacks, of code that gradcore generates at run time; a line of it is never a site.
WRITTEN = "<gradcore>"


class Site:
    """A line of source outside gradcore; at the level ``stacks`` also the lines that called it, the nearest first.

    Equal sites are one object, as equal specs are.
    """

    __slots__ = ("file", "line", "function", "callers", "__weakref__")

    file: str
    line: int
    function: str
    callers: tuple[Site, ...]

    def __new__(cls, file: str, line: int, function: str, callers: tuple[Site, ...] = ()) -> Site:
        key = file, line, function, callers
        found = _sites.get(key)
        if found is None:
            found = object.__new__(cls)
            found.file, found.line, found.function, found.callers = key
            found = _sites.one(key, found)
        return found

    def called_by(self, callers: Iterable[Site]) -> Site:
        """The same line, with its callers."""
        return Site(self.file, self.line, self.function, tuple(callers))

    def __reduce__(self) -> tuple[Any, ...]:
        return Site, (self.file, self.line, self.function, self.callers)

    def __repr__(self) -> str:
        return f"Site(file={self.file!r}, line={self.line}, function={self.function!r}, callers={self.callers!r})"

    def __str__(self) -> str:
        return f"{name_of_file(self.file)}:{self.line}"

    @property
    def full(self) -> str:
        """``train.py:12 in main``, the path as the interpreter has it, or the name of a notebook's cell."""
        return f"{self} in {self.function}"

    @property
    def short(self) -> str:
        """``train.py:12``: the line without the folders of its file, which may come from another system."""
        name = name_of_file(self.file).replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}"


# Weak, or the call stacks of a long run would pile up.
_sites: Interned[Any, Site] = Interned()


class Network(NamedTuple):
    """A module that is no part of another one, and has parameters: its class, and the number that tells it from others."""

    kind: str
    number: int


class Scope(NamedTuple):
    """The layer and phase that an op ran in. ``layer`` is a path of ``named_modules()``, ``""`` for the root.

    In backward, ``caller`` is the line that called ``backward()``, while the op's site is the forward op's.
    """

    layer: str
    phase: str
    caller: Site | None = None
    #: Overrides the op's own role; set while an optimizer creates its state.
    role: str | None = None
    #: What ``layer`` is a path in; None outside of any.
    network: Network | None = None


class Export(NamedTuple):
    """How another library's array came to share a tensor's bytes (``numpy()``, ``__dlpack__ for torch``), and on which line."""

    form: str
    site: Site

    def __str__(self) -> str:
        return f"{self.form}, {self.site.full}"


class Tag(NamedTuple):
    """The owner of some bytes."""

    op: str
    layer: str
    phase: str
    role: str
    site: Site
    caller: Site | None
    spec: TensorSpec | None
    #: The newest array of another library that shares the bytes.
    export: Export | None = None
    #: What ``layer`` is a path in. Readers of a log are given None: see :mod:`gradcore.reading`.
    network: Network | None = None


#: The tag of what is allocated without saying what for, as tests do.
UNTAGGED = Tag("", "", "setup", "temporary", Site("", 0, ""), None, None)


class Invocation(NamedTuple):
    """An op with its specs and attributes: what all launches of the same kind have in common."""

    op: str
    inputs: tuple[Any, ...]
    outputs: tuple[TensorSpec, ...]
    aux: tuple[tuple[str, TensorSpec], ...]
    workspace: int
    attrs: tuple[tuple[str, Any], ...]


# -- the named forms ---------------------------------------------------------------------------------------------------


class Reserve(NamedTuple):
    """A segment came from the source; sizes in bytes."""

    segment: int
    nbytes: int


class Unreserve(NamedTuple):
    """A segment went back to the source."""

    segment: int
    nbytes: int


class Alloc(NamedTuple):
    """A block left the pool: ``requested`` <= ``allocated`` bytes at ``offset`` of ``segment``."""

    serial: int
    segment: int
    offset: int
    requested: int
    allocated: int
    stream: int
    tag: Tag
    node: int


class Free(NamedTuple):
    """A block went back to the pool."""

    serial: int


class Keep(NamedTuple):
    """A buffer became a residual of a node, under the name that the node's rules use."""

    serial: int
    node: int
    name: str


class Drop(NamedTuple):
    """A node let go of a residual; ``reason`` is one of :data:`DROP_REASONS`."""

    serial: int
    node: int
    reason: str


class Launch(NamedTuple):
    """An op ran. ``inputs`` and ``outputs`` are serials of storages, 0 for a Python number or an absent input."""

    invocation: Invocation
    tag: Tag
    node: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time: int


class Retag(NamedTuple):
    """A buffer has another owner: it became a parameter or a gradient, or its layer got a name."""

    serial: int
    tag: Tag


class Mark(NamedTuple):
    """A named moment. ``what`` is one of :data:`MARKS`; ``time`` is in nanoseconds of the monotonic clock.

    ``what`` may also be ``at``, with an empty label: the time of the records that follow, in another program's log.
    """

    what: str
    label: str
    time: int


class View(NamedTuple):
    """An op made a view: it shows a storage under another spec, without a launch."""

    invocation: Invocation
    tag: Tag
    node: int
    serial: int


class Upload(NamedTuple):
    """Bytes were copied from the host into a buffer."""

    serial: int
    nbytes: int


class Read(NamedTuple):
    """Bytes of a buffer were copied to the host, so Python may branch on them."""

    serial: int
    nbytes: int


#: In the order of the kinds.
Record = Reserve | Unreserve | Alloc | Free | Keep | Drop | Launch | Retag | Mark | View | Upload | Read
#: The named form of each kind.
NAMED: tuple[type[Any], ...] = get_args(Record)
Raw = tuple[Any, ...]


def typed(raw: Raw, shown: Mapping[int, Tag] | None = None) -> Record:
    """The named form of a raw record. ``shown`` has, by ``id``, what tags to show instead of the record's."""
    kind, fields = raw[0], raw[1:]
    if kind == DROP:
        fields = (*raw[1:3], DROP_REASONS[raw[3]])
    elif shown is not None and kind in TAG_AT:
        at = TAG_AT[kind]
        fields = (*raw[1:at], shown[id(raw[at])], *raw[at + 1:])
    # The constructors would take the fields apart and put them together again.
    record: Record = tuple.__new__(NAMED[kind], fields)
    return record
