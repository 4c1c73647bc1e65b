"""PyTorch's memory snapshots as records: PyTorch's own, earlier allocations, and files that are not snapshots."""

from __future__ import annotations

import copy
import json
import os
import pickle
import struct
import tempfile
from pathlib import Path

import pytest

import gradcore
from gradcore import folds
from gradcore.cli.main import main
from gradcore.events import Alloc
from gradcore.report import Recording
from gradcore.report.packed import unpack
from gradcore.report.snapshot import load_snapshot, looks_like_snapshot
from gradcore.units import format_bytes

OWN = {"filename": "/home/me/train.py", "line": 12, "name": "main"}
LINEAR = {"filename": "/x/site-packages/torch/nn/functional.py", "line": 1, "name": "linear"}
ENGINE = {"filename": "/x/site-packages/torch/autograd/graph.py", "line": 5, "name": "_engine_run_backward"}
ADAM = {"filename": "/x/site-packages/torch/optim/adam.py", "line": 9, "name": "step"}
NATIVE = {"filename": "??", "line": 0, "name": "at::native::empty"}
MiB = 1 << 20
#: A file that would exist if the code in a snapshot ran.
PLANTED = Path(tempfile.gettempdir()) / "planted-by-a-pickle"


def event(action, addr, size, *frames, time=0):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, "frames": list(frames)}


def block(size, state="inactive", asked=0, *frames):
    return {"size": size, "requested_size": asked, "state": state, "frames": list(frames)}


#: An earlier segment with two buffers, of which the second is freed; then a new segment, and a pending free at the end.
SNAPSHOT = {
    "segments": [
        {"device": 0, "address": 0, "total_size": 2 * MiB, "stream": 0, "blocks": [
            block(1024, "active_allocated", 1000, ADAM, OWN), block(2 * MiB - 1024)]},
        {"device": 0, "address": 4 * MiB, "total_size": 20 * MiB, "stream": 0, "blocks": [
            block(5 * MiB, "active_pending_free", 5 * MiB, NATIVE, LINEAR, OWN), block(15 * MiB)]}],
    "device_traces": [[
        event("segment_alloc", 4 * MiB, 20 * MiB, LINEAR, OWN, time=10),
        event("alloc", 4 * MiB, 5 * MiB, NATIVE, LINEAR, OWN, time=11),
        event("alloc", 9 * MiB, 3 * MiB, NATIVE, ENGINE, OWN, time=20),
        event("free_requested", 1024, 700, time=21), event("free_completed", 1024, 700, time=21),
        event("free_requested", 4 * MiB, 5 * MiB, time=30),
        event("free_requested", 9 * MiB, 3 * MiB, time=30), event("free_completed", 9 * MiB, 3 * MiB, time=31)]]}


@pytest.fixture
def load(tmp_path):
    def load(data, **options):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data, 4))
        return load_snapshot(path, **options)

    return load


def test_the_peak_by_line(load):
    records, report = load(SNAPSHOT)
    assert report.device == "cuda:0"
    assert report.peak.allocated == 8 * MiB + 1024 * 2 and report.peak.requested == 8 * MiB + 1700
    assert report.peak.reserved == 22 * MiB
    assert (report.peak.op, report.peak.phase, report.peak.line) == (
        "_engine_run_backward", "backward", "/home/me/train.py:12 in main")
    assert report.by_op == {"linear": 5 * MiB, "_engine_run_backward": 3 * MiB, "step": 1024, "(unknown)": 1024}
    assert report.by_role == {"output": 5 * MiB + 1024, "temporary": 3 * MiB + 1024}
    assert report.pool.segments == 2 and report.pool.allocations == 2 and report.pool.reserved == 22 * MiB
    assert report.seconds == 21e-6
    left = folds.live_at(records, len(records) - 1)
    assert sorted(h.requested for h in left) == [1000, 5 * MiB]
    assert [r.offset for r in records if isinstance(r, Alloc)] == [1024, 0, 0, 5 * MiB]
    # Records that are read can be written, and read again with every index checked.
    recording = Recording(report, tuple(records))
    assert unpack(recording.to_dict()["log"]) == records
    assert "peak 8.00 MiB" in str(report)


def test_another_device(load):
    data = copy.deepcopy(SNAPSHOT)
    data["device_traces"].append([event("alloc", 77 * MiB, 512, OWN)] * 1)
    data["segments"].append({"device": 1, "address": 77 * MiB, "total_size": MiB, "blocks": []})
    assert load(data)[1].device == "cuda:0"
    _, report = load(data, device=1)
    assert (report.device, report.peak.allocated, report.peak.op) == ("cuda:1", 512, "main")
    with pytest.raises(ValueError, match="it has 2 devices, but device 2 was requested"):
        load(data, device=2)


@pytest.mark.oracle
def test_files_as_windows_names_them(load):
    text = json.dumps(SNAPSHOT).replace("/home/", "C:/home/").replace("/", r"\\")
    _, report = load(json.loads(text))
    _, other = load(SNAPSHOT)
    assert report.peak.line == "C:/home/me/train.py:12 in main"
    assert (report.by_op, report.by_role, report.peak.op) == (other.by_op, other.by_role, other.peak.op)


