"""``gradcore export``: writes the events of a step for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gradcore.cli.runs import add_step, keep_safe, name_of_step, step_of
from gradcore.report.exports import FORMATS, exported
from gradcore.report.files import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", type=Path,
                        help="a run's file, a recording as JSON, a folder (its newest run), or a "
                             "memory snapshot written by PyTorch")
    parser.add_argument("--format", required=True, choices=tuple(FORMATS), help="what to write, see above")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True,
                        help="the file to write, or - for standard output")
    add_step(parser)


def run(options: argparse.Namespace) -> None:
    """Write the file. Raises ValueError if that would overwrite the run."""
    path, found, number, recording = step_of(options.path, options.step)
    keep_safe(options.output, [path], "recording" if options.format == "json" else "")
    data = exported(recording, options.format, number if found.numbered else None)
    if str(options.output) == "-":
        sys.stdout.buffer.write(data)
        return
    write_whole(options.output, data)
    # What is no file may be standard output by its name, which gets nothing but the data.
    print(f"{name_of_step(found, number)} was written to {options.output}",
          file=sys.stdout if options.output.is_file() else sys.stderr)
