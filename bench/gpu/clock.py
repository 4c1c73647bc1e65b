"""Device time of launches, measured by events around a captured graph of them, so that host time is excluded."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any


class HostClock:
    """For a rehearsal: the time of NumPy's kernels by the host's clock."""

    def seconds(self, run: Callable[[], Any], times: int) -> tuple[float, str]:
        start = perf_counter()
        for _ in range(times):
            run()
        return (perf_counter() - start) / times, "host"


class DeviceClock:
    """The median of five measurements, in seconds per run, and how they were taken: ``graph`` or ``loop``."""

    def seconds(self, run: Callable[[], Any], times: int) -> tuple[float, str]:
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        # The operands were made on another stream.
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            run()  # compiles, loads lazily loaded code, and creates the stream's workspace for matrix products
        cupy.cuda.runtime.deviceSynchronize()
        graph = self._captured(run, times, stream)

        def once() -> None:
            if graph is not None:
                graph.launch(stream)
                return
            with stream:
                for _ in range(times):
                    run()

        once()
        stream.synchronize()
        found = []
        for _ in range(5):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            once()
            end.record(stream)
            end.synchronize()
            found.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / times)
        return statistics.median(found), "loop" if graph is None else "graph"

    def _captured(self, run: Callable[[], Any], times: int, stream: Any) -> Any:
        """The launches as a graph; None if something in them cannot be captured."""
        try:
            with stream:
                stream.begin_capture()
                try:
                    for _ in range(times):
                        run()
                finally:
                    graph = stream.end_capture()
            return graph
        except Exception as error:
            print(f"not captured: {type(error).__name__}: {error}")
            return None


def clock_of(device: str) -> Any:
    return DeviceClock() if device == "cuda" else HostClock()
