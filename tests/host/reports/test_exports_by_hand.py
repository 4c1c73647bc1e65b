"""Exports of a step whose every line was worked out by hand."""

from __future__ import annotations

from typing import Any

from gradcore.events import OUTSIDE, WRITTEN, Alloc, Free, Keep, Launch, Mark, Reserve, Retag, Site, Tag, Unreserve
from gradcore.report import Recording, build_report
from gradcore.report.exports import moments, to_csv, to_trace
from gradcore.report.memory_viz import to_snapshot
from gradcore.report.step import PoolFigures
from tests.host.reports.made_steps import CALL, EXP, INPUT, MUL, WEIGHT, by_hand, corners


def made(records: list[Any]) -> Recording:
    pool = PoolFigures(0, 0, 0, 0, 0, 0)
    return Recording(build_report(records, device="cpu", batch_size=None, pool=pool), tuple(records))


STEP = made(by_hand())
SHARED = '"numpy(), /code/train.py:81 in main"'


def test_a_line_of_the_table_for_each_allocation() -> None:
    # Three records share the second until the first launch, five the next one, and so on.
    assert "\r" not in to_csv(STEP) and to_csv(STEP).splitlines()[1:] == [
        "1,1000,1024,0,0,0,parameter,upload,l1,setup,250,float32,/code/model.py,1,__init__,0,1,0.0,,,,,,",
        f"9,8000,8192,0,1024,0,input,upload,,forward,500,int32,/code/train.py,80,main,0,2,0.0,,,,3,0.0,{SHARED}",
        f"2,2000,2048,0,1024,0,input,upload,,forward,500,int32,/code/train.py,80,main,0,5,333333.333,9,,,,,{SHARED}",
        "3,3000,3072,0,3072,2,residual,mul,l1,forward,5x3,float32,/code/model.py,3,forward,1,6,666666.666,8,,,,,",
        "4,100,512,0,6144,0,residual,exp,l2,forward,,float64,/code/model.py,4,forward,3,11,1800000.0,13,17,consumed,18,4500000.0,",
        "5,1000,1024,0,6656,0,gradient,mul,l1,setup,250,float32,/code/model.py,1,__init__,3,15,3500000.0,,,,,,"]


def test_a_buffer_kept_twice_is_kept_from_the_first_to_the_last() -> None:
    records = list(corners().records)
    first, last = 5, 20

    def kept() -> list[str]:
        return to_csv(made(records)).splitlines()[2].split(",")[18:21]

    assert kept() == [str(first), str(last), "graph died"]
    # The node that kept it last drops it first.
    records[15], records[last] = records[15]._replace(node=2), records[last]._replace(node=1)
    assert kept() == [str(first), str(last), "graph died"]
    del records[last]
    assert kept() == [str(first), "", ""]


def test_moments_between_clocks_that_go_backwards_and_without_a_clock() -> None:
    launch = Launch(CALL, MUL, 0, (), (), 30)
    assert moments([Free(1), Mark("begin", "step", 10), Free(2), launch, launch._replace(time=20), Free(3), Free(4)]) == [
        0, 0, 10, 20, 20, 20, 20]
    assert moments([Free(1), Free(2)]) == [0, 1] and moments([]) == []
    # Behind a mark "at" all records are of its time until the next that has one; marks do not end that.
    assert moments([Mark("at", "", 10), Free(1), Free(2), launch, Free(3), Mark("end", "step", 50), Free(4)]) == [
        0, 0, 0, 20, 30, 40, 40]
    assert moments([Mark("at", "", 10), Mark("begin", "backward", 20), Free(1), Mark("end", "backward", 50)]) == [0, 10, 10, 40]


