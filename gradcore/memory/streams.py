"""When an address may be used again on another stream: the only code that knows.

A block freed on stream A is free for A at once, since A runs its work in order. For stream B to take it, B must first
wait for what A had been given by then. The event is recorded on A when B takes the block, not when A frees it: it then
stands behind more than it must, which is safe, and freeing costs nothing. Nothing here asks whether an event has
finished: that would make the allocation sequence depend on timing, and the log would differ from run to run.
"""

from __future__ import annotations

from time import perf_counter

from gradcore.memory.resource import Block, Driver, Stream


class NoDriver:
    """The host and the meta device run everything in order already: all work is done when it was given."""

    def record(self, stream: Stream) -> None:
        return None

    def wait(self, stream: Stream, event: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def create_stream(self, priority: int) -> None:
        return None

    def stream_done(self, stream: Stream) -> bool:
        return True

    def synchronize_stream(self, stream: Stream) -> None:
        pass

    def create_event(self, timing: bool) -> list[float]:
        return [0.0]

    def destroy_event(self, event: object) -> None:
        pass

    def record_event(self, event: list[float], stream: Stream) -> None:
        event[0] = perf_counter()

    def wait_event(self, stream: Stream, event: object) -> None:
        pass

    def event_done(self, event: object) -> bool:
        return True

    def synchronize_event(self, event: object) -> None:
        pass

    def elapsed(self, first: list[float], last: list[float]) -> float:
        return (last[0] - first[0]) * 1e3


class StreamOrder:
    """Waits between streams, through a :class:`~gradcore.memory.resource.Driver`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def hand_over(self, giver: Stream, taker: Stream) -> None:
        """After this, ``taker`` may use whatever ``giver`` had freed.

        Handing on from ``taker`` later records a new event there, behind this wait, so chains of streams are ordered.
        """
        if giver is not taker:
            self._driver.wait(taker, self._driver.record(giver))

    def settle(self, block: Block) -> None:
        """Before a block is free on its own stream, that stream waits for the others that used it."""
        users, block.users = block.users, None
        for user in users or ():
            self.hand_over(user, block.stream)

    def drain(self) -> None:
        """Wait for the device before memory leaves the pool: nobody orders the driver's other users behind our work."""
        self._driver.synchronize()
