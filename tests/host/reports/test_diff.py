"""Two peaks compared: every table adds up to their difference, and exit statuses distinguish growth from an error."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore.cli.main import main
from gradcore.events import Mark
from gradcore.grouping import BY
from gradcore.report import Recording, build_report, compare
from gradcore.report.diff import Owners, allowance, owners_of, table
from gradcore.report.diff_page import diff_page
from gradcore.report.run import RunWriter, StepFigures
from gradcore.report.step import PoolFigures
from tests.conftest import raises
from tests.host.commands.test_cli import run
from tests.host.reports.made_steps import by_hand
from tests.host.reports.test_page import Elements
from tests.host.reports.test_run import write


def recorded(width: int, copies: int, level: str = "events") -> Recording:
    """A step that keeps ``copies`` products in its one layer."""
    model = gradcore.nn.Sequential(gradcore.nn.Linear(width, 8)).to("meta")
    with gradcore.step(batch_size=4, device="meta", level=level) as step:
        y = model(gradcore.zeros(4, width, device="meta"))
        held = [y.exp() for _ in range(copies)]
        sum(held, y).sum().backward()
    del held, y
    return step.recording


@pytest.fixture(scope="module")
def small() -> Recording:
    return recorded(64, 1)


@pytest.fixture(scope="module")
def large() -> Recording:
    return recorded(4096, 3)


@pytest.mark.parametrize("records", [True, False])
def test_every_table_adds_up_to_the_difference_of_the_peaks(small: Recording, large: Recording, records: bool) -> None:
    a, b = (r if records else Recording(r.report, ()) for r in (small, large))
    for before, after in ((a, b), (b, a), (a, a)):
        diff = compare(before, after)
        assert diff.change == after.report.peak.allocated - before.report.peak.allocated
        assert list(diff.by) == list(BY)
        for changes in diff.by.values():
            assert sum(c.change for c in changes) == diff.change and all(c.change for c in changes)
            assert [abs(c.change) for c in changes] == sorted((abs(c.change) for c in changes), reverse=True)
    assert "\n\nBy role, layer, op, line: no change\n\n" in str(compare(a, a))


def test_it_names_who_grew(small: Recording, large: Recording) -> None:
    diff = compare(small, large)
    assert diff.by["role"][0].name in ("parameter", "gradient")
    assert {c.name for c in diff.by["layer"]} >= {"0"}
    line = diff.by["line"][0].name
    assert line.startswith("tests/host/reports/test_diff.py:") and line.endswith(" in recorded")
    text = str(diff)
    assert f"{diff.change:+,} bytes" in text and "By line:" in text and line in text
    # What is live at the end is not known of owners alone.
    assert compare(small, owners_of(large)).end is None and compare(owners_of(small), large).end is None


def test_a_line_that_only_moved_is_no_change() -> None:
    sums = {"a.py:10 in f": 512, "a.py:11 in f": 512, "a.py:90 in g": 1024}
    moved = {"a.py:12 in f": 512, "a.py:13 in f": 512, "a.py:92 in g": 2048}
    diff = compare(Owners(2048, {"line": sums}), Owners(3072, {"line": moved}))
    assert [(c.name, c.change) for c in diff.by["line"]] == [("a.py:92 in g", 2048), ("a.py:90 in g", -1024)]
    # A line that has not moved is not where another one went, nor does it go itself.
    one, two = {"a.py:1 in f": 512}, {"a.py:1 in f": 512, "a.py:2 in f": 512}
    for before, after, change in ((one, two, 512), (two, one, -512)):
        (row,) = compare(*(Owners(sum(lines.values()), {"line": lines}) for lines in (before, after))).by["line"]
        assert (row.name, row.change) == ("a.py:2 in f", change)
    two = {"a.py:0 in f": 512, **one}
    (row,) = compare(Owners(1024, {"line": two}), Owners(512, {"line": one})).by["line"]
    assert (row.name, row.change) == ("a.py:0 in f", -512)
    # Another function, or other bytes: not the same line.
    other = compare(Owners(512, {"line": {"a.py:1 in f": 512}}), Owners(512, {"line": {"a.py:1 in g": 512}}))
    assert sorted(c.change for c in other.by["line"]) == [-512, 512]


def test_a_line_may_be_where_another_one_was() -> None:
    def lines(**sums: int) -> Owners:
        return Owners(sum(sums.values()), {"line": {f"a.py:{name[1:]} in f": nbytes for name, nbytes in sums.items()}})

    def rows(before: Owners, after: Owners) -> list[tuple[str, int, int]]:
        return [(c.name.split()[0], c.before, c.after) for c in compare(before, after).by["line"]]

    # Two lines were inserted before all three, which are at 22, 24 and 30 now; and a line is new, or has grown.
    before = lines(_20=1024, _22=86016, _28=512)
    assert rows(before, lines(_22=1024, _24=86016, _30=512)) == []
    assert rows(before, lines(_10=64, _22=1024, _24=86016, _30=512)) == [("a.py:10", 0, 64)]
    assert rows(before, lines(_22=1024, _24=87040, _30=512)) == [("a.py:24", 86016, 87040)]
    # A line that was inserted takes the number of the next one.
    assert rows(lines(_20=512, _21=1024, _22=512), lines(_20=64, _21=512, _22=1024, _23=512)) == [("a.py:20", 0, 64)]
    assert rows(lines(_20=512, _21=1024, _22=512), lines(_20=512, _21=512)) == [("a.py:21", 1024, 0)]
    # Twice the batch: what one line had before, another one has now.
    assert rows(lines(_20=512, _22=1024, _28=2048), lines(_20=1024, _22=2048, _28=4096)) == [
        ("a.py:28", 2048, 4096), ("a.py:22", 1024, 2048), ("a.py:20", 512, 1024)]


def test_changes_of_any_lines_add_up_and_have_a_name_each() -> None:
    r = random.Random(0)
    for _ in range(2000):
        a, b = ({f"{r.choice(('a.py', 'b/a.py', '/x/b/a.py'))}:{r.randint(1, 9)} in f": 512 * r.randint(1, 3)
                 for _ in range(r.randint(0, 8))} for _ in "ab")
        diff = compare(*(Owners(sum(lines.values()), {"line": lines}) for lines in (a, b)))
        assert sum(c.change for c in diff.by["line"]) == diff.change
        assert len({c.name for c in diff.by["line"]}) == len(diff.by["line"])


def test_lines_of_another_checkout_are_the_same() -> None:
    a = {"/a/net/a.py:1 in f": 512, "/a/net/__init__.py:5 in f": 1024, "/lib/torch/__init__.py:7 in f": 2048, "x": 64}
    b = {"net/a.py:3 in f": 512, "net/__init__.py:5 in f": 2048, r"C:\lib\torch\__init__.py:7 in f": 2048, "b/a.py:1 in f": 512}
    diff = compare(Owners(sum(a.values()), {"line": a}), Owners(sum(b.values()), {"line": b}))
    assert [(c.name, c.change) for c in diff.by["line"]] == [
        ("net/__init__.py:5 in f", 1024), ("b/a.py:1 in f", 512), ("x", -64)]


def test_reports_without_records_can_be_compared(small: Recording, large: Recording) -> None:
    ours = compare(small.report, large.report)
    assert ours.change == large.report.peak.allocated - small.report.peak.allocated and set(ours.by) == {*BY}
    # As a report of before lines were in it.
    older = dataclasses.replace(small.report, by_line={})
    assert set(compare(older, large.report).by) == {"role", "layer", "op"}


def test_what_is_not_known_has_no_table(small: Recording) -> None:
    counts, events = recorded(64, 1, "counts"), recorded(64, 1)
    diff = compare(counts, events)
    assert diff.by == {} and diff.before == diff.after == events.report.peak.allocated and owners_of(counts).by == {}
    empty = build_report([Mark("begin", "step", 0)], device="cpu", batch_size=None, pool=PoolFigures(0, 0, 0, 0, 0, 0))
    assert owners_of(Recording(empty, ())) == Owners(0, {group: {} for group in BY})
    wrong = Recording(dataclasses.replace(small.report, by_op={"add": 1}), ())
    with raises(ValueError, "the bytes by op add up to 1, not to the peak of"):
        compare(wrong, small)


@pytest.mark.parametrize(("text", "before", "allowed"), [
    ("1%", 250, Fraction(5, 2)), ("0.5 %", 1000, 5), ("64 KiB", 7, 65536), ("0", 7, 0), ("1_000 B", 0, 1000)])
def test_allowances(text: str, before: int, allowed: int) -> None:
    assert allowance(text)(before) == allowed


@pytest.mark.parametrize("text", ["-1%", "much", "", "1%%", "1 % B"])
def test_no_allowance(text: str) -> None:
    with raises(ValueError, "expected a share such as '1%' or a size such as '64 KiB', but got", repr(text)):
        allowance(text)


def test_a_difference_word_for_word() -> None:
    before = Owners(8192, {"layer": {"head": 6144, "": 2048}, "op": {"mul": 8192}})
    after = Owners(10_240, {"role": {"output": 10_240}, "layer": {"head": 10_240}, "op": {"mul": 8192, "exp": 2048}})
    diff = compare(before, after)
    assert str(diff) == """\
