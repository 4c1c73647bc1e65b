"""Arenas: their ranges count while they are open, each once, whoever gives them back and whenever that is noticed."""

from __future__ import annotations

import pytest

from gradcore.events import CONSUMED, DIED, Alloc, Drop, Free, typed
from gradcore.memory.arena import Range, close_ranges, open_ranges, range_of, set_aside
from gradcore.memory.resource import Stream
from gradcore.memory.stack import Stack
from tests.meta.memory_stacks import MiB, stack
from tests.meta.test_ledger import tag


@pytest.fixture
def memory() -> Stack:
    return stack()


def arena_of(memory: Stack, count: int) -> list[Range]:
    """The ranges, all closed, of an arena for ``count`` buffers of 500 bytes; the first two are kept by nodes 8 and 9."""
    ledger = memory.ledger
    block = ledger.allocate(count * 512, Stream(0), tag("arena"))
    set_aside(ledger, block)
    ranges = [range_of(ledger, block, 512 * k, 500, 512, tag("a"), k + 3) for k in range(count)]
    for r in ranges[:2]:
        r.keepers = (8, 9)
    return ranges


def figures(memory: Stack) -> tuple[int, int, int]:
    return memory.ledger.requested, memory.ledger.allocated, len(memory.ledger.ranges)


def test_a_range_that_is_given_back_twice_goes_once(memory: Stack) -> None:
    """A replay lets go of what it leaves, and the ledger may not have drained it yet when the storage goes too."""
    a, b, c = ranges = arena_of(memory, 3)
    a.let_go(memory.ledger.release)
    assert figures(memory) == (0, 0, 0), "it was not open"
    open_ranges(memory.ledger, ranges)
    assert figures(memory) == (1500, 1536, 3) and [r.offset for r in ranges] == [0, 512, 1024]
    for _ in range(2):
        b.let_go(memory.ledger.release)
    # While it is still in the queue.
    open_ranges(memory.ledger, [b])
    assert figures(memory) == (1500, 1536, 3)
    b.let_go(memory.ledger.release)
    close_ranges(memory.ledger, [b, c])
    assert figures(memory) == (500, 512, 1)


def test_a_range_is_closed_whose_finalizer_an_interrupt_has_ended(memory: Stack) -> None:
    ranges, ledger = arena_of(memory, 3), memory.ledger
    open_ranges(ledger, ranges)
    ranges[1].going = True
    del ranges[:2]
    assert figures(memory) == (500, 512, 1) and len(ledger.arenas) == 1
    # Its arena goes with the last one.
    ranges.clear()
    assert figures(memory) == (0, 0, 0) and not ledger.arenas


def test_a_peak_has_the_ranges_that_were_open(memory: Stack) -> None:
    ranges, ledger = arena_of(memory, 3), memory.ledger
    ledger.reset_peaks()
    open_ranges(ledger, ranges)
    close_ranges(ledger, ranges)
    assert (*ledger.peaks[:2], *figures(memory)) == (1500, 1536, 0, 0, 0)


@pytest.mark.parametrize("way", ["given back", "closed"])
def test_keepers_drop_a_range_once(memory: Stack, way: str) -> None:
    a, _, c = ranges = arena_of(memory, 3)
    ledger = memory.ledger
    ledger.begin_log()
    for _ in range(2):
        open_ranges(ledger, ranges)
        assert [r.keeps for r in ranges] == [2, 2, 0]
        serials, before = [r.serial for r in ranges], len(ledger.log or ())
        if way == "closed":
            close_ranges(ledger, [a, c])
        else:
            a.let_go(ledger.release)
            c.let_go(ledger.release)
        close_ranges(ledger, [a, c])
        reason = ("consumed", "graph died")[DIED if way == "given back" else CONSUMED]
        found = [typed(r) for r in (ledger.log or ())[before:]]
        assert found == [Drop(serials[0], 8, reason), Drop(serials[0], 9, reason), Free(serials[0]), Free(serials[2])]
        assert [(r.serial, r.keeps) for r in (a, c)] == [(0, 0), (0, 0)]
        assert figures(memory) == (500, 512, 1)
        close_ranges(ledger, ranges)


def test_a_range_opens_under_a_serial_that_the_log_has(memory: Stack) -> None:
    ranges = arena_of(memory, 2)
    ledger = memory.ledger
    log = ledger.begin_log()
    before = ledger.allocations
    open_ranges(ledger, ranges, [70, 71])
    assert log == ledger.log and not [r for r in map(typed, log) if isinstance(r, Alloc)] and ledger.allocations == before
    assert list(ledger.live) == [70, 71]
    close_ranges(ledger, ranges)
    open_ranges(ledger, ranges)
    assert [r.serial for r in ranges] == [before + 1, before + 2]
    assert [(r.serial, r.offset, r.requested, r.node) for r in map(typed, log) if isinstance(r, Alloc)] == [
        (before + 1, 0, 500, 3), (before + 2, 512, 500, 4)]


def test_an_arena_that_goes_is_an_ordinary_block_again(memory: Stack) -> None:
    ledger, stream = memory.ledger, Stream(0)
    log = ledger.begin_log()
    opening = len(log)
    block = ledger.allocate(MiB, stream, tag("arena"))
    set_aside(ledger, block)
    assert (ledger.requested, ledger.allocated, ledger.live) == (0, 0, {}) and [*ledger.arenas] == [block]
    ledger.release(block)
    assert (ledger.requested, ledger.allocated, ledger.live) == (0, 0, {}) and not ledger.arenas
    assert [type(r).__name__ for r in map(typed, log[opening:])] == ["Reserve"], "the log never had it"
    again = ledger.allocate(MiB, stream, tag("a"))
    assert again is block and ledger.requested == MiB
    ledger.release(again)
    assert ledger.requested == 0 and typed(log[-1]) == Free(log[-2][1]), "the second time it is no arena"
