"""The text of a report, word for word: one with something in every section, and the limits of each list."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

import pytest

import gradcore
from gradcore.grouping import together
from gradcore.reading import short_path
from gradcore.report.growth import Carried, Grown, Growth
from gradcore.report.step import (
    DriverFigures,
    Exported,
    KeptTensor,
    Left,
    LibraryBytes,
    PeakPoint,
    PhaseEnd,
    PinnedFigures,
    PoolFigures,
    StepReport,
    TopTensor,
)
from gradcore.report.text import bar, render


def kept(name: str, role: str = "output", layer: str = "head", dropped: int | None = None,
         freed: int | None = None) -> KeptTensor:
    return KeptTensor(1, name, "mul", layer, role, "x.py:1 in f", 1024, 5, dropped, freed, None)


def full(folder: Path) -> StepReport:
    """A report with a line of each kind: lines below ``folder`` are shown without it."""
    line = f"{folder}/model.py:3 in f"
    return StepReport(
        device="cuda:1", batch_size=4, seconds=4.0, peak=PeakPoint(5, 3000, 4096, 8192, "mul", "", "forward", line),
        by_role={"parameter": 1024, "residual": 3072}, by_layer={"": 3072, "head": 1024}, by_op={"mul": 4096, "borrow": 0},
        by_line={line: 3072, "/lib/a.py:1 in g": 1024},
        top=(TopTensor(2048, 2000, "residual", "mul", "", "forward", (4, 64), "float32", line, None, 1, ("1:x", "2:y"),
                       (line, "/lib/b.py:2 in g")),
             TopTensor(1024, 1024, "residual", "exp", "head", "forward", (), "float64", "/lib/a.py:1 in g", None, 1, ("1:x",)),
             TopTensor(1024, 1000, "workspace", "sum", "head", "forward", None, None, line, None, 0, ()),
             TopTensor(0, 0, "input", "borrow", "", "forward", (9,), "int8", line, None, 0, ())),
        phases=(PhaseEnd("forward", 900, 2048, 1.5), PhaseEnd("step", 1000, 1536, 4.0)),
        kept=(kept("a", layer=""), kept("b", "temporary", dropped=7), kept("c", dropped=8, freed=9), kept("w", "parameter")),
        residual_bytes=3072, residual_bytes_returned=1024, pool=PoolFigures(10, 7, 2, 8192, 4096, 1024), nodes=3,
        graph_seconds=1.0, records=12,
        driver=DriverFigures(100_000, "NVML, this process", 50_000, 8192, 1308, 40_500,
                             (LibraryBytes("cuBLAS", 1000), LibraryBytes("cuFFT", 308)), "what nobody sees"),
        left=(Left("mul", "", line, 1024, "graph"), Left("exp", "head", line, 512, "you")),
        growth=Growth(3, 1234, (Grown("mul", "", line, 3, 3072, "graph", f"sum, {line}"),
                                Grown("exp", "head", line, 2, 1024, "graph", ""), Grown("neg", "", line, 2, 512, "you", "")),
                      (Carried("sum", line, "add", line),)),
        pinned=PinnedFigures(1000, 2000, 3000), outside_bytes=7777,
        exported=(Exported("mul", "", line, "numpy()", line, True, 1, 2048),
                  Exported("exp", "head", line, "__dlpack__", line, False, 2, 1024)))


TEXT = """\
Device memory of one step on cuda:1, batch 4: peak 4.00 KiB
  requested 3,000  allocated 4,096  reserved 8,192 bytes
  reached by mul in layer (root), phase forward, model.py:3 in f
  768 bytes per sample, not counting parameters, buffers, gradients and optimizer state

At the peak, by role:
  parameter                        1,024   25.0%  ██████
  residual                         3,072   75.0%  ██████████████████

At the peak, by layer:
  (root)                           3,072   75.0%  ██████████████████
  head                             1,024   25.0%  ██████

At the peak, by op:
  mul                              4,096  100.0%  ████████████████████████

At the peak, by line:
  model.py:3 in f                  3,072   75.0%  ██████████████████
  /lib/a.py:1 in g                 1,024   25.0%  ██████

Memory of other libraries that tensors share: 7,777 bytes, not included in these sums.

