"""The pool: sizes of segments, reuse, growth, flushing, and its errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradcore.errors import OutOfMemory
from gradcore.memory.placement import bytes_in_turn, segment_size
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, Stream
from gradcore.memory.sources import CountingSource
from gradcore.memory.stack import Stack, build
from gradcore.memory.streams import NoDriver, StreamOrder
from gradcore.spec import round_up
from tests.meta.memory_stacks import Events, Failing, MiB, stack
from tests.meta.test_ledger import check_free_lists, tag


def pool_over(source: object) -> Pool:
    return Pool(source, StreamOrder(NoDriver()))  # type: ignore[arg-type]


def give(pool: Pool, *blocks: Block) -> None:
    for block in blocks:
        # As the ledger does.
        block.serial = 0
        pool.order.settle(block)
        block.home.append(block)


@pytest.mark.parametrize(("nbytes", "rounded"), [(0, 512), (1, 512), (512, 512), (513, 1024), (1 << 40, 1 << 40)])
def test_sizes_are_rounded_by_one_rule(nbytes: int, rounded: int) -> None:
    assert round_up(nbytes) == rounded


@pytest.mark.parametrize(("size", "segment"), [
    (512, 2 * MiB), (MiB, 2 * MiB), (MiB + 512, 20 * MiB), (10 * MiB - 512, 20 * MiB), (10 * MiB, 10 * MiB),
    (11 * MiB, 12 * MiB), (100 * MiB + 512, 102 * MiB)])
def test_segments_come_in_three_sizes(size: int, segment: int) -> None:
    assert segment_size(size) == segment
    pool = pool_over(CountingSource())
    pool.allocate(size, Stream(0))
    assert [s.nbytes for s in pool.segments.values()] == [segment] and pool.reserved == segment
    assert pool.cached == segment - size


def test_small_blocks_never_lie_in_large_segments() -> None:
    pool, stream = pool_over(CountingSource()), Stream(0)
    large = pool.allocate(5 * MiB, stream)
    small = pool.allocate(512, stream)
    assert small.segment is not large.segment
    give(pool, small, large)
    assert pool.allocate(2 * MiB, stream).segment is large.segment
    assert pool.allocate(512, stream).segment is small.segment


def test_segments_of_any_size_keep_their_blocks_apart() -> None:
    # The meta device predicts batches that no machine could hold.
    pool, stream = pool_over(CountingSource()), Stream(0)
    sizes = [1 << 50, 512, 3 << 57, (1 << 59) - 2 * MiB, 11 * MiB]
    blocks = [pool.allocate(size, stream) for size in sizes]
    assert [b.size for b in blocks] == sizes
    assert len({b.segment.index for b in blocks}) == 5 and all(b.offset == 0 for b in blocks)
    give(pool, *blocks)
    assert pool.flush() == sum(segment_size(b.size) for b in blocks)
    with pytest.raises(OutOfMemory, match="a segment has less than 576,460,752,303,423,488 bytes on any device") as caught:
        pool.allocate(1 << 59, stream)
    assert caught.value.asked == 1 << 59 and not pool.reserved


def test_but_they_do_before_memory_runs_out() -> None:
    made = stack(limit=24 * MiB)
    pool, stream, other = made.pool, Stream(0), Stream(1)
    large = pool.allocate(5 * MiB, stream)
    small = [pool.allocate(MiB, stream) for _ in range(4)]
    borrowed = pool.allocate(MiB, stream)
    assert borrowed.segment is large.segment and pool.reserved == 24 * MiB
    assert pool.allocate(MiB, other).segment is large.segment, "another stream's, handed over"
    give(pool, *small[:2])
    assert pool.largest_free == 13 * MiB, "the rest of the large segment"
    give(pool, borrowed)
    assert pool.allocate(2 * MiB, stream).segment is large.segment, "and it is the large segment's again"


#: Of transient blocks, and of optimizer state.
PLAIN, STATE = tag("exp"), tag("full", "0", "optimizer state")


def test_large_optimizer_state_has_segments_of_its_own() -> None:
    memory = stack()
    ledger, pool, stream = memory.ledger, memory.pool, Stream(0)
    for block in [ledger.allocate(size, stream, PLAIN) for size in (40 * MiB, 3 * MiB)]:
        ledger.release(block)
    state = ledger.allocate(3 * MiB, stream, STATE)
    small = ledger.allocate(MiB, stream, STATE)
    assert state.segment.nbytes == 6 * MiB, "neither the block that waits for its size, nor a part of the free segment"
    assert small.segment.nbytes == 2 * MiB and ledger.allocate(MiB, stream, PLAIN).segment is small.segment
    assert ledger.allocate(40 * MiB, stream, PLAIN).segment.index == 0 and pool.reserved == 68 * MiB
    ledger.release(state)
    assert ledger.allocate(2 * MiB, stream, PLAIN).segment.nbytes == 20 * MiB
    assert ledger.allocate(6 * MiB, stream, STATE).segment is state.segment
    check_free_lists(memory)


@pytest.mark.parametrize("size", [MiB + 512, 9 * MiB // 8, 3 * MiB // 2, 9 * MiB // 4, 5 * MiB, 27 * MiB // 4, 17 * MiB + 512])
def test_little_is_left_over_of_the_segments_of_equal_layers_state(size: int) -> None:
    memory, stream = stack(), Stream(0)
    blocks = [memory.ledger.allocate(size, stream, STATE) for _ in range(48)]
    most = max(s.nbytes for s in memory.pool.segments.values())
    assert most < 20 * MiB and memory.pool.reserved - most <= 8 / 7 * sum(b.size for b in blocks)


def test_what_flushing_merges_serves_blocks_of_its_own_kind() -> None:
    memory, stream = stack(limit=20 * MiB), Stream(0)
    first, small = memory.ledger.allocate(5 * MiB, stream, PLAIN), memory.ledger.allocate(MiB, stream, PLAIN)
    assert small.segment is first.segment
    memory.ledger.release(small)
    assert memory.ledger.allocate(15 * MiB, stream, PLAIN).offset == 5 * MiB, "next to the small block, which is free"
    check_free_lists(memory)


def test_small_blocks_of_a_full_device_are_found_without_asking_the_driver_again() -> None:
    source = Failing(CountingSource())
    memory, stream = build(source, NoDriver()), Stream(0)
    source.allocations = set(range(2, 100))
    part = memory.ledger.allocate(40 * MiB, stream, PLAIN)
    memory.ledger.release(part)
    held = [memory.ledger.allocate(size, stream, PLAIN) for size in (10 * MiB, 512)]
    asked = source.came
    for _ in range(9):
        memory.ledger.release(held.pop())
        held.append(memory.ledger.allocate(512, stream, PLAIN))
    assert source.came == asked
    check_free_lists(memory)


def test_a_layout_says_what_segments_are_for() -> None:
    layouts = []
    for of in (PLAIN, STATE):
        memory = stack()
        memory.ledger.release(memory.ledger.allocate(30 * MiB, Stream(0), of))
        memory.ledger.drain()
        layouts.append(memory.pool.layout())
    assert layouts[0] != layouts[1]


def test_but_not_when_memory_runs_out() -> None:
    memory = stack(limit=40 * MiB)
    ledger, stream, other = memory.ledger, Stream(0), Stream(1)
    held, free = ledger.allocate(3 * MiB, stream, PLAIN), ledger.allocate(3 * MiB, stream, PLAIN)
    ledger.release(free)
    state = [ledger.allocate(6 * MiB, on, STATE) for on in (stream, stream, stream, other)]
    assert [b.segment is held.segment for b in state] == [False, False, False, True]
    for block in state[:2]:
        ledger.release(block)
    assert ledger.allocate(12 * MiB, stream, PLAIN).offset == 0 and memory.pool.reserved == 38 * MiB, "state went back"
    check_free_lists(memory)


def test_a_segment_whose_parts_are_free_serves_what_needs_it_whole() -> None:
    """The next step asks for the same sizes in another order than this one has freed them."""
    memory = stack()
    ledger, pool, stream = memory.ledger, memory.pool, Stream(0)
    alone, whole = ledger.allocate(30 * MiB, stream, PLAIN), ledger.allocate(100 * MiB, stream, PLAIN)
    ledger.release(whole)
    part = ledger.allocate(30 * MiB, stream, PLAIN)
    assert part.segment is whole.segment
    for block in (alone, part):
        ledger.release(block)
    first, second = ledger.allocate(30 * MiB, stream, PLAIN), ledger.allocate(100 * MiB, stream, PLAIN)
    assert first.segment is alone.segment and second.segment is whole.segment and pool.misses == 2
    check_free_lists(memory)


def test_a_large_segment_replaces_free_ones_whose_work_it_can_do() -> None:
    driver = Events()
    memory = stack(driver=driver)
    ledger, pool, stream = memory.ledger, memory.pool, Stream(0)

    def with_free(*sizes: int) -> list[int]:
        """The megabytes of the segments after a request of the first size, when segments of the others are free."""
        for block in [ledger.allocate(size * MiB, stream, PLAIN) for size in sizes[1:]]:
            ledger.release(block)
        ledger.release(ledger.allocate(sizes[0] * MiB, stream, PLAIN))
        check_free_lists(memory)
        return sorted(s.nbytes // MiB for s in pool.segments.values())

    assert with_free(30, 12, 14, 16) == [12, 30], "16 and 14"
    assert driver.calls == [("synchronize",)], "once, before the first goes back"
    assert with_free(44, 44) == [44]
    held = ledger.allocate(2 * MiB, stream, PLAIN), ledger.allocate(13 * MiB, stream, PLAIN)
    assert [b.segment.nbytes // MiB for b in held] == [44, 44]
    assert with_free(60, 21) == [44, 60], "not 44, which is in use"
    assert pool.reserved == 104 * MiB


def test_what_went_back_merges_and_serves_a_larger_block() -> None:
    pool, stream = pool_over(CountingSource()), Stream(0)
    blocks = [pool.allocate(512 * 1024, stream) for _ in range(4)]
    assert pool.reserved == 2 * MiB and pool.cached == 0
    give(pool, blocks[1], blocks[2])
    assert pool.largest_free == MiB and len(stream.waiting[512 * 1024]) == 2, "looking merges nothing"
    merged = pool.allocate(MiB, stream)
    assert merged.offset == blocks[1].offset and pool.reserved == 2 * MiB and pool.misses == 1


def test_flushing_gives_back_whole_segments_alone() -> None:
    source = Failing(CountingSource())
    pool, stream = pool_over(source), Stream(0)
    keep, go = pool.allocate(12 * MiB, stream), pool.allocate(30 * MiB, stream)
    partly = pool.allocate(512, stream)
    give(pool, go)
    assert pool.flush() == 30 * MiB and source.went == 1
    assert pool.reserved == 14 * MiB and pool.flush() == 0
    give(pool, keep, partly)
    assert pool.flush() == 14 * MiB and pool.reserved == pool.cached == pool.largest_free == 0
    assert pool.segments == {}


def test_a_failing_source_is_asked_again_after_a_flush() -> None:
    source = Failing(CountingSource(), allocations=[3])
    pool, stream = pool_over(source), Stream(0)
    give(pool, pool.allocate(12 * MiB, stream))
    kept = pool.allocate(20 * MiB, stream)
    block = pool.allocate(40 * MiB, stream)
    assert source.came == 4 and source.went == 1
    assert pool.reserved == kept.segment.nbytes + block.segment.nbytes == 60 * MiB


def test_a_tight_limit_gets_a_segment_of_just_the_size() -> None:
    made = stack(limit=3 * MiB)
    block = made.pool.allocate(2 * MiB + 100, Stream(0))
    assert block.segment.nbytes == 2 * MiB + 512


def test_running_out_says_what_there_is() -> None:
    made = stack(limit=4 * MiB)
    stream = Stream(0)
    held = made.pool.allocate(512, stream)
    with pytest.raises(OutOfMemory) as caught:
        made.pool.allocate(3 * MiB, stream)
    assert caught.value.asked == 3 * MiB and caught.value.limit == 4 * MiB
    assert caught.value.cached == caught.value.largest_free == 2 * MiB - 512
    assert "limit of 4,194,304 bytes" in str(caught.value)
    give(made.pool, held)
    assert made.pool.allocate(3 * MiB, stream).size == 3 * MiB


def test_a_segment_that_the_source_will_not_take_is_never_handed_out_again() -> None:
    pool, stream = pool_over(Failing(CountingSource(), deallocations=[1])), Stream(0)
    block = pool.allocate(12 * MiB, stream)
    segment = block.segment
    give(pool, block)
    with pytest.raises(RuntimeError, match="driver is gone"):
        pool.flush()
    assert pool.reserved == pool.cached == 0
    assert pool.allocate(12 * MiB, stream).segment is not segment


def test_one_failure_of_several_segments_leaves_the_books_right() -> None:
    pool, stream = pool_over(Failing(CountingSource(), deallocations=[1])), Stream(0)
    give(pool, *[pool.allocate(12 * MiB, stream) for _ in range(3)])
    with pytest.raises(RuntimeError, match="driver is gone"):
        pool.flush()
    assert pool.reserved == sum(s.nbytes for s in pool.segments.values()) == pool.cached
    assert pool.flush() == 24 * MiB and pool.reserved == pool.cached == 0


def test_serials_are_never_used_twice() -> None:
    pool, stream = pool_over(CountingSource()), Stream(0)
    seen = set()
    for _ in range(50):
        block = pool.allocate(700, stream)
        assert block.serial not in seen
        seen.add(block.serial)
        give(pool, block)


def test_what_is_kept_in_one_piece_is_cut_before_all_that_is_free_goes_back() -> None:
    memory = stack(limit=400 * MiB)
    ledger, pool, stream = memory.ledger, memory.pool, Stream(0)
    for block in [ledger.allocate(size, stream, PLAIN) for size in (160 * MiB, 200 * MiB)]:
        ledger.release(block)
    apart = [ledger.allocate(16 * MiB, stream, PLAIN) for _ in range(2)]
    assert [b.segment.nbytes for b in apart] == [16 * MiB] * 2, "large segments stay whole"
    cut = ledger.allocate(16 * MiB, stream, PLAIN)
    assert cut.segment.nbytes == 160 * MiB and (pool.misses, pool.reserved) == (4, 392 * MiB), "no segment went or came"
    rest = ledger.allocate(144 * MiB, stream, PLAIN)
    assert rest.segment is cut.segment
    assert ledger.allocate(16 * MiB, stream, PLAIN).segment.nbytes == 16 * MiB, "the largest is not cut"
    assert (pool.misses, pool.reserved) == (5, 208 * MiB)
    check_free_lists(memory)


@pytest.mark.parametrize(("given_back", "others", "in_turn"), [(60, 500, 60), (40, 500, 0), (40, 60, 40), (20, 60, 0)])
def test_what_a_segment_replaced_says_something_if_it_is_not_little(given_back: int, others: int, in_turn: int) -> None:
    assert bytes_in_turn(100, given_back, others) == in_turn


def alternating(stream: Stream) -> Stack:
    """A pool near its limit that keeps a segment of 200 MiB whole, which took the place of smaller ones."""
    memory = stack(limit=400 * MiB)
    ledger = memory.ledger
    for size in (50, 200):
        for block in [ledger.allocate(size * MiB, stream, PLAIN) for _ in range(200 // size)]:
            ledger.release(block)
    for _ in range(12):
        ledger.allocate(16 * MiB, stream, PLAIN)
    assert memory.pool.reserved == 392 * MiB
    return memory


def test_a_large_segment_that_is_needed_in_turn_with_small_ones_is_cut_at_the_limit() -> None:
    stream = Stream(0)
    memory = alternating(stream)
    cut = memory.ledger.allocate(16 * MiB, stream, PLAIN)
    assert cut.segment.nbytes == 200 * MiB and memory.pool.reserved == 392 * MiB, "no segment went or came"
    check_free_lists(memory)


def test_no_gradient_lies_in_a_segment_that_is_needed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(0)
    memory = alternating(stream)
    monkeypatch.setattr("gradcore.memory.placement._outlives", lambda tag: True)
    gradient = memory.ledger.allocate(16 * MiB, stream, PLAIN)
    assert gradient.segment.nbytes == 16 * MiB and memory.pool.reserved == 208 * MiB
    check_free_lists(memory)


def test_sizes_that_never_come_again_are_forgotten() -> None:
    pool, stream = pool_over(CountingSource()), Stream(0)
    live = [pool.allocate(size, stream) for size in (512, 5 * MiB)]
    for size in range(2, 5000):
        give(pool, pool.allocate(size * 512, stream))
    assert len(stream.waiting) < 2000
    # Those that were live meanwhile go back to where they are looked for.
    give(pool, *live)
    assert stream.waiting[512] == [live[0]]
    check_free_lists(SimpleNamespace(pool=pool))  # type: ignore[arg-type]
    assert pool.flush() > 0 and pool.reserved == 0 and not pool.blocks
