"""The CPU device, whose kernels are NumPy functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.adapting import suited
from gradcore.devices.attention import build_attention
from gradcore.devices.calls import KernelCall, Operands, Steps
from gradcore.devices.device import Device, register
from gradcore.devices.host import kernels  # noqa: F401 - they register themselves
from gradcore.devices.host.fused import fused
from gradcore.devices.host.kernel import HOST_KERNELS
from gradcore.devices.host.kernels.in_place import in_place_kernels
from gradcore.devices.host.tape import written_out
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.memory.sources import HostSource
from gradcore.memory.stack import build
from gradcore.memory.streams import NoDriver
from gradcore.spec import TensorSpec
from gradcore.units import limit_from, switch_from


class _Bytes:
    """The memory of an array from its first to its last element, for NumPy; arrays over it keep this object alive."""

    def __init__(self, owner: np.ndarray[Any, Any], length: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (owner.ctypes.data, False)}


class HostDevice(Device):
    type = "cpu"

    def make_array(self, block: Block, spec: TensorSpec) -> np.ndarray[Any, Any]:
        size = spec.dtype.itemsize
        if spec.numel == 0:
            return np.empty(spec.shape, spec.dtype)
        return np.ndarray(spec.shape, spec.dtype, block.segment.memory, block.offset + spec.offset * size,
                          tuple([s * size for s in spec.strides]))

    def foreign(self, array: np.ndarray[Any, Any], nbytes: int) -> Segment:
        return Segment(nbytes, array.ctypes.data, np.asarray(_Bytes(array, nbytes)))

    def written_out(self, op: str, kernel: Callable[..., Any], args: list[Any]) -> list[KernelCall] | None:
        return written_out(op, kernel, args)

    def stand_in(self, nbytes: int) -> Block:
        memory = np.empty(nbytes, np.uint8)
        # On a stream of its own, so that the block never gets into a list of free blocks.
        return Block(Segment(nbytes, memory.ctypes.data, memory), 0, nbytes, Stream(0), [])

    def fused(self, kind: str, steps: Steps) -> Steps | None:
        return fused(kind, steps)

    def suited(self, kernel: Callable[..., Any], operands: Operands) -> tuple[Callable[..., Any], int]:
        return suited(kernel, operands)

    def copy_in(self, array: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        np.copyto(array, values, casting="unsafe")

    def copy_out(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.copy()

    def copy_across(self, array: np.ndarray[Any, Any], pinned: Any, back: bool = False) -> None:
        target, source = (pinned.array, array) if back else (array, pinned.array)
        np.copyto(target, source)


def fill_with_ones(block: Block) -> None:
    """Poison: every bit set, which is NaN in the float types and -1 in the signed ones."""
    ctypes.memset(block.address, 0xFF, block.size)


def host_table() -> dict[str, Callable[..., Any]]:
    """All kernels of the CPU by op name."""
    table = {**HOST_KERNELS, **build_attention(np, HOST_KERNELS["uniform"])}
    return table | in_place_kernels(table)


def make_host(index: int = 0) -> HostDevice:
    """The CPU device, with ``GRADCORE_MEMORY_LIMIT`` and ``GRADCORE_POISON=1`` from the environment."""
    poison = fill_with_ones if switch_from("GRADCORE_POISON") else None
    stack = build(HostSource(), NoDriver(), limit=limit_from("GRADCORE_MEMORY_LIMIT"), poison=poison)
    return HostDevice("cpu", stack, Stream(0), host_table())


register("cpu", make_host)
