"""``gradcore diff``: what the peak of one run has gained beside that of another."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradcore.cli.report import newest, which_step
from gradcore.report.diff import diff
from gradcore.report.run import load_run

#: Exit status where the peak grew by more than ``--fail-above``: neither an error (1) nor bad usage (2).
GREW = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, which in (("before", "A"), ("after", "B")):
        parser.add_argument(name, metavar=which, type=Path,
                            help="what gradcore train has written, or a recording or a step report as JSON; of a folder, its "
                                 "newest run")
    parser.add_argument("--step", type=which_step, default="peak", metavar="N|peak|first|last",
                        help="the step of both runs that is compared (default peak)")
    parser.add_argument("--fail-above", metavar="1%|SIZE", help=f"exit with status {GREW} where the peak grew by more")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")


def run(options: argparse.Namespace) -> int:
    """Print the difference; returns the exit status."""
    before, after = (load_run(newest(path)).find(options.step)[1] for path in (options.before, options.after))
    found = diff(before, after)
    failed = options.fail_above is not None and found.exceeds(options.fail_above)
    print(found.to_json() if options.json else found)
    if failed and not options.json:
        print(f"\nThe peak grew by {found.gained:,} bytes: more than {options.fail_above} was not to be.")
    return GREW if failed else 0
