"""The figures of a log that is written out by hand, so that each can be counted."""

from __future__ import annotations

import pytest

from gradcore import folds
from gradcore.events import BORROW, Alloc, Drop, Free, Keep, Mark, Record, Reserve, Retag, Site, Tag, Unreserve
from gradcore.folds import Live, Peak
from gradcore.spec import TensorSpec

SITE = Site("train.py", 7, "main")
SPEC = TensorSpec.of((10,), "float32")


def tag(op: str, role: str = "output") -> Tag:
    return Tag(op, "", "forward", role, SITE, None, SPEC)


def alloc(serial: int, requested: int, allocated: int, who: Tag, node: int = 0) -> Alloc:
    return Alloc(serial, 0, 0, requested, allocated, 0, who, node)


LOG: list[Record] = [
    Reserve(0, 8192),
    alloc(1, 1000, 1024, tag("empty")),
    alloc(2, 600, 1024, tag("relu"), 4),
    # Node 5 multiplies it by itself, and keeps it under two names.
    Keep(2, 5, "a"),
    Keep(2, 5, "b"),
    Keep(2, 6, "x"),
    Retag(1, tag("weight", "parameter")),
    alloc(3, 2500, 2560, tag("mul"), 5),
    Free(3),
    alloc(4, 2520, 2560, tag("exp"), 6),
    Free(4),
    Reserve(1, 4096),
    Unreserve(1, 4096),
    Keep(1, 6, "w"),
    Drop(2, 6, "consumed"),
    Drop(2, 5, "consumed"),
    Drop(2, 5, "graph died"),
    Free(2),
    alloc(7, 0, 0, tag(BORROW, "input")),
]


def test_live_bytes_after_each_record() -> None:
    assert list(folds.timeline(LOG)) == [
        Live(0, 0, 8192), Live(1000, 1024, 8192), *[Live(1600, 2048, 8192)] * 5, Live(4100, 4608, 8192), Live(1600, 2048, 8192),
        Live(4120, 4608, 8192), Live(1600, 2048, 8192), Live(1600, 2048, 12288), *[Live(1600, 2048, 8192)] * 5,
        *[Live(1000, 1024, 8192)] * 2]


@pytest.mark.parametrize(("start", "peak"), [
    # Reached first at 7; then again, where more was asked for.
    (0, Peak(7, 4120, 4608, 12288)), (7, Peak(7, 4120, 4608, 12288)), (8, Peak(9, 4120, 4608, 12288)),
    (10, Peak(10, 1600, 2048, 12288)), (12, Peak(12, 1600, 2048, 8192)), (18, Peak(18, 1000, 1024, 8192)),
    (len(LOG), Peak(len(LOG), 0, 0, 0))])
def test_a_peak_is_where_it_was_first_reached(start: int, peak: Peak) -> None:
    assert folds.peak(LOG, start) == peak


def test_a_log_of_nothing_has_no_peak() -> None:
    assert folds.peak([]) == Peak(0, 0, 0, 0) and folds.live_at([], 0) == []


@pytest.mark.parametrize(("position", "keepers"), [
    (2, ()), (3, ((5, "a"),)), (5, ((5, "a"), (5, "b"), (6, "x"))), (14, ((5, "a"), (5, "b"))), (15, ((5, "b"),)), (16, ())])
def test_each_drop_is_of_one_keep(position: int, keepers: tuple[tuple[int, str], ...]) -> None:
    (held,) = [h for h in folds.live_at(LOG, position) if h.serial == 2]
    assert held == folds.Holder(2, 600, 1024, tag("relu"), 4, keepers)
    assert held.role == ("residual" if keepers else "output")


def test_what_is_live_has_its_newest_owner() -> None:
    assert [h.tag.op for h in folds.live_at(LOG, 5)] == ["empty", "relu"]
    weight, _ = folds.live_at(LOG, 16)
    assert weight.kept_by == ((6, "w"),) and weight.role == "parameter", "a parameter that is kept is a parameter"
    assert [h.serial for h in folds.live_at(LOG, 17)] == [1]


def test_a_keep_from_before_the_log_is_dropped_by_any_node() -> None:
    log = [alloc(1, 10, 512, tag("exp")), *[Keep(1, 0, "kept before the log began")] * 2, Keep(1, 9, "x")]
    log += [Drop(1, 4, "consumed")]
    assert [h.kept_by for h in folds.live_at(log, 4)] == [((0, "kept before the log began"), (9, "x"))]
    assert [(r.node, r.dropped_at) for r in folds.residuals(log)] == [(0, 4), (0, None), (9, None)]
    # The node that keeps it in the log drops its own, though another's is older.
    dropped = [*log, Drop(1, 9, "consumed")]
    assert [h.kept_by for h in folds.live_at(dropped, 5)] == [((0, "kept before the log began"),)]
    assert folds.live_at([*dropped, Drop(1, 4, "graph died")], 6)[0].role == "output"
    log += [Drop(1, 9, "consumed"), Drop(1, 4, "graph died"), Drop(1, 4, "graph died"), Free(1)]
    assert [(r.node, r.dropped_at, r.freed_at, r.reason) for r in folds.residuals(log)] == [
        (0, 4, 8, "consumed"), (0, 6, 8, "graph died"), (9, 5, 8, "consumed")]


def test_many_nodes_may_keep_one_buffer() -> None:
    """As a weight of a recurrent network over a long sequence; to search among them for each that drops it took minutes."""
    many = range(1, 100_001)
    log = [alloc(1, 10, 512, tag("empty", "parameter")), *(Keep(1, node, "w") for node in many),
           *(Drop(1, node, "consumed") for node in reversed(many[1:]))]
    assert [h.kept_by for h in folds.live_at(log, len(log) - 1)] == [((1, "w"),)]


def test_residuals_say_when_they_were_kept_dropped_and_freed() -> None:
    assert folds.residuals(LOG) == [
        folds.Residual(2, 5, "a", 1024, 600, tag("relu"), 3, 15, 17, "consumed"),
        folds.Residual(2, 5, "b", 1024, 600, tag("relu"), 4, 16, 17, "graph died"),
        folds.Residual(2, 6, "x", 1024, 600, tag("relu"), 5, 14, 17, "consumed"),
        folds.Residual(1, 6, "w", 1024, 1000, tag("weight", "parameter"), 13)]


def test_bytes_outside_are_those_of_borrowed_memory() -> None:
    borrowed = folds.live_at(LOG, len(LOG) - 1)
    assert [h.serial for h in borrowed] == [1, 7] and folds.outside(borrowed) == 40
    # A copy of borrowed memory is the pool's, and memory of unknown size counts for nothing.
    others = [folds.Holder(8, 40, 512, tag(BORROW), 0), folds.Holder(9, 0, 0, tag(BORROW)._replace(spec=None), 0),
              folds.Holder(10, 0, 512, tag("empty"), 0)]
    assert folds.outside(others) == 0


def test_totals_are_in_order_of_size_and_then_of_name() -> None:
    holders = [folds.Holder(k, 1, n, tag(op), 0) for k, (op, n) in enumerate((("b", 512), ("c", 1024), ("a", 512), ("c", 512)))]
    assert list(folds.total(holders, lambda h: h.tag.op).items()) == [("c", 1536), ("a", 512), ("b", 512)]


def test_the_first_of_several_marks_counts() -> None:
    marks = [Mark("end", "step", 1), Mark("begin", "backward", 2), Mark("begin", "step", 3), Mark("begin", "step", 4)]
    assert folds.start_of_step(marks) == 2
    assert folds.start_of_step(marks[:2]) == 0
