"""Installs the simulated GPU under an unmodified CuPy.

The CUDA runtime is linked into CuPy's library, so the first bytes of each of its functions are overwritten with a jump to the
simulated one. The driver is a small library with the driver's name. Use a separate process: the patches are not undone.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import subprocess
from ctypes import c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from tests.card.card import Card
from tests.card.entries import ENTRIES, UNKNOWN, UNSUPPORTED

_libc = ctypes.CDLL(None, use_errno=True)
#: Keeps the callbacks alive, which CuPy's code refers to.
_kept: list[Any] = []


def install(card: Card, folder: Path) -> None:
    """Let CuPy, which must not have looked for a driver yet, use ``card`` until the interpreter exits."""
    names = [name for name in ENTRIES if name.startswith("cu") and name[2].isupper()]
    driver = _driver(names, folder)
    nothing = ctypes.cast(driver.card_nothing, c_void_p).value or 0
    import cupy_backends.cuda.api.runtime as runtime

    path = runtime.__file__
    with open("/proc/self/maps") as maps:
        base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path))
    listed = [line.partition(" t ") for line in subprocess.run(["nm", path], capture_output=True, text=True,
                                                               check=True).stdout.split("\n")]
    places = {name: base + int(address, 16) for address, _, name in listed if name.startswith("cuda") and name[4:5].isupper()}

    def lead(nowhere: bool) -> None:
        for k, name in enumerate(names):
            driver.card_fill(k, c_void_p(nothing if nowhere else _callback(card, name)))
        for name, place in places.items():
            _jump(place, nothing if nowhere else _callback(card, name))

    # Objects destroyed after Python has shut down still call the driver.
    atexit.register(lead, True)
    lead(False)


def _callback(card: Card, name: str) -> int:
    returns, types = ENTRIES.get(name, (c_int, ()))
    method = getattr(card, name, None)

    def call(*arguments: Any) -> Any:
        card.calls[name] += 1
        if method is None:
            return card.fault(f"{name} was called, which the card lacks", UNSUPPORTED)
        try:
            return method(*arguments)
        except Exception as error:
            return card.fault(f"{name}{arguments}: {error!r}", UNKNOWN)

    made = ctypes.CFUNCTYPE(returns, *types)(call)
    _kept.append(made)
    return ctypes.cast(made, c_void_p).value or 0


def _jump(address: int, target: int) -> None:
    page = address & -mmap.PAGESIZE
    # Readable, writable and executable, since another call may be executing in the same page.
    if _libc.mprotect(c_void_p(page), c_size_t(2 * mmap.PAGESIZE), 7):
        raise OSError(ctypes.get_errno(), "CuPy's code cannot be written to")
    # mov r11, target; jmp r11
    ctypes.memmove(address, b"\x49\xbb" + target.to_bytes(8, "little") + b"\x41\xff\xe3", 13)


def _driver(names: list[str], folder: Path) -> Any:
    """Load a library with the driver's name, whose functions are in a table; later lookups of the name find it."""
    lines = [f'__attribute__((naked)) void {name}(void) {{ __asm__("jmp *card_table+{8 * k}(%rip)"); }}'
             for k, name in enumerate(names)]
    source, library = folder / f"driver-{os.getpid()}.c", folder / f"driver-{os.getpid()}.so"
    source.write_text(f'__attribute__((visibility("hidden"))) void* card_table[{len(names)}];\n'
                      "void card_fill(int k, void* f) { card_table[k] = f; }\nint card_nothing(void) { return 0; }\n"
                      + "\n".join(lines))
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
