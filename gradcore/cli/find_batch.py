"""``gradcore find-batch``: finds the largest batch that fits in memory, predicted from shapes and then tried."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

from rich.console import Console

from gradcore.cli.common import add_measured, argument, data_to_measure, pick_device
from gradcore.cli.steps import Measured, limited, many_attempts, measured
from gradcore.devices.device import Device, get_device
from gradcore.errors import OutOfMemory
from gradcore.report.step import StepReport
from gradcore.report.text import reached_by
from gradcore.units import count_of, format_bytes, parse_bytes

#: The largest batch that is tried.
MOST = 1 << 40
#: The largest peak, in bytes, that is tried on a CPU, where it takes seconds.
_TRIED = 1 << 30
#: The most batches that are tried above one that only gaps between blocks stop.
_PROBES = 32


@dataclass(frozen=True)
class Found:
    """The largest batch, the bytes of its peak, and of the peak with one sample more. ``confirmed`` is None if not tried.

    All smaller batches that were tried fit, too, up to ``fits_up_to``. If live bytes grow with each step, or blocks lie
    elsewhere after each, ``settled`` is False: it fits for as many steps as were tried.
    """

    batch_size: int
    fits_up_to: int
    requested: int
    allocated: int
    reserved: int
    one_more: int
    reached_by: str
    tried: tuple[int, ...]
    confirmed: bool | None = None
    settled: bool = True


@argument
def memory_size(text: str) -> int:
    """An argument that is a size of at least one byte."""
    size = parse_bytes(text)
    if not size:
        raise ValueError(f"expected a size of at least one byte, but got {text!r}")
    return size


@argument
def percent(text: str) -> Fraction:
    """An argument such as ``5%``, as a share from 0 to below 1; exact, since a byte less may be a segment less."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if not match or Fraction(match[1]) >= 100:
        raise ValueError(f"expected a percentage below 100%, such as '5%', but got {text!r}")
    return Fraction(match[1]) / 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", type=memory_size, required=True, metavar="SIZE", help="the available memory, such as 8GiB")
    parser.add_argument("--margin", type=percent, default=Fraction(5, 100), metavar="5%",
                        help="the share of it to leave for the driver and libraries (default 5%%)")
    parser.add_argument("--mode", choices=("binsearch", "power"), default="binsearch",
                        help="the batch sizes to choose from: any (binsearch, the default), or powers of two (power)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "meta"), default="auto",
                        help="where to run the result, on a CPU only if it reserves at most "
                             f"{format_bytes(_TRIED)}; meta runs nothing (default auto: a GPU if there is one)")
    add_measured(parser, "the fewest steps to run")


def run(options: argparse.Namespace) -> int:
    """Find, try and print; the status is 1 if the result does not fit on the device."""
    device, note = pick_device(options.device)
    dataset = data_to_measure(options)
    budget = int(options.memory * (1 - options.margin))

    taken: dict[int, Measured] = {}
    # A search of a large model takes a minute: a terminal shows what is tried.
    console = Console(quiet=options.json, highlight=False)

    def attempt(batch_size: int, limit: int | None, on: Any = "meta") -> StepReport:
        # Without a limit only live bytes are asked for, which do not depend on where blocks lie; but on the number of steps,
        # if they grow with each.
        least = min((m.steps for m in taken.values() if not m.level), default=options.steps)
        with console.status(f"batch {batch_size:,} on {on}"):
            found = limited(limit, on, lambda: measured(options.model, batch_size, on, options.optimizer, dataset,
                                                         options.steps if limit is not None else least, options.seed,
                                                         limit is not None))
        if limit is not None:
            taken[batch_size] = found
        return found.report

    with many_attempts():
        found = find(attempt, budget, options.mode)
    chosen = taken[found.batch_size].optimizer
    found = replace(found, settled=taken[found.batch_size].settled)
    tried, fits, same = _tried_on(device, found, lambda: attempt(found.batch_size, budget, device))
    found = replace(found, confirmed=None if same is None else same and found.settled)
    if options.json:
        print(json.dumps({"version": 1, "model": options.model, "optimizer": chosen, "memory": options.memory,
                          "margin": float(options.margin), "budget": budget, "mode": options.mode, "device": device.name,
                          **asdict(found)}))
        return int(not fits)
    if note:
        print(note)
    largest = "largest batch" if found.batch_size < MOST else "largest batch that was tried, and it fits,"
    print(f"The {largest} of {options.model}{f' with {chosen}' if chosen else ''} in {format_bytes(budget)} "
          f"({format_bytes(options.memory)} minus {float(options.margin):.1%}): {found.batch_size:,}\n"
          f"  peak requested {found.requested:,} allocated {found.allocated:,} reserved {found.reserved:,} bytes "
          f"({format_bytes(found.reserved)})\n"
          f"  reached by {found.reached_by}\n"
          f"  one more sample adds {found.one_more - found.allocated:,} bytes to the peak"
          f"{_stopped(found, budget, options.mode)}\n"
          f"  predicted from shapes in {count_of(len(found.tried), 'attempt')}; {tried}")
    if not found.settled:
        last = taken[found.batch_size]
        print(f"  This holds for {last.steps} steps: " +
              ("blocks lie elsewhere after each of them, so gaps may stop a later one. A larger margin makes that less likely."
               if last.level else "live bytes change with each of them, as if something kept tensors of every step, so that "
               "any batch may run out of memory later."))
    return int(not fits)


