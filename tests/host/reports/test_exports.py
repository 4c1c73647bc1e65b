"""Export formats of a recording, read by other programs: PyTorch's own tools, the json, csv and pickle modules."""

from __future__ import annotations

import csv
import json
import os
import pickle
import pickletools
import re
from itertools import pairwise

import pytest

import gradcore
from gradcore import folds, nn
from gradcore.cli.main import main
from gradcore.events import Alloc, Launch
from gradcore.report import Recording, load_run
from gradcore.report.exports import COLUMNS, FORMATS, moments
from gradcore.report.memory_viz import to_snapshot
from gradcore.report.snapshot import load_snapshot
from tests.host.reports.made_steps import corners, long_step


def trained(level: str = "events") -> Recording:
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    optimizer = gradcore.optim.Adam(model.parameters())
    with gradcore.step(batch_size=32, level=level) as step:
        model(gradcore.ones(32, 64)).sum().backward()
        optimizer.step()
    return step.recording


RECORDINGS = {"trained": trained, "stacks": lambda: trained("stacks"), "corners": corners, "long": lambda: long_step(4000)}


@pytest.fixture(params=RECORDINGS)
def recording(request):
    return RECORDINGS[request.param]()


def written(recording, tmp_path, format):
    path = tmp_path / f"step.{format}"
    recording.export(path, format)
    return path


@pytest.mark.oracle
def test_pytorchs_tools_read_the_snapshot(recording, tmp_path, torch):
    from torch.cuda import _memory_viz

    data = pickle.loads(written(recording, tmp_path, "snapshot").read_bytes())
    live = folds.live_at(recording.records, len(recording.records) - 1)
    summary = _memory_viz.segsum(data)
    assert f"segments: {len(data['segments'])}\n" in summary
    assert f"total_allocated: {_memory_viz.Bytes(sum(h.requested for h in live))}\n" in summary
    # One line of the flame graph per block: stream, state and frames, the outermost first, and bytes.
    flames = re.findall(r"active_allocated;(.*) (\d+)\n", _memory_viz.memory(data, format_flamegraph=lambda text: text))
    flames = [(frames, int(n)) for frames, n in flames if "<gaps>" not in frames]
    assert sorted(n for _, n in flames) == sorted(h.requested for h in live)
    assert all(any(f"{h.tag.site.line}:{h.tag.site.function}" in frames for frames, _ in flames) for h in live)
    text = _memory_viz.trace(data)
    made = sum(isinstance(r, Alloc) for r in recording.records)
    assert text.count(" = ") == made + text.count("cudaMalloc") and f"{len(data['device_traces'][0])} entries" in text
    pairs = {"device_traces": [list(data["device_traces"][0])]}
    kept = _memory_viz.filter_alloc_free_pairs(pairs)["device_traces"][0]
    assert [e["action"] for e in kept].count("alloc") == len(live)


