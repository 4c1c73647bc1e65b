"""PyTorch's memory snapshots as records, each of which was worked out by hand."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradcore.events import Alloc, Free, Mark, Record, Reserve, Site, Tag, Unreserve
from gradcore.report.snapshot import load_snapshot, looks_like_snapshot
from gradcore.report.step import PoolFigures, StepReport
from tests.host.reports.test_snapshot import ADAM, ENGINE, LINEAR, NATIVE, OWN, SNAPSHOT, MiB, block, event

Load = Callable[..., tuple[list[Record], StepReport]]
MAIN = Site("/home/me/train.py", 12, "main")
UNKNOWN = Tag("(unknown)", "", "forward", "output", Site("(no frame of Python)", 0, ""), None, None)
STEP = Tag("step", "", "optimizer", "temporary", MAIN, None, None)
PRODUCT = Tag("linear", "", "forward", "output", MAIN, None, None)
GRADIENT = Tag("_engine_run_backward", "", "backward", "temporary", MAIN, None, None)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(data: Any, **options: Any) -> tuple[list[Record], StepReport]:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(data, 4))
        return load_snapshot(path, **options)

    return load


def test_every_record_of_a_snapshot(load: Load) -> None:
    records, report = load(SNAPSHOT)
    assert records == [
        # What was there before: the segment, the buffer that is freed later, the one that is live at the end.
        Reserve(1, 2 * MiB), Alloc(1, 1, 1024, 700, 1024, 0, UNKNOWN, 0), Alloc(2, 1, 0, 1000, 1024, 0, STEP, 0),
        Mark("begin", "step", 10_000), Mark("at", "", 10_000), Reserve(2, 20 * MiB),
        Mark("at", "", 11_000), Alloc(3, 2, 0, 5 * MiB, 5 * MiB, 0, PRODUCT, 0),
        Mark("at", "", 20_000), Alloc(4, 2, 5 * MiB, 3 * MiB, 3 * MiB, 0, GRADIENT, 0),
        Mark("at", "", 21_000), Free(1), Mark("at", "", 30_000), Mark("at", "", 31_000), Free(4), Mark("end", "step", 31_000)]
    # Of the two allocations of the history one needed a new segment.
    assert report.pool == PoolFigures(2, 1, 2, 22 * MiB, 17 * MiB - 1024, 15 * MiB)


def test_segments_that_come_and_go(load: Load) -> None:
    stream = {"stream": 7}
    data = {"device_traces": [[
        {**event("alloc", 2 * MiB, 100, OWN, time=5), **stream},
        # Both were there before the history.
        event("segment_free", 2 * MiB, 2 * MiB, time=6), event("segment_unmap", 8 * MiB, 2 * MiB, time=6),
        event("segment_map", 2 * MiB, 4 * MiB, time=6), event("alloc", 4 * MiB, 512, OWN, time=4),
        event("segment_unmap", 2 * MiB, 4 * MiB, time=7), event("segment_free", 2 * MiB, 4 * MiB, time=7),
        event("alloc", 3 * MiB, 0, OWN, time=7), event("free_completed", 3 * MiB, 0, time=7),
        event("free_completed", 3 * MiB, 0, time=7), event("alloc", 3 * MiB, 1, time=7)]], "segments": []}
    main = Tag("main", "", "forward", "output", MAIN, None, None)
    records, report = load(data)
    assert records == [
        Reserve(1, 2 * MiB), Reserve(2, 2 * MiB), Mark("begin", "step", 5000), Mark("at", "", 5000),
        Alloc(1, 1, 0, 100, 512, 7, main, 0), Mark("at", "", 6000), Unreserve(1, 2 * MiB), Unreserve(2, 2 * MiB),
        # Times never go back.
        Reserve(3, 4 * MiB), Alloc(2, 3, 2 * MiB, 512, 512, 0, main, 0), Mark("at", "", 7000), Unreserve(3, 4 * MiB),
        # In no segment: its address is its offset.
        Alloc(3, 0, 3 * MiB, 0, 512, 0, main, 0), Free(3), Alloc(4, 0, 3 * MiB, 1, 512, 0, UNKNOWN, 0),
        Mark("end", "step", 7000)]
    assert report.pool == PoolFigures(4, 3, 0, 0, 0, 0)


def test_the_segment_of_an_address_and_what_an_event_may_lack(load: Load) -> None:
    trace = [
        # What was there before has the frames of its free.
        event("free_completed", 99 * MiB, 8, OWN), event("segment_map", 0, 4 * MiB), event("segment_map", MiB, MiB),
        event("segment_unmap", 32 * MiB, MiB), event("segment_map", 16 * MiB, MiB), event("segment_unmap", 16 * MiB, MiB),
        event("alloc", MiB + 512, 1, OWN), event("alloc", 3 * MiB, 1, OWN), event("alloc", 4 * MiB, 1, OWN)]
    del trace[-1]["stream"], trace[-1]["time_us"]
    records, report = load({"device_traces": [trace], "segments": []})
    assert [r for r in records if not isinstance(r, Alloc)] == [
        Reserve(1, MiB), Mark("begin", "step", 0), Mark("at", "", 0), Free(1), Reserve(2, 4 * MiB), Reserve(3, MiB),
        Unreserve(1, MiB), Reserve(4, MiB), Unreserve(4, MiB), Mark("end", "step", 0)]
    # Of two segments that hold an address the one that begins later; behind the last byte of one is none.
    assert [(r.segment, r.offset, r.tag.op) for r in records if isinstance(r, Alloc)] == [
        (0, 99 * MiB, "main"), (3, 512, "main"), (2, 3 * MiB, "main"), (0, 4 * MiB, "main")]
    # Three segments, as many as there are buffers.
    assert report.pool == PoolFigures(3, 0, 2, 5 * MiB, 0, 0)
    assert load({"device_traces": [trace[:3]], "segments": []})[1].pool.hits == 0


def test_in_a_file_of_an_older_version_the_step_begins_with_the_first_time(load: Load) -> None:
    trace = [event("alloc", 0, 512), event("alloc", 512, 512), event("alloc", 1024, 512, time=5)]
    records, report = load({"device_traces": [trace], "segments": []})
    assert [type(r) for r in records] == [Alloc, Alloc, Mark, Mark, Alloc, Mark]
    assert records[2] == Mark("begin", "step", 5000) and report.pool.allocations == 1


def test_what_gradcore_says_of_its_own_snapshot(load: Load) -> None:
    trace = [event("segment_alloc", 0, MiB, time=3), event("alloc", 0, 512, time=3), event("alloc", 512, 512, time=4)]
    own = {"device": "cpu", "before": 2, "began_us": 3, "ended_us": 9}
    records, report = load({"device_traces": [trace], "segments": [], "gradcore": own})
    assert [r for r in records if not isinstance(r, Alloc)] == [
        Reserve(1, MiB), Mark("begin", "step", 3000), Mark("at", "", 3000), Mark("at", "", 4000), Mark("end", "step", 9000)]
    assert [type(r) for r in records[:4]] == [Reserve, Alloc, Mark, Mark] and report.device == "cpu"
    assert (report.pool.allocations, report.pool.hits, report.seconds) == (1, 1, 6e-6)
    # A step may begin behind its last event.
    records, report = load({"device_traces": [trace], "segments": [], "gradcore": {**own, "before": 99, "ended_us": 0}})
    assert records[-3:] == [Mark("begin", "step", 4000), Mark("at", "", 4000), Mark("end", "step", 4000)]
    records, report = load({"device_traces": [[]], "segments": []})
    assert records == [Mark("begin", "step", 0), Mark("at", "", 0), Mark("end", "step", 0)] and report.pool.allocations == 0


LIBRARY = {"filename": "torch/nn/modules/module.py", "line": 8, "name": "_call_impl"}
OTHER = {"filename": "/home/me/model.py", "line": 5, "name": "forward"}


@pytest.mark.parametrize(("frames", "tag"), [
    # The function that the innermost line of the user's called; then the user's other lines.
    ([NATIVE, LINEAR, OTHER, LIBRARY, OWN], Tag("linear", "", "forward", "output", Site(
        "/home/me/model.py", 5, "forward", (MAIN,)), None, None)),
    ([OWN], Tag("main", "", "forward", "output", MAIN, None, None)),
    ([OWN, OTHER], Tag("main", "", "forward", "output", MAIN.called_by([Site("/home/me/model.py", 5, "forward")]), None,
                       None)),
    # It is not PyTorch's.
    ([{**OWN, "filename": "optim/mine.py"}], Tag(
        "main", "", "forward", "output", Site("optim/mine.py", MAIN.line, MAIN.function), None, None)),
    ([ADAM, OWN], STEP), ([NATIVE, ENGINE, OWN], GRADIENT),
    # PyTorch's own lines are shown if there are no others, and the outermost frame if none is Python's.
    ([NATIVE, LIBRARY, LINEAR], Tag("at::native::empty", "", "forward", "output", Site(
        "torch/nn/modules/module.py", 8, "_call_impl"), None, None)),
    ([{**NATIVE, "name": "inner"}, NATIVE], Tag("inner", "", "forward", "output", Site(
        "??", 0, "at::native::empty"), None, None)),
    ([], UNKNOWN),
    # No more than 64 frames are read.
    ([LINEAR] * 63 + [OTHER] + [OWN] * 40, Tag("linear", "", "forward", "output", Site(
        "/home/me/model.py", 5, "forward"), None, None)),
    ([LINEAR] * 64 + [OWN], Tag("linear", "", "forward", "output", Site(
        "/x/site-packages/torch/nn/functional.py", 1, "linear"), None, None))])
def test_the_owner_by_frames(load: Load, frames: list[Any], tag: Tag) -> None:
    records, _ = load({"device_traces": [[event("alloc", 0, 1, *frames)]], "segments": []})
    assert [r.tag for r in records if isinstance(r, Alloc)] == [tag]


@pytest.mark.parametrize(("category", "role"), [
    ("input", "input"), ("activation", "output"), ("gradient", "gradient"), ("parameter", "parameter"),
    ("optimizer_state", "optimizer state"), ("temporary", "temporary"), ("autograd_detail", "temporary"), ("new", "output")])
def test_the_role_by_category(load: Load, category: str, role: str) -> None:
    records, _ = load({"device_traces": [[{**event("alloc", 0, 1, OWN), "category": category}]], "segments": []})
    assert [r.tag.role for r in records if isinstance(r, Alloc)] == [role]


def test_live_blocks_of_the_end_and_whose_segments_count(load: Load) -> None:
    states = ("active_allocated", "inactive", "active_pending_free", "active_awaiting_free")
    segments = [{"address": MiB, "total_size": MiB, "blocks": [block(512 * i, state, 0 if i == 3 else 100 * i, OWN)
                                                              for i, state in enumerate(states, 1)]},
                {"device": 1, "address": 0, "total_size": MiB, "blocks": [block(512, "active_allocated", 1)]}]
    # Without the requested size and frames, as in older files.
    del segments[0]["blocks"][3]["requested_size"], segments[0]["blocks"][3]["frames"]  # type: ignore[index]
    records, report = load({"device_traces": [[], []], "segments": segments})
    assert [(r.offset, r.requested, r.allocated) for r in records if isinstance(r, Alloc)] == [
        (0, 100, 512), (512 * 3, 0, 512), (512 * 6, 2048, 2048)]
    assert report.device == "cuda:0" and report.pool.reserved == MiB
    # By default the device with most events, the first of equals.
    traces = [[], [event("alloc", 7 * MiB, 1)], [event("alloc", 7 * MiB, 1)]]
    assert load({"device_traces": traces, "segments": []})[1].device == "cuda:1"


def test_the_first_bytes_of_a_snapshot_and_its_largest_size(tmp_path: Path, load: Load) -> None:
    for start, like in ((b"\x80\x02", True), (b"\x80\x05x", True), (b"\x80\x01", False), (b"\x80\x06", False), (b"\x80", False),
                        (b"", False), (b"{\x04", False)):
        (tmp_path / "x").write_bytes(start)
        assert looks_like_snapshot(tmp_path / "x") is like
    size = len(pickle.dumps(SNAPSHOT, 4))
    assert load(SNAPSHOT, max_bytes=size)
    with pytest.raises(ValueError, match=f"has {size:,} bytes, more than the limit of {size - 1:,}"):
        load(SNAPSHOT, max_bytes=size - 1)
