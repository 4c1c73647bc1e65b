"""``gradcore find-checkpoints``: finds the layers to checkpoint so that a step fits in memory, predicted from shapes."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any, NamedTuple

from rich.console import Console

from gradcore import models
from gradcore.cli.common import add_measured, data_to_measure, positive
from gradcore.cli.find_batch import memory_size, percent
from gradcore.cli.steps import Measured, limited, many_attempts, measured
from gradcore.cli.tables import print_folded
from gradcore.errors import ModifiedInPlace, OutOfMemory
from gradcore.nn.module import Module
from gradcore.nn.parameter import is_lazy
from gradcore.report.text import bar, reached_by
from gradcore.units import count_of, format_bytes
from gradcore.utils.checkpoint import CheckpointError
from gradcore.utils.checkpointed import obstacle
from gradcore.utils.flop_counter import FlopCounterMode

#: A checkpoint that lowers the peak by less than this share of it is not worth its line.
_LEAST = 1 / 1000


class Cost(NamedTuple):
    """What a step takes: the bytes of its peak, and the operations of its products, as ``FlopCounterMode`` counts them.

    ``again`` is the layer that the peak is in, if it is in backward, where checkpointed layers run again. ``held`` has by layer
    the bytes that it, and those in it, have made of what is live at the peak; None if that is not known.
    """

    allocated: int
    flops: int
    again: str = ""
    held: Mapping[str, int] | None = None

    def may_fall(self, layer: str) -> bool:
        """Has the layer made enough of what is live at the peak? A checkpoint of it saves nothing else."""
        return self.held is None or self.held[layer] >= _LEAST * self.allocated

    def worth(self, other: Cost) -> float:
        """The bytes that ``other`` has saved from the peak, for each operation that it has added; 0 if those are too few."""
        saved = self.allocated - other.allocated
        return saved / (1 + max(other.flops - self.flops, 0)) if saved >= _LEAST * self.allocated else 0.0

    def more_than(self, first: Cost) -> str:
        """The operations that this takes more than ``first``, as a share."""
        return f"{self.flops / first.flops - 1 if first.flops else 0.0:+.1%}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help="samples of a step (default 64)")
    parser.add_argument("--memory", type=memory_size, metavar="SIZE",
                        help="the available memory, such as 8GiB: stop when the step fits (default: go on as long as a "
                             "checkpoint lowers the peak)")
    parser.add_argument("--margin", type=percent, default=Fraction(5, 100), metavar="5%",
                        help="the share of it to leave for the driver and libraries (default 5%%)")
    add_measured(parser, "steps to run")


def run(options: argparse.Namespace) -> int:
    """Search and print; the status is 1 if the step does not fit, whichever layers are checkpointed."""
    workload = models.load(options.model, options.batch_size, data_to_measure(options), "meta")
    if not isinstance(workload, models.Workload):
        raise ValueError(f"{options.model} returned a training step, whose layers are not known: return a module, a batch and "
                         "a loss")
    layers, parts = _layers_of(workload.module)
    del workload
    console = Console(quiet=options.json, highlight=False, markup=False)
    steps = _Steps(options, parts, console)
    with many_attempts():
        found = find(steps.cost, layers, steps.fits)
        report, _, optimizer, *_ = steps.measure(found.layers, steps.budget if found.fits else None)
    status, peak = int(steps.budget is not None and not found.fits), report.peak
    if options.json:
        print(json.dumps({"version": 1, "model": options.model, "optimizer": optimizer, "batch_size": options.batch_size,
                          "memory": options.memory, "margin": float(options.margin), "budget": steps.budget,
                          "fits": None if steps.budget is None else found.fits, "layers": found.layers,
                          "requested": peak.requested, "allocated": peak.allocated, "reserved": peak.reserved,
                          "flops": found.cost.flops, "reached_by": reached_by(peak),
                          "path": [{"layers": names, "allocated": taken.allocated, "flops": taken.flops}
                                   for names, taken in found.path],
                          "refused": steps.refused}))
        return status
    console.print(f"Peaks of a training step of {options.model} with {optimizer}, batch {options.batch_size:,}, predicted from "
                  "shapes, as more layers are checkpointed", soft_wrap=True)
    _print_path(console, found.path)
    number = count_of(len(found.layers), "checkpoint") if found.layers else "no checkpoint"
    if steps.budget is not None:
        limit = f"{format_bytes(steps.budget)} ({format_bytes(options.memory)} minus {float(options.margin):.1%})"
        console.print(f"The step fits in {limit} with {number}:" if found.fits else
                      f"No checkpoints let the step fit in {limit}; it takes least with {number}:", soft_wrap=True)
    elif not found.layers:
        console.print("No checkpoint lowers the peak:", soft_wrap=True)
    console.print(f"  peak requested {peak.requested:,} allocated {peak.allocated:,} reserved {peak.reserved:,} bytes "
                  f"({format_bytes(peak.reserved)}), operations {found.cost.more_than(found.path[0][1])}\n"
                  f"  reached by {reached_by(peak)}", soft_wrap=True)
    if found.layers:
        console.print(f"  gradcore.utils.checkpointed.checkpoint_layers(model, {found.layers})", soft_wrap=True)
    for name, why in steps.refused.items():
        console.print(f"{name} cannot run twice: {why}", soft_wrap=True)
    return status


class _Steps:
    """Steps of the model with some of its layers checkpointed, by the options of the command."""

    def __init__(self, options: argparse.Namespace, parts: Mapping[str, Collection[str]], console: Console) -> None:
        self._options = options
        self._parts = parts
        self._console = console
        self._tried = 0
        #: The bytes that a pool may reserve; None without a limit.
        self.budget = None if options.memory is None else int(options.memory * (1 - options.margin))
        #: Why a layer cannot run twice.
        self.refused: dict[str, str] = {}

    def measure(self, layers: Sequence[str], limit: int | None = None) -> Measured:
        """The step with the highest peak; with a limit, in which gaps count, until blocks lie as after a step before."""
        asked, self._tried = self._options, self._tried + 1
        # A search takes as many attempts as there are kinds of layers, and checkpoints: a terminal shows where it is.
        with self._console.status(f"attempt {self._tried}: {count_of(len(layers), 'checkpoint')}"):
            return limited(limit, "meta", lambda: measured(
                asked.model, asked.batch_size, "meta", asked.optimizer, data_to_measure(asked), asked.steps, asked.seed,
                settle=limit is not None, checkpoints=layers))

    def cost(self, layers: Sequence[str]) -> Cost:
        """What a step takes; endless bytes if the last of the layers does not do the same when it runs again."""
        try:
            with FlopCounterMode(display=False) as counter:
                found = self.measure(layers)
        except (CheckpointError, ModifiedInPlace) as error:
            if not layers:
                raise
            self.refused[layers[-1]] = str(error)
            return Cost(sys.maxsize, 0)
        peak, held = found.report.peak, Counter[str]()
        for path, nbytes in found.report.by_layer.items():
            held[self._own(path)] += nbytes
        return Cost(peak.allocated, counter.get_total_flops() // found.steps,
                    self._own(peak.layer) if peak.phase == "backward" else "",
                    {name: sum(held[part] for part in inside) for name, inside in self._parts.items()})

    def _own(self, path: str) -> str:
        """The layer of a path in a report, where the names of its network, or of modules around it, may come first."""
        while path and path not in self._parts:
            path = path.partition(".")[2]
        return path

    def fits(self, layers: Sequence[str], cost: Cost) -> bool:
        """Does a pool of the given size serve the step, of which the cost is known?"""
        if self.budget is None or cost.allocated > self.budget:
            return False
        try:
            return self.measure(layers, self.budget).report.peak.reserved <= self.budget
        except OutOfMemory:
            # Because of gaps between blocks.
            return False


def _print_path(console: Console, path: list[tuple[list[str], Cost]]) -> None:
    """A row for each layer that was checkpointed in turn."""
    (before, first), rows = path[0], []
    for names, taken in path:
        added, replaced = [*{*names} - {*before}], {*before} - {*names}
        label = added[0] if added else f"not {replaced.pop()}, but in it" if replaced else "(none)"
        label += f", for {count_of(len(replaced), 'layer')} in it" if added and replaced else ""
        rows.append((label, format_bytes(taken.allocated), f"{taken.allocated / first.allocated - 1:+.1%}",
                     taken.more_than(first), bar(taken.allocated / first.allocated)))
        before = names
    print_folded(console, ("checkpoint", "allocated", "change", "operations", ""), rows, left=("checkpoint", ""))


def _layers_of(module: Module) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """By name the layers that may be checkpointed, each with its kind: layers of a kind differ in nothing but numbers in their
    names. And by name all layers, each with the names of those in it, itself first."""
    named = {layer: name for name, layer in module.named_modules()}
    kinds = {name: (re.sub(r"\d+", "*", name), type(layer), *(None if is_lazy(p) else p.shape for p in layer.parameters()))
             for layer, name in named.items() if name and not obstacle(layer)}
    return kinds, {name: [named[part] for part in layer.modules()] for layer, name in named.items()}


class Found(NamedTuple):
    """The layers to checkpoint, what a step takes then, and does it fit? ``path`` has the layers that were chosen one after the
    other, at first none, each time with what a step takes."""

    layers: list[str]
    cost: Cost
    fits: bool
    path: list[tuple[list[str], Cost]]


def find(cost: Callable[[Sequence[str]], Cost], layers: Mapping[str, Any],
         fits: Callable[[Sequence[str], Cost], bool]) -> Found:
    """Checkpoints one of ``layers``, each with its kind, after the other until a step ``fits``, or none lowers the peak.

    It is always the layer that saves most bytes of the peak for an operation that runs again. If none saves any because the
    peak is in the second run of one that was chosen, that is too large a part: those in it are tried instead. In the end the
    ones are left out without which the step fits, too.
    """
    search = _Search(cost, layers)
    path, done = [(search.chosen, search.now)], fits(search.chosen, search.now)
    while not done and (search.add() or search.divide()):
        path.append((search.chosen, search.now))
        done = fits(search.chosen, search.now)
    if not done:
        best = min(range(len(path)), key=lambda k: path[k][1].allocated)
        path = path[:best + 1]
    chosen, now = path[-1]
    for name in chosen if done else ():
        fewer = [c for c in chosen if c != name]
        then = cost(fewer)
        if fits(fewer, then):
            chosen, now = fewer, then
    return Found([name for name in layers if name in chosen], now, done, path)


class _Search:
    """The layers chosen so far, and those that may be chosen next, the best first.

    What a layer has saved when it was tried last is taken for the most that it saves now, so that few are tried again (Minoux,
    Accelerated greedy algorithms for maximizing submodular set functions, 1978); before that, what the last of its kind has.
    """

    def __init__(self, cost: Callable[[Sequence[str]], Cost], layers: Mapping[str, Any]) -> None:
        self._cost = cost
        self._kinds = layers
        self._rank = {name: k for k, name in enumerate(layers)}
        self.chosen: list[str] = []
        self.now = cost(self.chosen)
        #: Negated worth, rank and name.
        self._waiting: list[tuple[float, int, str]] = []
        #: By kind, those that save nothing as long as the peak is where it is.
        self._idle: dict[Any, list[str]] = {}
        #: What the last one of a kind saved that saved anything.
        self._worth: dict[Any, float] = {}
        for name, kind in layers.items():
            self._idle.setdefault(kind, []).append(name)
        #: What a step takes with one more, of those that were tried since the last was chosen.
        self._known: dict[str, Cost] = {}
        self._try_idle(math.inf)

    def _try_idle(self, worth: float = 0.0) -> None:
        """Let one layer of each kind that saved nothing be tried anew, after those that may save more than ``worth``."""
        for kind in [*self._idle]:
            self._put(self._idle[kind].pop(0), worth)
            if not self._idle[kind]:
                del self._idle[kind]

    def _put(self, name: str, worth: float) -> None:
        heappush(self._waiting, (-worth, self._rank[name], name))

    def _choose(self, layers: list[str], cost: Cost) -> None:
        self.chosen, self.now = layers, cost
        self._known.clear()
        self._try_idle()

    def add(self) -> bool:
        """Choose one more layer, in the place of those in it; False if none lowers the peak."""
        while self._waiting:
            _, _, name = heappop(self._waiting)
            if any(is_in(name, c) for c in self.chosen):
                continue
            if not self.now.may_fall(name):
                self._idle.setdefault(self._kinds[name], []).append(name)
                continue
            more = [*(c for c in self.chosen if not is_in(c, name)), name]
            then = self._known.pop(name, None) or self._cost(more)
            worth = self.now.worth(then)
            if not worth:
                self._idle.setdefault(self._kinds[name], []).append(name)
                continue
            self._worth[self._kinds[name]] = worth
            for other in self._idle.pop(self._kinds[name], ()):
                self._put(other, worth)
            if self._waiting and worth < -self._waiting[0][0]:
                self._put(name, worth)
                self._known[name] = then
                continue
            self._choose(more, then)
            return True
        return False

    def divide(self) -> bool:
        """Take back the layer in whose second run the peak is, if there are layers in it; False if there is none such."""
        for name in self.chosen:
            inside = [other for other in self._kinds if other != name and is_in(other, name)]
            if inside and is_in(self.now.again, name):
                fewer = [c for c in self.chosen if c != name]
                self._choose(fewer, self._cost(fewer))
                for other in inside:
                    self._put(other, self._worth.get(self._kinds[other], 0.0))
                return True
        return False


def is_in(name: str, layer: str) -> bool:
    """Is it the layer, or one in it?"""
    return f"{name}.".startswith(f"{layer}.")