def _tried_on(device: Device, found: Found, attempt: Callable[[], StepReport]) -> tuple[str, bool, bool | None]:
    """Run the result on the device, unless that takes too long: what became of it in words, whether it fits as far as is known,
    and whether it does with the predicted peak, None if it was not run."""
    if device.type == "meta" or (device.type == "cpu" and found.reserved > _TRIED):
        why = f", as it reserves more than {format_bytes(_TRIED)}" if device.type == "cpu" else ""
        return f"not run on {device}{why}", True, None
    before = device.ledger.allocated - get_device("meta").ledger.allocated
    # What is predicted includes a region of autocast for another type of device.
    try:
        peak = attempt().peak.allocated - before
    except OutOfMemory as error:
        return f"run on {device}: it does not fit there: {str(error).partition(';')[0]}", False, False
    if peak != found.allocated:
        return f"run on {device}: it fits, but allocated is {peak:,} there", True, False
    return f"run on {device}: it fits, and its peak is as predicted", True, True


def _stopped(found: Found, budget: int, mode: str) -> str:
    """What else is to be said if gaps between blocks, not the peak, stop a larger batch."""
    words = ""
    if mode == "binsearch" and found.batch_size < MOST and found.one_more <= budget:
        words += "; what stops it is not the peak, but gaps between blocks"
    if found.fits_up_to < found.batch_size:
        words += f"\n  smaller batches fit up to {found.fits_up_to:,}; above that, gaps between blocks stop some of them"
    return words


class Attempt(Protocol):
    """Measures a step of a batch in a pool of ``limit`` bytes, or without a limit."""

    def __call__(self, batch_size: int, limit: int | None, /) -> StepReport: ...


class _Search:
    """The batches that were tried with ``budget`` bytes."""

    def __init__(self, attempt: Attempt, budget: int) -> None:
        self.attempt = attempt
        self.budget = budget
        self.tried: list[int] = []

    def fits(self, batch_size: int) -> StepReport | None:
        """The report of a batch that fits."""
        self.tried.append(batch_size)
        try:
            report = self.attempt(batch_size, self.budget)
        except OutOfMemory:
            return None
        # A limit only refuses growth: segments from before may exceed it.
        return report if report.peak.reserved <= self.budget else None

    def lives(self, batch_size: int) -> bool:
        """Would the batch fit if there were no segments and gaps?"""
        try:
            return self.attempt(batch_size, None).peak.allocated <= self.budget
        except OutOfMemory:
            # More than any device has.
            return False

    def between(self, low: int, best: StepReport, high: int) -> tuple[int, StepReport]:
        """The end of those that fit, from ``low``, which does, to ``high``, which does not."""
        while high - low > 1:
            middle = (low + high) // 2
            if (report := self.fits(middle)) is not None:
                low, best = middle, report
            else:
                high = middle
        return low, best

    def above(self, low: int, best: StepReport) -> tuple[int, StepReport]:
        """The largest of some batches above ``low`` that gaps do not stop, or ``low``; one more than ``low`` does not fit."""
        if not self.lives(low + 1):
            return low, best
        inside, bound = low + 1, 2 * low + 1
        while bound <= MOST and self.lives(bound):
            inside, bound = bound, 2 * bound
        bound = min(bound, MOST + 1)
        while bound - inside > max(1, (bound - low) // _PROBES):
            middle = (inside + bound) // 2
            if self.lives(middle):
                inside = middle
            else:
                bound = middle
        apart = -(-(bound - low - 2) // _PROBES) or 1
        for batch_size in range(bound - 1, low + 1, -apart):
            if (report := self.fits(batch_size)) is not None:
                return self.between(batch_size, report, min(batch_size + apart, bound))
        return low, best


def find(attempt: Attempt, budget: int, mode: str = "binsearch") -> Found:
    """The largest batch whose step ``attempt(batch_size, limit)`` measures without running out of ``budget`` bytes.

    A batch fits if a pool with that limit can serve it, so segments, rounding and gaps count. ``mode`` is ``power`` for powers
    of two, or ``binsearch`` for any size. Live bytes grow with the batch, but gaps do not. So if only gaps stop a batch, larger
    ones may fit, and up to the one that has too many live bytes, 32 at equal distances are tried.

    Raises :class:`OutOfMemory` if not even one sample fits, or two, for a model that refuses a single one.
    """
    search = _Search(attempt, budget)
    # Batch normalization, for one, takes no single sample.
    for low in (1, 2):
        try:
            best = search.fits(low)
            break
        except Exception:
            # A kept error would keep what the attempt allocated: that of one sample is raised anew below.
            continue
    else:
        low, best = 1, search.fits(1)
    if best is None:
        least = attempt(low, None)
        peak, most = least.peak, ", ".join(f"{role} {format_bytes(nbytes)}" for role, nbytes in list(least.by_role.items())[:3])
        raise OutOfMemory(f"out of memory: a batch of {'one sample' if low == 1 else 'two samples'} reserves "
                          f"{format_bytes(peak.reserved)} ({format_bytes(peak.allocated)} live at the peak, mostly {most}), "
                          f"but only {format_bytes(budget)} are available", asked=peak.reserved, limit=budget)
    high = 2 * low
    while high <= MOST and (report := search.fits(high)) is not None:
        low, best, high = high, report, high * 2
    fits_up_to = low
    if mode == "power":
        while high < MOST and search.lives(high := 2 * high):
            if (report := search.fits(high)) is not None:
                low, best = high, report
    elif high <= MOST:
        fits_up_to, best = search.between(low, best, high)
        low, best = search.above(fits_up_to, best)
    peak = best.peak
    return Found(low, fits_up_to, peak.requested, peak.allocated, peak.reserved, attempt(low + 1, None).peak.allocated,
                 reached_by(peak), tuple(search.tried))