Largest tensors at the peak:
    2.00 KiB  residual        mul                          4x64 float32  (root)         model.py:3 in f  kept by 2 nodes
              called from model.py:3 in f
              called from /lib/b.py:2 in g
    1.00 KiB  residual        exp                        scalar float64  head           /lib/a.py:1 in g  kept by 1 node
    1.00 KiB  workspace       sum                         bytes          head           model.py:3 in f

Live at the end of each phase:
  forward              2,048 bytes  after 1.50 s
  step                 1,536 bytes  after 4.00 s

Kept for backward: 3,072 bytes; freed by the end of backward: 1,024.
  node 1: 'a', 1,024 bytes of mul in (root), kept at record 5, still kept
  node 1: 'b', 1,024 bytes of mul in head, kept at record 5, released at 7
  node 1: 'c', 1,024 bytes of mul in head, kept at record 5, released at 8, freed at 9

Results made in this step and live at its end (memory_summary() names what holds them):
            1,024 bytes of mul in (root), model.py:3 in f: kept by the graph
              512 bytes of exp in head, model.py:3 in f: referenced by your code

Shared by arrays of other libraries at the end:
            2,048 bytes of mul in (root), model.py:3 in f: held only by numpy(), model.py:3 in f
            1,024 bytes in 2 buffers of exp in head, model.py:3 in f: held by its tensor, and shared by __dlpack__, \
model.py:3 in f

Live bytes have grown for 3 steps, typically by 1,234 requested bytes per step:
            3,072 bytes in 3 results of mul in (root), model.py:3 in f: kept by the graph for sum, model.py:3 in f
            1,024 bytes in 2 results of exp in head, model.py:3 in f: kept by the graph for a node of an earlier step
              512 bytes in 2 results of neg in (root), model.py:3 in f: referenced by your code
  add, model.py:3 in f, reads a result of the previous step: sum,
  model.py:3 in f. Did you mean loss.item() or detach()?

Pool: 10 allocations, 7 served without the driver; reserved beyond the peak: 4.00 KiB
  at the end 2 segments, 4.00 KiB cached, fragmentation 75.0%
Graph: 3 nodes, 25.0% of the step's 4.00 s; 12 records
Pinned host memory: 1,000 bytes live, at most 2,000 in this step; 3,000 held by its pool
Driver (NVML, this process):
  100,000 bytes used = context 50,000 + segments 8,192 + libraries 1,308 + remainder 40,500 (40.5%: what the driver and \
libraries take for themselves)
            1,000 bytes for cuBLAS
              308 bytes for cuFFT
  the remainder includes what nobody sees"""


def test_a_report_with_something_in_every_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = full(tmp_path)
    assert render(report) == TEXT
    plain = render(dataclasses.replace(
        report, outside_bytes=0, left=(), exported=(), peak=dataclasses.replace(report.peak, layer="head"),
        driver=DriverFigures(0, "NVML", 0, 0, 0, 0)))
    assert "reached by mul in layer head, phase" in plain and plain.endswith("segments 0 + libraries 0 + remainder 0")
    assert not any(words in plain for words in ("Memory of other libraries", "Results made in this step", "Shared by arrays"))


def test_an_output_without_blocks_gets_bars_that_it_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for encoding in ("ascii", "latin-1", "cp437"):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
        print(full(tmp_path), flush=True)
        assert out.getvalue().decode("ascii") == TEXT.replace("█", "#") + "\n"
    assert [bar(share, 4) for share in (0, 0.1, 0.2, 0.5, 1)] == ["", "", "#", "##", "####"]
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    print(full(tmp_path))
    assert sys.stdout.getvalue() == TEXT + "\n"  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdout", None)
    assert str(full(tmp_path)) == TEXT


def test_without_records_there_are_totals_growth_and_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    counted = dataclasses.replace(full(tmp_path), records=0, batch_size=None, pinned=None, growth=Growth(3, 1234),
                                  driver=DriverFigures(None, "none", None, 8192, 0, None))
    assert render(counted) == """\
Device memory of one step on cuda:1: peak 4.00 KiB
  requested 3,000  allocated 4,096  reserved 8,192 bytes
  recorded at the level counts, which says nothing of owners; the level events does

Live bytes have grown for 3 steps, typically by 1,234 requested bytes per step.

