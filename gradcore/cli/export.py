"""``gradcore export``: writes the events of a step for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradcore.cli.runs import add_step, is_standard, name_of_step, step_of, write_output
from gradcore.report.exports import FORMATS, exported


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
    data = exported(recording, options.format, number if found.numbered else None)
    told = write_output(options.output, data, [path], "recording" if options.format == "json" else "")
    if not is_standard(options.output):
        print(f"{name_of_step(found, number)} was written to {options.output}", file=told)
