"""Ownership of memory: other libraries' arrays over our blocks, dropped by any thread, at exit, or while kernels still run.

In a rehearsal on the CPU, the arrays are NumPy's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting, python, run_limited

_AT_EXIT = """
import gradcore
from bench.gpu.ownership import share
held = share(gradcore.full((1000,), 3.0, device={device!r}))
part = held[1::2]
class Last:
    def __del__(self):
        self.part = None
last = Last()
last.part, last.again = part, last
del held, part
print("left")
"""


def share(tensor: Any) -> Any:
    """A CuPy array, or on the CPU a NumPy array, over a tensor's memory."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    from gradcore.devices.gpu.device import export

    return export(tensor)


def values(array: Any) -> np.ndarray:
    """An array's values on the host."""
    if isinstance(array, np.ndarray):
        return array
    import cupy

    return np.asarray(cupy.asnumpy(array))


def ownership(setting: Setting) -> Outcome:
    """Run all checks; each returns a description of what is wrong, or ""."""
    checks: dict[str, Callable[[Setting], str]] = {
        "views of dropped tensors": _views, "slices of slices": _slices, "dropped by another thread": _thread,
        "dropped at exit": _at_exit, "DLPack": _dlpack}
    outcome = Outcome(table=[["check", "result"]])
    device = gradcore.device(setting.device)
    for name, check in checks.items():
        before = device.ledger.allocated
        try:
            wrong = check(setting)
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:800]}"
        if not wrong and device.ledger.allocated != before:
            wrong = f"{device.ledger.allocated - before} bytes are still live"
        outcome.table.append([name, wrong or "as expected"])
        if wrong and not wrong.startswith("not run"):
            outcome.problems.append(f"{name}: {wrong}")
        setting.keep(outcome)
    outcome.summary = "; ".join(f"{name}: {result}" for name, result in outcome.table[1:])
    return outcome


def _views(setting: Setting) -> str:
    """Drop tensors while a product that reads them still runs, and allocate others of the same size at once."""
    width = 64 if setting.rehearsal else 1024
    for round_ in range(50):
        busy = gradcore.ones(width, width, device=setting.device) @ gradcore.ones(width, width, device=setting.device)
        tensor = gradcore.full((1 << 16,), float(round_), device=setting.device)
        view = share(tensor)[1::2]
        del tensor, busy
        others = [gradcore.full((1 << 16,), -1.0, device=setting.device) for _ in range(8)]
        found = values(view)
        if float(found.min()) != round_ or float(found.max()) != round_:
            return f"round {round_}: a view's bytes were reused while the view was alive"
        del view, others, found
    return ""


def _slices(setting: Setting) -> str:
    """The last slice of an array keeps the block, which is released with it."""
    ledger = gradcore.device(setting.device).ledger
    before = ledger.allocated
    array = share(gradcore.arange(4096, dtype=np.float32, device=setting.device))
    for _ in range(5):
        array = array[4::2]
        gradcore.full((4096,), -1.0, device=setting.device)
    if ledger.allocated == before:
        return "the block was freed before the last slice"
    expected = np.arange(4096, dtype=np.float32)
    for _ in range(5):
        expected = expected[4::2]
    found = values(array)
    return "" if np.array_equal(found, expected) else f"{found[:4]} instead of {expected[:4]}"


def _thread(setting: Setting) -> str:
    """Drop arrays in eight threads while this one allocates."""
    held = [[share(gradcore.full((5000,), float(k), device=setting.device)) for _ in range(20)] for k in range(8)]
    threads = [threading.Thread(target=part.clear) for part in held]
    kept = []
    for thread in threads:
        thread.start()
        kept += [(gradcore.full((5000,), float(k), device=setting.device), k) for k in range(20)]
    for thread in threads:
        thread.join()
    wrong = sum(float((tensor != k).sum().item()) for tensor, k in kept)
    return f"{wrong:.0f} elements were overwritten" if wrong else ""


def _at_exit(setting: Setting) -> str:
    """Exit an interpreter with arrays alive, one of them in a cycle that the last collection breaks."""
    code, output = run_limited([*python("bench.gpu.ownership"), setting.device], min(setting.seconds or 60, 60))
    return "" if (code, output) == (0, "left\n") else f"code {code}: {output[-1000:]}"


def _dlpack(setting: Setting) -> str:
    """A round trip through torch shares the memory, and keeps it alive."""
    try:
        import torch
    except ImportError:
        return "not run: torch is not installed"
    if setting.device == "cuda" and not torch.cuda.is_available():
        return "not run: torch sees no GPU"
    device = gradcore.device(setting.device)
    source = gradcore.arange(1000, dtype=np.float32, device=setting.device)
    theirs = torch.from_dlpack(share(source))
    device.synchronize()
    del source
    gradcore.zeros(1000, device=setting.device)
    if theirs.sum().item() != 499500:
        return "torch's tensor over our bytes lost them when our tensor was freed"
    if setting.device == "cuda":
        import cupy

        back = cupy.from_dlpack(theirs)
        address = int(back.data.ptr)
    else:
        back = np.from_dlpack(theirs)
        address = back.ctypes.data
    same = address == theirs.data_ptr()
    del back, theirs
    return "" if same else "DLPack copied on the way back"


if __name__ == "__main__":
    import sys

    exec(_AT_EXIT.format(device=sys.argv[1]), {"__name__": "__main__"})