def test_what_pytorchs_profiler_has_seen(load, torch):
    from torch.cuda import _memory_viz
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as seen:
        model(torch.ones(32, 100)).sum().backward()
    data = _memory_viz._profile_to_snapshot(seen)
    records, report = load(data)
    running = most = 0
    trace = max(data["device_traces"], key=len)
    for e in trace:
        running += e["size"] * {"alloc": 1, "free_completed": -1}.get(e["action"], 0)
        most = max(most, running)
    held = sum(h.requested for h in folds.live_at(records, len(records) - 1))
    assert held == sum(b.get("requested_size", 0) for s in data["segments"] for b in s["blocks"])
    assert report.peak.requested == most + held - running
    categories = {e["addr"]: e["category"] for e in trace if e["action"] == "alloc"}
    assert "gradient" in categories.values() and "gradient" in report.by_role


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {PLANTED}",)


@pytest.mark.parametrize(("data", "words"), [
    (pickle.dumps({"segments": [Evil()], "device_traces": []}), "posix.system'"),
    (pickle.dumps(Evil(), 0), "posix.system'"),
    (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "'os.system'"),
    (b"cos\nsystem\n(S'true'\ntR.", "'os.system'"),
    (b"Pname\n.", "outside the file"),
    (b"", "not a memory snapshot"),
    (b"\x80\x04]q\x00", "not a memory snapshot"),
    (b"\x80\x09.", "unsupported pickle protocol"),
    (b"\x80\x04]r" + struct.pack("<I", 2 ** 32 - 1) + b".", "list"),
    (b"\x80\x04\x8e" + struct.pack("<Q", 2 ** 62) + b"x.", "not a memory snapshot"),
    (b"\x80\x04}\x94(]b.", "not a memory snapshot"),
    (pickle.dumps([1, 2]), "list"),
    (pickle.dumps({}), "no field 'device_traces'"),
    (pickle.dumps({"device_traces": [[]]}), "no field 'segments'"),
    (pickle.dumps({"device_traces": [], "segments": []}), "it has 0 devices, but device 0 was requested"),
    (pickle.dumps({"device_traces": 3, "segments": []}), "expected a list, but got int"),
    (pickle.dumps({"device_traces": [[3]], "segments": []}), "expected a dict, but got int"),
    (pickle.dumps({"device_traces": [[event("alloc", -1, 5)]], "segments": []}), "expected a size or an address"),
    (pickle.dumps({"device_traces": [[event("alloc", 1, 2 ** 63)]], "segments": []}), "expected a size or an address"),
    (pickle.dumps({"device_traces": [[event("alloc", 1, 5.0)]], "segments": []}), "but got float"),
    (pickle.dumps({"device_traces": [[event("alloc", 1, 5), event("alloc", 1, 5)]], "segments": []}), "allocated twice"),
    (pickle.dumps({"device_traces": [[event("alloc", 1, 5, {"filename": 3, "line": 1, "name": ""})]], "segments": []}),
     "expected a str"),
    (pickle.dumps({"device_traces": [[]], "segments": [{"device": 0}]}), "no field 'address'")])
def test_what_is_no_snapshot(load, tmp_path, data, words):
    PLANTED.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="not a memory snapshot") as caught:
        load(data)
    assert words in str(caught.value) and "snapshot.pickle" in str(caught.value)
    assert not PLANTED.exists()


def test_a_file_that_is_too_large(load, tmp_path):
    with pytest.raises(ValueError, match="more than the limit of 100"):
        load(SNAPSHOT, max_bytes=100)
    (tmp_path / "text").write_text('{"version": 1}')
    assert not looks_like_snapshot(tmp_path / "text") and looks_like_snapshot(tmp_path / "snapshot.pickle")
    with pytest.raises(OSError):
        load_snapshot(tmp_path / "nowhere")


def test_every_damaged_byte_is_refused_or_read(load):
    """Whatever a byte is changed to, the result is a report or a ValueError, and no code runs."""
    small = {"segments": SNAPSHOT["segments"][:1], "device_traces": [SNAPSHOT["device_traces"][0][:3]]}
    data = pickle.dumps(small, 4)
    outcomes = {"read": 0, "refused": 0}
    for position in range(0, len(data), 3):
        for value in (0x00, 0x52, 0x81, 0xFF):
            damaged = data[:position] + bytes([value]) + data[position + 1:]
            try:
                load(damaged)
                outcomes["read"] += 1
            except ValueError:
                outcomes["refused"] += 1
    assert all(outcomes.values())


def test_the_command_shows_a_snapshot(tmp_path, capsys):
    """``gradcore report`` and ``export`` accept a snapshot like a run."""
    with gradcore.step() as step:
        y = (gradcore.ones(1000, requires_grad=True) * 2).exp()
    path, page, table = tmp_path / "snapshot.pickle", tmp_path / "page.html", tmp_path / "table.csv"
    step.recording.export(path, "snapshot")
    del y
    assert main(["report", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "test_snapshot.py" in shown and f"peak {format_bytes(step.report.peak.allocated)}" in shown
    assert main(["report", str(path), "--html", str(page)]) == 0
    assert "test_snapshot.py" in page.read_text()
    assert main(["export", str(path), "--format", "csv", "-o", str(table)]) == 0
    assert table.read_text().count("test_snapshot.py") >= 3
