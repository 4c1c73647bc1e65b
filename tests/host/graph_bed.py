"""A CUDA device that captures, with no GPU: CuPy's objects, the emulator's kernels, and a card of host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcore.devices import device as devices
from gradcore.devices import gpu, gpu_gemm, gpu_launch, gpu_workspaces
from gradcore.program import watch
from tests.host import emulator as emulation
from tests.host import fake_cublas
from tests.host.emulator import Emulator
from tests.host.fake_cublas import FakeCublas, FakeLt
from tests.meta import graph_card, simulated_cuda
from tests.meta.graph_card import GraphCard

#: Files whose functions stand for CUDA: a trace does not look at what they look at.
_CUDA = {module.__file__ for module in (emulation, fake_cublas, graph_card, simulated_cuda)} | {__file__}


class QueuedLt(FakeLt):
    """cuBLASLt, whose products are given to the card's streams as they are described when they are."""

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
    """cuBLAS by CuPy, which a stream that captures may not be given."""

    def __init__(self, card: GraphCard, emulator: Emulator) -> None:
        super().__init__(lambda: bool(emulator.libraries))
        self.card = card

    def gemmStridedBatchedEx(self, *arguments: Any) -> None:
        if self.card.streamIsCapturing(self.card.current):
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        self.card.give("product", lambda: super(Refusing, self).gemmStridedBatchedEx(*arguments))


class Bed:
    """``device`` is ``cuda:0`` while :meth:`in_place`; kernels run on ``card`` when its streams come to them."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.card = GraphCard()
        self.device = gpu.CudaDevice(0, cuda=self.card, strict=True)
        self.device.activate = lambda stream: setattr(self.card, "current", stream.handle)  # type: ignore[method-assign]
        self.library: gpu_gemm.Library = gpu_gemm.CublasLt(
            QueuedLt(self.card, emulator), 4096, lambda nbytes: self.device._reserve(nbytes, "cuBLASLt", "matmul"))
        #: The arguments of kernels of ours that were captured.
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
        library = watch.is_library
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_launch, "launch", self.launch)
            patch.setattr(gpu_launch, "clear", self.clear)
            patch.setattr(gpu_gemm, "library", lambda: self.library)
            patch.setitem(gpu_gemm.LIBRARIES, 0, self.library)
            patch.setattr(gpu_gemm, "current_stream", lambda: self.card.current)
            patch.setattr(gpu_gemm, "runtime", self.card)
            patch.setattr(gpu_workspaces, "current_stream", lambda: self.card.current)
            patch.setattr(gpu_workspaces, "runtime", self.card)
            patch.setattr(gpu_workspaces, "SHARED", {})
            patch.setattr(watch, "is_library", lambda file: file in _CUDA or library(file))
            for name in ("cuda", "cuda:0"):
                patch.setitem(devices._devices, name, self.device)
            patch.setattr(devices, "_used", [*devices._used, self.device])
            yield self

    def use_cublas(self) -> None:
        """Products go to cuBLAS by CuPy, as without nvmath-python."""
        self.library = gpu_gemm.Cublas("a test", Refusing(self.card, self.emulator), lambda: 7)
        # What is written out there names the library that it was written for, which is for good otherwise.
        self.device.calls.clear()

    def take(self) -> list[str]:
        """What was given to streams since this was asked last."""
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
