"""Which step of which run a command reads."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from gradcore.cli.common import argument
from gradcore.report.files import refuse_folder, write_whole
from gradcore.report.recording import Recording
from gradcore.report.run import Run, load_run
from gradcore.report.text import reached_by
from gradcore.units import format_bytes

#: The first bytes of a run and of a recording. Some editors put a mark at the beginning of UTF-8.
_KINDS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"kind"\s*:\s*"(run|recording)"')


def add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", type=which, default="peak", metavar="N|peak|first|last",
                        help="which step, of those whose events are in the file (default peak)")


@argument
def which(text: str) -> int | str:
    """An argument that is ``peak``, ``first``, ``last`` or a number."""
    if text in ("peak", "first", "last"):
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a number, peak, first or last, but got {text!r}") from None


def load_newest(path: Path) -> tuple[Path, Run]:
    """The run in a file, or the newest run in a folder, and its path. Raises ValueError for a folder without a run,
    FileNotFoundError if nothing has this path."""
    if path.is_dir():
        # Other programs write files of this name, too.
        files = sorted((p for p in path.glob("*.jsonl") if p.is_file() and _kind(p) == "run"), key=lambda p: p.stat().st_mtime)
        if not files:
            raise ValueError(f"no run (*.jsonl) in the folder {path}: gradcore train writes one")
        path = files[-1]
    elif not path.exists():
        raise FileNotFoundError(f"{path} not found: gradcore train writes a run to the folder runs, or to --out FOLDER; a loop "
                                "of your own, where its report.RunWriter says")
    return path, load_run(path)


def _kind(path: Path) -> str:
    """``run``, ``recording``, or "" for another file."""
    with path.open("rb") as file:
        found = _KINDS.match(file.read(256))
    return found[1].decode() if found else ""


def step_of(path: Path, step: int | str) -> tuple[Path, Run, int, Recording]:
    """The file, its run, and a step's number and recording. Raises ValueError, which names the file, if it has no such step."""
    path, run = load_newest(path)
    try:
        return path, run, *run.find(step)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def name_of_step(run: Run, number: int) -> str:
    """``Step 20``, or what is known of a step alone that has no number."""
    return f"Step {number}" if run.numbered else "A snapshot" if run.recordings[number].report.of == "snapshot" else "A step"


def of_step(run: Run, number: int) -> str:
    """A step's peak, on one line."""
    report = run.recordings[number].report
    peak = report.peak
    batch = f", batch {report.batch_size:,}" if report.batch_size else ""
    where = f", reached by {reached_by(peak)}" if peak.op else ""
    return f"{name_of_step(run, number)} on {report.device}{batch}: peak {format_bytes(peak.allocated)}{where}"


def keep_safe(output: Path, inputs: Iterable[Path], replaces: str = "") -> None:
    """Raise ValueError if writing ``output`` would lose one of the inputs, a run, or a recording; IsADirectoryError for a
    folder.

    A file of the kind ``replaces`` is replaced, unless it is an input: a command that writes recordings may run twice.
    """
    refuse_folder(output)
    if not output.is_file():
        return
    for path in inputs:
        if output.samefile(path):
            raise ValueError(f"{output} is read by this command, and would be overwritten: choose another file to write")
    if (kind := _kind(output)) and kind != replaces:
        raise ValueError(f"{output} is a {kind}, which would be lost: choose another file to write, or remove this one first")


def write_output(output: Path, data: bytes, inputs: Iterable[Path], replaces: str = "") -> TextIO:
    """Write a file, or standard output for ``-``, unless :func:`keep_safe` raises; returns where to print all else.

    What is no file may be standard output by its name, which gets nothing but the data, too.
    """
    if is_standard(output):
        sys.stdout.buffer.write(data)
        return sys.stderr
    keep_safe(output, inputs, replaces)
    write_whole(output, data)
    return sys.stdout if output.is_file() else sys.stderr


def is_standard(output: Path | None) -> bool:
    """Does a path stand for standard output?"""
    return str(output) == "-"