Pool: 10 allocations, 7 served without the driver; reserved beyond the peak: 4.00 KiB
  at the end 2 segments, 4.00 KiB cached, fragmentation 75.0%
Driver (none):
  N/A bytes used = context N/A + segments 8,192 + libraries 0 + remainder N/A"""


def test_long_lists_end_with_how_many_more(tmp_path: Path) -> None:
    report = full(tmp_path)
    growth = report.growth
    assert growth is not None

    def lines(count: int) -> list[str]:
        """The report's lines if every list has ``count`` entries."""
        top = dataclasses.replace(report.top[0], stack=tuple(f"/s.py:{i} in h" for i in range(count)))
        return render(dataclasses.replace(
            report, by_op={f"op{i}": 16 for i in range(count)},
            left=tuple(dataclasses.replace(report.left[0], line=f"/l.py:{i} in f") for i in range(count)),
            kept=tuple(dataclasses.replace(report.kept[0], name=f"k{i}") for i in range(count)),
            exported=count * report.exported[:1], top=(top,),
            growth=dataclasses.replace(growth, grown=count * growth.grown[:1], carried=count * growth.carried))).splitlines()

    def shown(count: int) -> list[int]:
        """How many of ``count`` entries each list shows: callers, ops, kept, left, exported, grown, carried."""
        texts = lines(count)
        return [sum(words in x for x in texts) for words in (
            "called from", "  op", "still kept", ": kept by the graph", "held only by numpy()", "results of", "Did you mean")]

    # What piles up is kept by the graph too.
    assert shown(4) == [4, 4, 4, 4 + 4, 4, 4, 4]
    assert shown(20) == [6, 12, 16, 8 + 4, 8, 4, 4]
    assert [x for x in lines(20) if " more" in x] == [
        "  and 8 more, 128 bytes", "  and 4 more", "  and 12 more", "  and 12 more", "  and 16 more, 49,152 bytes"]
    assert [x for x in lines(8) if " more" in x] == ["  and 4 more, 12,288 bytes"]
    assert len([x for x in lines(9) if x == "  and 1 more"]) == 2
    assert [x for x in lines(13) if ", 16 bytes" in x] == ["  and 1 more, 16 bytes"]
    assert [x for x in lines(12) if "more, " in x] == ["  and 8 more, 24,576 bytes"]
    assert shown(16)[2] == 16 and "  and 1 more" in lines(17)
    assert "  and 0 more" not in lines(16)


def test_equal_blocks_of_a_large_network_share_a_row(tmp_path: Path) -> None:
    def layers(by_layer: dict[str, int]) -> list[tuple[str, str]]:
        text = render(dataclasses.replace(full(tmp_path), by_layer=by_layer)).partition("by layer:\n")[2]
        return [(x.split()[0], x.split()[1]) for x in text.partition("\n\n")[0].splitlines()]

    blocks = {f"h.{k}.{part}": nbytes for part, nbytes in (("up", 24), ("down.0", 16)) for k in range(6)}
    assert layers({"head": 100, **blocks}) == [("h.0-5.up", "144"), ("head", "100"), ("h.0-5.down.0", "96")]
    # Not those that differ, and not where there is room for all.
    assert layers({"head": 15, **blocks, "h.3.up": 25}) == [
        ("h.0-2,4-5.up", "120"), ("h.0-5.down.0", "96"), ("h.3.up", "25"), ("head", "15")]
    assert len(layers(blocks)) == 12
    # Blocks within stages; plain Sequentials keep their numbers.
    stages = {f"stages.{i}.{k}.fc": 16 * (i + 1) for i in range(2) for k in range(8)}
    assert layers(stages) == [("stages.1.0-7.fc", "256"), ("stages.0.0-7.fc", "128")]
    assert len(layers({str(k): 16 for k in range(13)})) == 13
    assert together([("a.0.b.0", 1), ("a.0.b.1", 1), ("a.1.b.0", 1), ("a.1.b.1", 1)]) == [
        ("a.0-1.b.0-1", 1, ["a.0.b.0", "a.1.b.0", "a.0.b.1", "a.1.b.1"])]
    # Networks; and what is no number of one.
    assert [name for name, _, _ in together([("Net#1", 1), ("Net#2", 1), ("Net#3", 1), ("Net#", 1), ("#2", 1)])] == [
        "Net#1-3", "Net#", "#2"]
    # What a graph keeps of each block.
    report = full(tmp_path)
    left = tuple(dataclasses.replace(report.left[0], layer=f"h.{k}.up", allocated=512) for k in range(12))
    assert "    6,144 bytes of mul in h.0-11.up, " in render(dataclasses.replace(report, left=left))
    # A name that looks like several.
    assert [name for name, _, _ in together([("a.0.b", 1), ("a.1.b", 1), ("a.0-1.b", 1)])] == ["a.0-1.b"] * 2


