"""Sample calls of our kernels compared with NumPy: ``python -m bench.gpu.rows DEVICE LOG START EVERY EXACT UNTIL``.

A line of JSON is written before and after each call, so that the parent process knows which call crashed. After an error that
leaves the device unusable the process ends; the next one starts after that call. None is begun after ``UNTIL``, seconds since
the epoch, unless that is 0; a last line says how many are left. Tools that watch the process report when it ends.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.gpu.part import slower
from gradcore.devices.host.device import host_table
from gradcore.dtypes import is_floating
from tests.host.cuda.cuda_rows import OWN, Both, calls
from tests.host.cuda.emulator import MARGIN, Copy


class DeviceCopy:
    """A copy of an array on the GPU, with the same alignment within 16 bytes, between margins that are checked."""

    def __init__(self, array: np.ndarray, exact: bool = False) -> None:
        import cupy

        self.inside = Copy(array, exact)
        start = self.inside.start
        self.elements = self.inside.bytes[start:start + self.inside.nbytes]
        margin = 0 if exact else MARGIN
        self.first = margin + self.elements.ctypes.data % 16
        self.content = np.full(self.first + self.elements.size + margin, 0xA5, np.uint8)
        self.content[self.first:self.first + self.elements.size] = self.elements
        # An empty array needs an address too.
        self.memory = cupy.cuda.alloc(max(self.content.size, 1))
        self.upload()

    def upload(self) -> None:
        if self.content.size:
            self.memory.copy_from_host(self.content.ctypes.data, self.content.size)

    @property
    def array(self) -> np.ndarray:
        """The elements on the host, which a check copies from the device."""
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


class Unwritten(DeviceCopy):
    """The same memory that nobody has written and nobody will read: what an op allocates, for tools that watch."""

    def upload(self) -> None:
        pass

    def check(self, name: str) -> None:
        pass


class HostCopy(Copy):
    """For a rehearsal: a copy on the host, for NumPy's kernels."""

    def cupy(self) -> Any:
        return self.array


#: The seconds that a call may take, its kernel's compilation included. Then the process ends, as after a fault.
_MOST = 20


def usable() -> bool:
    """Whether the device still works; after an illegal access, it does not for the rest of the process."""
    from cupy.cuda import runtime

    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:
        return False
    return True


def chosen(every: int) -> list[tuple[Any, Any]]:
    """One call of each op and dtype, then every ``every``-th of all, without these: time may run out before the last."""
    firsts: dict[Any, int] = {}
    every_call = list(calls())
    for k, (row, dtype) in enumerate(every_call):
        firsts.setdefault((row.op, dtype), k)
    taken = {*firsts.values()}
    return [every_call[k] for k in (*firsts.values(), *(k for k in range(0, len(every_call), every) if k not in taken))]


def main() -> None:
    device, path, start, every, exact = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1"
    until = float(sys.argv[6])
    on_gpu = device == "cuda"
    if on_gpu and exact:
        import cupy

        # A separate allocation for each array, so that compute-sanitizer knows its bounds.
        cupy.cuda.set_allocator(None)
    own = OWN if on_gpu else {name: kernel for name, kernel in host_table().items() if name in OWN}
    runner = SimpleNamespace(libraries=True, sanitize=exact, falling=False)
    with open(path, "a") as log:
        asked = chosen(every)
        for k, (row, dtype) in enumerate(asked):
            # NumPy's own kernels compute in 16 bits where ours compute in float32.
            if k < start or (not on_gpu and is_floating(np.dtype(dtype)) and np.dtype(dtype).itemsize == 2):
                continue
            if until and time.time() > until:
                print(json.dumps({"left": len(asked) - k}), file=log, flush=True)
                break
            name = f"{row} {np.dtype(dtype).name}"
            print(json.dumps({"call": k, "name": name}), file=log, flush=True)
            error = None
            if on_gpu:
                faulthandler.dump_traceback_later(_MOST * (20 if exact else slower()), exit=True)
            try:
                Both(runner, own=own, copy=DeviceCopy if on_gpu else HostCopy,
                     results=Unwritten if on_gpu and exact else None).run(row, dtype)
            except Exception as caught:
                error = f"{type(caught).__name__}: {str(caught).strip()[:1500]}"
            finally:
                faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"call": k, "name": name, "error": error}), file=log, flush=True)
            if error and on_gpu and not usable():
                sys.exit(3)


if __name__ == "__main__":
    main()
