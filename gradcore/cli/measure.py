"""``gradcore measure``: prints the peak memory of a training step by batch size."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from gradcore.cli.common import add_measured, data_to_measure, pick_device, positives
from gradcore.cli.runs import is_standard, keep_safe, write_output
from gradcore.cli.steps import measured
from gradcore.cli.tables import print_folded
from gradcore.events import ROLES
from gradcore.report.exports import exported
from gradcore.report.step import StepReport
from gradcore.report.text import bar, reached_by
from gradcore.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-sizes", type=positives, default=[16, 32, 64], metavar="N,N,...",
                        help="a row for each (default 16,32,64)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "meta"), default="auto",
                        help="meta predicts from shapes and computes nothing (default auto: a GPU if there is one)")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path,
                        help="also write the step with the highest peak to this file, which gradcore report shows layer by "
                             "layer")
    add_measured(parser, "steps to run")


def run(options: argparse.Namespace) -> None:
    """Print the table, and write the file. Raises ValueError if that would overwrite the model, the data, a run or standard
    output."""
    named = [Path(options.model), Path(options.model.rpartition(":")[0])]
    if options.data is not None:
        named += [Path(options.data), *Path(options.data).glob("*-ubyte*")]
    source = [path for path in named if path.is_file()]
    if options.output is not None:
        if is_standard(options.output):
            raise ValueError("the figures are written to standard output: choose a file for --output")
        keep_safe(options.output, source, "recording")
    console = Console(quiet=options.json, highlight=False, markup=False)
    device, note = pick_device(options.device)
    if note:
        console.print(note, soft_wrap=True)
    dataset = data_to_measure(options)
    reports: list[StepReport] = []
    chosen, highest = None, None
    for batch_size in options.batch_sizes:
        with console.status(f"batch {batch_size:,} on {device}"):
            report, _, chosen, *_, recording = measured(options.model, batch_size, device, options.optimizer, dataset,
                                                        options.steps, options.seed, recorded=options.output is not None)
        reports.append(report)
        if recording is not None and report.peak.allocated == max(each.peak.allocated for each in reports):
            highest = recording
    if options.json:
        print(json.dumps({"version": 1, "model": options.model, "device": device.name, "optimizer": chosen,
                          "rows": [row(r) for r in reports], "line": fit(reports)}))
    else:
        _print_tables(console, options.model, device, chosen, reports)
        top, size = max(r.peak.allocated for r in reports), max(9, *(len(f"{n:,}") for n in options.batch_sizes))
        width = max(min(console.width - size - 15, 60), 10)
        for report in reports:
            nbytes = report.peak.allocated
            console.print(f"{report.batch_size:>{size},}  {format_bytes(nbytes):>10}  {bar(nbytes / top, width)}",
                          soft_wrap=True)
        console.print()
        for reached, alike in groupby(reports, key=lambda report: reached_by(report.peak)):
            batches = [f"{report.batch_size:,}" for report in alike]
            console.print(f"batch{'es' * (len(batches) > 1)} {', '.join(batches)}: the peak is reached by {reached}",
                          soft_wrap=True)
        line = fit(reports)
        if line is not None:
            console.print(in_words(line), soft_wrap=True)
    if highest is not None:
        told = write_output(options.output, exported(highest, "json"), source, "recording")
        if not options.json:
            print(f"The step of batch {highest.report.batch_size:,} was written to {options.output}; gradcore report "
                  f"{shlex.quote(str(options.output))} shows it", file=told)


def in_words(line: Mapping[str, Any]) -> str:
    """What :func:`fit` has found, in words: that the line is exact only if the figures shown are."""
    slope, error = line["per_sample"], line["largest_error"]
    sizes = f"{line['fixed']:,} bytes plus {slope:,.1f}".removesuffix(".0") + " per sample"
    exact = not error and math.isclose(slope, round(slope, 1), abs_tol=1e-6)
    return f"allocated is {sizes}" if exact else f"allocated is about {sizes}, within {error:,} bytes of each of these"


def fit(reports: Sequence[StepReport]) -> dict[str, Any] | None:
    """The least-squares line through allocated peaks (bytes) by batch size; None for fewer than three batch sizes, since a line
    through two says nothing about others."""
    points = [(r.batch_size or 0, r.peak.allocated) for r in reports]
    if len({n for n, _ in points}) < 3:
        return None
    x = sum(n for n, _ in points) / len(points)
    y = sum(size for _, size in points) / len(points)
    slope = sum((n - x) * (size - y) for n, size in points) / sum((n - x) ** 2 for n, _ in points)
    fixed = round(y - slope * x)
    return {"fixed": fixed, "per_sample": slope,
            "largest_error": max(abs(round(fixed + slope * n) - size) for n, size in points)}


def row(report: StepReport) -> dict[str, Any]:
    """The figures for one batch size as plain data, in bytes."""
    peak = report.peak
    return {"batch_size": report.batch_size, "requested": peak.requested, "allocated": peak.allocated,
            "reserved": peak.reserved, "by_role": {role: report.by_role.get(role, 0) for role in ROLES},
            "bytes_per_sample": report.bytes_per_sample,
            "peak": {"op": peak.op, "layer": peak.layer, "phase": peak.phase, "line": peak.line}}


def _print_tables(console: Console, model: str, device: Any, optimizer: str | None, reports: list[StepReport]) -> None:
    """The peaks, and their bytes by role: beside each other they would be wider than most terminals."""
    with_ = f", {optimizer}" if optimizer else ""
    console.print(f"Peak bytes of a training step of {model} on {device}{with_}", soft_wrap=True)
    print_folded(console, ("batch", "requested", "allocated", "reserved", "per sample"), [
        (f"{r.batch_size:,}", f"{r.peak.requested:,}", f"{r.peak.allocated:,}", f"{r.peak.reserved:,}",
         f"{r.bytes_per_sample or 0:,.0f}") for r in reports])
    console.print("Allocated bytes at the peak, by role", soft_wrap=True)
    roles = [role for role in ROLES if any(r.by_role.get(role) for r in reports)]
    print_folded(console, ("batch", *roles), [
        (f"{r.batch_size:,}", *(f"{r.by_role.get(role, 0):,}" for role in roles)) for r in reports])
