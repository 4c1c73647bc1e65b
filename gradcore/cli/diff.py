"""``gradcore diff``: compares the peaks of two runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gradcore.cli.common import add_json, argument
from gradcore.cli.runs import is_standard, of_step, step_of, which, write_output
from gradcore.report.diff import allowance, compare
from gradcore.report.diff_page import diff_page
from gradcore.report.recording import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", type=Path,
                        help="a run's file, a recording or a step report as JSON, or a folder (its newest run)")
    parser.add_argument("after", metavar="B", type=Path, help="the same for the second run")
    parser.add_argument("--step", type=_steps, default=("peak", "peak"), metavar="N|peak|first|last",
                        help="which step of each run to compare (default peak); first,last: the first of A, the last of B")
    parser.add_argument("--fail-above", type=argument(allowance), metavar="1%|BYTES",
                        help="exit with status 1 if the peak has grown by more than this")
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="OUT",
                        help="write the tables as a page to this file, or to standard output: -")
    # Status 1 is for a peak that has grown, so errors need another one.
    parser.set_defaults(error_status=2)


def _steps(text: str) -> tuple[int | str, int | str]:
    """The steps of A and of B: one for both, or two with a comma between."""
    before, comma, after = text.partition(",")
    return which(before), which(after if comma else before)


def run(options: argparse.Namespace) -> int:
    """Print the diff, to standard error if standard output gets the page; returns 1 if the peak has grown by more than
    ``--fail-above``, else 0."""
    if options.json and is_standard(options.html):
        raise ValueError("--json and --html - both write to standard output: choose a file for the page")
    (a_text, a_data, a), (b_text, b_data, b) = (
        _read(path, step) for path, step in zip((options.before, options.after), options.step, strict=True))
    diff = compare(a, b)
    failed = options.fail_above is not None and diff.change > options.fail_above(diff.before)
    out = sys.stdout
    if options.html is not None:
        inputs = [Path(str(data["file"])) for data in (a_data, b_data)]
        out = write_output(options.html, diff_page(diff, a_text, b_text).encode(), inputs)
    if options.json:
        print(json.dumps({"version": 1, "a": a_data, "b": b_data, "failed": failed, **diff.to_dict()}))
        return int(failed)
    print(f"A: {a_text}\nB: {b_text}\n{diff}", file=out)
    if not diff.by:
        print("\nOwners are not compared: one of the reports says nothing of them, as at the level counts.", file=out)
    elif "line" not in diff.by:
        print("\nLines are not compared: one of the reports is of before reports had sums by line.", file=out)
    if options.html is not None and not is_standard(options.html):
        print(f"\nThe page was written to {options.html}", file=out)
    if options.fail_above is not None and diff.change > 0:
        print(f"\nThe peak has grown by {diff.change:,} bytes; {int(options.fail_above(diff.before)):,} are allowed.", file=out)
    return int(failed)


def _read(path: Path, step: int | str) -> tuple[str, dict[str, object], Recording]:
    path, run, number, recording = step_of(path, step)
    return f"{path}: {of_step(run, number)}", {"file": str(path), "step": number}, recording
