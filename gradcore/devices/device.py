"""A device: memory, streams and a table of kernels."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradcore.devices.calls import KernelCall, Operands, Steps
from gradcore.devices.storage import Storage, new_storage
from gradcore.errors import DeviceError
from gradcore.events import READ, UPLOAD, Tag
from gradcore.forking import brief
from gradcore.memory.ledger import Ledger
from gradcore.memory.resource import Block, MemoryResource, Segment, Stream
from gradcore.memory.stack import Stack
from gradcore.report.step import DriverFigures
from gradcore.spec import TensorSpec

#: Streams of each priority that a device creates; after the last, the first is handed out again.
POOL = 32


class _Current(threading.local):
    """A thread's choices: its current stream on each device, if not the default one, and its default device."""

    def __init__(self) -> None:
        self.of: dict[Device, Stream] = {}
        #: The default device, then those whose ``with`` the thread is in.
        self.places: list[Device | None] = [None]


_current = _Current()


class Device:
    """A place where tensors live. Subclasses say how arrays are made over blocks, and how bytes are copied to the host."""

    #: ``cpu``, ``cuda`` or ``meta``.
    type = ""
    #: The number of a device whose kind may have several, else None.
    index: int | None = None
    #: Is it the pool of pinned host memory, and are its pages locked, as those of a machine with a GPU are?
    pinned = locked = False

    def __init__(self, name: str, stack: Stack, stream: Stream, kernels: dict[str, Callable[..., Any]]) -> None:
        self.name = name
        self.stack = stack
        self.memory: MemoryResource = stack.top
        self.ledger: Ledger = stack.ledger
        #: The default stream.
        self.stream = stream
        #: All streams of the device, by index.
        self.streams = [stream]
        #: Is there any stream besides the default one? If not, the current stream need not be looked up.
        self.several = False
        #: Streams besides the default one that ops have run on.
        self.worked: set[Stream] = set()
        self._copies: Stream | None = None
        # By priority: the streams created, and how many were asked for since there are all of them.
        self._pools: dict[int, tuple[list[Stream], Iterator[int]]] = {}
        self.driver = stack.driver
        self.kernels = kernels
        #: Dispatch's cache of calls on this device.
        self.calls: dict[Any, Any] = {}
        #: The default random generator, created when first used.
        self.generator: Any = None
        #: Captures many launches into one, on devices that can; else None.
        self.graphs: Any = None

    @property
    def compute(self) -> Device:
        """The device that ops on its tensors run on, and that tensors name as their own."""
        return self

    def allocate(self, nbytes: int, tag: Tag) -> Storage:
        """A new storage of ``nbytes`` bytes. Raises :class:`~gradcore.errors.OutOfMemory`."""
        return new_storage(self, nbytes, self.current, tag, 0)

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Stream:
        """The stream that this thread's work goes to."""
        return _current.of.get(self, self.stream) if self.several else self.stream

    def make_stream(self, priority: int = 0) -> Stream:
        """One more stream. It lives as long as the device, since blocks may be free on it alone."""
        made = Stream(len(self.streams), self.driver.create_stream(priority), self.driver)
        self.streams.append(made)
        self.several = True
        return made

    def next_stream(self, priority: int) -> Stream:
        """One of :data:`POOL` streams of a priority, in turn."""
        with _making:
            pool, numbers = self._pools.setdefault(priority, ([], itertools.count()))
            if len(pool) == POOL:
                return pool[next(numbers) % POOL]
            pool.append(self.make_stream(priority))
            return pool[-1]

    @property
    def copies(self) -> Stream:
        """The stream of asynchronous copies, created when first used."""
        if self._copies is None:
            with _making:
                if self._copies is None:
                    self._copies = self.make_stream()
        return self._copies

    def set_current(self, stream: Stream) -> Callable[[], Any] | None:
        """Send this thread's work on the device to ``stream`` from now on. Returns what :meth:`activate` does."""
        _current.of[self] = stream
        if stream is not self.stream:
            self.worked.add(stream)
        return self.activate(stream)

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Send this thread's work on the device to ``stream`` inside the block."""
        before, let_go = self.current, self.set_current(stream)
        try:
            yield
        finally:
            self.set_current(before)
            if let_go is not None:
                let_go()

    def order(self, first: Stream, then: Stream) -> None:
        """Make later work on ``then`` run after the work submitted to ``first`` so far; the host does not wait."""
        if first is not then:
            self.driver.wait(then, self.driver.record(first))

    def join(self) -> None:
        """Make the current stream wait for all others, since backward reads what any of them computed."""
        for stream in (self.stream, *self.worked):
            self.order(stream, self.current)

    def array(self, block: Block, spec: TensorSpec) -> Any:
        """The array object over ``block``'s bytes in the layout of ``spec``, cached in their segment."""
        arrays = block.arrays
        found = arrays.get(spec)
        if found is None:
            if len(arrays) >= 64:
                arrays.clear()
            found = arrays[spec] = self.make_array(block, spec)
        return found

    def bind(self, kernel: Callable[..., Any], op: str = "", any_strides: bool = False) -> Callable[..., Any]:
        """What launches a kernel, given inputs, outputs and workspace; with ``any_strides``, outputs of other strides, too."""
        return kernel

    def written_out(self, op: str, kernel: Callable[..., Any], args: list[Any]) -> list[KernelCall] | None:
        """The calls that a kernel makes on given arrays, as (function, arguments), where that saves time; else None."""
        return None

    def stand_in(self, nbytes: int) -> Block | None:
        """Unaccounted bytes that nothing will touch, to write calls out for tensors that do not exist yet."""
        return None

    def fused(self, kind: str, steps: Steps) -> Steps | None:
        """Faster calls for those of neighboring instructions, a list for each; None if there are none."""
        return None

    def suited(self, kernel: Callable[..., Any], operands: Operands) -> tuple[Callable[..., Any], int]:
        """The kernel adapted to these dtypes, and the bytes that this allocates beside what is declared."""
        return kernel, 0

    def kernel(self, name: str) -> Callable[..., Any]:
        """The kernel of an op. Raises NotImplementedError if there is none."""
        try:
            return self.kernels[name]
        except KeyError:
            raise NotImplementedError(f"op {name!r} has no kernel on device {self.name!r}") from None

    def upload(self, storage: Storage, spec: TensorSpec, values: np.ndarray[Any, Any]) -> None:
        """Copy host values into a storage."""
        if self.ledger.log is not None:
            self.ledger.log.append((UPLOAD, storage.serial, spec.nbytes))
        self.copy_in(self.array(storage.block, spec), values)

    def send(self, storage: Storage, spec: TensorSpec, source: Any) -> None:
        """Copy a pinned tensor into a storage on the stream :attr:`copies`; the current stream waits for the copy.

        The host does not wait, so the tensor must not be written to before the copy is done.
        """
        if self.ledger.log is not None:
            self.ledger.log.append((UPLOAD, storage.serial, spec.nbytes))
        self.copy_across(self.array(storage.block, spec), source)
        self.order(self.copies, self.current)
        storage.block.use_on(self.current)

    def fetch(self, storage: Storage, spec: TensorSpec, into: Any) -> None:
        """Copy a storage into a pinned tensor on the stream :attr:`copies`, after the current stream's work so far."""
        self.note_read(storage, spec)
        self.order(self.current, self.copies)
        storage.block.use_on(self.copies)
        self.copy_across(self.array(storage.block, spec), into, back=True)

    def read(self, storage: Storage, spec: TensorSpec) -> np.ndarray[Any, Any]:
        """A fresh host copy of a storage's values. Raises :class:`DataDependentShape` on meta."""
        self.note_read(storage, spec)
        return self.copy_out(self.array(storage.block, spec))

    def note_read(self, storage: Storage, spec: TensorSpec) -> None:
        """Record that the host sees the values from now on, in a copy or in the bytes themselves."""
        if self.ledger.log is not None:
            self.ledger.log.append((READ, storage.serial, spec.nbytes))

    # -- for subclasses to define --------------------------------------------------------------------------------------

    def make_array(self, block: Block, spec: TensorSpec) -> Any:
        """The device's array over a block's bytes, in the layout of ``spec``."""
        raise NotImplementedError

    def foreign(self, array: Any, nbytes: int) -> Segment:
        """A segment over another library's array, ``nbytes`` from its first element on; it keeps the array alive."""
        raise NotImplementedError

    def array_for_others(self, value: Any, shown: Any) -> Any:
        """Another library's array over a tensor's bytes; it keeps them and ``shown`` alive."""
        raise NotImplementedError

    def array_of_others(self, given: Any) -> Any:
        """An array over the memory of a DLPack object, which it keeps alive."""
        raise NotImplementedError

    def copy_in(self, array: Any, values: np.ndarray[Any, Any]) -> None:
        """Copy host values into an array."""
        raise NotImplementedError

    def copy_out(self, array: Any) -> np.ndarray[Any, Any]:
        """A host copy of an array. Raises :class:`DataDependentShape` on meta."""
        raise NotImplementedError

    def copy_across(self, array: Any, pinned: Any, back: bool = False) -> None:
        """Copy between an array here and a pinned tensor, to the tensor if ``back``, on the stream :attr:`copies`."""
        raise NotImplementedError

    def driver_figures(self) -> DriverFigures | None:
        """The driver's figures for this device's memory; None if there is no driver."""
        return None

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        self.driver.synchronize()

    def activate(self, stream: Stream) -> Callable[[], Any] | None:
        """Launch this thread's kernels on ``stream``. Returns what sends other libraries' code, if it went along, back."""
        return None

    def __enter__(self) -> Device:
        """Inside ``with``, tensors that this thread makes without naming a device are made here."""
        _current.places.append(self)
        return self

    def __exit__(self, *failure: object) -> None:
        _current.places.pop()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and other in (self.name, self.type))

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        kind, _, index = self.name.partition(":")
        return f"device(type='{kind}', index={index})" if index else f"device(type='{kind}')"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # There is one of each in a process, so a copy of a module that knows its device knows the same one.
        return get_device, (self.name,)