Peak: 8.00 KiB before, 10.0 KiB after: +2,048 bytes, +25.00%

By layer:
           +4,096  head                    6,144 -> 10,240
           -2,048  (root)                  2,048 ->      0

By op:
           +2,048  exp                     0 -> 2,048"""
    assert diff.to_dict() == {"before": 8192, "after": 10_240, "change": 2048, "by": {
        "layer": [{"name": "head", "before": 6144, "after": 10_240, "change": 4096},
                  {"name": "", "before": 2048, "after": 0, "change": -2048}],
        "op": [{"name": "exp", "before": 0, "after": 2048, "change": 2048}]}, "end": None}
    page = diff_page(diff, "A", "B")
    head = '<th class="number">change</th><th>{}</th><th class="number">before</th><th class="number">after</th>'
    cells = '<tr><td class="number">{}</td><td class="path">{}</td><td class="number">{}</td><td class="number">{}</td></tr>'
    places = [page.index(text) for text in (
        "<h2>By layer</h2>", head.format("layer"), cells.format("+4,096", "head", "6,144", "10,240") + "\n",
        cells.format("-2,048", "(root)", "2,048", "0"), "<h2>By op</h2>", head.format("op"),
        cells.format("+2,048", "exp", "0", "2,048"))]
    assert places == sorted(places)
    nothing = compare(Owners(0, {"op": {}}), Owners(0, {"op": {}}))
    assert str(nothing) == "Peak: 0 B before, 0 B after: +0 bytes\n\nBy op: no change"
    assert "<section><h2>By op</h2><p>No change.</p></section>" in diff_page(nothing, "", "")


def test_the_figures_of_a_table_are_below_each_other() -> None:
    long = "models/network.py:12 in Network.forward"
    changes = compare(Owners(512, {"line": {long: 512}}), Owners(1_024_000, {"line": {"a.py:1 in f": 1_024_000}})).by["line"]
    assert table("line", changes)[1:] == [
        f"       +1,024,000  a.py:1 in f{' ' * 28}    0 -> 1,024,000",
        f"             -512  {long}  512 ->         0"]


def test_a_table_shows_twelve_changes_and_the_sum_of_the_rest() -> None:
    for count, more in ((12, []), (13, ["             +512  in 1 more"]), (14, ["           +1,024  in 2 more"])):
        diff = compare(Owners(0, {"op": {}}), Owners(512 * count, {"op": {f"{i:02}": 512 for i in reversed(range(count))}}))
        lines = str(diff).splitlines()[3:]
        assert lines == [f"             +512  {i:02}                      0 -> 512" for i in range(12)] + more


def test_the_owners_of_a_steps_peak_and_not_of_one_before_it() -> None:
    report = build_report(by_hand(), device="cpu", batch_size=None, pool=PoolFigures(0, 0, 0, 0, 0, 0))
    assert owners_of(Recording(report, tuple(by_hand()))) == Owners(7680, {
        "role": report.by_role, "layer": report.by_layer, "op": report.by_op,
        "line": {"/code/model.py:3 in forward": 3072 + 1024, "/code/train.py:80 in main": 2048,
                 "/code/model.py:1 in __init__": 1024, "/code/model.py:4 in forward": 512}})
    # Without its mark all of the log is the step.
    assert owners_of(Recording(report, tuple(r for r in by_hand() if not isinstance(r, Mark)))).peak == 1024 + 8192


def command(capsys: Any, *argv: object) -> tuple[int, str, str]:
    return run(capsys, "diff", *argv)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, small: Recording, large: Recording) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "a.json").write_text(json.dumps(small.to_dict()))
    (folder / "b.json").write_text(large.report.to_json())
    (folder / "old.json").write_text(json.dumps({k: v for k, v in large.report.to_dict().items() if k != "by_line"}))
    write(folder / "run" / "c.jsonl", large, [100, 200])
    return folder


def test_the_command_reads_all_three(capsys: Any, files: Path, small: Recording, large: Recording) -> None:
    grown = large.report.peak.allocated - small.report.peak.allocated
    status, out, _ = command(capsys, files / "a.json", files / "run")
    assert status == 0 and f"{grown:+,} bytes" in out and "By line:" in out and "c.jsonl: Step 1 on meta, batch 4" in out
    status, out, _ = command(capsys, files / "a.json", files / "b.json")
    assert status == 0 and "By line:" in out
    status, out, _ = command(capsys, files / "a.json", files / "old.json")
    assert status == 0 and "By line:" not in out
    assert "Lines are not compared: one of the reports is of before reports had sums by line." in out
    with gradcore.step(level="counts") as step:
        gradcore.ones(1000)
    (files / "counts.json").write_text(step.report.to_json())
    status, out, _ = command(capsys, files / "counts.json", files / "counts.json")
    assert status == 0 and "Owners are not compared: one of the reports says nothing of them" in out and "line" not in out
    status, out, _ = command(capsys, files / "run", files / "a.json", "--step", "first", "--json")
    told = json.loads(out)
    assert status == 0 and told["change"] == -grown and told["failed"] is False and told["a"]["step"] == 1
    assert all(sum(c["change"] for c in changes) == -grown for changes in told["by"].values()) and len(told["by"]) == 4


def test_two_steps_of_one_run(capsys: Any, tmp_path: Path, small: Recording, large: Recording) -> None:
    with RunWriter(tmp_path / "run.jsonl", {}) as run:
        for number, recording in enumerate((small, large, small), 1):
            run.add(StepFigures.of(number, None, recording.report), SimpleNamespace(recording=recording))
    told = []
    for steps in ("first,peak", "peak,3", "last"):
        status, out, _ = command(capsys, tmp_path, tmp_path, "--step", steps, "--json")
        assert status == 0
        told.append(json.loads(out))
    assert [(t["a"]["step"], t["b"]["step"]) for t in told] == [(1, 2), (2, 3), (3, 3)]
    assert told[0]["change"] == large.report.peak.allocated - small.report.peak.allocated == -told[1]["change"]


def test_what_is_live_at_the_end_is_told_apart_from_the_peaks(capsys: Any, tmp_path: Path) -> None:
    """The first step's peak lacks the optimizer's state that the last one's has; at the ends the leak alone differs."""
    model, kept = gradcore.nn.Linear(64, 64).to("meta"), []
    optimizer = gradcore.optim.Adam(model.parameters())
    recordings = []
    with RunWriter(tmp_path / "run.jsonl", {}) as run:
        for number in range(1, 5):
            with gradcore.step(device="meta") as step:
                optimizer.zero_grad()
                model(gradcore.ones(64, 64, device="meta")).square().sum().backward()
                optimizer.step()
                kept.append(gradcore.zeros(256, device="meta"))
            recordings.append(step.recording)
            run.add(StepFigures.of(number, None, step.report), step)
    diff = compare(recordings[0], recordings[-1])
    assert diff.end is not None and diff.end.change == 3 * 1024 < diff.change
    assert len(diff.by["line"]) > 1 and [(c.change, c.name.rpartition(":")[0]) for c in diff.end.by["line"]] == [
        (3072, "tests/host/reports/test_diff.py")]
    status, out, _ = command(capsys, tmp_path, tmp_path, "--step", "first,last")
    peak, _, end = out.partition("Live at the end of the step: ")
    assert status == 0 and "By line:" in peak and end.splitlines()[0].endswith("+3,072 bytes, +4.44%")
    assert [line.split()[:2] for line in end.splitlines()[1:]] == [
        ["By", "role,"], ["+3,072", "output"], ["By", "line,"], ["+3,072", diff.end.by["line"][0].name.split()[0]]]
    told = json.loads(command(capsys, tmp_path, tmp_path, "--step", "first,last", "--json")[1])
    assert told["end"]["change"] == 3072 and set(told["end"]) == {"before", "after", "change", "by"}
    page = diff_page(diff, "a", "b")
    assert page.count("<h2>By line</h2>") == 2 and "Live at the end of the step: " in page
    # Of reports alone the sum is known; of peaks alone, as in a baseline of tests, nothing.
    alone = compare(recordings[0].report, recordings[-1].report)
    assert alone.end is not None and alone.end.change == 3072 and alone.end.by == {} and "at the end:" not in str(alone)
    assert compare(Owners(0, {}), Owners(1, {})).end is None