def test_a_snapshots_events_are_the_records(recording, tmp_path):
    path = written(recording, tmp_path, "snapshot")
    operations = {code.name for code, _, _ in pickletools.genops(path.read_bytes())}
    assert not operations & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "INST", "OBJ"}
    assert path.read_bytes()[:2] == b"\x80\x04"
    now, running = 0, []
    for event in pickle.loads(path.read_bytes())["device_traces"][0]:
        now += event["size"] * {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
        running.append(now)
    assert max(running) == folds.peak(recording.records).requested
    assert now == sum(h.requested for h in folds.live_at(recording.records, len(recording.records) - 1))


def test_a_snapshot_comes_back(recording, tmp_path):
    records, report = load_snapshot(written(recording, tmp_path, "snapshot"))
    ours, theirs = folds.peak(recording.records), folds.peak(records)
    assert (theirs.requested, report.peak.requested) == (ours.requested, ours.requested)
    assert theirs.reserved == ours.reserved
    assert [(r.requested, r.allocated, r.tag.site.line) for r in records if isinstance(r, Alloc)] == [
        (r.requested, r.allocated, r.tag.site.line) for r in recording.records if isinstance(r, Alloc)]


def test_a_trace_has_every_launch_and_the_peak(recording, tmp_path):
    data = json.loads(written(recording, tmp_path, "trace").read_text())
    events = data["traceEvents"]
    launches = [r for r in recording.records if isinstance(r, Launch)]
    slices = [e for e in events if e.get("tid") == 2 and e["ph"] == "X"]
    assert [(e["name"], e["args"]["layer"]) for e in slices] == [(r.tag.op, r.tag.layer or "(root)") for r in launches]
    for before, after in pairwise(slices):
        assert before["dur"] >= 0 and before["ts"] + before["dur"] <= after["ts"] + 1e-6
    counters = [e for e in events if e["ph"] == "C"]
    assert max(sum(e["args"].values()) for e in counters) == folds.peak(recording.records).allocated
    assert [e["ts"] for e in counters] == sorted(e["ts"] for e in counters)
    phases = {e["name"]: e for e in events if e.get("tid") == 1 and e["ph"] == "X"}
    assert "step" in phases and all(phases["step"]["dur"] >= p["dur"] for p in phases.values())


def test_a_table_has_a_line_an_allocation(recording, tmp_path):
    with written(recording, tmp_path, "csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    made = [r for r in recording.records if isinstance(r, Alloc)]
    assert tuple(rows[0]) == COLUMNS
    assert [(int(r["serial"]), int(r["allocated"]), int(r["made_at"])) for r in rows] == [
        (a.serial, a.allocated, recording.records.index(a)) for a in made]
    # The peak, from the table only.
    changes = [(int(r["made_at"]), int(r["allocated"])) for r in rows]
    changes += [(int(r["freed_at"]), -int(r["allocated"])) for r in rows if r["freed_at"]]
    live, highest = 0, 0
    for _, change in sorted(changes):
        live += change
        highest = max(highest, live)
    assert highest == folds.peak(recording.records).allocated
    kept = {k.serial for k in folds.residuals(recording.records)}
    assert {int(r["serial"]) for r in rows if r["kept_at"]} == kept
    assert all(int(r["made_at"]) < int(r["kept_at"]) < int(r["dropped_at"] or 10 ** 9) for r in rows if r["kept_at"])


def test_json_is_what_gradcore_reads(recording, tmp_path):
    assert load_run(written(recording, tmp_path, "json")).find("peak")[1] == recording


def test_a_source_path_that_is_not_utf8(tmp_path):
    code = compile("import gradcore\ny = gradcore.ones(9) * 2\n", "/tmp/m\udcff.py", "exec")
    with gradcore.step() as step:
        exec(code, {})
    texts = {name: written(step.recording, tmp_path, name).read_bytes() for name in FORMATS}
    assert all(rb"/tmp/m\udcff.py" in texts[name] for name in ("csv", "trace", "json"))
    assert r"/tmp/m\udcff.py" in repr(pickle.loads(texts["snapshot"]))


def test_moments_keep_the_order_and_the_clock(recording):
    found = moments(recording.records)
    assert len(found) == len(recording.records) and found == sorted(found) and found[0] >= 0
    first = next(r.time for r in recording.records if hasattr(r, "time"))
    for r, at in zip(recording.records, found, strict=True):
        if hasattr(r, "time"):
            assert at >= r.time - first
    assert found[-1] == max(r.time for r in recording.records if hasattr(r, "time")) - first


def test_the_command(capsys, tmp_path):
    assert main(["train", "--steps", "2", "--quiet", "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    for format in FORMATS:
        out = tmp_path / f"out.{format}"
        assert main(["export", str(tmp_path / "runs"), "--format", format, "-o", str(out)]) == 0
        assert str(out) in capsys.readouterr().out
    recording = load_run(tmp_path / "out.json").find("peak")[1]
    assert pickle.loads((tmp_path / "out.snapshot").read_bytes()) == to_snapshot(recording)
    # A snapshot is an input as well.
    assert main(["export", str(tmp_path / "out.snapshot"), "--format", "csv", "-o", str(tmp_path / "again.csv")]) == 0
    assert (tmp_path / "again.csv").read_text().count("\n") == (tmp_path / "out.csv").read_text().count("\n")


def test_the_data_alone_go_to_standard_output(capsysbinary, tmp_path):
    assert main(["train", "--steps", "1", "--quiet", "--out", str(tmp_path / "runs")]) == 0
    assert main(["export", str(tmp_path / "runs"), "--format", "csv", "-o", str(tmp_path / "x.csv")]) == 0
    assert b"Step 1 was written to" in capsysbinary.readouterr().out
    assert main(["export", str(tmp_path / "runs"), "--format", "csv", "-o", "-"]) == 0
    assert capsysbinary.readouterr() == ((tmp_path / "x.csv").read_bytes(), b"")


@pytest.mark.parametrize("name", ["report", "diff"])
def test_a_page_alone_goes_to_standard_output(capsysbinary, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--steps", "1", "--quiet"]) == 0
    command = [name, "runs", "runs"][:3 if name == "diff" else 2]
    assert main([*command, "--html", "page.html"]) == 0
    assert b"The page was written to page.html\n" in capsysbinary.readouterr().out
    assert main([*command, "--html", "-"]) == 0
    page, told = capsysbinary.readouterr()
    assert page == (tmp_path / "page.html").read_bytes() and not os.path.exists("-")
    assert told.startswith(b"A: ") if name == "diff" else not told
    assert main([*command, "--html", "-", "--json"]) == (2 if name == "diff" else 1)
    page, told = capsysbinary.readouterr()
    assert not page and b"--json and --html - both write to standard output" in told


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no device files")
def test_what_is_no_file_may_be_standard_output(capsys, tmp_path):
    assert main(["train", "--steps", "1", "--quiet", "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "runs"), "--format", "csv", "-o", "/dev/null"]) == 0
    assert capsys.readouterr() == ("", "Step 1 was written to /dev/null\n")


def test_what_cannot_be_exported(capsys, tmp_path):
    report = Recording(corners().report, ())
    with pytest.raises(ValueError, match="the recording has no records"):
        report.export(tmp_path / "x", "csv")
    with pytest.raises(ValueError, match="format must be one of snapshot, trace, csv, json, but got 'xml'"):
        corners().export(tmp_path / "x", "xml")
    assert not list(tmp_path.iterdir())
    assert main(["export", str(tmp_path / "none.jsonl"), "--format", "csv", "-o", "x"]) == 1
    assert "none.jsonl" in capsys.readouterr().err
