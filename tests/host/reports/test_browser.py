"""The report's page in a real browser shows what the folds compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import folds
from gradcore.events import Alloc, Reserve, Unreserve
from gradcore.grouping import BY
from gradcore.reading import short_path
from gradcore.report import Recording, Run, StepFigures, load_run
from gradcore.report.html import Named, page, save
from gradcore.report.timeline import breakdown
from tests.host.reports.browser import Opened, expected
from tests.host.reports.made_steps import corners, long_step, reached_again
from tests.host.reports.test_run import write
from tests.meta.test_recording import recorded

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recording() -> Recording:
    # A segment left by an earlier test would make the blocks of this step too narrow to click.
    gradcore.empty_cache("meta")
    return recorded().recording


@pytest.fixture
def opened(browser: Any, recording: Recording, tmp_path: Path) -> Iterator[Opened]:
    path = tmp_path / "step.html"
    recording.save_html(path)
    found = Opened(browser, path)
    yield found
    assert found.complaints == [] and found.requests == [path.as_uri()]
    found.context.close()


def test_it_opens_at_the_peak(opened: Opened, recording: Recording) -> None:
    # There is no other step to choose.
    assert not opened.page.is_visible("#recording")
    peak = recording.report.peak
    assert opened.rows() == expected(recording, peak.position)
    assert opened.texts("#owners-title") == [f"Live allocations after record {peak.position}, the peak"]
    assert f"{peak.allocated:,}" in opened.page.inner_text("#figures")
    assert " live; allocated: " in opened.page.inner_text("#readout")
    assert opened.page.inner_text("#addresses-line").startswith("1 segment, 2,097,152 bytes reserved, ")
    assert peak.op in opened.page.inner_text("#peak-line") and short_path(peak.line) in opened.page.inner_text("#peak-line")


def test_a_click_on_the_peak_shows_its_owner(opened: Opened, recording: Recording) -> None:
    position = recording.report.peak.position
    opened.page.focus("#cursor")
    opened.page.keyboard.press("Home")
    start = folds.start_of_step(recording.records)
    assert opened.rows() == expected(recording, start)
    x, y = opened.page.evaluate("[timeline.x(timeline.log.peak + 0.5), timeline.y(timeline.log.total[timeline.log.peak] / 2)]")
    opened.page.click("#cursor", position={"x": x, "y": y})
    assert opened.rows() == expected(recording, position)
    owner = recording.records[position]
    assert isinstance(owner, Alloc)
    details = opened.details()
    assert (details["op"], details["layer"], details["phase"]) == (owner.tag.op, owner.tag.layer or "(root)", owner.tag.phase)
    assert details["bytes"] == f"{owner.allocated:,} allocated, {owner.requested:,} requested"
    assert details["line"] == f"{short_path(str(owner.tag.site))} in {owner.tag.site.function}"
    assert details["address"] == f"segment {owner.segment}, offset {owner.offset:,}"
    assert details["allocated"].startswith(f"record {position}") and details.get("node", "0") == str(owner.node)


def test_the_keys_go_through_the_step(opened: Opened, recording: Recording) -> None:
    opened.page.focus("#cursor")
    opened.page.keyboard.press("Home")
    at = opened.page.evaluate("view.at")
    for key, by in (("ArrowRight", 1), ("ArrowRight", 1), ("PageDown", None), ("ArrowLeft", -1), ("+", 0), ("0", 0), ("-", 0)):
        opened.page.keyboard.press(key)
        now = opened.page.evaluate("view.at")
        assert now - at == by if by is not None else now > at + 1
        at = now
        assert opened.rows() == expected(recording, at)
        assert opened.page.get_attribute("#cursor", "aria-valuenow") == str(at)
    opened.page.keyboard.press("p")
    assert opened.page.evaluate("view.at") == recording.report.peak.position
    opened.page.keyboard.press("End")
    assert opened.rows() == expected(recording, len(recording.records) - 1)
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.evaluate("view.at") == len(recording.records) - 1


@pytest.mark.parametrize("make", [lambda: recorded().recording, corners, reached_again],
                         ids=["training", "corners", "reached again"])
def test_every_instant_is_the_fold(browser: Any, tmp_path: Path, make: Callable[[], Recording]) -> None:
    """Total, bands and owners of the page at every record, against the folds in Python."""
    recording = make()
    recording.save_html(tmp_path / "made.html")
    opened = Opened(browser, tmp_path / "made.html")
    live = [x.allocated for x in folds.timeline(recording.records)]
    assert opened.page.evaluate("[...view.log.total]") == live
    for by, key in BY.items():
        opened.page.check(f"input[name=by][value={by}]")
        names, bands = (opened.page.evaluate(f"view.bands.{x}") for x in ("names", "values.map(band => [...band])"))
        for position, sums in enumerate(breakdown(recording.records, key)):
            told = {name: band[position] for name, band in zip(names, bands, strict=True)}
            for name, nbytes in sums.items():
                name = (short_path(name) if by == "line" else name) or "(root)"
                if name in told:
                    assert told.pop(name) == nbytes
                else:
                    told[names[-1]] -= nbytes
            assert not any(told.values())
    assert opened.page.evaluate("highest([0, 1, 3, 3, 2], 1, 4)") == 2
    colors = opened.page.evaluate("view.bands.colors")
    assert len(set(colors)) == len(colors)
    assert opened.page.evaluate("view.log.peak") == recording.report.peak.position
    segments: dict[int, int] = {}
    for position, record in enumerate(recording.records):
        if isinstance(record, (Reserve, Unreserve)):
            segments[record.segment] = record.nbytes if isinstance(record, Reserve) else 0
        if position % 7 == 0 or len(recording.records) < 50:
            opened.page.evaluate(f"pick({position})")
            assert opened.rows() == expected(recording, position)
            assert f", {sum(segments.values()):,} bytes reserved" in opened.page.inner_text("#addresses-line")
    assert opened.complaints == []
    opened.context.close()


def test_kept_for_backward_with_the_moment_each_went_back(opened: Opened, recording: Recording) -> None:
    opened.page.check("#kept-all")
    start = folds.start_of_step(recording.records)
    kept = [r for r in folds.residuals(recording.records) if r.kept_at >= start]
    rows = [row.split("\t") for row in opened.texts("#kept-rows tr:not(.group)")]
    told = sorted((row[0], row[1].strip(), row[2], row[3], row[5], row[6], row[7] if len(row) > 7 else "") for row in rows)
    assert told == sorted((str(r.node), r.name, r.tag.op, f"{r.allocated:,}", f"{r.kept_at:,}",
                           f"{r.dropped_at:,} {r.reason}" if r.dropped_at is not None else "still kept",
                           f"{r.freed_at:,}" if r.freed_at is not None else "") for r in kept)
    opened.page.uncheck("#kept-all")
    groups = opened.texts("#kept-rows tr.group")
    outputs = [r for r in kept if r.tag.role == "output"]
    sums: dict[str, dict[int, int]] = {}
    for r in outputs:
        sums.setdefault(r.tag.layer or "(root)", {})[r.serial] = r.allocated
    # Several nodes keep one buffer, whose bytes count once.
    assert sum(map(len, sums.values())) < len(outputs)
    assert [group.split(" bytes, all released by record ")[0] for group in groups] == [
        f"{layer}: {sum(buffers.values()):,}" for layer, buffers in sums.items()]
    number = len({r.serial for r in outputs})
    assert opened.texts("#kept-line") == [f"{number} buffers kept, {number} released within the step"]
    last = outputs[-1]
    opened.page.click("#kept-rows tr:last-child button")
    assert opened.page.evaluate("view.at") == last.kept_at and opened.details()["op"] == last.tag.op


def test_sorting_and_searching(opened: Opened, recording: Recording) -> None:
    rows = expected(recording, recording.report.peak.position)
    heads = opened.texts("#owners-head th")
    for column in ("op", "bytes", "record", "shape"):
        i = heads.index(column)
        number = column in ("bytes", "record")
        for direction in ("first", "second"):
            opened.page.click(f"#owners-head button:text-is('{column}')")
            told = [row[i] for row in opened.rows()]
            down = number == (direction == "first")
            wanted = sorted((row[i] for row in rows), key=lambda x: int(x.replace(",", "")) if number else x, reverse=down)
            assert told == wanted
            sort = opened.page.get_attribute(f"#owners-head th:nth-child({i + 1})", "aria-sort")
            assert sort == ("descending" if down else "ascending")
    opened.page.fill("#search", "optimizer FLOAT32 8x6")
    found = [row for row in rows if row[1] == "optimizer state" and row[4] == "8x6"]
    assert found and sorted(opened.rows()) == sorted(found)
    nbytes = sum(int(row[0].replace(",", "")) for row in found)
    assert opened.texts("#owners-line") == [f"{len(found)} of {len(rows)} allocations, {nbytes:,} bytes"]
    opened.page.fill("#search", "no such thing")
    assert opened.rows() == []


def test_a_row_shows_its_allocation(opened: Opened, recording: Recording) -> None:
    opened.page.fill("#search", "residual relu")
    opened.page.focus("#owners-rows tr:first-child button")
    opened.page.keyboard.press("Enter")
    details = opened.details()
    kept = [r for r in folds.residuals(recording.records) if r.tag.op == "relu"][-1]
    assert details["role"] == "residual"
    assert details[f"kept as {kept.name}"].startswith(f"by node {kept.node}, record {kept.kept_at} ")
    assert details["consumed"].startswith(f"by node {kept.node}, record {kept.dropped_at} ")
    assert details["freed"].startswith(f"record {kept.freed_at} ")
    opened.page.click(f"#detail-rows button:text-is('record {kept.freed_at}')")
    assert opened.page.evaluate("view.at") == kept.freed_at


def test_the_address_map(opened: Opened, recording: Recording) -> None:
    position = recording.report.peak.position
    live = {h.serial for h in folds.live_at(recording.records, position)}
    blocks = {(r.segment, r.offset, r.allocated) for r in recording.records if isinstance(r, Alloc) and r.serial in live}
    told = opened.page.evaluate("addresses.places.map(p => [p.buffer.segment, p.buffer.offset, p.buffer.allocated])")
    assert {tuple(place) for place in told} == blocks and len(told) == len(blocks)
    for segment in {place[0] for place in told}:
        places = opened.page.evaluate(f"addresses.places.filter(p => p.buffer.segment === {segment})")
        places.sort(key=lambda p: p["x"])
        assert all(a["x"] + a["width"] <= b["x"] + 1e-6 and a["buffer"]["offset"] < b["buffer"]["offset"]
                   for a, b in pairwise(places))
    reserved = sum(r.nbytes for r in recording.records if isinstance(r, Reserve))
    assert f"{reserved:,} bytes reserved" in opened.page.inner_text("#addresses-line")
    x, y, serial = opened.page.evaluate("""() => {
        const widest = addresses.places.reduce((a, b) => (b.width > a.width ? b : a));
        return [widest.x + widest.width / 2, widest.y + widest.height / 2, widest.buffer.serial]; }""")
    owner = next(r for r in recording.records if isinstance(r, Alloc) and r.serial == serial)
    for _ in range(20):
        opened.page.click("#map", position={"x": x, "y": y})
        if opened.details()["address"] == f"segment {owner.segment}, offset {owner.offset:,}":
            break
        # A page that is still opening may choose the peak's owner after the click.
        opened.page.wait_for_timeout(100)
    assert opened.details()["address"] == f"segment {owner.segment}, offset {owner.offset:,}"


@pytest.fixture
def run(recording: Recording, tmp_path: Path) -> Run:
    path = tmp_path / "run.jsonl"
    write(path, recording, [100, 200, 300, 250, 260, 100], live=lambda step: 1000 - 10 * abs(4 - step))
    return load_run(path)


def test_the_steps_of_a_run_and_other_runs(browser: Any, run: Run, recording: Recording, tmp_path: Path) -> None:
    shorter = Recording(recording.report, recording.records[:-20])
    other = Run({}, (StepFigures(1, None, 1, 1, 1, 1, 1, 1, 1.0),), {1: shorter})
    save(tmp_path / "run.html", page([Named("run.jsonl", run), Named("other.json", other)], "first"))
    opened = Opened(browser, tmp_path / "run.html")
    assert opened.texts("#step-name") == ["step 1 of run.jsonl"]
    line = opened.page.inner_text("#strip-line")
    assert "Peak bytes of 6 steps, 100 B to 300 B" in line and "in 3 steps, first at step 2" in line
    assert opened.page.evaluate("[...growth(view.run.steps.live)]") == [0, 1, 1, 1, 0, 0]
    width = opened.page.evaluate("byId('strip').getBoundingClientRect().width")
    opened.page.click("#strip", position={"x": width * 0.55, "y": 20})
    assert opened.texts("#step-name") == ["step 3 of run.jsonl"] and opened.page.input_value("#recording") == "0 3"
    opened.page.select_option("#recording", "0 6")
    assert opened.texts("#step-name") == ["step 6 of run.jsonl"]
    opened.page.click("#beside summary")
    labels = opened.texts("#others li")
    assert labels[0].startswith("run.jsonl, step 1 (first, ") and labels[-1] == "other.json"
    plain = opened.page.evaluate("byId('bands').toDataURL()")
    opened.page.check("#others input[value='1 1']")
    assert opened.page.evaluate("timeline.beside.map(b => b.log.length)") == [len(shorter.records)]
    assert opened.page.evaluate("byId('bands').toDataURL()") != plain
    opened.page.uncheck("#others input[value='1 1']")
    assert opened.page.evaluate("byId('bands').toDataURL()") == plain
    opened.page.select_option("#recording", "1 1")
    assert opened.texts("#step-name") == ["other.json"] and not opened.page.is_visible("#strip")
    assert opened.texts("#recording option:checked") == ["other.json"] and opened.page.is_visible("#recording")
    assert opened.complaints == []
    opened.context.close()


def test_a_hundred_thousand_records(browser: Any, tmp_path: Path) -> None:
    """bench/page.py measures speed; this checks that all are shown correctly."""
    long = long_step(100_000)
    long.save_html(tmp_path / "long.html")
    opened = Opened(browser, tmp_path / "long.html")
    peak = folds.peak(long.records)
    assert opened.page.evaluate("[view.log.length, view.at, view.log.total[view.at]]") == [len(long.records), peak.position,
                                                                                           peak.allocated]
    alive = expected(long, peak.position)
    assert opened.rows() == alive[:len(opened.rows())] and len(opened.rows()) == 100 < len(alive)
    opened.page.click("#owners-more")
    assert opened.rows() == alive[:400]
    opened.page.focus("#cursor")
    for key in ("+",) * 9 + ("ArrowRight",) * 3:
        opened.page.keyboard.press(key)
    assert opened.page.evaluate("timeline.to - timeline.from") < 400
    assert opened.rows() == expected(long, peak.position + 3)[:100]
    total = opened.page.evaluate("view.bands.values.reduce((sum, band) => sum + band[view.at], 0)")
    assert total == opened.page.evaluate("view.log.total[view.at]")
    assert opened.complaints == []
    opened.context.close()


def test_a_report_alone(browser: Any, recording: Recording, tmp_path: Path) -> None:
    recording.report.save_html(tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html")
    shown = [(f"{t.count * t.allocated:,}", f"{t.count} of " * (t.count > 1)) for t in recording.report.top]
    assert any(many for _, many in shown)
    for row, (nbytes, many) in zip(opened.rows(), shown, strict=True):
        assert row[0] == nbytes and any(many in cell for cell in row)
    assert not opened.page.is_visible("#time") and not opened.page.is_visible("#addresses")
    opened.page.click("#owners-rows tr:nth-child(2) button")
    assert opened.details()["op"] == recording.report.top[1].op
    kept = [k for k in recording.report.kept if k.role in ("output", "temporary")]
    assert len(opened.texts("#kept-rows tr:not(.group)")) == len(kept)
    assert opened.complaints == []
    opened.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Any, run: Run, tmp_path: Path, scheme: str) -> None:
    save(tmp_path / "phone.html", page([Named("run.jsonl", run)]))
    opened = Opened(browser, tmp_path / "phone.html", color_scheme=scheme)
    opened.page.set_viewport_size({"width": 360, "height": 640})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert opened.complaints == []
    opened.context.close()


def test_the_picture_in_the_readme(browser: Any, tmp_path: Path) -> None:
    """Opens a run of the convolutional network; with GRADCORE_WRITE_SCREENSHOT=1 it becomes docs/report.png."""
    from gradcore.cli.main import main

    assert main(["train", "--model", "cnn", "--steps", "20", "--quiet", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "run.html")]) == 0
    opened = Opened(browser, tmp_path / "run.html")
    picture = ROOT / "docs" / "report.png" if os.environ.get("GRADCORE_WRITE_SCREENSHOT") == "1" else tmp_path / "report.png"
    opened.page.set_viewport_size({"width": 1100, "height": 900})
    bottom = opened.page.evaluate("byId('kept').getBoundingClientRect().top")
    opened.page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 1100, "height": bottom}, full_page=True)
    assert picture.stat().st_size > 50_000 and opened.complaints == []
    opened.context.close()
