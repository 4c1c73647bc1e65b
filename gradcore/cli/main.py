"""The command ``gradcore``: its arguments, dispatch to subcommands, and exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from gradcore import __version__
from gradcore.cli import collect_env, diff, export, find_batch, find_checkpoints, measure, report, train
from gradcore.cli.failures import described, noted
from gradcore.errors import GradcoreError
from gradcore.models import registry as models
from gradcore.reading import working_directory

#: Errors that are printed without a traceback wherever they come from.
_SAID = (GradcoreError, ValueError, OSError, ImportError, AttributeError, TypeError, MemoryError)

#: By name of a command: its module, what it does in a line, and more about that.
_COMMANDS = (
    ("train", train, "train a network on real data, with a memory report for every step",
     "Train a network, print memory figures for every step, and the full report of the step with the highest peak."),
    ("measure", measure, "peak memory by batch size",
     "Peak device memory of a training step, one row per batch size. With --device meta it is predicted from shapes only.\n\n"
     + (models.__doc__ or "")),
    ("report", report, "where the memory of a run went",
     "The memory of one step of a run: its timeline, and what is live at the peak."),
    ("diff", diff, "how a peak has changed between two runs, and because of what",
     "How the peak of B differs from that of A, by role, layer, op and source line. Exit status: 0; 1 if it grew by more than "
     "--fail-above; 2 for an error; 141 if the reader of the output closed it early."),
    ("export", export, "write the events of a step for other programs",
     "Write the events of one step for pytorch.org/memory_viz (snapshot), for ui.perfetto.dev (trace), for a spreadsheet (csv) "
     "or for gradcore itself (json)."),
    ("find-batch", find_batch, "the largest batch size that fits in a given amount of memory",
     "The largest batch size whose training step fits in SIZE bytes: predicted from shapes by a pool of that size, then run on "
     "the device. MODEL is as for gradcore measure."),
    ("find-checkpoints", find_checkpoints, "the layers to checkpoint so that a step fits in a given amount of memory",
     "The layers whose checkpoints let a training step fit in SIZE bytes: always the next that saves most of the peak for what "
     "runs twice, predicted from shapes. MODEL is as for gradcore measure, and returns a module."),
    ("collect-env", collect_env, "print what a bug report needs",
     "The machine, the GPUs, and the versions of the packages: what a bug report needs."),
)


class _Paragraphs(argparse.HelpFormatter):
    """Fills the paragraphs of a description to the terminal's width, and leaves indented ones, as of code, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(part if part.startswith(" ") else super(_Paragraphs, self)._fill_text(part, width, indent)
                           for part in text.strip("\n").split("\n\n"))


class _Command(argparse.ArgumentParser):
    """The parser of one command. An argument that it does not know is its own error, with its own usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="gradcore", description="Train networks, and see where device memory goes.",
        epilog="Begin with\n  gradcore train                        which writes a run's file, and\n"
               "  gradcore report --html report.html    which shows it.\ngradcore COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("-V", "--version", action="version", version=f"gradcore {__version__}")
    commands = top.add_subparsers(dest="command", title="commands", metavar="COMMAND", parser_class=_Command)
    for name, module, about, description in _COMMANDS:
        one = commands.add_parser(name, help=about, description=description, formatter_class=_Paragraphs)
        module.add_arguments(one)
        one.add_argument("--traceback", action="store_true", help="print the traceback of an error")
        one.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    Errors of gradcore, and of a user's model, are one line on standard error, with status 1, or 2 for ``diff``. If the reader
    of the output closes the pipe, as ``head`` does, the status is 141, as for a command that SIGPIPE ends.
    """
    options = (whole := parser()).parse_args(argv)
    if options.command is None:
        whole.exit(2, whole.format_help())
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Encodings other than UTF-8 may lack the characters of a report: they become "?".
        sys.stdout.reconfigure(errors="replace")
    own = getattr(options, "model", None)
    if own in models.names():
        own = None
    try:
        here = working_directory()
        if own is not None and here is not None and not sys.flags.safe_path and here not in sys.path:
            # As python -m does; for a script, sys.path has the script's folder instead.
            sys.path.insert(0, here)
        status: int | None = options.run(options)
        if sys.stdout is not None:
            # A later flush would fail after this function, with Python's own exit status.
            sys.stdout.flush()
    except SystemExit as exit_:
        # Rich exits with status 1 if the pipe was closed.
        if isinstance(exit_.__context__, BrokenPipeError):
            return _unread()
        raise
    except KeyboardInterrupt as error:
        error.args = ("interrupted",)
        print(f"gradcore: {noted(error)}", file=sys.stderr)
        return 130
    except Exception as error:
        words = described(error, own, isinstance(error, _SAID)) if own is not None else None
        if isinstance(error, BrokenPipeError) and words is None:
            return _unread()
        if options.traceback or (words is None and not isinstance(error, _SAID)):
            raise
        print(f"gradcore: {words or noted(error) or type(error).__name__}", file=sys.stderr)
        return getattr(options, "error_status", 1)
    return status or 0


def _unread() -> int:
    """Handle a closed pipe: redirect output to /dev/null, or Python would report an error when it flushes at exit."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
    return 141


if __name__ == "__main__":
    sys.exit(main())
