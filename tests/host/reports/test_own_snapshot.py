"""A memory snapshot that gradcore wrote, read back: the owners and times of memory."""

from __future__ import annotations

import csv
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.cli.main import main
from gradcore.events import WRITTEN, Alloc, Export, Mark, Site, Tag
from gradcore.report import Recording
from gradcore.report.diff import compare
from gradcore.report.exports import moments, to_csv
from gradcore.report.label import frames_of, tag_of
from gradcore.report.memory_viz import to_snapshot
from gradcore.report.snapshot import load_snapshot


@pytest.fixture
def recording() -> Recording:
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    optimizer = gradcore.optim.Adam(model.parameters())
    shown = gradcore.ones(500).numpy()
    borrowed = [gradcore.from_numpy(np.ones(10, np.float32)) for _ in range(3)]
    with gradcore.step(batch_size=32) as step:
        model(gradcore.ones(1000, 64)).sum().backward()
        optimizer.step()
        assert shown is not None and len([b + 1 for b in borrowed]) == 3
    return step.recording


def again(recording: Recording, path: Path) -> Recording:
    recording.export(path, "snapshot")
    records, report = load_snapshot(path)
    return Recording(report, tuple(records))


def test_a_parameter_over_an_array_of_numpys_is_left_out(tmp_path: Path) -> None:
    with gradcore.step() as step:
        weight = nn.Parameter(gradcore.from_numpy(np.ones(10, np.float32)))
        (weight * 2).sum().backward()
    back = again(step.recording, tmp_path / "A.pickle")
    assert step.report.outside_bytes == 40 and back.report.peak.allocated == step.report.peak.allocated
    assert back.report.by_op == {op: n for op, n in step.report.by_op.items() if op != "borrow"}


def test_it_holds_what_the_step_held(recording: Recording, tmp_path: Path, capsys: Any) -> None:
    back = again(recording, tmp_path / "A.pickle")
    diff = compare(recording, back)
    assert diff.change == 0 and not any(diff.by.values()) and set(diff.by) == {"role", "layer", "op", "line"}
    assert compare(back, recording) == compare(recording, back)
    # Bytes of other libraries are not the pool's, and are omitted.
    assert back.report.by_role == {r: n for r, n in recording.report.by_role.items() if n} and "residual" in back.report.by_role
    peak, was = back.report.peak, recording.report.peak
    assert (peak.op, peak.layer, peak.phase, peak.line) == (was.op, was.layer, was.phase, was.line)
    assert back.report.device == "cpu" and back.report.pool.allocations == recording.report.pool.allocations
    pool, ours = back.report.pool, recording.report.pool
    assert (pool.cached, pool.largest_free, pool.reserved) == (ours.cached, ours.largest_free, ours.reserved)
    text = str(back.report)
    assert "A snapshot does not tell what was kept for backward." in text and "Graph: 0 nodes" not in text
    (tag,) = [h.tag for h in folds.live_at(back.records, len(back.records) - 1) if h.tag.export]
    assert tag.role == "held outside" and tag.export is not None and tag.export.form == "numpy()"
    recording.export(tmp_path / "A.json", "json")
    assert main(["diff", str(tmp_path / "A.pickle"), str(tmp_path / "A.json")]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("By ")]
    assert told == ["By role, layer, op, line: no change"]


def test_it_took_as_long_as_the_step(recording: Recording, tmp_path: Path) -> None:
    back = again(recording, tmp_path / "A.pickle")
    assert abs(back.report.seconds - recording.report.seconds) <= 2e-6
    # Earlier allocations are shown shortly before the step, and not hours before it.
    before = [r for r in recording.records[:folds.start_of_step(recording.records)]
              if isinstance(r, Alloc) and r.allocated]
    start = folds.start_of_step(back.records)
    assert sum(isinstance(r, Alloc) for r in back.records[:start]) == len(before) > 5
    trace = to_snapshot(recording)["device_traces"][0]
    assert all(abs(e["time_us"] - trace[-1]["time_us"]) <= recording.report.seconds * 1e6 + 2 for e in trace)
    # The table has the events' own times.
    times = [e["time_us"] - trace[0]["time_us"] for e in trace if e["action"] == "alloc"]
    assert [float(row["made_us"]) for row in csv.DictReader(io.StringIO(to_csv(back)))] == times


def test_one_of_an_older_version(recording: Recording, tmp_path: Path) -> None:
    data = to_snapshot(recording)
    for event in data["device_traces"][0][:data.pop("gradcore")["before"]]:
        event["time_us"] = 0
    (tmp_path / "old.pickle").write_bytes(pickle.dumps(data, 4))
    records, report = load_snapshot(tmp_path / "old.pickle")
    assert 0 < report.seconds <= recording.report.seconds + 2e-6
    assert compare(recording, Recording(report, tuple(records))).change == 0


@pytest.mark.parametrize("own", [3, {"before": -1}, {"began_us": "x"}, {"device": 1}])
def test_what_it_says_of_itself_is_not_trusted(recording: Recording, tmp_path: Path, own: Any) -> None:
    (tmp_path / "x.pickle").write_bytes(pickle.dumps({**to_snapshot(recording), "gradcore": own}, 4))
    with pytest.raises(ValueError, match=r"x\.pickle is not a memory snapshot: expected a .*, but got"):
        load_snapshot(tmp_path / "x.pickle")


@pytest.mark.parametrize("tag", [
    Tag("exp", "", "forward", "output", Site("a.py", 1, "f"), None, None),
    Tag("mine (a, b)", "blocks.0", "", "workspace", Site("a.py", 1, "f", (Site("b.py", 2, "g"),)), None, None),
    Tag("mul", "a", "backward", "gradient", Site("a.py", 1, "f"), None, None,
        Export("__dlpack__ for torch", Site("/x, (y).py", 7, "<module>")))])
def test_a_label_says_its_tag(tag: Tag) -> None:
    sites = [Site(f["filename"], f["line"], f["name"]) for f in frames_of(tag, "held outside")]
    assert tag_of(sites) == tag._replace(role="held outside")
    assert tag_of(sites[1:]) is None and tag_of(sites[:1]) is None
    assert tag_of([Site("x.py", 0, sites[0].function), *sites[1:]]) is None
    assert tag_of([Site(WRITTEN, 0, "no label"), *sites[1:]]) is None
    # A text of more than 4,096 characters is not looked at.
    longest = "x" * (4096 - len(sites[0].function)) + sites[0].function
    told = tag_of([Site(WRITTEN, 0, longest), *sites[1:]])
    assert told is not None and told.op.lstrip("x") == tag.op.lstrip("x")
    assert tag_of([Site(WRITTEN, 0, "x" + longest), *sites[1:]]) is None
    assert tag_of([Site(WRITTEN, 0, "exp (color, layer a, forward)"), *sites[1:]]) is None


def test_records_behind_a_mark_are_of_its_time() -> None:
    tag = Tag("exp", "", "forward", "output", Site("a.py", 1, "f"), None, None)
    a, b, c = (Alloc(i, 0, 0, 8, 512, 0, tag, 0) for i in (1, 2, 3))
    records = [a, Mark("begin", "step", 5), Mark("at", "", 5), b, c, Mark("at", "", 9), Mark("end", "step", 12)]
    assert moments(records) == [0, 0, 0, 0, 0, 4, 7]
