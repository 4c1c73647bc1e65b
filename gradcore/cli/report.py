"""``gradcore report``: shows the file of a run in the terminal, or writes it as an HTML page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gradcore import folds
from gradcore.cli.common import add_json
from gradcore.cli.runs import add_step, is_standard, load_newest, of_step, step_of, write_output
from gradcore.cli.tables import in_color, print_folded
from gradcore.grouping import alike
from gradcore.reading import short_path
from gradcore.report.blocks import block_plot
from gradcore.report.growth import Growth
from gradcore.report.html import Named, page
from gradcore.report.recording import Recording
from gradcore.report.run import Run
from gradcore.report.text import has_grown, shown_shape, why_grown
from gradcore.report.trend import growth_of
from gradcore.units import count_of

#: The most rows of the table of live buffers at the peak.
_ROWS = 12
#: The most columns of a text in a run's file.
_TEXT = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", type=Path, nargs="?", default=Path("runs"),
                        help="a run's file, a recording or a step report as JSON, or a folder "
                             "(its newest run; default runs)")
    add_step(parser)
    parser.add_argument("--html", type=Path, metavar="OUT",
                        help="write the page to this file, which opens from disk, or to standard output: -")
    parser.add_argument("--beside", type=Path, action="append", default=[], metavar="RUN",
                        help="another run to compare with on the page; may be given several times")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print the report of one step of a run, and figures of the whole run."""
    if options.beside and options.html is None:
        raise ValueError("--beside shows another run on the page: choose its file with --html")
    if options.json and is_standard(options.html):
        raise ValueError("--json and --html - both write to standard output: choose a file for the page")
    path, found, number, recording = step_of(options.path, options.step)
    if options.html is not None:
        others = [load_newest(p) for p in options.beside]
        text = page([Named(path.name, found), *(Named(p.name, run) for p, run in others)], options.step)
        out = write_output(options.html, text.encode(), [path, *(p for p, _ in others)])
    if options.json:
        growth, told = _growth(found)
        print(json.dumps({"version": 1, "file": str(path), "about": found.about, "result": found.result,
                          "steps": len(found.steps), "peak_step": found.peak_step, "with_events": _with_events(found),
                          "growth": None if growth is None else {**asdict(growth), "step": told},
                          "step": number, "report": recording.report.to_dict()}))
        return
    if options.html is not None:
        if not is_standard(options.html):
            print(f"The page was written to {options.html}", file=out)
        return
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(_about(path, found), soft_wrap=True)
    console.print(of_step(found, number), "\n", soft_wrap=True, sep="")
    if not recording.records:
        console.print(Text(str(recording.report)), soft_wrap=True)
        return
    width = max(min(console.width - 14, 100), 20)
    console.print(block_plot(recording, width=width, color=in_color(console)), soft_wrap=True)
    _print_live(console, recording)


def _with_events(found: Run) -> list[int]:
    """The steps whose events are in the file: of one at the level counts it has a report alone."""
    return [number for number, recording in sorted(found.recordings.items()) if recording.records]


def _about(path: Path, found: Run) -> str:
    about = _named(found.about)
    lines = [f"{path}: {about}" if about else str(path)]
    if found.about:
        figures = _named(found.result or {})
        ended = "not finished" if found.result is None else f"ended with {figures}" if figures else "ended"
        there = [*map(str, _with_events(found))]
        events = (f"the events of step{'s' * (len(there) > 1)} {', '.join(there)}" if there else
                  "no events: a run at the level counts has none")
        lines.append(f"{count_of(len(found.steps), 'step')}, {ended}; the highest peak is in step {found.peak_step}; "
                     f"the file has {events}")
    growth, number = _growth(found)
    if growth is not None:
        lines += [has_grown(growth) + ("." if number is None else f"; at the end of step {number}:"), *why_grown(growth)]
    return "\n".join(lines)


def _named(values: Mapping[str, Any]) -> str:
    """Figures and texts by name, on one line: of a long text, such as a sample of what a model writes, the beginning."""
    said = ((k, f"{v:.4g}" if isinstance(v, float) else " ".join(str(v).split()))
            for k, v in values.items() if isinstance(v, (str, int, float)))
    return ", ".join(f"{k} {text if len(text) <= _TEXT else text[:_TEXT - 3] + '...'}" for k, text in said)


def _growth(found: Run) -> tuple[Growth | None, int | None]:
    """How the steps of a run have grown, with what has, and the step whose events tell that, if there is one."""
    last = found.recordings.get(found.steps[-1].step) if found.steps else None
    # Figures do not tell that a graph grows, nor whether batches have only become longer: the report of the last step does.
    growth = last.report.growth if last and last.records else growth_of([s.live for s in found.steps])
    # The newest step whose events tell what it is: that of the peak need not be among the steps that grow.
    number, told = next(((n, told) for n, recording in sorted(found.recordings.items(), reverse=True)
                         if (told := recording.report.growth) and (told.grown or told.carried)), (None, None))
    if growth is None or told is None:
        return growth, None
    return replace(growth, grown=told.grown, carried=told.carried), number


def _print_live(console: Console, recording: Recording) -> None:
    """The table of what is live at the peak."""
    peak, holders = folds.at_peak(recording.records)
    cells = []
    for h in holders:
        spec: Any = h.tag.spec
        shape, dtype = (spec.shape, spec.dtype.name) if spec else (None, "")
        cells.append((h.tag.layer or "(root)", (h.role, h.tag.op, shape, dtype, short_path(str(h.tag.site)), h.allocated)))
    found = sorted(((value[-1] * len(places), len(places), layer, value) for layer, value, places in alike(cells, _ROWS)),
                   key=lambda row: (-row[0], str(row[3]), row[2]))
    rows = [(f"{nbytes:,}", role, op, layer, shown_shape(shape, count), dtype, line)
            for nbytes, count, layer, (role, op, shape, dtype, line, _) in found[:_ROWS]]
    if len(found) > _ROWS:
        rows.append((f"{sum(nbytes for nbytes, *_ in found[_ROWS:]):,}", f"{len(found) - _ROWS} more", *5 * ("",)))
    console.print(f"Live at the peak, after record {peak.position}", soft_wrap=True)
    print_folded(console, ("bytes", "role", "op", "layer", "shape", "dtype", "line"), rows,
                 ("role", "op", "layer", "dtype", "line"))
