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
from gradcore.devices import gpu, gpu_launch, gpu_linalg
from gradcore.program import watch
from tests.host import emulator as emulation
from tests.host.emulator import Emulator
from tests.meta import graph_card, simulated_cuda
from tests.meta.graph_card import GraphCard

#: Files whose functions stand for CUDA: a trace does not look at what they look at.
_CUDA = {module.__file__ for module in (emulation, graph_card, simulated_cuda)} | {__file__}


class Products:
    """cuBLAS's calls, given to the card's stream. While ``refuses``, a stream that captures may not be given any."""

    def __init__(self, card: GraphCard, emulator: Emulator) -> None:
        self.card = card
        self.emulator = emulator
        self.refuses = False

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            if self.refuses and self.card.streamIsCapturing(self.card.current):
                raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
            self.card.give(name, lambda: getattr(self.emulator, name)(*arguments))

        return call


class Bed:
    """``device`` is ``cuda:0`` while :meth:`in_place`; kernels run on ``card`` when its streams come to them."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.card = GraphCard()
        self.device = gpu.CudaDevice(0, cuda=self.card, strict=True)
        self.device.activate = lambda stream: setattr(self.card, "current", stream.handle)  # type: ignore[method-assign]
        self.products = Products(self.card, emulator)
        #: The arguments of kernels of ours that were captured.
        self.captured: list[tuple[Any, ...]] = []

    def start(self, family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        held = tuple(emulation._as_bytes(a) for a in arguments)
        if self.card.capturing:
            self.captured.append(held)
        self.card.give(instance.split("<")[0], lambda: self.emulator.start(family, instance, blocks, threads, held))

    def zero(self, array: Any) -> None:
        address, nbytes = array.data.ptr, array.nbytes
        self.card.give("zero", lambda: ctypes.memset(address, 0, nbytes))

    @contextmanager
    def in_place(self) -> Iterator[Bed]:
        library = watch.is_library
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_launch, "start", self.start)
            patch.setattr(gpu_launch, "zero", self.zero)
            patch.setattr(gpu_linalg, "blas", lambda: (self.products, 7))
            patch.setattr(watch, "is_library", lambda file: file in _CUDA or library(file))
            for name in ("cuda", "cuda:0"):
                patch.setitem(devices._devices, name, self.device)
            patch.setattr(devices, "_used", [*devices._used, self.device])
            yield self

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
