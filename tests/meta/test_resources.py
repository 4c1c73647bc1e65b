"""The guarantees of every resource, however it is composed and whatever its source does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from gradcore.devices.host.device import fill_with_ones
from gradcore.errors import AlreadyReleased, OutOfMemory, SourceExhausted
from gradcore.events import UNTAGGED, Alloc, Free, Reserve, typed
from gradcore.memory.adaptors import Limit
from gradcore.memory.pinned import AfterCopies
from gradcore.memory.resource import Block, MemoryResource, Segment, Stream
from gradcore.memory.sources import CountingSource, HostSource
from gradcore.memory.stack import Stack, unnamed
from gradcore.spec import ROUND
from tests.meta.memory_stacks import Failing, MiB, Slow, stack

SOURCES: dict[str, Callable[[], Any]] = {
    "counting": CountingSource, "host": HostSource, "slow": lambda: Slow(CountingSource()),
    "failing at first": lambda: Failing(CountingSource(), allocations=range(1, 100, 2))}
TINY, ROOMY = 8 * MiB, 64 * MiB


@dataclass
class Case:
    """A resource under test, and the stack that it is part of."""

    resource: MemoryResource
    stack: Stack
    stream: Stream

    def figures(self) -> tuple[Any, ...]:
        ledger = self.stack.ledger
        return ledger.requested, ledger.allocated, list(ledger.live), ledger.reserved - self.stack.pool.cached


def _poison(block: Block) -> None:
    if block.segment.memory is not None:
        fill_with_ones(block)


KINDS = ("ledger", "poison", "fault", "pinned")


@pytest.fixture(params=[(k, s) for k in KINDS for s in SOURCES], ids=lambda p: f"{p[0]} over {p[1]}")
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    kind, source = request.param
    made = stack(source=SOURCES[source](), limit=ROOMY if "failing" in source else TINY,
                 poison=_poison if kind in ("poison", "fault") else None, fail_at=() if kind == "fault" else None)
    resources = {"ledger": made.ledger, "pinned": AfterCopies(made.top, made.driver, made.pool.segments)}
    with unnamed():
        yield Case(resources.get(kind, made.top), made, Stream(0))


def lock_is_free(case: Case) -> bool:
    return not case.stack.ledger.lock._is_owned()


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, 100_000, MiB, MiB + 1, 3 * MiB])
def test_a_block_is_large_enough_and_aligned(case: Case, nbytes: int) -> None:
    block = case.resource.allocate(nbytes, case.stream)
    assert block.requested == nbytes <= block.size
    assert block.size % ROUND == block.offset % ROUND == 0 and block.size > 0
    assert block.size - nbytes <= ROUND
    assert block.offset + block.size <= block.segment.nbytes
    assert block.serial > 0
    case.resource.release(block)


def test_live_blocks_are_disjoint_and_carry_their_tags(case: Case) -> None:
    tags = {k: UNTAGGED._replace(op=str(k)) for k in range(1, 20)}
    blocks = [case.resource.allocate(1000 * k, case.stream, tag=tag, node=k + 7) for k, tag in tags.items()]
    assert len({b.serial for b in blocks}) == len(blocks)
    spans = sorted((b.segment.index, b.offset, b.offset + b.size) for b in blocks)
    assert all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(spans))
    assert [(b.tag, b.node) for b in blocks] == [(tag, k + 7) for k, tag in tags.items()]
    for b in blocks:
        case.resource.release(b)


def test_a_block_that_went_back_is_used_again(case: Case) -> None:
    first = case.resource.allocate(5000, case.stream)
    where, serial = (first.segment.index, first.offset), first.serial
    case.resource.release(first)
    second = case.resource.allocate(5000, case.stream)
    assert (second.segment.index, second.offset) == where
    assert list(case.stack.ledger.live) == [second.serial] != [serial]
    case.resource.release(second)


@pytest.mark.parametrize("logged", [False, True])
def test_a_block_that_is_given_back_twice_is_an_error_and_changes_nothing(case: Case, logged: bool) -> None:
    kept, block = case.resource.allocate(5000, case.stream), case.resource.allocate(5000, case.stream)
    if logged:
        case.stack.ledger.begin_log()
    case.resource.release(block)
    with pytest.raises(AlreadyReleased, match=r"^Block\(.* was given back twice$"):
        # Without a log blocks wait in a queue until memory is asked for.
        case.resource.release(block)
        case.resource.allocate(5000, case.stream)
    assert list(case.stack.ledger.live) == [kept.serial] and lock_is_free(case)
    assert case.stack.ledger.requested == 5000
    assert len({case.resource.allocate(5000, case.stream).offset for _ in range(3)} | {kept.offset}) == 4


def test_segments_without_memory_have_addresses_apart() -> None:
    source = CountingSource()
    first, second = source.allocate(3 * MiB), source.allocate(MiB)
    assert first.address == 0 and second.address == 3 * MiB


def test_a_failure_changes_nothing(case: Case) -> None:
    kept = [case.resource.allocate(MiB, case.stream) for _ in range(3)]
    before = case.figures()
    for nbytes in (ROOMY + 1, 1 << 40):
        with pytest.raises((OutOfMemory, SourceExhausted)):
            case.resource.allocate(nbytes, case.stream)
        assert case.figures() == before and lock_is_free(case)
    small = case.resource.allocate(1000, case.stream)
    for b in (*kept, small):
        case.resource.release(b)


def test_everything_can_be_taken_again_after_everything_went_back(case: Case) -> None:
    for nbytes in (MiB // 2, 3 * MiB, 9000):
        blocks, refusals = [], 0
        # A source that fails at random may fail right after the limit has: the second failure is final.
        while refusals < 2:
            try:
                blocks.append(case.resource.allocate(nbytes, case.stream))
                assert len(blocks) < 1_000_000
            except (OutOfMemory, SourceExhausted):
                refusals += 1
        assert sum(b.size for b in blocks) > TINY // 2
        for b in blocks:
            case.resource.release(b)


# -- adaptors ----------------------------------------------------------------------------------------------------------


def test_a_limit_counts_what_is_reserved() -> None:
    source = Limit(CountingSource(), 4 * MiB)
    first = source.allocate(3 * MiB)
    with pytest.raises(SourceExhausted, match="exceed the limit of 4,194,304 bytes: 3,145,728 bytes are reserved") as caught:
        source.allocate(2 * MiB)
    assert caught.value.limit == 4 * MiB and source.used == 3 * MiB
    source.deallocate(first)
    assert source.used == 0
    source.limit = None
    source.allocate(1 << 40)


def test_a_limit_forgets_what_its_source_refused() -> None:
    source = Limit(Failing(CountingSource(), allocations=[1]), 4 * MiB)
    with pytest.raises(SourceExhausted):
        source.allocate(MiB)
    assert source.used == 0


def test_faults_come_on_schedule() -> None:
    made = stack(fail_at=(2, 3))
    stream, outcomes = Stream(0), []
    for _ in range(4):
        try:
            outcomes.append(made.top.allocate(100, stream).serial)
        except OutOfMemory as error:
            outcomes.append(str(error))
    assert outcomes == [1, "out of memory: injected failure of allocation 2, 100 bytes",
                        "out of memory: injected failure of allocation 3, 100 bytes", 2]


def test_poison_covers_fresh_and_freed_bytes() -> None:
    made = stack("host", poison=fill_with_ones)
    stream = Stream(0)
    block = made.top.allocate(600, stream)
    memory = memoryview(block.segment.memory)
    whole = slice(block.offset, block.offset + block.size)
    assert set(memory[whole]) == {0xFF}
    memory[whole] = bytes(block.size)
    made.top.release(block)
    assert set(memory[whole]) == {0xFF}
    assert set(memory[whole.stop:]) == {0}


def test_the_host_refuses_what_does_not_exist() -> None:
    with pytest.raises(SourceExhausted, match="host memory"):
        HostSource().allocate(1 << 62)


# -- finalizers and threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [False, True], ids=["goes on", "ends"])
def test_a_finalizer_may_run_inside_allocate(end: bool) -> None:
    class Dropping(CountingSource):
        """A source in which a block is freed, as by a garbage collection that runs there."""

        held: list[Block]

        def allocate(self, nbytes: int) -> Segment:
            while self.held:
                made.ledger.release(self.held.pop())
            return super().allocate(nbytes)

    source = Dropping()
    source.held = []
    made = stack(source=source)
    stream = Stream(0)
    source.held = [made.ledger.allocate(MiB, stream) for _ in range(2)]
    log = made.ledger.begin_log()
    opening = len(log)
    big = made.ledger.allocate(50 * MiB, stream)
    assert not source.held
    # The pool is at work and must not be entered again; the log is complete as soon as somebody looks, or it ends.
    assert [type(r) for r in map(typed, log[opening:])] == [Reserve, Alloc]
    if end:
        made.ledger.end_log()
    else:
        assert len(made.ledger.so_far(log)) == opening + 4
    assert [type(r) for r in map(typed, log[opening:])] == [Reserve, Alloc, Free, Free]
    assert list(made.ledger.live) == [big.serial] and made.ledger.requested == 50 * MiB


@pytest.mark.parametrize("slow", [False, True])
def test_threads_never_share_a_byte(slow: bool) -> None:
    source = Slow(CountingSource()) if slow else CountingSource()
    made = stack(source=source, limit=256 * MiB)
    stream, errors = Stream(0), []
    owners: dict[tuple[int, int], int] = {}

    def run(seed: int) -> None:
        try:
            mine: list[Block] = []
            for k in range(400):
                if len(mine) > 8 or (mine and (k * seed) % 3 == 0):
                    block = mine.pop((k * seed) % len(mine))
                    assert owners.pop((block.segment.index, block.offset)) == seed
                    made.ledger.release(block)
                else:
                    block = made.ledger.allocate(1 + (k * 7919 * seed) % 300_000, stream, tag=UNTAGGED._replace(op=str(seed)))
                    assert owners.setdefault((block.segment.index, block.offset), seed) == seed
                    mine.append(block)
            for block in mine:
                owners.pop((block.segment.index, block.offset))
                made.ledger.release(block)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2, 5, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert made.ledger.requested == made.ledger.allocated == 0 and made.ledger.live == {}
    assert made.ledger.reserved == made.pool.cached
