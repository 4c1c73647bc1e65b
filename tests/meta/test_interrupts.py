"""An interrupt at any moment: no lock stays held, the counters agree, and no memory is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from gradcore import folds
from gradcore.events import ALLOC, FREE, MARK, UNTAGGED, Raw, typed
from gradcore.memory.arena import close_ranges, open_ranges, range_of, set_aside
from gradcore.memory.ledger import Ledger
from gradcore.memory.mending import mend
from gradcore.memory.nesting import OfThread
from gradcore.memory.pool import ENTERED
from gradcore.memory.resource import SMALL_BLOCKS, Block, Segment, Stream
from gradcore.memory.stack import Stack
from tests.meta.memory_stacks import Events, MiB, stack
from tests.meta.test_ledger import check_books, check_free_lists


class Interrupt(BaseException):
    """Like KeyboardInterrupt, which would end pytest."""


def raise_interrupt() -> None:
    raise Interrupt


def at_every_moment(run: Callable[[], Any], where: str = "/gradcore/memory/", apart: int = 1,
                    handler: Callable[[], None] = raise_interrupt) -> Iterator[int]:
    """Call ``run`` repeatedly, each time interrupted ``apart`` moments later in files ``where``, until one call completes.

    Python calls a signal's handler when a function of C's has returned, and when one of Python's begins: there it calls a
    profiler, too, which may call it in its place.
    """
    moment = seen = 0

    def interrupt(frame: FrameType, event: str, arg: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and where in frame.f_code.co_filename.replace("\\", "/"):
            seen += 1
            if seen == moment:
                handler()

    while True:
        moment, seen = moment + apart, 0
        sys.setprofile(interrupt)
        try:
            run()
        except Interrupt:
            pass
        finally:
            sys.setprofile(None)
        # One that a finalizer swallowed is no end.
        if seen < moment:
            assert moment > 1
            return
        # Here nothing refers to the frames that the interrupt passed through.
        yield moment


def check(memory: Stack) -> None:
    assert not memory.ledger.lock._is_owned()
    check_books(memory)
    check_free_lists(memory)


def give_back(ledger: Ledger, held: list[Block]) -> None:
    for block in held:
        if block.serial and block not in ledger._pending:
            ledger.release(block)
    held.clear()


@pytest.mark.parametrize("logged", [False, True], ids=["no log", "a log"])
@pytest.mark.parametrize("sizes", [(512, 512), (MiB, 512, 3 * MiB), (30 * MiB, 700)], ids=str)
def test_an_allocation_that_is_interrupted_leaves_nothing(sizes: tuple[int, ...], logged: bool) -> None:
    memory, stream = stack(), Stream(0)
    ledger = memory.ledger
    held: list[Block] = []
    first = ledger.allocate(512, stream)

    def run() -> None:
        for nbytes in sizes:
            held.append(ledger.allocate(nbytes, stream))
        ledger.flush()
        for block in held:
            ledger.release(block)
        held.clear()
        # This one is not kept.
        ledger.allocate(100, stream)
        ledger.flush()

    if logged:
        ledger.begin_log()
    for _ in at_every_moment(run):
        give_back(ledger, held)
        assert ledger.allocated == 512 and list(ledger.live.values()) == [first]
        check(memory)
        # So that the pool grows in every run, and not only until it has once.
        ledger.flush()
    assert ledger.allocated == 512
    check(memory)
    ledger.release(first)


@pytest.mark.parametrize("passed_on", [False, True], ids=["the error ends there", "the error is passed on"])
@pytest.mark.parametrize("flushes", [False, True], ids=["allocates", "flushes"])
@pytest.mark.parametrize("sizes", [(512, 512), (MiB, 512, 3 * MiB), (30 * MiB, 700)], ids=str)
def test_a_handler_that_allocates_within_an_allocation_is_refused(sizes: tuple[int, ...], flushes: bool,
                                                                  passed_on: bool) -> None:
    """It would be given bytes of the block that is being allocated."""
    memory, stream = stack(), Stream(0)
    ledger = memory.ledger
    held: list[Block] = []
    refused: list[str] = []

    def run() -> None:
        for nbytes in sizes:
            held.append(ledger.allocate(nbytes, stream))
        for block in held:
            ledger.release(block)
        held.clear()
        held.append(ledger.allocate(4 * MiB, stream))
        ledger.flush()

    def handler() -> None:
        sys.setprofile(None)
        try:
            if flushes:
                ledger.flush()
            else:
                held.append(ledger.allocate(512, stream))
        except RuntimeError as error:
            refused.append(str(error))
            if passed_on:
                raise Interrupt from None

    log = ledger.begin_log()
    for _ in at_every_moment(run, handler=handler):
        check_free_lists(memory)
        places = sorted((b.segment.index, b.offset, b.size) for b in ledger.live.values())
        assert all(a[0] < b[0] or a[1] + a[2] <= b[1] for a, b in pairwise(places))
        *_, now = folds.timeline(map(typed, log))
        assert now == (ledger.requested, sum(size for *_, size in places), ledger.reserved)
        give_back(ledger, held)
        assert ledger.allocated == 0
        ledger.flush()
    assert set(refused) == {ENTERED}


def two_streams() -> tuple[Stack, Events, list[Block]]:
    """A stack with a live block, one that waits and a free range on each of two streams, and the live ones."""
    driver = Events()
    memory = stack(driver=driver)
    ledger = memory.ledger
    # Each stream's three fill a segment, so that neither takes over what is the other's.
    every = [(stream, [ledger.allocate(n, stream) for n in (1024, MiB, MiB - 1024)]) for stream in (Stream(0), Stream(1))]
    for stream, (_, free, waiting) in every:
        ledger.release(free)
        ledger.drain()
        memory.pool._merge(stream)
        ledger.release(waiting)
        ledger.drain()
        assert stream.free[SMALL_BLOCKS].total == MiB and stream.waiting[MiB - 1024]
    assert driver.calls == []
    return memory, driver, [blocks[0] for _, blocks in every]


def test_books_that_are_whole_stay_as_they_are() -> None:
    memory, driver, _live = two_streams()
    before = [(s.free[SMALL_BLOCKS].ranges(), {n: list(w) for n, w in s.waiting.items()}) for s in memory.pool.streams]
    mend(memory.pool)
    assert before == [(s.free[SMALL_BLOCKS].ranges(), {n: list(w) for n, w in s.waiting.items()}) for s in memory.pool.streams]
    assert driver.calls == [], "nothing is waited for"
    check(memory)


@pytest.mark.parametrize("torn", ["a range is in no list", "a range is in two lists", "a live block waits", "a block is lost",
                                  "the sum is wrong"])
def test_books_that_are_torn_are_mended_behind_all_work(torn: str) -> None:
    memory, driver, live = two_streams()
    pool = memory.pool
    first, second = pool.streams
    if torn == "a range is in no list":
        assert second.free[SMALL_BLOCKS].take(512) is not None
    elif torn == "a range is in two lists":
        first.free[SMALL_BLOCKS].add(*second.free[SMALL_BLOCKS].ranges()[0])
    elif torn == "a live block waits":
        live[1].home.append(live[1])
    elif torn == "a block is lost":
        second.waiting[MiB - 1024].clear()
    else:
        pool.reserved += 512
    mend(pool)
    # On which stream the bytes were used is not known any more.
    assert driver.calls == [("synchronize",)] and second.free[SMALL_BLOCKS].total == 0
    assert pool.reserved == 4 * MiB and memory.ledger.allocated == 2048
    check(memory)


def test_a_log_that_is_interrupted_as_it_ends_can_be_ended_again() -> None:
    memory, stream = stack(), Stream(0)
    ledger = memory.ledger
    block = ledger.allocate(512, stream)

    def run() -> None:
        log = ledger.begin_log()
        inner = ledger.begin_log()
        ledger.release(ledger.allocate(100, stream))
        assert inner is ledger.log
        ledger.end_log()
        assert log is ledger.log
        ledger.end_log()

    for _ in at_every_moment(run):
        while ledger.log is not None:
            ledger.end_log()
        assert ledger.allocated == 512 and ledger.release == ledger._pending.append
        check(memory)
    ledger.release(block)


def test_a_log_that_is_interrupted_as_it_begins_around_another_threads_duplicates_no_record() -> None:
    memory, logs = stack(), list[list[Raw]]()
    ledger = memory.ledger

    def begin() -> None:
        logs.append([])
        ledger.begin_log(logs[-1])

    def tell(number: int) -> None:
        assert ledger.log is not None
        ledger.log.append((MARK, "test", number))

    def others() -> tuple[list[Raw], OfThread]:
        around, inner = ledger.begin_log(), OfThread()
        inner.thread = -1
        tell(1)
        ledger.begin_log(inner)
        tell(2)
        return around, inner

    around, inner = others()
    for _ in at_every_moment(begin):
        tell(3)
        ledger.end_log(logs[-1])
        tell(4)
        ledger.end_log(inner)
        ledger.end_log(around)
        assert [r[2] for r in around] == [1, 2, 3, 4] and [r[2] for r in inner] == [2, 3, 4] and ledger.log is None
        around, inner = others()


@pytest.mark.parametrize("logged", [False, True], ids=["no log", "a log"])
def test_an_arena_that_is_interrupted_as_it_begins_is_given_back(logged: bool) -> None:
    memory, stream = stack(), Stream(0)
    ledger = memory.ledger
    first = ledger.allocate(512, stream)
    if logged:
        ledger.begin_log()

    def run() -> None:
        block = ledger.allocate(MiB, stream)
        set_aside(ledger, block)
        ledger.release(block)

    for _ in at_every_moment(run):
        assert [*ledger.live.values()] == [first] and ledger.allocated == 512 and not ledger.arenas
        check(memory)


@pytest.mark.parametrize("logged", [False, True], ids=["no log", "a log"])
def test_a_range_that_is_interrupted_as_it_goes_is_in_no_books(logged: bool) -> None:
    """The next log would begin with it as live."""
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    whole = ledger.allocate(MiB, stream)
    set_aside(ledger, whole)
    ranges = [range_of(ledger, whole, 512 * k, 500, 512, UNTAGGED) for k in range(3)]
    log = ledger.begin_log() if logged else None

    def run() -> None:
        open_ranges(ledger, ranges)
        for block in ranges:
            block.let_go(ledger.release)
        with ledger.lock:
            ledger.drain()

    for _ in at_every_moment(run):
        close_ranges(ledger, ranges)
        assert not ledger.ranges and ledger.requested == ledger.allocated == 0
    if logged:
        ledger.end_log(log)
    ranges.clear()
    ledger.release(whole)


def test_a_block_that_is_passed_on_has_one_owner_at_any_moment() -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    block = ledger.allocate(700, stream)
    log = ledger.begin_log()
    tag = UNTAGGED._replace(op="next")
    for _ in at_every_moment(lambda: ledger.pass_on(block, tag, 5)):
        live = {r[1] for r in log if r[0] == ALLOC} - {r[1] for r in log if r[0] == FREE}
        assert ledger.live == {block.serial: block} and live == {block.serial} and ledger.requested == 700
        check(memory)
    assert block.tag is tag and block.node == 5


def test_an_adopted_block_leaves_books_that_were_mended() -> None:
    memory, _driver, live = two_streams()
    adopted = memory.ledger.adopt(Segment(0, 0, None), Stream(0), UNTAGGED)
    live[1].home.append(live[1])
    mend(memory.pool)
    memory.ledger.release(adopted)
    assert memory.ledger.allocated == 2048
    assert adopted not in memory.pool.blocks
