"""Eight streams on a simulated GPU that runs work as late and in any order that waits allow: no byte is used by two at once.

The same random walks fail if a wait is removed from the pool, so they would detect it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from gradcore.devices.device import POOL, Device
from gradcore.errors import OutOfMemory
from gradcore.events import UNTAGGED
from gradcore.memory.driver import CudaDriver, CudaSource
from gradcore.memory.resource import Block, Stream
from gradcore.memory.stack import Stack, build, unnamed
from gradcore.memory.streams import StreamOrder
from tests.meta.simulated_cuda import Card, without

MiB = 1 << 20
STREAMS = 8


class Walk:
    """Random work: blocks are allocated on one stream, used on others after their last use, and freed."""

    def __init__(self, seed: int, faults: dict[str, Any] | None = None, note: bool = True) -> None:
        self.rng = random.Random(seed)
        self.card = Card(room=48 * MiB, seed=seed, faults=faults)
        self.driver = CudaDriver(self.card)
        self.memory: Stack = build(CudaSource(0, self.card), self.driver)
        self.streams = [Stream(k, self.driver.create_stream(0) if k else 0) for k in range(STREAMS)]
        #: Live blocks, each with the stream that touched it last and the stamp left there.
        self.live: dict[Block, tuple[Stream, int]] = {}
        self.note = note
        self.stamps = 0
        self.refused = self.failed = 0

    def stamp(self) -> int:
        self.stamps += 1
        return self.stamps

    def make(self) -> None:
        stream = self.rng.choice(self.streams)
        size = self.rng.choice([600, 5000, 5000, 300_000, 2 * MiB, 3 * MiB, 11 * MiB])
        block = self.memory.ledger.allocate(size, stream)
        stamp = self.stamp()
        self.card.launch(stream.handle, block, None, stamp)
        self.live[block] = stream, stamp

    def use(self) -> None:
        block = self.rng.choice(list(self.live))
        last, expected = self.live[block]
        stream = self.rng.choice(self.streams)
        if stream is not last:
            # As a user orders two streams. The pool must be informed of both.
            self.driver.wait(stream, self.driver.record(last))
        if self.note:
            block.use_on(stream)
        stamp = self.stamp()
        self.card.launch(stream.handle, block, expected, stamp)
        self.live[block] = stream, stamp

    def give(self) -> None:
        block = self.rng.choice(list(self.live))
        del self.live[block]
        self.memory.ledger.release(block)

    # To name what holds memory takes a look at every variable of the process, each time that memory runs out.
    @unnamed()
    def go(self, rounds: int) -> Walk:
        for k in range(rounds):
            chance = self.rng.random()
            try:
                if not self.live or (chance < 0.35 and len(self.live) < 30):
                    self.make()
                elif chance < 0.65:
                    self.use()
                else:
                    self.give()
                if chance < 0.01:
                    self.memory.ledger.flush()
            except OutOfMemory:
                self.refused += 1
                for _ in range(min(len(self.live), 5)):
                    self.give()
            except Card.CUDARuntimeError:
                self.failed += 1
            # Fewer than are submitted, so queues grow, and now and then the host must wait for one.
            self.card.run(self.rng.choice([0, 0, 1, 2, 5]))
            if k % 500 == 0:
                self.card.deviceSynchronize()
            if self.card.wrong:
                break
        return self

    def finish(self) -> None:
        while self.live:
            self.give()
        self.memory.ledger.flush()
        self.card.deviceSynchronize()


@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_rounds_on_eight_streams(seed: int) -> None:
    walk = Walk(seed).go(10_000)
    assert walk.card.wrong == []
    assert walk.refused > 10 and walk.card.calls["free"] > 10, "memory ran out, and segments went back"
    assert walk.card.calls["eventRecord"] > 1000
    walk.finish()
    assert walk.card.wrong == []
    assert walk.memory.ledger.requested == walk.memory.ledger.reserved == 0
    assert walk.card.memory == {} and walk.card.events == {}


def test_the_blocks_do_not_depend_on_when_the_work_is_done() -> None:
    def log(eager: bool) -> list[Any]:
        walk = Walk(3)
        walk.memory.ledger.begin_log()
        written = walk.memory.ledger.log
        assert written is not None
        run = walk.card.run
        walk.card.run = (lambda count: run(1 << 30)) if eager else (lambda count: run(count))  # type: ignore[method-assign]
        walk.go(2000)
        return list(written)

    assert log(True) == log(False)


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_fail_order_nothing_wrongly(seed: int) -> None:
    rng = random.Random(seed)
    faults = {name: {rng.randrange(1, 4000) for _ in range(40)}
              for name in ("eventCreateWithFlags", "eventRecord", "streamWaitEvent")}
    faults["malloc"] = {rng.randrange(2, 200) for _ in range(10)}
    walk = Walk(seed, faults).go(4000)
    assert walk.card.wrong == []
    assert walk.failed > 20
    assert walk.card.events == {}, "an event whose record or wait failed is destroyed"
    ledger = walk.memory.ledger
    assert ledger.requested == sum(block.requested for block in walk.live)
    walk.card.faults = {}
    walk.finish()
    assert walk.card.wrong == [] and ledger.requested == 0


# -- bugs, planted --------------------------------------------------------------------------------------------------------


def _caught(walk: Walk) -> None:
    walk.go(10_000)
    assert walk.card.wrong, "the walk noticed nothing"


def test_a_hand_over_without_a_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*without(StreamOrder, "hand_over"))
    _caught(Walk(0))


def test_a_free_that_forgets_the_other_users_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(order: StreamOrder, block: Block) -> None:
        block.users = None

    monkeypatch.setattr(StreamOrder, "settle", forget)
    _caught(Walk(0))


def test_uses_that_were_not_recorded_are_caught() -> None:
    _caught(Walk(0, note=False))


def test_an_event_that_is_not_recorded_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Stream, Any] = {}

    def once(order: StreamOrder, giver: Stream, taker: Stream) -> None:
        if giver is not taker:
            if giver not in known:
                known[giver] = order._driver.record(giver)
            order._driver.wait_event(taker, known[giver])

    monkeypatch.setattr(StreamOrder, "hand_over", once)
    _caught(Walk(0))


def test_segments_that_leave_before_the_work_is_done_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*without(StreamOrder, "drain"))
    _caught(Walk(0))


# -- a device's own streams -----------------------------------------------------------------------------------------------


def made() -> tuple[Device, Card]:
    card = Card()
    return Device("simulated", build(CudaSource(0, card), CudaDriver(card)), Stream(0, 0), {}), card


def test_current_streams_belong_to_a_thread_and_nest() -> None:
    import threading

    device, _ = made()
    first, second = device.make_stream(), device.make_stream(-1)
    seen = []
    with device.use(first):
        thread = threading.Thread(target=lambda: seen.append(device.current))
        thread.start()
        thread.join()
        with device.use(second):
            assert device.current is second
        assert device.current is first
        assert device.allocate(100, UNTAGGED).block.stream is first
    assert device.current is device.stream and seen == [device.stream]
    assert [stream.index for stream in device.streams] == [0, 1, 2]
    assert device.worked == {first, second}


def test_the_current_stream_joins_those_that_ops_ran_on() -> None:
    device, card = made()
    worker, idle = device.make_stream(), device.make_stream()
    with device.use(worker):
        block = device.allocate(100, UNTAGGED).block
        card.launch(worker.handle, block, None, 7)
    device.join()
    card.launch(0, block, 7, 8)
    while card.queues[0]:
        card.run(1)
    assert card.wrong == [] and card.calls["eventRecord"] == 1 and not card.queues[idle.handle]


def test_streams_are_given_out_in_turn_also_after_one_that_could_not_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = made()
    first = device.next_stream(0)
    with monkeypatch.context() as patch:
        patch.setattr(device.driver, "create_stream", lambda priority: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            device.next_stream(0)
    given = [first, *(device.next_stream(0) for _ in range(2 * POOL - 1))]
    assert given[:POOL] == given[POOL:] and len(set(given)) == POOL and device.next_stream(-1) not in given
