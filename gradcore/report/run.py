"""Writes and reads the file of a run: figures of every step, and all events of a few steps.

It is written during the run, a JSON line at a time, so that a killed run leaves a readable file; an incomplete last line is
ignored. docs/report-schema.md describes the lines.
"""

from __future__ import annotations

import errno
import json
import math
import os
import reprlib
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat

from gradcore.report.files import naming, replacing
from gradcore.report.plain import parse, read
from gradcore.report.recording import Recorded, Recording
from gradcore.report.snapshot import load_snapshot, looks_like_snapshot
from gradcore.report.step import StepReport, load_report
from gradcore.units import count_of, format_bytes, format_loss

#: Version of the file's lines.
RUN_VERSION = 1


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step, in bytes and seconds. ``live`` are the requested bytes live at the step's end.

    What was kept for backward, and ``returned`` by it, is None at the level ``counts``.
    """

    step: int
    loss: float | None
    requested: int
    allocated: int
    reserved: int
    kept: int | None
    returned: int | None
    live: int
    seconds: float

    @staticmethod
    def of(step: int, loss: SupportsFloat | None, report: StepReport) -> StepFigures:
        """The figures of a report. ``loss`` may be a tensor of one element, too."""
        peak = report.peak
        kept, returned = (report.residual_bytes, report.residual_bytes_returned) if report.records else (None, None)
        return StepFigures(step, None if loss is None else float(loss), peak.requested, peak.allocated, peak.reserved, kept,
                           returned, report.phases[-1].requested if report.phases else 0, report.seconds)

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"loss {format_loss(self.loss):>7}  "
        kept = "" if self.kept is None else f"  kept {self.kept:,} freed {self.returned:,}"
        return (f"step {self.step:4}  {loss}peak requested {self.requested:,} allocated {self.allocated:,} reserved "
                f"{self.reserved:,}{kept}")


_COLUMNS = [f.name for f in fields(StepFigures)]


@dataclass(frozen=True)
class Run:
    """The contents of a run's file. ``recordings`` has, by number, the steps whose events are in it."""

    about: dict[str, Any]
    steps: tuple[StepFigures, ...]
    recordings: dict[int, Recording]
    #: The final figures of the run; None if it was killed or failed.
    result: dict[str, Any] | None = None
    #: False for a step alone that does not say which one it was, and counts as the first.
    numbered: bool = True

    def __repr__(self) -> str:
        peak = f": peak {format_bytes(max(s.allocated for s in self.steps))} in step {self.peak_step}" if self.steps else ""
        return f"<run of {count_of(len(self.steps), 'step')}{peak}>"

    @staticmethod
    def of_one_step(recording: Recording, step: int | None = None) -> Run:
        """A run of one step, which knows at most its number about itself."""
        number = 1 if step is None else step
        return Run({}, (StepFigures.of(number, None, recording.report),), {number: recording}, numbered=step is not None)

    @property
    def peak_step(self) -> int:
        """The number of the first step with the highest peak of allocated bytes. Raises ValueError for a run without steps."""
        if not self.steps:
            raise ValueError("the run ended before its first step")
        return max(self.steps, key=lambda s: (s.allocated, -s.step)).step

    def find(self, which: int | str) -> tuple[int, Recording]:
        """The number and the recording of a step, given as its number, ``first``, ``last``, or ``peak``.

        The names refer to the steps with events in the file, which in a killed run may lack the true last step and peak.
        Raises ValueError, listing the steps in the file, for any other.
        """
        there = sorted(self.recordings)
        if not there:
            raise ValueError("the file has no step's events: " + (
                f"it ends before those of the first, after the figures of {count_of(len(self.steps), 'step')}"
                if self.steps else
                "the run ended before its first step"))
        if which == "peak":
            number = max(there, key=lambda n: (self.recordings[n].report.peak.allocated, -n))
        elif which in ("first", "last"):
            number = there[0 if which == "first" else -1]
        elif isinstance(which, int):
            number = which
        else:
            raise ValueError(f"a step is a number, 'first', 'last' or 'peak', but got {which!r}")
        if number not in self.recordings:
            raise ValueError(f"the file has no events of step {number}, only of {', '.join(map(str, there))}")
        return number, self.recordings[number]


