"""``gradcore train``: trains a network on real data, with device-memory figures for every step."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import gradcore
from gradcore import data, models, trees
from gradcore._step import LEVELS
from gradcore.cli.common import add_common, data_of, make_optimizer, pick_device, positive, positives
from gradcore.cli.live import LiveView
from gradcore.cli.steps import train_step
from gradcore.models.tasks import ImageTask, Task
from gradcore.report.run import RunWriter, StepFigures, finite
from gradcore.report.step import StepReport
from gradcore.units import count_of, format_bytes, format_loss, format_seconds

#: Epochs of a run without ``--steps``.
EPOCHS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mlp", help=f"one of {', '.join(models.names())}, or a function of your own "
                                                       "(see gradcore measure --help); default mlp")
    parser.add_argument("--data", help="what to train on, also if the model is a function of your own: "
                        f"{', '.join(data.names())}, a folder of IDX files, an .npz file of arrays or a text file (default "
                        "digits, for chargpt python-docs)")
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help="samples of a step (default 64)")
    parser.add_argument("--steps", type=positive, metavar="N",
                        help=f"default: {EPOCHS} epochs, at most 2,000 steps (chargpt 600)")
    parser.add_argument("--lr", type=float, help="learning rate, which decays to zero over the run (default: 0.1 for sgd, "
                                                 "0.001 for the others, 0.002 for chargpt)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="default auto: a GPU if there is one")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="FOLDER",
                        help="folder for the run's file (default runs)")
    parser.add_argument("--events", type=positives, default=[], metavar="N,N,...",
                        help="steps whose events are saved, besides the first and last step and that of the peak")
    parser.add_argument("--quiet", action="store_true", help="do not print a line per step")
    parser.add_argument("--live", action="store_true", help="on a terminal, draw each step's memory by role, and the loss; "
                                                            "elsewhere print a line per step")
    parser.add_argument("--record", choices=LEVELS[1:],
                        help="counts: only peaks, at the lowest cost; stacks: also the call stack of each line; "
                             "default $GRADCORE_RECORD, or events")
    add_common(parser)


def run(options: argparse.Namespace) -> None:
    """Train, and print where the memory went."""
    options.record = options.record or _level_by_default()
    console = Console(quiet=options.json, highlight=False, markup=False)
    device, note = pick_device(options.device)
    if note:
        console.print(note, soft_wrap=True)
    usual = models.defaults(options.model)
    dataset, chosen = data_of(options), options.optimizer or usual.optimizer
    rate = usual.lr if options.lr is None and chosen == usual.optimizer else options.lr
    gradcore.manual_seed(options.seed)
    workload = models.load(options.model, options.batch_size, dataset, device)
    if not isinstance(workload, models.Workload):
        raise TypeError(f"{options.model} returned a training step, whose results gradcore train cannot evaluate: call it in a "
                        "script, under gradcore.step(). gradcore measure and find-batch take it")
    try:
        workload.require_fit((None, None), options.model)
    except TypeError as error:
        error.add_note("gradcore train takes samples and labels of --data, and not the batch that the model's function returns")
        raise
    task = workload.task or _task_of(dataset)
    optimizer = make_optimizer(chosen, workload.module.parameters(), rate)
    steps = options.steps or min(EPOCHS * task.epoch(options.batch_size), usual.steps)
    late = [k for k in options.events if k > steps]
    if late:
        raise ValueError(f"--events asks for step {late[0]}, but the run has {count_of(steps, 'step')}")
    size = min(options.batch_size, task.samples) if isinstance(task, ImageTask) else options.batch_size
    if size < options.batch_size:
        # Not on standard output: a script that reads the JSON asked for another batch, too.
        print(f"gradcore: --batch-size {options.batch_size:,} is more than the {size:,} samples of {dataset.name}: "
              "each step takes all of them", file=sys.stderr)
    console.print(f"{options.model} on {task.about}, batch {size:,}, {count_of(steps, 'step')} of {chosen} on {device}",
                  soft_wrap=True)
    about = {"model": options.model, "data": dataset.name, "batch_size": size, "optimizer": chosen,
             "device": device.name, "seed": options.seed, "planned_steps": steps}
    started = time.perf_counter()
    batches = islice(task.batches(options.batch_size, options.seed), steps)
    file = _new_file(options, about)
    try:
        with file:
            lines, (top_step, top) = _train(console, options, device, workload, optimizer, batches, steps, file)
            result = task.result(workload.module, device)
            seconds = time.perf_counter() - started
            file.close({**result.figures, "seconds": seconds})
    except (Exception, KeyboardInterrupt) as error:
        # A run without a step leaves no file.
        if file.path.exists():
            error.add_note(f"the run so far is in {file.path}")
        raise
    first, *rest = result.lines
    console.print(f"\nAfter {count_of(steps, 'step')} in {format_seconds(seconds)}: {first}\n", soft_wrap=True)
    for line in rest:
        console.print(line, soft_wrap=True)
    console.print(f"Step {top_step} had the highest peak:\n", soft_wrap=True)
    console.print(str(top), soft_wrap=True)
    console.print(f"\nThe run was written to {file.path}; gradcore report {shlex.quote(str(file.path))} shows it",
                  soft_wrap=True)
    if options.json:
        print(json.dumps({"version": 1, **about, **finite(result.figures), "seconds": seconds, "peak_step": top_step,
                          "report": top.to_dict(), "steps": [asdict(x) for x in lines], "file": str(file.path)}))


def _level_by_default() -> str:
    """The level that the environment asks for. Raises ValueError for one without figures of each step."""
    level = os.environ.get("GRADCORE_RECORD") or "events"
    if level not in LEVELS[1:]:
        raise ValueError(f"GRADCORE_RECORD must be {', '.join(LEVELS[1:-1])} or {LEVELS[-1]} for gradcore train, "
                         f"but is {level!r}")
    return level


def _new_file(options: argparse.Namespace, about: dict[str, Any]) -> RunWriter:
    """A file named after the present time; runs that begin in the same second get a number each.

    Raises NotADirectoryError if the folder is a file.
    """
    if options.out.exists() and not options.out.is_dir():
        raise NotADirectoryError(f"--out must be a folder, but {options.out} is a file")
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(options.model).stem}-{about['data']}"
    for number in count(1):
        try:
            return RunWriter(options.out / f"{name}{f'-{number}' * (number > 1)}.jsonl", about, options.events)
        except FileExistsError:
            continue
    raise AssertionError


def _task_of(dataset: Any) -> Task:
    """The task of a user's model that does not define one: classification of images. Raises ValueError for a text."""
    if not isinstance(dataset, data.Dataset):
        raise ValueError(f"{dataset.name} is a text: a model that is trained on text must return a Workload with a task")
    return ImageTask(dataset)


