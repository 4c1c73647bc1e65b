"""When memory that was freed on one stream may be used on another; no other code decides this.

A block freed on stream A may be reused on A at once, since A runs its work in order. Before stream B may take it, B must
wait for the work that A had been given by then. The event is recorded on A when B takes the block, not when A frees it: B
then waits for more than it must, which is safe, and freeing costs nothing. Nothing here asks whether an event has
finished: the allocation sequence would depend on timing, and the log would differ from run to run.
"""

from __future__ import annotations

from time import perf_counter

from gradcore.memory.resource import Block, Driver, Stream


class NoDriver:
    """The driver of the host and the meta device, where work is done as soon as it is submitted."""

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
        """From now on ``taker`` may use all that ``giver`` has freed.

        When ``taker`` hands memory on in turn, its new event lies behind this wait, so chains of streams are ordered.
        """
        if giver is not taker:
            self._driver.wait(taker, self._driver.record(giver))

    def settle(self, block: Block) -> None:
        """Make a block's own stream wait for the other streams that used the block, before it is free there."""
        users, block.users = block.users, None
        for user in users or ():
            self.hand_over(user, block.stream)

    def drain(self) -> None:
        """Wait for the device before memory leaves the pool, since other users of the driver do not wait for our streams."""
        self._driver.synchronize()
