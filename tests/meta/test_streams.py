"""Memory across streams, with a driver that simulates them: bytes are reused only after the work that used them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gradcore.memory.resource import Block, Stream
from gradcore.memory.stack import Stack
from tests.meta.memory_stacks import Events, MiB, stack

BIG = 12 * MiB


def streams(count: int) -> list[Stream]:
    return [Stream(k) for k in range(count)]


def made(**settings: Any) -> tuple[Stack, Events]:
    driver = Events()
    return stack(driver=driver, **settings), driver


def take(memory: Stack, nbytes: int, stream: Stream) -> Block:
    return memory.ledger.allocate(nbytes, stream)


def give(memory: Stack, block: Block) -> None:
    memory.ledger.release(block)


def test_one_stream_asks_the_driver_for_nothing() -> None:
    memory, driver = made()
    (a,) = streams(1)
    for _ in range(10):
        give(memory, take(memory, 1000, a))
    assert driver.calls == []


def test_a_block_goes_to_another_stream_behind_an_event() -> None:
    memory, driver = made(limit=BIG)
    a, b = streams(2)
    block = take(memory, BIG, a)
    used = driver.work(a)
    give(memory, block)
    assert driver.calls == [] and not driver.follows(b, used)
    again = take(memory, BIG, b)
    assert (again.segment.index, again.offset) == (block.segment.index, block.offset)
    assert driver.calls == [("record", 0), ("wait", 1)]
    assert driver.follows(b, used)


def test_a_stream_prefers_what_is_its_own() -> None:
    memory, driver = made()
    a, b = streams(2)
    mine, other = take(memory, BIG, a), take(memory, BIG, b)
    give(memory, other)
    give(memory, mine)
    assert take(memory, BIG, a).segment is mine.segment and driver.calls == []


def test_a_chain_of_streams_is_ordered_to_its_beginning() -> None:
    memory, driver = made(limit=BIG)
    a, b, c = streams(3)
    moments = []
    for stream in (a, b, c):
        block = take(memory, BIG, stream)
        moments.append(driver.work(stream))
        give(memory, block)
    assert driver.calls == [("record", 0), ("wait", 1), ("record", 1), ("wait", 2)]
    assert all(driver.follows(c, m) for m in moments)


def test_events_are_recorded_again_for_later_work() -> None:
    memory, driver = made(limit=2 * BIG)
    a, b = streams(2)
    for _ in range(2):
        block = take(memory, 2 * BIG, a)
        used = driver.work(a)
        give(memory, block)
        taken = take(memory, 2 * BIG, b)
        assert driver.follows(b, used)
        back = driver.work(b)
        give(memory, taken)
        again = take(memory, 2 * BIG, a)
        assert driver.follows(a, back)
        give(memory, again)


def test_other_users_of_a_block_are_waited_for() -> None:
    memory, driver = made()
    a, b, c = streams(3)
    block = take(memory, 1000, a)
    block.users = [b, c]
    moments = [driver.work(b), driver.work(c)]
    give(memory, block)
    again = take(memory, 1000, a)
    assert (again.segment.index, again.offset) == (block.segment.index, block.offset)
    assert driver.calls == [("record", 1), ("wait", 0), ("record", 2), ("wait", 0)]
    assert all(driver.follows(a, m) for m in moments)
    assert again.users is None


def test_its_own_stream_among_the_users_costs_nothing() -> None:
    memory, driver = made()
    (a,) = streams(1)
    block = take(memory, 1000, a)
    block.users = [a]
    give(memory, block)
    assert memory.ledger.requested == 0 and driver.calls == []


def test_segments_leave_only_behind_all_work() -> None:
    memory, driver = made()
    a, b = streams(2)
    for block in [take(memory, BIG, stream) for stream in (a, b)]:
        give(memory, block)
    assert memory.ledger.flush() == 2 * BIG
    assert driver.calls == [("synchronize",)]
    assert memory.ledger.flush() == 0 and len(driver.calls) == 1


def test_what_is_free_on_several_streams_is_one_again_after_a_flush() -> None:
    memory, driver = made()
    a, b = streams(2)
    held = take(memory, 2 * MiB, b)
    for block in [take(memory, 2 * MiB, stream) for stream in (a, b, a, b)]:
        give(memory, block)
    assert memory.pool.largest_free < 18 * MiB
    driver.calls.clear()
    assert memory.ledger.flush() == 0 and driver.calls == [("synchronize",)]
    assert memory.pool.largest_free == 18 * MiB
    assert take(memory, 10 * MiB - 512, a).segment is held.segment and len(driver.calls) == 1


class Broken(Events):
    """A driver that can be made to fail."""

    broken = False

    def record(self, stream: Stream) -> Any:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        return super().record(stream)


def test_a_driver_that_fails_leaves_the_lock_free() -> None:
    driver = Broken()
    memory = stack(driver=driver, limit=BIG)
    a, b = streams(2)
    give(memory, take(memory, BIG, a))
    driver.broken = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        take(memory, BIG, b)
    driver.broken = False
    assert memory.ledger.requested == memory.ledger.allocated == 0
    assert memory.ledger.reserved == memory.pool.cached == BIG
    assert take(memory, BIG, b).size == BIG


def test_a_driver_that_fails_over_users_leaves_the_books_right() -> None:
    driver = Broken()
    memory = stack(driver=driver)
    a, b = streams(2)
    block, other = take(memory, 1000, a), take(memory, 1000, a)
    block.users = [b]
    driver.broken = True
    give(memory, block)
    give(memory, other)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        take(memory, 5000, a)
    driver.broken = False
    assert memory.ledger.requested == 0 and memory.ledger.live == {}


@pytest.mark.parametrize("seed", range(5))
def test_no_stream_ever_reads_what_another_still_writes(seed: int) -> None:
    rng = random.Random(seed)
    memory, driver = made(limit=40 * MiB)
    every = streams(4)
    live: list[Block] = []
    last: dict[tuple[int, int], tuple[Stream, int]] = {}
    for _ in range(600):
        if live and (len(live) > 12 or rng.random() < 0.5):
            block = live.pop(rng.randrange(len(live)))
            user = rng.choice(every)
            if user is not block.stream:
                block.users = [user]
            moment = driver.work(user)
            for at in range(block.offset, block.offset + block.size, 512):
                last[block.segment.index, at] = moment
            give(memory, block)
        else:
            stream = rng.choice(every)
            block = take(memory, rng.choice([600, 5000, 300_000, 3 * MiB]), stream)
            live.append(block)
            for at in range(block.offset, block.offset + block.size, 512):
                before = last.get((block.segment.index, at))
                assert before is None or driver.follows(stream, before)
            moment = driver.work(stream)
            for at in range(block.offset, block.offset + block.size, 512):
                last[block.segment.index, at] = moment
