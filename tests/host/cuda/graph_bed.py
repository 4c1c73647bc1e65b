"""A CUDA device with graph capture and no GPU: CuPy's objects, the emulator's kernels, and a simulated GPU in host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcore.devices import device as devices
from gradcore.devices.gpu import cublas as gpu_cublas
from gradcore.devices.gpu import device as gpu
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu import workspaces as gpu_workspaces
from gradcore.program.guarding import libraries
from gradcore.program.watching import outside, watch
from tests.host.cuda import compiled, fake_cublas, nvrtc
from tests.host.cuda import emulator as emulation
from tests.host.cuda.emulator import Emulator
from tests.host.cuda.fake_cublas import FakeCublas, FakeLt
from tests.meta import graph_card, simulated_cuda
from tests.meta.graph_card import GraphCard

#: What asks whether code is a library's, which a trace does not watch.
ASKING = (watch, outside)
#: Files whose functions simulate CUDA, which a trace takes for a library's.
SIMULATING = {module.__file__ for module in (compiled, emulation, fake_cublas, graph_card, nvrtc, simulated_cuda)} | {__file__}


class QueuedLt(FakeLt):
    """cuBLASLt, whose products are submitted to the simulated GPU's streams as described at that time."""

    def __init__(self, card: GraphCard, emulator: Emulator) -> None:
        super().__init__(lambda: bool(emulator.libraries))
        self.card = card

    def matmul(self, *arguments: Any) -> None:
        described = {arguments[k]: dict(self.made[arguments[k]]) for k in (1, 4, 6, 11)}

        def multiply() -> None:
            now, self.made = self.made, {**self.made, **described}
            try:
                super(QueuedLt, self).matmul(*arguments)
            finally:
                self.made = now

        self.card.give("product", multiply, arguments[-1])


class Refusing(FakeCublas):
    """cuBLAS through CuPy, which cannot be submitted to a capturing stream."""

    def __init__(self, card: GraphCard, emulator: Emulator) -> None:
        super().__init__(lambda: bool(emulator.libraries))
        self.card = card

    def gemmStridedBatchedEx(self, *arguments: Any) -> None:
        if self.card.streamIsCapturing(self.card.current):
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        self.card.give("product", lambda: super(Refusing, self).gemmStridedBatchedEx(*arguments))


class Bed:
    """``device`` is ``cuda:0`` within :meth:`in_place`; kernels run on ``card`` when its streams reach them."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.card = GraphCard()
        self.device = gpu.CudaDevice(0, cuda=self.card, strict=True)
        for name in ("activate", "launch_on"):
            setattr(self.device, name, lambda stream: setattr(self.card, "current", stream.handle))
        self.library: gpu_gemm.Library = gpu_gemm.CublasLt(
            QueuedLt(self.card, emulator), 4096, lambda nbytes: self.device._reserve(nbytes, "cuBLASLt", "matmul"))
        #: The arguments of our captured kernels.
        self.captured: list[tuple[Any, ...]] = []

    def launch(self, family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        held = tuple(emulation._as_bytes(a) for a in gpu_launch.placed(arguments))
        if self.card.capturing:
            self.captured.append(held)
        self.card.give(instance.split("<")[0], lambda: self.emulator.launch(family, instance, blocks, threads, held))

    def clear(self, pointer: Any, nbytes: int) -> None:
        address = pointer.ptr
        self.card.give("zero", lambda: ctypes.memset(address, 0, nbytes))

    @contextmanager
    def in_place(self) -> Iterator[Bed]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_launch, "launch", self.launch)
            patch.setattr(gpu_launch, "clear", self.clear)
            patch.setattr(gpu_gemm, "library", lambda: self.library)
            patch.setitem(gpu_gemm.LIBRARIES, 0, self.library)
            patch.setattr(gpu_gemm, "current_stream", lambda: self.card.current)
            patch.setattr(gpu_cublas, "on_stream", nullcontext)
            patch.setattr(gpu_gemm, "runtime", self.card)
            patch.setattr(gpu_workspaces, "current_stream", lambda: self.card.current)
            patch.setattr(gpu_workspaces, "runtime", self.card)
            patch.setattr(gpu_workspaces, "SHARED", {})
            for module in ASKING:
                patch.setattr(module, "is_library", lambda file: file in SIMULATING or libraries.is_library(file))
            for name in ("cuda", "cuda:0"):
                patch.setitem(devices._devices, name, self.device)
            # Not a list of its own: a device that is first used within the block stays.
            devices._used.append(self.device)
            try:
                yield self
            finally:
                devices._used.remove(self.device)

    def use_cublas(self) -> None:
        """Let products use cuBLAS through CuPy, as without nvmath-python."""
        self.library = gpu_gemm.Cublas("a test", Refusing(self.card, self.emulator), lambda: 7)
        # Recorded launches refer to the library that was in use, which does not change otherwise.
        self.device.calls.clear()

    def take(self) -> list[str]:
        """The work submitted to streams since the last call."""
        found, self.card.given[:] = list(self.card.given), []
        return found


def emulator_of(folder: Path, *scenarios: Any) -> Emulator:
    """An emulator with the kernels that some functions launch: each runs on a bed, once to see which they are."""
    emulator = Emulator(folder)
    for scenario in scenarios:
        with Bed(emulator).in_place() as bed:
            scenario(bed)
            bed.card.deviceSynchronize()
    emulator.compile()
    return emulator


def bits(tensor: Any) -> bytes:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()
