"""Streams and events, as in ``torch.cuda``. On ``cpu`` and ``meta`` they only write the same log as on a GPU."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from gradcore.devices.device import Device, get_device
from gradcore.memory.resource import Stream as _Queue

AnyDevice = str | int | Device | None


class _Entered(threading.local):
    """By stream: the blocks of it that a thread is in, the innermost last."""

    def __init__(self) -> None:
        self.blocks: defaultdict[_Queue, list[AbstractContextManager[None]]] = defaultdict(list)


_entered = _Entered()


class Stream:
    """A queue of work on a device, which runs in order, but in no order with other streams.

    A device has 32 streams of each priority (-1 runs before 0), which are never destroyed: the thirty-third is the first again.
    Memory belongs to the stream that was current when it was allocated, and is reused on another one only after the work that
    used it. Raises :class:`~gradcore.errors.DeviceError` if the device, by default ``cuda``, is missing.
    """

    def __init__(self, device: AnyDevice = None, priority: int = 0) -> None:
        self.device = get_device("cuda" if device is None else device)
        self.priority = priority
        self.queue = self.device.next_stream(priority)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle, 0 for the default stream."""
        return self.queue.handle or 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event``, or a new one, after the work submitted to this stream so far, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let later work on this stream run after the event; the host does not wait."""
        if event.handle is not None:
            self.device.driver.wait_event(self.queue, event.handle)

    def wait_stream(self, stream: Stream) -> None:
        """Let later work on this stream run after the work submitted to ``stream`` so far; the host does not wait."""
        self.device.order(stream.queue, self.queue)

    def query(self) -> bool:
        """Is all work done?"""
        return self.device.driver.stream_done(self.queue)

    def synchronize(self) -> None:
        """Wait on the host for all work of this stream."""
        self.device.driver.synchronize_stream(self.queue)

    def __enter__(self) -> Stream:
        block = self.device.use(self.queue)
        block.__enter__()
        _entered.blocks[self.queue].append(block)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _entered.blocks[self.queue].pop().__exit__(kind, error, trace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return hash(self.queue)

    def __repr__(self) -> str:
        return f"<gradcore.cuda.Stream device={self.device} index={self.queue.index} cuda_stream={self.cuda_stream:#x}>"


def _of(device: Device, queue: _Queue) -> Stream:
    found = object.__new__(Stream)
    found.device, found.queue, found.priority = device, queue, 0
    return found


class Event:
    """A point in a stream's work. :meth:`elapsed_time` needs ``enable_timing``; ``blocking`` changes nothing.

    Raises NotImplementedError for ``interprocess``.
    """

    #: Of the class, since what is released may have been refused by the constructor.
    _device: Device | None = None

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("events of other processes are not supported: interprocess=True")
        self._timing = enable_timing
        #: The driver's event, None until the event is recorded for the first time.
        self.handle: Any = None

    def record(self, stream: Stream | None = None) -> None:
        """Record the point after the work submitted so far to ``stream``, by default the current one."""
        stream = current_stream() if stream is None else stream
        if self._device is None:
            self.handle = stream.device.driver.create_event(self._timing)
            self._device = stream.device
        elif self._device is not stream.device:
            raise RuntimeError(f"Event device {self._device} does not match recording stream's device {stream.device}.")
        self._device.driver.record_event(self.handle, stream.queue)

    def wait(self, stream: Stream | None = None) -> None:
        """Let later work on ``stream``, by default the current one, run after this event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Is the work before it done? True for an event that was never recorded."""
        return self._device is None or self._device.driver.event_done(self.handle)

    def synchronize(self) -> None:
        """Wait on the host for the event."""
        if self._device is not None:
            self._device.driver.synchronize_event(self.handle)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to ``end_event``. Raises ValueError unless both have timing and were recorded."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._device is None or end_event._device is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return self._device.driver.elapsed(self.handle, end_event.handle)

    def __del__(self) -> None:
        # At exit the driver may be unloaded already, with its events.
        if self._device is not None and not sys.is_finalizing():
            self._device.driver.destroy_event(self.handle)

    def __repr__(self) -> str:
        return f"<gradcore.cuda.Event {'unrecorded' if self._device is None else self._device}>"


class stream:
    """A context manager: this thread's work on the stream's device goes to ``stream``; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


def set_stream(stream: Stream | None) -> None:
    """Let this thread's work on the stream's device go to ``stream`` from now on; None changes nothing."""
    if stream is not None:
        stream.device.set_current(stream.queue)


def current_stream(device: AnyDevice = None) -> Stream:
    """The stream that this thread's work on ``device`` goes to."""
    found = get_device("cuda" if device is None else device)
    return _of(found, found.current)


def default_stream(device: AnyDevice = None) -> Stream:
    """The stream of ``device`` that is used if no other was chosen."""
    found = get_device("cuda" if device is None else device)
    return _of(found, found.stream)
