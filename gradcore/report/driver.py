"""Reads the driver's figures for this process's memory on a device, and compares them with what the pools hold.

Used bytes = context + segments + libraries + remainder. The context is measured when it is created, from the same source as
later figures. There are three sources; the first that is available is used:

1. NVML's bytes of this process. They cannot be read in most containers, which have process ids of their own, on some MIG
   slices, and on Windows.
2. The change of the card's (or the MIG slice's) used bytes, by NVML, since before the context was created. It includes
   changes by other processes.
3. Without NVML, the change of the runtime's free bytes since the context was created, which does not include the context.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from gradcore.report.step import DriverFigures, LibraryBytes


class Nvml:
    """NVML's figures for one device, each None if NVML does not give it; ``why`` has the last reason."""

    def __init__(self, index: int, cuda: Any, nvml: Any) -> None:
        self.why = ""
        self._nvml = nvml
        self._handle: Any = None
        try:
            if nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            self._handle = self._find(index, cuda)
        except Exception as error:  # NVML is optional in a report: no error of it may stop the run
            self.why = f"NVML: {error}"

    def _find(self, index: int, cuda: Any) -> Any:
        """The NVML handle, by PCI bus id since CUDA numbers only visible devices; in MIG mode the slice by its UUID."""
        handle = self._nvml.nvmlDeviceGetHandleByPciBusId(cuda.deviceGetPCIBusId(index))
        try:
            sliced = self._nvml.nvmlDeviceGetMigMode(handle)[0] == 1
        except Exception:  # a card without MIG
            sliced = False
        if not sliced:
            return handle
        name = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if name.startswith("MIG-"):
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        # A container that was given an instance sees no other.
        instances = []
        for k in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(Exception):  # there is none of this number, or it is not ours
                instances.append(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, k))
        if len(instances) != 1:
            raise RuntimeError(f"the GPU is partitioned by MIG, {len(instances)} instances are visible, and "
                               "CUDA_VISIBLE_DEVICES names none (MIG-...)")
        return instances[0]

    def _asked(self, ask: Callable[[], Any]) -> Any:
        if self._handle is None:
            return None
        try:
            return ask()
        except Exception as error:
            self.why = f"NVML: {error}"
            return None

    def of_process(self) -> int | None:
        """Bytes used by this process, 0 before it has a context."""
        mine = self._asked(lambda: [p.usedGpuMemory for p in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
                                    if p.pid == os.getpid()])
        if mine is not None and None in mine:
            self.why = "NVML does not report the memory of this process"
            return None
        return None if mine is None else sum(map(int, mine))

    def of_card(self) -> int | None:
        """Bytes of the card or slice used by all processes."""
        used: int | None = self._asked(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))
        return used


class DriverAccount:
    """A device's figures since it was first used. The constructor creates the context and measures it."""

    def __init__(self, index: int, cuda: Any, nvml: Any = None) -> None:
        self._cuda = cuda
        self._nvml = Nvml(index, cuda, nvml)
        self._card_before = self._nvml.of_card()
        cuda.setDevice(index)
        self._free = self._free_bytes()
        #: Bytes of the context: by NVML's figures for the process, None if it does not list the process; and for the card.
        self._context = self._nvml.of_process() or None
        card = self._nvml.of_card()
        self._card_context = None if card is None or self._card_before is None else card - self._card_before

    def _free_bytes(self) -> int | None:
        try:
            return int(self._cuda.memGetInfo()[0])
        except Exception as error:
            self._nvml.why = self._nvml.why or f"cudaMemGetInfo: {error}"
            return None

    def figures(self, segments: int, libraries: Iterable[LibraryBytes], unseen: str = "") -> DriverFigures:
        """The present figures, for pools that hold ``segments`` bytes, and the bytes they hold for ``libraries``; ``unseen``
        describes what a library allocates outside every pool."""
        named = tuple(libraries)
        library = sum(x.nbytes for x in named)
        used, context, source = self._used(segments + library)
        remainder = None if used is None else used - (context or 0) - segments - library
        return DriverFigures(used, source, context, segments, library, remainder, named, unseen)

    def of_process(self, held: int) -> int | None:
        """NVML's bytes of this process, which holds ``held`` at least; None if NVML gives none, or those of another process."""
        listed = self._listed()
        return listed if listed is not None and listed >= held else None

    def _listed(self) -> int | None:
        """NVML's bytes of the process that it lists under this one's number, if it listed any with the context."""
        return None if self._context is None else self._nvml.of_process()

    def _used(self, held: int) -> tuple[int | None, int | None, str]:
        listed = self._listed()
        if listed is not None and listed >= held:
            return listed, self._context, "NVML, this process"
        why = self._nvml.why or ("NVML does not list this process" if listed is None else
                                 f"NVML lists {listed:,} bytes for this process ID, fewer than it has allocated")
        card = self._nvml.of_card()
        if card is not None and self._card_before is not None:
            return (card - self._card_before, self._card_context,
                    f"change of the card's used bytes since before the context was created (then {self._card_before:,}), "
                    f"exact if no other process uses the card; {why}")
        free = self._free_bytes()
        if free is not None and self._free is not None:
            return (self._free - free, None,
                    f"change of the card's free bytes since the context was created (the context not included), exact if "
                    f"no other process uses the card; {self._nvml.why or why}")
        return None, None, self._nvml.why or why