def _train(console: Console, options: argparse.Namespace, device: Any, workload: Any, optimizer: Any,
           batches: Iterable[Any], steps: int, file: RunWriter) -> tuple[list[StepFigures], tuple[int, StepReport]]:
    """The figures of every step if they will be printed, and the number and report of the step with the highest peak."""
    lines: list[StepFigures] = []
    top: tuple[int, StepReport] | None = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    drawn = options.live and console.is_terminal and not console.is_dumb_terminal and options.record != "counts"
    view = LiveView(console, steps) if drawn else None
    # In a file or a pipe a bar would be one line more, at the end.
    hidden = options.json or drawn or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden) as progress, view or nullcontext():
        task = progress.add_task("training", total=steps)
        rates = [group["lr"] for group in optimizer.param_groups]
        for number, batch in enumerate(batches, 1):
            # The learning rate decays linearly to zero.
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - (number - 1) / steps)
            try:
                loss, step = train_step(workload, optimizer, batch, device, options.record)
            except Exception as error:
                x, own = batch[0], next(trees.leaves(workload.example(len(batch[0]))), None)
                if workload.task is None and (shape := list(getattr(own, "shape", ()))[1:]) != list(x.shape[1:]):
                    error.add_note(f"gradcore train takes samples of --data, here {list(x.shape[1:])} each, and not those "
                                   f"that the model's function returns, {shape}")
                raise
            report = step.report
            line = StepFigures.of(number, loss if math.isfinite(loss) else None, report)
            file.add(line, step)
            if not math.isfinite(loss):
                why = "try a smaller --lr" if number > 1 else "no step came before it, so look at the data and at the model"
                raise ValueError(f"the loss became {loss} at step {number}: {why}")
            if options.json:
                lines.append(line)
            if top is None or report.peak.allocated > top[1].peak.allocated:
                top = number, report
            if view is not None:
                view.update(line, step)
            elif not options.quiet:
                progress.console.print(str(line), soft_wrap=True)
            progress.update(task, advance=1, description=f"loss {format_loss(loss)}  peak {format_bytes(line.allocated)}")
    assert top is not None
    return lines, top
