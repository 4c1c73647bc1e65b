"""Sample calls of our kernels on the device beside NumPy: ``python -m bench.gpu.rows DEVICE LOG START EVERY EXACT``.

One line of JSON before a call and one after it, so that whoever started this knows which call a crash belongs to. After an
error that leaves the device unusable the process ends; the next one starts behind that call.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradcore.devices.host import host_table
from gradcore.spec import is_floating
from tests.host.cuda_rows import OWN, Both, calls
from tests.host.emulator import MARGIN, Copy


class DeviceCopy:
    """An array's elements on the GPU, at the same place among 16 bytes, between margins that are watched."""

    def __init__(self, array: np.ndarray, exact: bool = False) -> None:
        import cupy

        self.inside = Copy(array, exact)
        start = self.inside.start
        self.elements = self.inside.bytes[start:start + self.inside.nbytes]
        margin = 0 if exact else MARGIN
        self.first = margin + self.elements.ctypes.data % 16
        self.content = np.full(self.first + self.elements.size + margin, 0xA5, np.uint8)
        self.content[self.first:self.first + self.elements.size] = self.elements
        # An empty array needs an address as well.
        self.memory = cupy.cuda.alloc(max(self.content.size, 1))
        if self.content.size:
            self.memory.copy_from_host(self.content.ctypes.data, self.content.size)

    @property
    def array(self) -> np.ndarray:
        """The host's elements, which are the device's after a check."""
        return self.inside.array

    def cupy(self) -> Any:
        import cupy

        array = self.inside.array
        offset = array.ctypes.data - self.elements.ctypes.data if array.size else 0
        return cupy.ndarray(array.shape, array.dtype, self.memory + (self.first + offset), array.strides)

    def check(self, name: str) -> None:
        if self.content.size:
            self.memory.copy_to_host(self.content.ctypes.data, self.content.size)
        last = self.first + self.elements.size
        around = np.concatenate([self.content[:self.first], self.content[last:]])
        assert (around == 0xA5).all(), f"{name} wrote outside an array of {self.array.shape}"
        self.elements[...] = self.content[self.first:last]


class HostCopy(Copy):
    """For a rehearsal: NumPy's own kernels are given the copies."""

    def cupy(self) -> Any:
        return self.array


def usable() -> bool:
    """Does the device still answer? An illegal access spoils it for the process."""
    from cupy.cuda import runtime

    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:
        return False
    return True


def chosen(every: int) -> list[tuple[int, Any, Any]]:
    """Numbered calls: each ``every``-th, and of each op and type at least one."""
    met: set[Any] = set()
    found = []
    for k, (row, dtype) in enumerate(calls()):
        if k % every == 0 or (row.op, dtype) not in met:
            met.add((row.op, dtype))
            found.append((k, row, dtype))
    return found


def main() -> None:
    device, path, start, every, exact = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1"
    on_gpu = device == "cuda"
    if on_gpu and exact:
        import cupy

        # Each array an allocation of its own, so that compute-sanitizer knows where it ends.
        cupy.cuda.set_allocator(None)
    own = OWN if on_gpu else {name: kernel for name, kernel in host_table().items() if name in OWN}
    runner = SimpleNamespace(libraries=True, sanitize=exact, falling=False)
    with open(path, "a") as log:
        for k, row, dtype in chosen(every):
            # NumPy's own kernels compute in 16 bits where ours compute in float32.
            if k < start or (not on_gpu and is_floating(np.dtype(dtype)) and np.dtype(dtype).itemsize == 2):
                continue
            name = f"{row} {np.dtype(dtype).name}"
            print(json.dumps({"call": k, "name": name}), file=log, flush=True)
            error = None
            try:
                Both(runner, own=own, copy=DeviceCopy if on_gpu else HostCopy).run(row, dtype)
            except Exception as caught:
                error = f"{type(caught).__name__}: {str(caught).strip()[:1500]}"
            print(json.dumps({"call": k, "name": name, "error": error}), file=log, flush=True)
            if error and on_gpu and not usable():
                sys.exit(3)


if __name__ == "__main__":
    main()
