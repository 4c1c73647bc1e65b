"""Where libraries that g++ makes of kernels are kept: in ``GRADCORE_COMPILED``, for all processes and commands that set it.

A library is found by everything that it is made of, so that a change of a kernel, of the emulator or of the compiler makes
another one. One with more instances than are wanted serves too: each is compiled for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = "GRADCORE_COMPILED"


@contextlib.contextmanager
def shared_folder() -> Iterator[None]:
    """Within the block, what this process and its children compile is shared; it is removed at the end if it had no folder."""
    if FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="gradcore-compiled-", ignore_cleanup_errors=True) as made:
        os.environ[FOLDER] = made
        try:
            yield
        finally:
            del os.environ[FOLDER]


@functools.cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def library_of(folder: Path, name: str, made_of: list[str], wanted: set[str],
               make: Callable[[Path, list[str]], None]) -> tuple[Path, list[str]]:
    """The library ``name`` made of some texts, with the instances that it has in their order, at least those ``wanted``.

    ``make`` is called if there is none, with the path for it and with the instances. ``folder`` is used where no other is set.
    """
    # Not on Windows, where nothing is compiled.
    import fcntl

    key = hashlib.sha256("\0".join([_compiler(), *made_of]).encode()).hexdigest()[:32]
    place = Path(os.environ.get(FOLDER) or folder) / f"{name}-{key}"
    place.mkdir(parents=True, exist_ok=True)
    # Another process may be making the same: waiting is cheaper. The lock of a process that is killed is released.
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for library in sorted(place.glob(f"*/{name}.so")):
            instances = library.with_suffix(".txt").read_text().splitlines()
            if wanted <= set(instances):
                return library, instances
        # Not in the place of one that has fewer instances, which a process may have loaded.
        library, instances = Path(tempfile.mkdtemp(dir=place)) / f"{name}.so", sorted(wanted)
        library.with_suffix(".txt").write_text("\n".join(instances))
        unfinished = library.with_suffix(".new")
        make(unfinished, instances)
        unfinished.rename(library)
        return library, instances
