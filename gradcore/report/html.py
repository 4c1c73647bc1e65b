"""The report as one HTML file, which opens from disk, loads nothing, and runs no script but its own.

The data stand as escaped JSON in a script element that is never run; the page's scripts (gradcore/report/page) put them into
text nodes only. A content policy names the hashes of the one script and the one style sheet, and forbids all else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from gradcore.reading import short_path
from gradcore.report.files import write_whole
from gradcore.report.packed import pack
from gradcore.report.recording import Recording
from gradcore.report.run import Run
from gradcore.report.text import has_grown, short_sums
from gradcore.report.timeline import COLORS

#: The page's scripts, in the order that they are run in: what a file uses stands before it.
SCRIPTS = ("text.js", "log.js", "bands.js", "owners.js", "timeline.js", "addresses.js", "kept.js", "strip.js", "page.js")


@dataclass(frozen=True)
class Named:
    """A run and its name on the page."""

    name: str
    run: Run


def page(runs: Sequence[Named], step: int | str = "peak") -> str:
    """The page of one run, opened at ``step``, with other runs to compare. Raises ValueError as ``Run.find`` does."""
    shown, _ = runs[0].run.find(step)
    data = {"version": 1, "colors": COLORS, "shown": shown, "runs": [_run(r) for r in runs]}
    script = "\n".join(part(name) for name in SCRIPTS)
    style = part("page.css")
    policy = (f"default-src 'none'; script-src '{hash_of(script)}'; style-src '{hash_of(style)}'; base-uri 'none'; "
              "form-action 'none'; require-trusted-types-for 'script'")
    parts = {"policy": policy, "title": html.escape(f"Device memory: {runs[0].name}"), "style": style, "script": script,
             "data": escaped(data)}
    return filled("page.html", parts)


def filled(template: str, parts: dict[str, str]) -> str:
    """A template of gradcore/report/page with its placeholders filled in; the values must be escaped already."""
    # The template is split before anything is filled in, so that no data can look like a placeholder.
    for i, piece in enumerate(pieces := part(template).split("{{")):
        name, closed, rest = piece.partition("}}")
        if closed:
            pieces[i] = parts[name] + rest
    return "".join(pieces)


def of_recording(recording: Recording) -> str:
    """The page of one step; without its records it has the peak alone, without the timeline."""
    return page([Named(f"a step on {recording.report.device}", Run.of_one_step(recording))])


def save(path: str | os.PathLike[str], text: str) -> None:
    """Write the page atomically. Raises OSError."""
    write_whole(path, text.encode())


def frame(text: str) -> str:
    """A page as a sandboxed frame for another, such as a notebook's cell."""
    return (f'<iframe sandbox="allow-scripts" style="width:100%;height:46rem;border:0" '
            f'srcdoc="{html.escape(text, quote=True)}"></iframe>')


def escaped(data: Any) -> str:
    """JSON without characters that are special in HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _run(named: Named) -> dict[str, Any]:
    steps = named.run.steps
    return {"name": named.name, "about": named.run.about, "result": named.run.result,
            "steps": {name: [getattr(s, name) for s in steps] for name in ("step", "loss", "allocated", "live")},
            "recordings": [_recording(n, r) for n, r in sorted(named.run.recordings.items())]}


def _recording(step: int, recording: Recording) -> dict[str, Any]:
    # The page computes these from the records.
    shown = replace(recording.report, top=(), kept=()) if recording.records else recording.report
    report = shown.to_dict()
    grown, carried = (report["growth"][key] if report["growth"] else () for key in ("grown", "carried"))
    for row in (report["peak"], *report["top"], *report["kept"], *report["left"], *grown, *carried):
        row["line"] = short_path(row["line"])
    for row in carried:
        row["reader_line"] = short_path(row["reader_line"])
    report["by_line"] = short_sums(recording.report)["line"]
    if recording.report.growth is not None:
        report["growth"]["said"] = has_grown(recording.report.growth)
    if not recording.records:
        return {"step": step, "report": report, "log": None}
    del report["top"], report["kept"]
    log = pack(recording.records)
    for i in {file for file, *_ in log["sites"]}:
        log["strings"][i] = short_path(log["strings"][i])
    return {"step": step, "report": report, "log": log}


def part(name: str) -> str:
    """The text of a file of gradcore/report/page."""
    return resources.files("gradcore.report").joinpath("page", name).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """The hash of a text as a content security policy writes it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