def test_the_status_is_for_ci(capsys: Any, files: Path, small: Recording, large: Recording) -> None:
    before, after = (r.report.peak.allocated for r in (small, large))
    a, b = files / "a.json", files / "b.json"
    status, out, _ = command(capsys, a, b, "--fail-above", after - before)
    assert status == 0 and f"has grown by {after - before:,} bytes; {after - before:,} are allowed" in out
    assert "allowed" not in command(capsys, b, a, "--fail-above", "0")[1] + command(capsys, a, b)[1]
    status, out, _ = command(capsys, a, b, "--fail-above", after - before - 1)
    assert status == 1 and f"has grown by {after - before:,} bytes; {after - before - 1:,} are allowed" in out
    status, out, _ = command(capsys, a, b, "--fail-above", "1%", "--json")
    assert status == 1 and json.loads(out)["failed"] is True
    assert command(capsys, b, a, "--fail-above", "0")[0] == command(capsys, a, a, "--fail-above", "0%")[0] == 0


@pytest.mark.parametrize("bad", ["missing.json", "x.json", "empty"])
def test_errors_are_status_two(capsys: Any, files: Path, tmp_path: Path, bad: str) -> None:
    (tmp_path / "x.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    status, out, err = command(capsys, files / "a.json", tmp_path / bad)
    assert status == 2 and out == "" and bad in err and len(err.strip().splitlines()) == 1
    # A step without events is one of a file that is named.
    status, _, err = command(capsys, files / "a.json", files / "run", "--step", "2")
    assert status == 2 and "a.json: the file has no events of step 2, only of 1" in err
    with pytest.raises(SystemExit) as told:
        main(["diff", str(files / "a.json"), str(files / "a.json"), "--fail-above", "some"])
    assert told.value.code == 2 and "a share such as '1%'" in capsys.readouterr().err


def test_help() -> None:
    argv = [sys.executable, "-m", "gradcore.cli.main", "diff", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "--fail-above 1%|BYTES" in done.stdout


def test_the_page_runs_nothing(capsys: Any, files: Path, tmp_path: Path, small: Recording) -> None:
    out = tmp_path / "diff.html"
    status, told, _ = command(capsys, files / "a.json", files / "run", "--html", out)
    text = out.read_text()
    elements = Elements(text)
    assert status == 0 and str(out) in told and not any(tag == "script" for tag, _ in elements.found)
    policy, = (a["content"] or "" for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and text.count("<tr>") > 8
    assert "tests/host/reports/test_diff.py:" in text
    nasty = compare(Owners(0, {"op": {}}), Owners(9, {"op": {"<script>alert(1)</script>{{style}}": 9}}))
    page = diff_page(nasty, "<b>{{after}}", "&amp;")
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;{{style}}" in page
    assert "&lt;b&gt;{{after}}" in page and "&amp;amp;" in page
