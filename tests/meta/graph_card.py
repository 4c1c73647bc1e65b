"""A simulated GPU with graph capture: work submitted during a capture is kept, and done at each launch of the graph.

As on CUDA, arguments are read when a kernel is submitted, also during a capture, and memory when it runs. Calls that are not
allowed during a capture invalidate it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tests.meta.simulated_cuda import HostCard, Record

#: cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated, cudaErrorIllegalState, cudaErrorInvalidValue.
UNSUPPORTED, INVALIDATED, ILLEGAL, INVALID = 900, 901, 401, 1


class GraphCard(HostCard):
    """Kernels are submitted by :meth:`give`, to the stream ``current``; ``nodes`` names the work in live graphs, by handle,
    but for the copies that each begins and ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        #: By stream: the work captured so far; None once the capture is invalidated.
        self.capturing: dict[int, list[tuple[str, Callable[[], Any]]] | None] = {}
        self.graphs: dict[int, list[tuple[str, Callable[[], Any]]]] = {}
        self.executables: dict[int, list[tuple[str, Callable[[], Any]]]] = {}
        #: All submitted work, in order: names of kernels, copies, and launches of graphs.
        self.given: list[str] = []
        self._ends: dict[int, Record] = {}

    @property
    def nodes(self) -> dict[int, list[str]]:
        return {handle: [name for name, _ in nodes if name != "bring"] for handle, nodes in self.executables.items()}

    def give(self, name: str, work: Callable[[], Any], stream: int | None = None) -> None:
        stream = self.current if stream is None else stream
        if stream not in self.capturing:
            self.given.append(name)
            self.queues[stream].append((None, work))
        elif (nodes := self.capturing[stream]) is None:
            raise self.CUDARuntimeError(INVALIDATED)
        else:
            nodes.append((name, work))

    def _break(self) -> None:
        if self.capturing:
            self.capturing = dict.fromkeys(self.capturing)
            raise self.CUDARuntimeError(UNSUPPORTED)

    # -- calls that invalidate a capture -------------------------------------------------------------------------------

    def malloc(self, nbytes: int) -> int:
        self._break()
        return super().malloc(nbytes)

    def streamSynchronize(self, stream: int) -> None:
        self._break()
        super().streamSynchronize(stream)

    def deviceSynchronize(self) -> None:
        self._break()
        super().deviceSynchronize()

    # -- capture -------------------------------------------------------------------------------------------------------

    def memcpyAsync(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        name = {1: "upload", 2: "download", 3: "copy"}[kind]
        if stream in self.capturing:
            # Not staged, since the graph reads the host's memory when it is launched.
            self.give(name, lambda: ctypes.memmove(to, source, nbytes), stream)
        else:
            self.given.append(name)
            super().memcpyAsync(to, source, nbytes, kind, stream)

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        self._called("streamBeginCapture")
        if stream == 0 or stream in self.capturing:
            raise self.CUDARuntimeError(ILLEGAL)
        self.capturing[stream] = []

    def streamEndCapture(self, stream: int) -> int:
        if stream not in self.capturing:
            raise self.CUDARuntimeError(ILLEGAL)
        nodes = self.capturing.pop(stream)
        self._called("streamEndCapture")
        if nodes is None:
            raise self.CUDARuntimeError(INVALIDATED)
        handle = self._handle()
        self.graphs[handle] = nodes
        return handle

    def getDevice(self) -> int:
        return 0

    def streamIsCapturing(self, stream: int) -> bool:
        return stream in self.capturing

    def graphInstantiate(self, graph: int) -> int:
        self._called("graphInstantiate")
        handle = self._handle()
        self.executables[handle] = self.graphs[graph]
        return handle

    def graphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def graphExecDestroy(self, graph: int) -> None:
        del self.executables[graph]

    def graphLaunch(self, graph: int, stream: int) -> None:
        self._called("graphLaunch")
        if graph not in self.executables:
            raise self.CUDARuntimeError(INVALID)
        self.given.append("graph")
        queue = self.queues[stream]
        if graph in self._ends:
            # Launches of one graph run one after another.
            queue.append((None, self._ends[graph]))
        queue.extend((None, work) for _, work in self.executables[graph])
        self._ends[graph] = Record()
        queue.append(self._ends[graph])