def test_a_trace() -> None:
    def meta(tid: int, what: str, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": 1, "tid": tid, "name": what, "args": {"name": name}}

    def launch(op: str, layer: str, phase: str, line: int, node: int, at: float) -> dict[str, Any]:
        return {"ph": "X", "pid": 1, "tid": 2, "cat": phase, "name": op, "ts": at * 1e6, "dur": 1e6,
                "args": {"layer": layer, "phase": phase, "line": f"/code/model.py:{line} in forward", "node": node}}

    def phase(name: str, at: float, seconds: float) -> dict[str, Any]:
        return {"ph": "X", "pid": 1, "tid": 1, "cat": "phase", "name": name, "ts": at * 1e6, "dur": seconds * 1e6, "args": {}}

    live: dict[str, int] = {}

    def counter(at: float, **changed: int) -> dict[str, Any]:
        live.update(changed)
        return {"ph": "C", "pid": 1, "name": "live bytes", "ts": at * 1e6, "args": dict(live)}

    found = to_trace(STEP)
    assert found == {"displayTimeUnit": "ms", "otherData": {"peak": 7680}, "traceEvents": [
        meta(0, "process_name", "gradcore on cpu"), meta(1, "thread_name", "phases"), meta(2, "thread_name", "ops"),
        launch("mul", "l1", "forward", 3, 1, 1), launch("exp", "l2", "forward", 4, 3, 2),
        launch("mul", "l1", "backward", 3, 7, 4),
        phase("backward", 3, 2), phase("optimizer", 6, 1), phase("step", 0, 8),
        counter(0, parameter=1024), counter(0, input=8192), counter(0, input=0), counter(0.333333333, input=2048),
        counter(0.666666666, output=3072), counter(1.2, output=0, residual=3072), counter(1.8, output=512),
        counter(2.5, output=0, residual=3584), counter(3.5, temporary=1024), counter(4.25, residual=3072, output=512),
        counter(4.5, output=0), counter(4.75, temporary=0, gradient=1024)]}


def test_a_trace_of_marks_without_a_pair_and_of_a_launch_that_is_last() -> None:
    bare = Launch(CALL, EXP._replace(layer="", phase=""), 0, (), (), 9000)
    found = to_trace(made([Mark("end", "backward", 0), Mark("begin", "step", 0), Mark("pack", "x of node 1", 5000),
                           Mark("end", "step", 8000), bare]))["traceEvents"]
    step, last = sorted((e for e in found if e["ph"] == "X"), key=lambda e: e["tid"])
    assert (step["name"], step["ts"], step["dur"]) == ("step", 0.0, 8.0)
    # It has no layer and no phase.
    assert (last["ts"], last["dur"], last["cat"], last["args"]["layer"]) == (9.0, 0.0, "op", "(root)")


BASE = 0x7F00_0000_0000


def frames(name: str, *sites: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"filename": f, "line": n, "name": function} for f, n, function in ((WRITTEN, 0, name), *sites)]


MAIN = ("/code/train.py", 90, "main")
MADE = frames("upload (parameter, layer l1, setup)", ("/code/model.py", 1, "__init__"))
BATCH = frames(f"upload (input, layer (root), forward), shared by {SHARED[1:-1]}", ("/code/train.py", 80, "main"))
KEPT = frames("mul (residual, layer l1, forward)", ("/code/model.py", 3, "forward"), MAIN)


