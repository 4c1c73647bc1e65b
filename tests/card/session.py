"""Sets up the simulated GPU in this process: the emulator computes our kernels, NumPy the matrix products."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.card.card import Card
from tests.card.hooks import install
from tests.host.cuda.compiled import FOLDER


class _Asked(threading.local):
    #: The launch in progress in a thread: family, instance, arguments.
    of: tuple[str, str, tuple[Any, ...]] | None = None


class Session:
    """The simulated GPU's kernels and matrix products."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.card = Card(self.work)
        #: Kernels of other libraries, by name, which are not run.
        self.others: Counter[str] = Counter()
        self._asked = _Asked()
        #: The emulator runs one block at a time.
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], Any] = {}
        #: By family: the instances that were launched and are not compiled yet.
        self._wanted: dict[str, set[str]] = {}

    def start(self) -> None:
        """Install the simulated GPU; call before anything looks for a driver."""
        os.environ.setdefault(FOLDER, str(self.folder))
        # Exit functions run in reverse order of registration.
        atexit.register(self.close)
        install(self.card, self.folder)
        from gradcore.devices.gpu import gemm as gpu_gemm
        from gradcore.devices.gpu import launch as gpu_launch
        from gradcore.devices.gpu import workspaces as gpu_workspaces
        from gradcore.program.guarding import libraries
        from tests.host.cuda import emulator, graph_bed

        #: The argument that the launch itself fills in.
        self._shared = gpu_launch.SHARED
        self._noted = gpu_launch.noted
        self._as_bytes, self._as_on_a_gpu = emulator._as_bytes, emulator.subnormals_as_zero
        self.emulator = emulator.Emulator(self.folder)
        # Code of the simulated GPU must not be watched by a trace.
        library, own = libraries.is_library, str(Path(__file__).parent)
        for module in graph_bed.ASKING:
            module.is_library = lambda file: file.startswith(own) or file in graph_bed.SIMULATING or library(file)
        launch = gpu_launch.launch

        def asked(family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
            self._asked.of = family, instance, arguments
            try:
                launch(family, instance, blocks, threads, arguments)
            finally:
                self._asked.of = None

        gpu_launch.launch = asked
        lt = graph_bed.QueuedLt(self.card, self.emulator)  # type: ignore[arg-type]
        lt.runs = lambda: True
        make = gpu_gemm.make_library
        gpu_gemm.make_library = lambda index: make(index) if os.environ.get("GRADCORE_GEMM") == "cupy" else gpu_gemm.CublasLt(
            lt, gpu_gemm.workspace_bytes(index), lambda size: gpu_workspaces.reserve(index, size, "cuBLASLt", "matmul"), index,
            small=True)

    def work(self, name: str, blocks: int, threads: int, arguments: int) -> Callable[[], None]:
        """A launch as it reached the driver, which runs now or later with the arguments as CuPy converted them."""
        if self._noted.tape is not None:
            self.card.fault(f"{name} was launched in a dry run, whose addresses are made up")
        if self._asked.of is None:
            # The kernel "nap" of bench.gpu only passes time, which passes here whenever something waits.
            if name != "nap":
                self.others[name] += 1
            return lambda: None
        family, instance, given = self._asked.of
        addresses = (ctypes.c_void_p * len(given)).from_address(arguments)
        held = []
        for argument, address in zip(given, addresses, strict=True):
            if argument is self._shared:
                held.append(ctypes.create_string_buffer(ctypes.string_at(address, 8), 8))
                continue
            expected = self._as_bytes(argument)
            found = ctypes.string_at(address, expected.nbytes)
            if found != expected.tobytes():
                self.card.fault(f"{instance}: {argument!r} reached the driver as {found!r}")
            place = getattr(getattr(argument, "data", None), "ptr", None)
            if place is not None and argument.size and not self.card.holds(place, argument.itemsize):
                # At least the first element of a CuPy array must be in device memory.
                self.card.fault(f"{instance}: {place:#x} lies outside any allocation")
            self._asked_for(instance, _addresses(family, argument))
            held.append(ctypes.create_string_buffer(found, len(found)))
        if (family, instance) not in self._calls:
            with self._lock:
                self._wanted.setdefault(family, set()).add(instance)
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(h) for h in held])

        def run(held: Any = held) -> None:
            with self._lock:
                call = self._calls.get((family, instance)) or self._compiled(family, instance)
                if family == "mailbox":
                    self._asked_for(instance, _copied(*map(int, given)))
                with self._as_on_a_gpu():
                    done = call(blocks, threads, False, pointers)
            if not done:
                self.card.fault(f"{instance}: threads wait where others never come, or meet by other calls or without some of "
                                "their warp")

        return run

    def _asked_for(self, instance: str, places: Iterable[int]) -> None:
        """Note a fault for each address outside the device's memory: here a kernel can access it."""
        for place in places:
            if not self.card.holds(place, 1):
                self.card.fault(f"{instance}: {place:#x}, in an argument, lies outside any allocation")

    def _compiled(self, family: str, instance: str) -> Any:
        """The function of a kernel, with those of all that were launched since the last time: together they compile faster."""
        wanted, self._wanted = self._wanted, {}
        for of, names in wanted.items():
            for library, instances in self.emulator.compiled(of):
                self._load(of, names, library, instances)
        self.emulator.wanted = {of: names for of, names in wanted.items() if names}
        self.emulator.compile()
        for of, names in self.emulator.wanted.items():
            self._load(of, names, self.emulator.paths[of], list(self.emulator.libraries[of][1]))
        return self._calls[family, instance]

    def _load(self, family: str, names: set[str], library: Path, instances: list[str]) -> None:
        """Take the functions of the instances ``names`` that a library has, and remove them from ``names``."""
        for name in names.intersection(instances):
            # The same one each time: an open library is not loaded again.
            call = getattr(ctypes.CDLL(str(library)), f"call_{instances.index(name)}")
            call.restype = ctypes.c_bool
            self._calls[family, name] = call
            names.discard(name)

    def close(self) -> None:
        if self.card.calls:
            print(f"On the card: {sum(self.card.calls.values()):,} calls of the runtime and the driver; kernels that are not "
                  f"ours: {', '.join(self.others) or 'none'}", *[f"fault: {what}" for what in self.card.faults], sep="\n",
                  file=sys.stderr, flush=True)


