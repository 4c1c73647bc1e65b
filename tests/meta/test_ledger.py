"""The ledger: after every operation, its counters equal the fold of its log and the sums over its live blocks."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gradcore import folds
from gradcore.errors import OutOfMemory
from gradcore.events import ALLOC, FREE, OUTSIDE, Alloc, Free, Keep, Reserve, Retag, Scope, Site, Tag, Unreserve, typed
from gradcore.memory.arena import close_ranges, open_ranges, range_of, set_aside
from gradcore.memory.peaks import Measured
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.memory.sources import CountingSource
from gradcore.memory.stack import Stack, explain_live, unnamed
from tests.meta.memory_stacks import Events, Failing, MiB, stack


def tag(op: str, layer: str = "", role: str = "output") -> int:
    return Tag(op, layer, "forward", role, Site("train.py", 7, "main", ()), None, None)


def check_free_lists(memory: Stack) -> None:
    """Live, waiting and listed bytes are disjoint and fill the segments; lists are sorted and merged."""
    pool = memory.pool
    spans = []
    for block in pool.blocks:
        assert block.segment is pool.segments[block.segment.index]
        spans.append(((block.segment.index << 48) + block.offset, block.size))
    waiting = {id(b) for s in pool.streams for blocks in s.waiting.values() for b in blocks}
    assert waiting == {id(b) for b in pool.blocks if not b.serial}
    for stream in pool.streams:
        for free in stream.free:
            ranges = free.ranges()
            assert all(a + n < b for (a, n), (b, _) in pairwise(ranges))
            assert all(n > 0 for _, n in ranges)
            assert free.total == sum(n for _, n in ranges)
            spans += ranges
    spans.sort()
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))
    assert sum(n for _, n in spans) == pool.reserved == sum(s.nbytes for s in pool.segments.values())


def check_books(memory: Stack) -> None:
    ledger = memory.ledger
    live = ledger.live
    assert ledger.requested == sum(b.requested for b in live.values())
    assert ledger.allocated == sum(b.size for b in live.values())
    assert ledger.allocated + memory.pool.cached == ledger.reserved
    assert ledger.requested <= ledger.allocated <= ledger.reserved
    if ledger.log is not None:
        records = [typed(r) for r in ledger.log]
        *_, now = folds.timeline(records)
        assert now == folds.Live(ledger.requested, ledger.allocated, ledger.reserved)
        holders = folds.live_at(records, len(records) - 1)
        assert [(h.serial, h.requested, h.allocated, h.tag, h.node) for h in holders] == [
            (b.serial, b.requested, b.size, b.tag, b.node) for b in live.values()]
        for key in (lambda h: h.tag.op, lambda h: h.tag.layer, lambda h: h.role):
            assert sum(folds.total(holders, key).values()) == ledger.allocated
        peak = folds.peak(records)
        assert (peak.requested, peak.allocated, peak.reserved) == ledger.peaks


@pytest.mark.parametrize("seed", range(8))
@unnamed()
def test_a_random_walk_keeps_the_books(seed: int) -> None:
    rng = random.Random(seed)
    memory = stack(source=Failing(CountingSource(), allocations=range(5, 200, 7)), limit=48 * MiB, driver=Events())
    ledger, streams = memory.ledger, [Stream(k) for k in range(3)]
    live: list[Block] = []
    failures = 0
    for step in range(400):
        action = rng.random()
        if step == 40:
            ledger.begin_log()
            ledger.reset_peaks()
        if action < 0.5:
            size = rng.choice([0, 1, 512, 700, 5000, 70_000, MiB, 3 * MiB, 11 * MiB, 40 * MiB])
            try:
                live.append(ledger.allocate(size, rng.choice(streams), tag(rng.choice("abc"), rng.choice("xy")), step))
            except OutOfMemory as error:
                failures += 1
                assert error.asked == size and error.live == ledger.allocated
                assert error.cached == ledger.reserved - ledger.allocated
        elif action < 0.9 and live:
            block = live.pop(rng.randrange(len(live)))
            ledger.release(block)
        elif action < 0.95 and live:
            ledger.retag(rng.choice(live), tag("d", role="parameter"))
        else:
            ledger.flush()
        check_books(memory)
        check_free_lists(memory)
    assert failures
    for block in live:
        ledger.release(block)
    ledger.flush()
    check_books(memory)
    assert ledger.reserved == 0


def test_a_log_opens_with_what_is_there() -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    first = ledger.allocate(1000, stream, tag("a"), 3)
    gone = ledger.allocate(2000, stream, tag("b"))
    ledger.release(gone)
    first.keeps = 2
    records = [typed(r) for r in ledger.begin_log()]
    assert records == [Reserve(0, 2 * MiB), Alloc(first.serial, 0, 0, 1000, 1024, 0, tag("a"), 3),
                       *[Keep(first.serial, 0, "kept before the log began")] * 2]
    ledger.end_log()
    assert ledger.log is None


def test_adopted_memory_goes_with_its_block() -> None:
    memory = stack()
    ledger, segment = memory.ledger, Segment(4000, 0, "what keeps it alive")
    log = ledger.begin_log()
    block = ledger.adopt(segment, Stream(0), tag("borrow"))
    block.arrays["a spec"] = "an array over it"
    serial = block.serial
    assert log == [(ALLOC, serial, OUTSIDE, 0, 0, 0, 0, tag("borrow"), 0)] and ledger.live == {serial: block}
    ledger.release(block)
    assert log[1:] == [(FREE, serial)] and ledger.live == {} and ledger.requested == ledger.allocated == 0
    assert segment.memory is None and block.arrays == {}, "though somebody has the block"
    assert not memory.pool.blocks


def test_ranges_of_an_arena_open_a_log_in_order_of_allocation() -> None:
    memory = stack()
    ledger = memory.ledger
    block = ledger.allocate(100 * 512, Stream(0), tag("arena"))
    set_aside(ledger, block)
    # Neither by address nor by position: a set would have an order of its own.
    ranges = [range_of(ledger, block, 512 * (k * 37 % 100), 512, 512, tag("a")) for k in range(100)]
    open_ranges(ledger, ranges[::-1])
    serials = [r.serial for r in ranges[::-1]]
    assert [r.serial for r in map(typed, ledger.begin_log()) if isinstance(r, Alloc)] == serials == sorted(serials)
    assert list(ledger.live) == serials
    ledger.end_log()
    close_ranges(ledger, ranges)
    assert not ledger.ranges


def test_a_log_shows_the_moment() -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    log = ledger.begin_log()
    a = ledger.allocate(1000, stream, tag("a"))
    serial = a.serial
    ledger.retag(a, tag("a"))
    ledger.retag(a, tag("b"))
    ledger.release(a)
    assert typed(log[-1]) == Free(serial), "before anything else is asked of the ledger"
    b = ledger.allocate(10, stream, tag("a"))
    assert [typed(r) for r in log] == [
        Reserve(0, 2 * MiB), Alloc(serial, 0, 0, 1000, 1024, 0, tag("a"), 0), Retag(serial, tag("b")),
        Free(serial), Alloc(b.serial, 0, 1024, 10, 512, 0, tag("a"), 0)]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_logs_end_in_any_order(order: tuple[int, ...]) -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    logs, began, ended, held = [], [], {}, []
    for _ in range(3):
        logs.append(ledger.begin_log())
        began.append(len(logs[-1]))
        held.append(ledger.allocate(512, stream))
    for k in order:
        ended[k] = ledger.so_far(logs[k])
        ledger.end_log(logs[k])
        held.append(ledger.allocate(512, stream))
        # Nothing is left to do, and the others go on.
        ledger.end_log(logs[k])
    assert ledger.log is None and not ledger._outer and ledger.release == ledger._pending.append
    made = [[r[1] for r in log[n:] if r[0] == ALLOC] for log, n in zip(logs, began, strict=True)]
    for k, serials in enumerate(made):
        # From when it began until it ended, every allocation once.
        assert logs[k] == ended[k] and serials == list(range(k + 1, 4 + order.index(k)))


def test_a_log_around_another_has_its_records_too() -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    held = ledger.allocate(1000, stream, tag("a"))
    outer = ledger.begin_log()
    opening = len(outer)
    b = ledger.allocate(1, stream, tag("b"))
    before = b.serial
    inner = ledger.begin_log()
    assert [r.serial for r in map(typed, inner) if isinstance(r, Alloc)] == [held.serial, before]
    c = ledger.allocate(2, stream, tag("c"))
    within = c.serial
    so_far, inside = ledger.so_far(outer), ledger.so_far(inner)
    assert [r[1] for r in so_far[opening:]] == [before, within] and len(outer) == opening + 1 and inside == inner
    ledger.end_log()
    assert outer == so_far == ledger.so_far(outer) and ledger.so_far(inner) == inner
    freed = held.serial
    ledger.release(held)
    ledger.end_log()
    ledger.allocate(3, stream, tag("d"))
    assert ledger.log is None
    assert [(type(r), r.serial) for r in map(typed, outer[opening:])] == [(Alloc, before), (Alloc, within), (Free, freed)]
    assert inner[-1][1] == within, "a log that has ended stays as it is"


def test_peaks_start_again() -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    big = ledger.allocate(5 * MiB, stream)
    small = ledger.allocate(100, stream)
    ledger.release(big)
    assert ledger.peaks == (5 * MiB + 100, 5 * MiB + 512, 22 * MiB)
    ledger.flush()
    ledger.reset_peaks()
    assert ledger.peaks == (100, 512, 2 * MiB)
    ledger.release(small)


def test_a_stretch_of_peaks_leaves_no_trace_and_may_be_ended_twice() -> None:
    """An interrupt may come just before the first call returns."""
    ledger, stream = stack().ledger, Stream(0)
    stretch = Measured(ledger)
    stretch.begin()
    block = ledger.allocate(1000, stream)
    ledger.release(block)
    found = stretch.end()
    assert found == (1000, 1024, 2 * MiB) and ledger.measured == []
    assert stretch.end() == found


def test_what_an_arena_held_for_a_while_is_in_both_peaks() -> None:
    ledger, stream = stack().ledger, Stream(0)
    blocks = [ledger.allocate(n, stream) for n in (100, 100)]
    # Before the peak is read, as it is in a replay.
    ledger.passed(0, 0)
    assert ledger.peaks[:2] == (200, 1024)
    ledger.release(blocks[0])
    assert ledger.requested == 100
    ledger.passed(500, 512)
    assert ledger.peaks[:2] == (600, 1024), "more was asked for, in as many bytes"
    ledger.passed(10, 1024)
    assert ledger.peaks[:2] == (600, 1536)
    assert (ledger.requested, ledger.allocated) == (100, 512)
    # One that waits to go back is live no longer.
    ledger.release(blocks[1])
    ledger.passed(550, 512)
    assert ledger.peaks[:2] == (600, 1536)


def test_a_waiting_block_serves_what_rounds_to_its_size() -> None:
    ledger, stream = stack().ledger, Stream(0)
    ready = [ledger.allocate(n, stream) for n in (512, 1024, 1536)]
    for block in ready:
        ledger.release(block)
    for nbytes, size in ((0, 512), (1, 512), (512, 512), (513, 1024), (1024, 1024), (1025, 1536), (1536, 1536)):
        block = ledger.allocate(nbytes, stream)
        assert block.size == size and block in ready
        ledger.release(block)


def test_a_flush_that_fails_says_so_and_leaves_the_books_right() -> None:
    memory = stack(source=Failing(CountingSource(), deallocations=[1]))
    ledger, stream = memory.ledger, Stream(0)
    log = ledger.begin_log()
    for block in [ledger.allocate(12 * MiB, stream) for _ in range(2)]:
        ledger.release(block)
    with pytest.raises(RuntimeError, match="driver is gone"):
        ledger.flush()
    check_books(memory)
    assert typed(log[-1]) == Unreserve(0, 12 * MiB) and ledger.reserved == 12 * MiB


def test_a_stretch_that_ends_gives_back_the_peaks_from_before_it() -> None:
    ledger, stream = stack().ledger, Stream(0)
    ledger.release(ledger.allocate(4096, stream))
    stretch = Measured(ledger)
    stretch.begin()
    ledger.release(ledger.allocate(1024, stream))
    assert stretch.end()[:2] == (1024, 1024) and ledger.peaks[:2] == (4096, 4096)


def test_running_out_names_the_largest_holders() -> None:
    memory = stack(limit=32 * MiB)
    ledger, stream = memory.ledger, Stream(0)
    held = [ledger.allocate(nbytes, stream, who) for k in range(3) for nbytes, who in (
        (4 * MiB, tag("matmul", "layers.0", "parameter")), (100 * (k + 1), tag("add", role="gradient")))]
    with pytest.raises(OutOfMemory) as caught:
        ledger.allocate(30 * MiB, stream, tag("relu", "layers.1"))
    text = str(caught.value)
    assert "out of memory" in text and isinstance(caught.value, (RuntimeError, MemoryError))
    error = caught.value
    assert error.by == "relu in layer layers.1, forward, train.py:7"
    assert (error.op, error.layer, error.phase, error.file, error.line) == ("relu", "layers.1", "forward", "train.py", 7)
    assert (error.caller_file, error.caller_line) == ("", 0)
    assert f"cannot allocate {30 * MiB:,} bytes (30.0 MiB) for {error.by}; {12 * MiB + 1536:,} (12.0 MiB) are live, " in text
    assert f", limit {32 * MiB:,} (32.0 MiB); " in text
    lines = text.splitlines()
    assert lines[1] == "The 2 largest holders:"
    assert f"{12 * MiB:,} bytes  parameter of matmul in layer layers.0, train.py:7" in lines[2]
    assert "1,536 bytes  gradient of add in layer (root), train.py:7" in lines[3]
    assert caught.value.__traceback__ is not None and caught.value.__cause__ is None
    assert ledger.allocated == sum(b.size for b in held)
    assert caught.value.__context__ is None
    assert (caught.value.asked, caught.value.live) == (30 * MiB, 12 * MiB + 1536)
    assert caught.value.cached == ledger.reserved - caught.value.live
    assert caught.value.largest_free <= caught.value.cached


def test_running_out_names_ten_holders_and_says_so_if_there_are_none() -> None:
    memory = stack()
    ledger, stream = memory.ledger, Stream(0)
    assert explain_live(ledger) == ["Nothing is live."]
    kept = [ledger.allocate(512 * k, stream, tag("matmul", f"layers.{k}")) for k in range(1, 12)]
    lines = explain_live(ledger)
    assert lines[0] == "The 10 largest holders:"
    assert [line.split()[0] for line in lines[1:-1]] == [f"{512 * k:,}" for k in range(11, 1, -1)]
    assert lines[-1].split() == ["512", "bytes", "in", "1", "more"]
    # Of so many, layers that hold as much by the same line share one.
    kept += [ledger.allocate(2048, stream, tag("add", f"blocks.{k}.fc")) for k in range(12)]
    lines = explain_live(ledger)
    assert len(lines) == 12
    assert lines[1].endswith(f"{12 * 2048:,} bytes  output of add in layer blocks.0-11.fc, train.py:7 (12 buffers)")
    del kept


def test_scopes_and_tags_are_plain_data() -> None:
    assert Scope("a", "forward") == ("a", "forward", None, None, None)
    assert tag("a") == ("a", "", "forward", "output", Site("train.py", 7, "main"), None, None, None, None)