def test_a_snapshot() -> None:
    seconds = 10 ** 6

    def event(action: str, at: int, size: int, time: int, frames: list[Any] | None = None, stream: int = 0) -> dict[str, Any]:
        return {"action": action, "addr": BASE + at, "size": size, "stream": stream, "time_us": time * seconds,
                "frames": frames or []}

    def block(at: int, size: int, requested: int, frames: list[Any]) -> dict[str, Any]:
        return {"address": BASE + at, "size": size, "requested_size": requested, "frames": frames,
                "state": "active_allocated" if frames else "inactive"}

    # Owners are as they were at the peak in the events, and as they are at the end in the blocks.
    assert to_snapshot(STEP) == {
        "device_traces": [[
            event("segment_alloc", 0, 1 << 20, 1), event("alloc", 0, 1000, 1, MADE), event("alloc", 1024, 8000, 1, BATCH),
            event("free_requested", 1024, 8000, 1), event("free_completed", 1024, 8000, 1),
            event("alloc", 1024, 2000, 1, BATCH), event("alloc", 3072, 3000, 1, KEPT, stream=2),
            event("alloc", 6144, 100, 2, frames("exp (residual, layer l2, forward)", ("/code/model.py", 4, "forward"))),
            event("alloc", 6656, 1000, 4, frames("mul (temporary, layer l1, backward)", ("/code/model.py", 3, "forward"), MAIN,
                                                 MAIN)),
            event("free_requested", 6144, 100, 5), event("free_completed", 6144, 100, 5)]],
        "segments": [{
            "device": 0, "address": BASE, "total_size": 1 << 20, "allocated_size": 7168, "active_size": 7168,
            "requested_size": 7000, "stream": 0, "frames": [], "segment_type": "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "blocks": [
                block(0, 1024, 1000, MADE), block(1024, 2048, 2000, BATCH), block(3072, 3072, 3000, KEPT),
                block(6144, 512, 0, []),
                block(6656, 1024, 1000, frames("mul (gradient, layer l1, setup)", ("/code/model.py", 1, "__init__"))),
                block(7680, (1 << 20) - 7680, 0, [])]}],
        "external_annotations": [], "allocator_settings": {},
        "gradcore": {"device": "cpu", "before": 5, "began_us": seconds, "ended_us": 9 * seconds}}


def test_segments_of_a_snapshot_do_not_overlap_and_other_libraries_memory_is_left_out() -> None:
    mib = 1 << 20
    data = to_snapshot(made([
        Reserve(0, 3 * mib), Reserve(1, 2 * mib), Alloc(1, 1, 0, 512, 512, 0, EXP, 0),
        # Of this segment no record says how large it is: its buffer ends 512 bytes behind 4 MiB. And this memory is in none.
        Alloc(2, 2, 4 * mib - 512, 512, 1024, 0, EXP, 0), Alloc(3, OUTSIDE, 0, 0, 0, 0, INPUT, 0), Free(3),
        Reserve(3, mib), Unreserve(0, 3 * mib), Unreserve(3, mib), Reserve(4, 2 * mib + 512)]))
    mapped = [(e["action"], (e["addr"] - BASE) // mib) for e in data["device_traces"][0]]
    # Each takes a whole number of 2 MiB: 4, 2, 6, 2, 4.
    assert mapped == [("segment_alloc", 0), ("segment_alloc", 4), ("alloc", 4), ("alloc", 9), ("segment_alloc", 12),
                      ("segment_free", 0), ("segment_free", 12), ("segment_alloc", 14)]
    assert [((s["address"] - BASE) // mib, s["segment_type"]) for s in data["segments"]] == [(4, "small"), (14, "large")]
    assert [e["time_us"] for e in data["device_traces"][0]] == [0] * 8
    assert data["gradcore"] == {"device": "cpu", "before": 0, "began_us": 0, "ended_us": 0}


def test_a_buffer_gone_by_the_peak_has_its_last_owner_as_a_residual_if_it_was_kept() -> None:
    once = Tag("exp", "", "forward", "output", Site("x.py", 1, "f"), None, None)
    data = to_snapshot(made([
        Reserve(0, 4096), Alloc(1, 0, 0, 8, 512, 0, once, 1), Keep(1, 1, "out"), Free(1), Alloc(2, 0, 0, 8, 512, 0, once, 1),
        Retag(2, once._replace(op="neg")), Free(2), Alloc(3, 0, 0, 8, 1024, 0, WEIGHT, 0)]))
    names = [e["frames"][0]["name"] for e in data["device_traces"][0] if e["action"] == "alloc"]
    assert data["segments"][0]["allocated_size"] == 1024
    assert names[:2] == ["exp (residual, layer (root), forward)", "neg (output, layer (root), forward)"]
