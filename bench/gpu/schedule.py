"""Runs parts within one limit of time: those that only check beside each other, those that measure one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import groupby
from operator import attrgetter
from threading import Lock
from time import perf_counter

from bench.gpu.part import Outcome, Part, Setting, end_all, run_part


def outcomes(parts: Sequence[Part], setting: Setting, seconds: float,
             at_once: Callable[[], int]) -> Iterator[tuple[Part, Outcome]]:
    """The outcome of each part as it ends, all within ``seconds``; ``at_once()`` parts run beside each other, where they may.

    How long each takes is not known before, so a part may use all that is left, but for the seconds of those behind it.
    """
    until = perf_counter() + seconds
    waiting, lock = [*parts], Lock()
    for beside, stage in groupby(parts, attrgetter("beside")):
        chosen, workers = {*stage}, at_once() if beside else 1

        def run(part: Part, chosen: set[Part] = chosen, workers: int = workers) -> Outcome:
            with lock:
                waiting.remove(part)
                behind = sum(p.seconds / (workers if p in chosen else 1) for p in waiting)
            return run_part(part, setting, max(until - perf_counter() - behind - part.seconds, 0.0))

        pool = ThreadPoolExecutor(workers)
        try:
            running = {pool.submit(run, part): part for part in parts if part in chosen}
            while running:
                # A second at most: Python notices an interrupt that comes just before a wait when that ends.
                done = wait(running, 1, FIRST_COMPLETED).done
                for ended in [future for future in running if future in done]:
                    yield running.pop(ended), ended.result()
        except BaseException:
            # They would go on, as processes in groups of their own do.
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
        pool.shutdown()