class RunWriter:
    """Writes a run's file, and holds the events of at most two steps in memory.

    The file gets the events of the first step, of those in ``events``, of new peaks during the run, and of the last step at the
    end. A peak is written if it is an eighth higher than the last one written, so that a run that grows at every step writes
    events a few dozen times; at the end the exact peak is written and the other peaks are removed.
    """

    def __init__(self, path: str | os.PathLike[str], about: dict[str, Any], events: Iterable[int] = ()) -> None:
        """Create the file. Raises FileExistsError if it exists: a run never overwrites another's file."""
        self.path = path = Path(path)
        self._wanted = set(events)
        self._peak: tuple[int, Recorded] | None = None
        self._last: tuple[int, Recorded] | None = None
        self._highest = self._highest_written = 0
        #: By step: where the line of its events begins in the file, in bytes.
        self._lines: dict[int, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Windows would write two bytes at the end of each line.
        binary = getattr(os, "O_BINARY", 0)
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | binary, 0o666)
        except FileExistsError:
            why = "a run is written to a new file: choose another name, or remove this file first"
            raise FileExistsError(errno.EEXIST, why, str(path)) from None
        try:
            self._write({"kind": "run", "version": RUN_VERSION, "about": finite(about), "columns": _COLUMNS})
        except BaseException:
            # Nothing is left that would be taken for a run, as if ``about`` has what JSON lacks.
            self.close()
            raise

    def add(self, figures: StepFigures, source: Recorded) -> None:
        """Write the figures of a step; its recording is taken from ``source`` now or later. Raises OSError as writing does, and
        ValueError unless the step's number is larger than that of the one before: a step is found by its number.
        """
        if self._last is not None and figures.step <= self._last[0]:
            raise ValueError(f"the steps of a run are numbered upwards, through all epochs, but step {figures.step} comes "
                             f"after step {self._last[0]}")
        # A run that diverges is worth a file, too.
        self._write(list(finite(asdict(figures)).values()))
        step = figures.step
        if self._last is None:
            self._wanted.add(step)
        self._last = step, source
        if figures.allocated > self._highest:
            self._peak, self._highest = self._last, figures.allocated
            if self._highest * 8 >= self._highest_written * 9:
                self._highest_written = self._highest
                self._write_events(step, source)
        if step in self._wanted:
            self._write_events(step, source)

    def close(self, result: dict[str, Any] | None = None) -> None:
        """End the file; ``result`` has the final figures, None for a run that failed. A second call does nothing. At the end of
        a ``with`` block that did not raise there are no figures, but the run has ended.

        The file of a run that failed before its first step is removed: it would be taken for the newest run.
        """
        if self._file is None:
            return
        try:
            for held in (self._peak, self._last):
                if held is not None:
                    self._wanted.add(held[0])
                    self._write_events(*held)
            if result is not None:
                self._write({"kind": "end", "result": finite(result)})
            os.fsync(self._file)
        finally:
            os.close(self._file)
            self._file = None
        if self._last is None and result is None:
            self.path.unlink(missing_ok=True)
        dropped = {start for step, start in self._lines.items() if step not in self._wanted}
        if dropped:
            self._leave_out(dropped)

    def _leave_out(self, dropped: Set[int]) -> None:
        # The old file is closed before it is replaced, as Windows wants it.
        with replacing(self.path) as new, self.path.open("rb") as old:
            start = 0
            for line in old:
                if start not in dropped:
                    new.write(line)
                start += len(line)

    def _write_events(self, step: int, source: Recorded) -> None:
        if step not in self._lines:
            data = source.recording.to_dict()
            self._lines[step] = self._write({"kind": data.pop("kind"), "step": step, **data})

    def _write(self, value: Any) -> int:
        """Write a line, whole or not at all; returns where it begins."""
        if self._file is None:
            raise ValueError(f"the run's file {self.path} is closed")
        data = (json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n").encode()
        start = os.fstat(self._file).st_size
        try:
            # A system call for each line: what the system has taken survives the death of the process.
            with naming(self.path):
                while data:
                    data = data[os.write(self._file, data):]
        except BaseException:
            # A part of a line would make one that nobody can read with the next, such as that of the events at the end.
            os.ftruncate(self._file, start)
            raise
        return start

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close({} if kind is None and self._last is not None else None)


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """The values with None for NaN and infinities, which JSON lacks."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


# -- reading -----------------------------------------------------------------------------------------------------------


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run's file. A recording or step report as JSON, or PyTorch's memory snapshot, is read as a run of one step.

    The recording of a step report has no records; snapshots are read by :func:`~gradcore.report.snapshot.load_snapshot`. Raises
    OSError if the file cannot be read, and ValueError, naming the file and the line, for any other contents.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is a pipe or a device, which cannot be read twice: write it to a file first")
    if looks_like_snapshot(path):
        records, report = load_snapshot(path)
        return Run.of_one_step(Recording(report, tuple(records)))
    with path.open("rb") as file:
        first = file.readline()
        try:
            head = parse(first)
        except ValueError:
            head = None
        if not isinstance(head, dict) or head.get("kind") != "run":
            return _one_step(path, first + file.read())
        if head.get("version") != RUN_VERSION or head.get("columns") != _COLUMNS or not isinstance(head.get("about"), dict):
            raise ValueError(f"{path}: expected a run of version {RUN_VERSION}, but got {reprlib.repr(head)}")
        steps: list[StepFigures] = []
        recordings: dict[int, Recording] = {}
        result: dict[str, Any] | None = None
        for number, line in enumerate(file, 2):
            if not line.endswith(b"\n"):
                # The process was killed while it wrote this line.
                break
            try:
                row = parse(line)
                if isinstance(row, list):
                    steps.append(_figures(row))
                elif row["kind"] == "recording":
                    recordings[_whole(row["step"])] = Recording.from_dict(row)
                elif row["kind"] == "end" and isinstance(row["result"], dict):
                    result = row["result"]
                else:
                    raise ValueError(f"unknown kind of line {reprlib.repr(row['kind'])}")
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    return Run(head["about"], tuple(steps), recordings, result)


def _one_step(path: Path, text: bytes) -> Run:
    try:
        if not text.strip():
            raise ValueError("it is empty")
        data = parse(text)
        if isinstance(data, dict) and data.get("kind") == "recording":
            return Run.of_one_step(Recording.from_dict(data), _whole(data["step"]) if "step" in data else None)
        return Run.of_one_step(Recording(load_report(data), ()))
    except ValueError as error:
        raise ValueError(f"{path} is neither a run, nor a recording, nor a step report: {error}") from error


def _figures(row: list[Any]) -> StepFigures:
    if len(row) != len(_COLUMNS):
        raise ValueError(f"expected {len(_COLUMNS)} figures of a step, but got {len(row)}")
    if any(type(x) is int and x < 0 for name, x in zip(_COLUMNS, row, strict=True) if name != "loss"):
        raise ValueError(f"sizes are at least 0, but got {reprlib.repr(row)}")
    return read(StepFigures, dict(zip(_COLUMNS, row, strict=True)))


def _whole(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise ValueError(f"expected a whole number, but got {reprlib.repr(x)}")
    return x