# -- the devices of this process ---------------------------------------------------------------------------------------

#: A number is written in one way: cuda:01 would be a second device on the card of cuda:1.
_NAME = re.compile("([a-z]+)(?::(0|[1-9][0-9]*))?")
_makers: dict[str, Callable[[int], Device]] = {}
_devices: dict[str, Device] = {}
_used: list[Device] = []
#: Called with each device when it is made.
arrivals: list[Callable[[Device], None]] = []
_making = brief()


def register(kind: str, maker: Callable[[int], Device]) -> None:
    """Register ``maker(index)``, which creates a device of that kind when it is first used."""
    _makers[kind] = maker


def get_device(name: str | int | Device | None = None) -> Device:
    """The device called ``name`` (``cpu``, ``meta``, ``cuda``, ``cuda:1``, or 1 for that), made at first use; None is ``cpu``.

    Raises :class:`DeviceError` for an unknown name, and for a device that this machine does not have.
    """
    if isinstance(name, Device):
        return name
    name = "cpu" if name is None else f"cuda:{name}" if isinstance(name, int) else str(name)
    found = _devices.get(name)
    if found is None:
        parts = _NAME.fullmatch(name)
        if parts is None or parts[1] not in _makers:
            raise DeviceError(f"unknown device {name!r}: expected one of {', '.join(sorted(_makers))}, or cuda:N")
        kind, index = parts[1], int(parts[2] or 0)
        if kind != "cuda" and index:
            raise DeviceError(f"device {name!r} does not exist: there is one {kind!r} device")
        with _making:
            canonical = f"cuda:{index}" if kind == "cuda" else kind
            if canonical not in _devices:
                _devices[canonical] = _makers[kind](index)
                _used.append(_devices[canonical])
                for call in arrivals:
                    call(_devices[canonical])
            found = _devices[name] = _devices[canonical]
    return found


def get_default_device() -> Device:
    """Where this thread makes tensors that name no device: the CPU unless set otherwise, or inside ``with device:``."""
    return _current.places[-1] or _devices.get("cpu") or get_device("cpu")


def set_default_device(device: str | int | Device | None) -> None:
    """Make ``device``, None for the CPU, this thread's device for tensors that name none. Raises as :func:`get_device` does."""
    # What is bound to a device already stays there: arrays in from_numpy, generators.
    _current.places[0] = None if device is None else get_device(device)


def device_of_new(name: str | int | Device | None, own: Device | None = None) -> Device:
    """The device called ``name``, or ``own``, or the default one."""
    return get_device(name) if name is not None else get_default_device() if own is None else own


def devices() -> list[Device]:
    """Every device that has been used in this process."""
    return _used