def _addresses(family: str, argument: Any) -> list[int]:
    """The addresses in an argument that is no array, but for 0: words without a sign in a structure, or alone where a kernel is
    given no others of these."""
    if not isinstance(argument, (np.ndarray, np.generic)):
        return []
    fields = argument.dtype.fields or {}
    words = [argument[name] for name, (kind, *_) in fields.items() if kind.base == np.uint64]
    if argument.dtype == np.uint64 and family in ("product", "optim"):
        words.append(argument)
    return [int(word) for some in words for word in np.ravel(some) if word]


def _copied(box: int, room: int, slots: int, first: int, last: int, ends: int, turn: int) -> Iterator[int]:
    """The first and the last byte of each copy that ``kernels/mailbox.cu`` is about to make, but for those of numbers, which it
    reads from its slot in pinned memory."""
    slot = box + 256 + ctypes.c_uint64.from_address(turn).value % slots * room
    words = (ctypes.c_uint64 * (3 * last)).from_address(slot)
    for target, source, nbytes in zip(words[3 * first::3], words[3 * first + 1::3], words[3 * first + 2::3], strict=True):
        for start in (target, source) if nbytes else ():
            if not slot <= start < slot + room:
                yield from (start, start + nbytes - 1)


#: This process's session, if it has a simulated GPU.
SESSION: Session | None = None


def start(folder: str) -> Session:
    """Give this process a simulated GPU."""
    global SESSION
    os.environ["CUPY_CACHE_DIR"] = f"{folder}/cubins"
    SESSION = Session(Path(folder))
    SESSION.start()
    return SESSION