def test_of_many_phases_the_first_and_the_last_are_shown(tmp_path: Path) -> None:
    def shown(count: int) -> list[str]:
        phases = tuple(PhaseEnd("forward", i, i, 1.0) for i in range(count))
        text = render(dataclasses.replace(full(tmp_path), phases=phases))
        return [x.split()[1] for x in text.partition("of each phase:\n")[2].partition("\n\n")[0].splitlines()]

    assert shown(17) == [f"{i}" for i in range(17)]
    assert shown(18) == [*(f"{i}" for i in range(8)), "2", *(f"{i}" for i in range(10, 18))]


def test_lines_of_the_largest_tensors_are_below_each_other(tmp_path: Path) -> None:
    report = full(tmp_path)
    names = ("Net.blocks.1.mlp.2", "", "a", "a")
    top = tuple(dataclasses.replace(t, layer=name, stack=()) for t, name in zip(report.top, names, strict=True))
    largest = render(dataclasses.replace(report, top=top)).partition("tensors at the peak:\n")[2].splitlines()[:3]
    assert {x.rindex(" ", 0, x.index(".py")) for x in largest} == {largest[0].rindex("mlp.2 ") + len("mlp.2")}


def test_a_bar_is_drawn_in_eighths_and_a_path_below_the_folder_is_relative(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [bar(n / 16, 2) for n in range(9)] == ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"]
    assert bar(2.0, 3) == bar(1.0, 3) == "███" and bar(-1.0) == ""
    monkeypatch.chdir(tmp_path)
    assert short_path(f"{tmp_path}/a/b.py:3 in f") == "a/b.py:3 in f"
    assert short_path(f"{tmp_path.parent}/b.py:3 in f") == f"{tmp_path.parent}/b.py:3 in f"
    for folder in (tmp_path / ".venv/lib/python3.12/site-packages", tmp_path.parent / "lib/python3/dist-packages"):
        assert short_path(f"{folder}/timm/net.py:3 in f") == "timm/net.py:3 in f"
    assert short_path("b.py:3 in f") == "b.py:3 in f" and short_path("a.py") == "a.py"


def test_what_was_kept_is_listed_once_and_what_an_earlier_step_keeps_hides_none_of_it() -> None:
    model = gradcore.nn.Sequential(gradcore.nn.Linear(8, 16), gradcore.nn.ReLU(), gradcore.nn.Linear(16, 4))
    old = [model(gradcore.ones(100, 8)) for _ in range(3)]
    with gradcore.step(device="cpu") as step:
        new = model(gradcore.ones(100, 8))
    text = str(step.report)
    first, *lines = text[text.index("Kept for backward"):].partition("\n\n")[0].splitlines()
    # 3 of 3,584 (inputs of 3,200) and of 6,656 (outputs of 6,400) from before, and one of each since.
    assert first == (
        "Kept for backward: 10,240 bytes by a step without a backward, 40,960 at its end: under no_grad() nothing is kept.")
    assert [line.rpartition(", ")[0] for line in lines[:2]] == [
        "  since before this step: 19,968 bytes in 3 results of relu in 1",
        "  since before this step: 10,752 bytes in 3 results of full in (root)"]
    node = step.report.kept[-1].node
    assert [line.partition(", kept at record")[0] for line in lines[2:]] == [
        f"  node {node - 2}: 'x', 3,584 bytes of full in (root)", f"  node {node - 1}: 'out', 6,656 bytes of relu in 1",
        f"  node {node}: 'x', the same bytes as 'out' of node {node - 1}"]
    del old, new


def test_what_each_step_of_a_loop_reads_is_one_row() -> None:
    memory, layer = gradcore.randn(12, 64, requires_grad=True), gradcore.nn.Linear(64, 64)
    state = gradcore.zeros(12, 64)
    with gradcore.step(device="cpu") as step:
        read = memory.exp()
        for _ in range(20):
            state = (layer(read) + state).tanh()
        state.sum().backward()
    kept = step.report.kept
    node = next(k.node for k in kept if k.name == "out")
    readers = [k.node for k in kept if (k.name, k.op) == ("x", "exp")]
    assert len(readers) == 20
    assert (f"\n  nodes {readers[0]}-{readers[-1]} (20): 'x', the same bytes as 'out' of node {node}, kept at records "
            ) in str(step.report)
    del read


def test_of_many_kept_the_largest_are_listed() -> None:
    x = gradcore.ones(2, requires_grad=True)
    small = [x.exp() for _ in range(20)]
    with gradcore.step(device="cpu") as step:
        # Each in a layer of its own: equal ones would share a line.
        layers = [gradcore.nn.Tanh() for _ in range(20)]
        net = gradcore.nn.ModuleDict({f"of{k}": layer for k, layer in enumerate(layers)})
        small = [layer(x) for layer in net.values()]
        large = gradcore.ones(1000, requires_grad=True).exp()
    text = str(step.report)
    assert "'out', 4,096 bytes of exp in (root)" in text and text.count("'out', 512 bytes") == 15 and "\n  and 5 more\n" in text
    del small, large


def test_equal_blocks_share_a_row_of_the_largest_and_of_what_was_kept() -> None:
    blocks = gradcore.nn.ModuleDict({"h": gradcore.nn.Sequential(*(
        gradcore.nn.Sequential(gradcore.nn.Linear(32, 32), gradcore.nn.Tanh()) for _ in range(12)))}).to("meta")
    with gradcore.step(device="meta") as step:
        blocks["h"](gradcore.ones(64, 32, device="meta", requires_grad=True)).sum().backward()
    report, text = step.report, str(step.report)
    kept = [k for k in report.kept if k.name == "x"]
    assert len(kept) == 12 and kept[0].allocated == 8192 and kept[0].layer == "" and kept[1].layer == "h.0.1"
    top = next(t for t in report.top if t.op == "tanh")
    # The first of equal ones stands for all. The last block's is kept by one node.
    assert (top.layer, top.count, top.allocated) == ("h.0-10.1", 11, 8192) and len(top.kept_by) == 2
    largest = text.partition("tensors at the peak:\n")[2].partition("\n\n")[0].splitlines()
    assert len(largest) == len(report.top) <= 10
    line, = [x for x in largest if " tanh " in x]
    assert line.split()[:8] == ["88.0", "KiB", "residual", "tanh", "11", "of", "64x32", "float32"]
    assert line.split()[8] == "h.0-10.1" and line.endswith("  each kept by 2 nodes")
    lines = [x for x in text[text.index("Kept for backward"):].partition("\n\n")[0].splitlines() if "'x'" in x or "'out'" in x]
    first, last = kept[1], kept[-1]
    assert [x.partition(", kept at record")[0] for x in lines if "(11)" in x or "(12)" in x] == [
        f"  nodes {kept[0].node + 1}-{last.node + 1} (12): 'out', 98,304 bytes of tanh in h.0-11.1",
        f"  nodes {first.node}-{last.node} (11): 'x', the same bytes as 'out' of nodes {kept[0].node + 1}-{last.node - 1}"]
    row = next(x for x in lines if "the same bytes" in x)
    assert row.endswith(f"kept at records {first.kept_at}-{last.kept_at}, released at {last.dropped_at}-{first.dropped_at}, "
                        f"freed at {last.freed_at}-{first.freed_at}")


def test_one_of_a_thing_is_not_said_to_be_several() -> None:
    w = gradcore.ones(3, requires_grad=True)
    kept = [w.exp(), w.tanh(), w.sigmoid(), w.sqrt(), w.rsqrt()]
    with gradcore.step(device="cpu") as step:
        kept.append(w.exp())
    text = str(step.report)
    assert "  and 512 bytes of 1 more line since before this step\n" in text
    assert "Pool: 1 allocation, 1 served" in text and "Graph: 1 node, " in text
