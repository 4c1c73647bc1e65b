"""The timeline of a step, and ``gradcore report`` as users type it."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import folds
from gradcore.cli.main import main
from gradcore.events import Mark
from gradcore.grouping import BY
from gradcore.report import Recording, load_report, load_run
from gradcore.report.blocks import COLORS, LETTERS, block_plot
from gradcore.report.run import RunWriter, StepFigures
from gradcore.report.timeline import ROLE_ORDER, breakdown, columns, stacking
from gradcore.units import format_bytes
from tests.conftest import raises
from tests.host.commands.test_cli import run as command
from tests.host.reports.made_steps import corners, reached_again
from tests.host.reports.test_run import write
from tests.meta.test_recording import recorded


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded().recording


@pytest.mark.parametrize("by", sorted(BY))
def test_the_breakdown_is_who_is_live(recording: Recording, by: str) -> None:
    for made in (recording, corners()):
        for position, sums in enumerate(breakdown(made.records, BY[by])):
            live = {name: n for name, n in sums.items() if n}
            assert live == folds.total(folds.live_at(made.records, position), lambda h: BY[by](h.tag, h.role))


@pytest.mark.parametrize("count", [1, 2, 7, 50, 10_000])
def test_columns_show_the_peak_of_their_stretch(recording: Recording, count: int) -> None:
    start = folds.start_of_step(recording.records)
    assert start
    shown = columns(recording.records, "layer", count)
    assert len(shown) == min(count, len(recording.records) - start)
    assert all(sum(c.sums.values()) == c.allocated for c in shown)
    assert [c.position for c in shown] == sorted({c.position for c in shown}) and shown[0].position >= start
    peak = folds.peak(recording.records, start)
    assert (peak.position, peak.allocated) in {(c.position, c.allocated) for c in shown}
    if count > len(recording.records):
        live = [x.allocated for x in folds.timeline(recording.records)]
        assert [c.allocated for c in shown] == live[start:]


def test_roles_have_colors_and_letters_of_their_own(recording: Recording) -> None:
    assert len(set(COLORS.values())) == len(set(LETTERS.values())) == len(ROLE_ORDER)
    assert stacking(columns(recording.records, "role", 9), "role")[0] == "parameter"
    with raises(ValueError, "grouped by role, layer, op, line, but got 'phase'"):
        columns(recording.records, "phase", 9)


def test_blocks_in_a_terminal(recording: Recording) -> None:
    peak = recording.report.peak
    plain = block_plot(recording, width=60, height=8, color=False).plain.splitlines()
    assert {*plain[0].split()} == {"▼", "peak", *format_bytes(peak.allocated).split()} and plain[0].index("▼") < 72
    rows = [line[12:] for line in plain[1:9]]
    assert all(row.strip() and set(row) <= {" ", *LETTERS.values()} for row in rows[1:])
    assert rows[0][plain[0].index("▼") - 12] != " ", "the mark stands above the highest column"
    assert rows[-1][0] == "P" and "forward" in plain[10] and "backward" in plain[10] and "optimizer" in plain[10]
    legend = {line[4:20].strip(): int(line.split()[-2].replace(",", "")) for line in plain[11:] if line}
    assert {role: n for role, n in legend.items() if n} == recording.report.by_role
    assert sum(legend.values()) == peak.allocated
    colored = block_plot(recording, width=60, height=8)
    assert "█" in colored.plain and {str(s.style) for s in colored.spans} <= set(COLORS.values())
    with raises(ValueError, "no records"):
        block_plot(Recording(recording.report, ()))


@pytest.mark.parametrize("width", [1, 60])
def test_the_peak_is_where_it_was_reached_again(width: int) -> None:
    made = reached_again()
    plain = block_plot(made, width=width, height=2, color=False).plain.splitlines()
    assert plain[0] == ("peak 1.00 KiB ▼" if width > 1 else "▼ peak 1.00 KiB").rjust(15 if width > 1 else 27)
    legend = {line[4:20].strip(): int(line.split()[-2]) for line in plain[5:]}
    assert {role: n for role, n in legend.items() if n} == made.report.by_role == {"output": 512, "parameter": 512}


def test_a_plot_where_the_terminal_lacks_block_characters(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = block_plot(recording, width=60, height=8, color=False).plain
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    plain = block_plot(recording, width=60, height=8, color=False).plain
    monkeypatch.undo()
    assert plain.isascii() and plain == drawn.translate(str.maketrans("▼│└─┬", "v|+-+"))


def test_report_of_a_run(capsys: Any, tmp_path: Path) -> None:
    assert command(capsys, "train", "--steps", 5, "--quiet", "--device", "cpu", "--events", 3, "--out", tmp_path)[0] == 0
    run = load_run(next(tmp_path.glob("*.jsonl")))
    status, out, _ = command(capsys, "report", tmp_path)
    number, peak = run.find("peak")
    assert status == 0 and f"the highest peak is in step {number};" in out and "▼" in out and "5 steps, ended" in out
    assert f"reached by {peak.report.peak.op} in layer" in out and "model mlp" in out
    largest = peak.report.top[0]
    assert f" {largest.allocated:,} " in out and largest.op in out
    for which in ("first", "last", "3"):
        status, out, _ = command(capsys, "report", tmp_path, "--step", which, "--json")
        told = json.loads(out)
        step, recording = run.find(int(which) if which.isdigit() else which)
        assert status == 0 and told["step"] == step and load_report(told["report"]) == recording.report
        assert told["with_events"] == sorted(run.recordings) and told["steps"] == 5 and told["about"]["model"] == "mlp"


def test_a_run_at_the_level_counts_has_no_events(capsys: Any, tmp_path: Path) -> None:
    assert command(capsys, "train", "--steps", 2, "--quiet", "--device", "cpu", "--record", "counts", "--out", tmp_path)[0] == 0
    status, out, _ = command(capsys, "report", tmp_path)
    assert status == 0 and "the file has no events: a run at the level counts has none" in out
    assert json.loads(command(capsys, "report", tmp_path, "--json")[1])["with_events"] == []
    status, _, err = command(capsys, "export", tmp_path, "--format", "csv", "-o", tmp_path / "step.csv")
    assert status == 1 and "of a step at the level 'counts' (record it at 'events')" in err
    status, _, err = command(capsys, "report", tmp_path, "--beside", tmp_path)
    assert status == 1 and "choose its file with --html" in err


def test_report_of_a_step_report_alone(capsys: Any, tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "step.json"
    path.write_text(recording.report.to_json())
    status, out, _ = command(capsys, "report", path)
    assert status == 0 and str(recording.report) in out


def test_a_step_alone_has_its_number_in_the_run_or_none(capsys: Any, tmp_path: Path, recording: Recording) -> None:
    run, one, again = tmp_path / "run.jsonl", tmp_path / "one.json", tmp_path / "again.json"
    write(run, recording, [100, 110, 120])
    for source, path in ((run, one), (one, again)):
        out = command(capsys, "export", source, "--step", "last", "--format", "json", "-o", path)[1]
        assert out == f"Step 3 was written to {path}\n"
        assert command(capsys, "report", path)[1].splitlines()[1].startswith("Step 3 on ")
        assert json.loads(command(capsys, "report", path, "--json")[1])["step"] == 3
    # What was written in a program, as it knows of no run.
    recording.export(one, "json")
    assert command(capsys, "report", one)[1].splitlines()[1].startswith(f"A step on {recording.report.device}")
    assert "Step 1" not in command(capsys, "diff", one, run)[1].splitlines()[0]
    shot = tmp_path / "one.pickle"
    for _ in range(2):
        # The second time over the first one's file.
        assert command(capsys, "export", one, "--format", "snapshot", "-o", shot)[1] == f"A step was written to {shot}\n"
    assert command(capsys, "report", shot)[1].splitlines()[1].startswith("A snapshot on ")


def test_other_files_in_a_folder_are_not_its_newest_run(capsys: Any, tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "run.jsonl", recording, [100])
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n')
    (tmp_path / "folder.jsonl").mkdir()
    assert command(capsys, "report", tmp_path)[1].startswith(f"{tmp_path / 'run.jsonl'}: model mlp")
    (tmp_path / "run.jsonl").unlink()
    assert "no run (*.jsonl) in the folder" in command(capsys, "report", tmp_path)[2]


def test_growth_is_said(capsys: Any, tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "run.jsonl"
    # A run that was killed has no events of its last step, which would tell.
    write(path, recording, [130, 120, 110, 100], end=False, live=lambda step: 1000 * step)
    text = command(capsys, "report", path)[1]
    assert "Live bytes have grown for 3 steps, typically by 1,000 requested bytes per step." in text


def test_growth_that_only_the_last_step_tells_is_said(capsys: Any, tmp_path: Path) -> None:
    w, total, kept = gradcore.ones(1000, requires_grad=True), gradcore.zeros(1), []
    with RunWriter(tmp_path / "graph.jsonl", {"model": "mine"}) as run:
        for number in range(1, 9):
            with gradcore.step() as step:
                (loss := w.exp().sum()).backward()
                total = total + loss
            run.add(StepFigures.of(number, None, step.report), step)
    text = command(capsys, "report", tmp_path / "graph.jsonl")[1]
    assert "The graph has grown for 6 steps, typically by 3 nodes per step, without device bytes; at the end of step 8:" in text
    assert "add, " in text and "Did you mean loss.item() or detach()?" in text
    for _ in range(3):
        with gradcore.step() as step:
            kept.append(w.exp())
    step.recording.export(tmp_path / "step.json", "json")
    assert "Live bytes have grown for 3 steps, " in (text := command(capsys, "report", tmp_path / "step.json")[1])
    assert "3 results of exp in (root)" in text


@pytest.mark.parametrize(("text", "words"), [
    (None, "no run (*.jsonl) in the folder"),
    ("x", "neither a run, nor a recording, nor a step report: no JSON (Expecting value: line 1 column 1 (char 0))"),
    ("", "neither a run, nor a recording, nor a step report: it is empty")])
def test_what_cannot_be_shown_is_one_line(capsys: Any, tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path if text is None else tmp_path / "x.jsonl"
    if text is not None:
        path.write_text(text)
    status, _, err = command(capsys, "report", path)
    assert status == 1 and words in err and len(err.strip().splitlines()) == 1
    status, _, err = command(capsys, "report", tmp_path / "missing.jsonl")
    assert status == 1 and "missing.jsonl" in err
    with pytest.raises(SystemExit):
        main(["report", str(path), "--step", "middle"])


def test_a_plot_without_matplotlib_names_the_install_line(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with raises(ImportError, "pip install 'gradcore[plot]'"):
        recording.plot()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="Matplotlib is not installed: pip install '.[plot]'")
@pytest.mark.parametrize("by", sorted(BY))
def test_a_plot(recording: Recording, by: str, tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    ax = recording.plot(by)
    peak = recording.report.peak
    (mark,) = ax.lines
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (peak.position, peak.allocated)
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert len(set(labels)) == len(labels) == len(ax.collections)
    colors = {tuple(c.get_facecolor()[0]) for c in ax.collections}
    assert len(colors) == len(labels)
    ax.figure.savefig(tmp_path / "plot.png")
    # As many ticks as can be read, at powers of two; above the plot, phases.
    tick = min(y for y in ax.get_yticks() if y > 0)
    assert tick in (1 << k for k in range(40)) and tick * 3 <= peak.allocated < tick * 6
    assert [t.get_text() for t in ax.child_axes[0].get_xticklabels()] == ["forward", "backward", "optimizer"]
    assert recording.plot(by, ax=ax) is ax
    matplotlib.pyplot.close(ax.figure)
    with raises(ValueError, "no records"):
        Recording(recording.report, ()).plot()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="Matplotlib is not installed: pip install '.[plot]'")
@pytest.mark.parametrize(("before", "side"), [(0, "left"), (9, "right")])
def test_the_peak_of_a_plot_is_named_where_there_is_room(before: int, side: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    with gradcore.step(device="meta") as step:
        for nbytes in (*range(1, before + 1), 10, *range(9 - before)):
            gradcore.empty(1000 * nbytes, device="meta")
    ax = step.recording.plot()
    assert [t.get_horizontalalignment() for t in ax.texts] == [side]
    matplotlib.pyplot.close(ax.figure)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="Matplotlib is not installed: pip install '.[plot]'")
@pytest.mark.parametrize("by", sorted(BY))
def test_a_plot_of_nothing_says_so(by: str, tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    with gradcore.step(device="meta") as step:
        pass
    # What other tests have left live on the device is not in it.
    ax = Recording(step.report, tuple(r for r in step.recording.records if isinstance(r, Mark))).plot(by)
    assert [t.get_text() for t in ax.texts] == ["nothing was live in this step", "peak 0 B"] and not ax.collections
    ax.figure.savefig(tmp_path / "plot.png")
    matplotlib.pyplot.close(ax.figure)


@pytest.fixture(scope="module")
def large() -> Recording:
    """A step of a network of eight equal blocks."""
    blocks = gradcore.nn.Sequential(*(gradcore.nn.Sequential(gradcore.nn.Linear(32, 32), gradcore.nn.Tanh()) for _ in range(8)))
    net = gradcore.nn.ModuleDict({"blocks": blocks}).to("meta")
    with gradcore.step(device="meta") as step:
        net["blocks"](gradcore.ones(64, 32, device="meta")).sum().backward()
    return step.recording


def test_equal_blocks_share_a_row_of_what_is_live(large: Recording, capsys: Any, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers of pytest-xdist have the width of their parent's terminal, in which the table may be folded.
    monkeypatch.setenv("COLUMNS", "132")
    large.export(tmp_path / "large.json", "json")
    status, out, _ = command(capsys, "report", tmp_path / "large.json")
    rows = [line.split() for line in out.partition("Live at the peak")[2].splitlines()[4:]]
    assert status == 0 and [row[:8] for row in rows if "8" in row] == [
        ["32,768", "parameter", "upload", "blocks.0-7.0", "8", "of", "32x32", "float32"],
        ["4,096", "parameter", "upload", "blocks.0-7.0", "8", "of", "32", "float32"]]
    shown = sum(int(row[0].replace(",", "")) for row in rows if row)
    assert shown == large.report.peak.allocated


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_what_is_live_fits_the_terminal(large: Recording, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        width: int) -> None:
    large.export(tmp_path / "large.json", "json")
    shown = {}
    for given in (300, width):
        monkeypatch.setenv("COLUMNS", str(given))
        shown[given] = command(capsys, "report", tmp_path / "large.json")[1].partition("Live at the peak")[2].replace("─", "")
    assert max(map(len, shown[width].splitlines())) <= width
    # Every cell is there, and beside its bytes.
    assert set(shown[width].split()) == set(shown[300].split())
    for cell in ("parameter", "32x32"):
        assert any(line.startswith(" 32,768 ") and cell in line for line in shown[width].splitlines())


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="Matplotlib is not installed: pip install '.[plot]'")
def test_equal_blocks_share_a_band_of_a_plot(large: Recording) -> None:
    import matplotlib

    matplotlib.use("Agg")
    ax = large.plot("layer")
    labels = {t.get_text() for t in ax.get_legend().get_texts()}
    assert "blocks.1-7.0" in labels and "blocks.0-7.1" in labels and not any("other" in label for label in labels)
    matplotlib.pyplot.close(ax.figure)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="Matplotlib is not installed: pip install '.[plot]'")
@pytest.mark.parametrize("names", [["0-11", *map(str, range(12))], [*"abcdef", "others", *"ghijkl"]])
def test_a_layer_of_any_name_loses_no_bytes_in_a_plot(names: list[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    nets = [gradcore.nn.ModuleDict({name: gradcore.nn.Linear(16, 16) for name in names}).to("meta")]
    if "0" in names:
        nets.append(gradcore.nn.ModuleDict({"_d": nets[0]}))
    with gradcore.step(device="meta") as step:
        x = gradcore.ones(4, 16, device="meta")
        for name in names:
            x = nets[0][name](x).tanh()
        x.sum().backward()
    ax = step.recording.plot("layer")
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert len(labels) == len(ax.collections) and any(label.startswith((" _d.", "others")) for label in labels)
    highest = max(y for band in ax.collections for path in band.get_paths() for _, y in path.vertices)
    assert highest == step.report.peak.allocated
    matplotlib.pyplot.close(ax.figure)


@pytest.mark.parametrize("command", [["report"], ["export", "--format", "csv", "-o", "out.csv"], ["diff", "."]])
def test_a_run_without_steps_is_named(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    RunWriter("ended.jsonl", {}).close({})
    assert main([command[0], ".", *command[1:]]) in (1, 2)
    assert capsys.readouterr().err.startswith("gradcore: ended.jsonl: the file has no step's events")
