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
    place = _place(folder, name, made_of)
    place.mkdir(parents=True, exist_ok=True)
    #: Of makers that failed or were killed.
    unfinished: set[Path] = set()
    while True:
        with contextlib.ExitStack() as making:
            with _locked(place / "lock"):
                own = next((own for own, instances in _listed(place, name)
                            if own not in unfinished and wanted <= set(instances)), None)
                mine = own is None
                if own is None:
                    # Not in the place of one that has fewer instances, which a process may have loaded.
                    own = Path(tempfile.mkdtemp(dir=place))
                    making.enter_context(_locked(own / "lock"))
                    (own / f"{name}.txt").write_text("\n".join(sorted(wanted)))
            library = own / f"{name}.so"
            if mine:
                make(own / f"{name}.new", sorted(wanted))
                (own / f"{name}.new").rename(library)
                return library, sorted(wanted)
        # Another process may be making it: waiting is cheaper. One that makes other instances is not waited for.
        with _locked(own / "lock"):
            if library.exists():
                return library, library.with_suffix(".txt").read_text().splitlines()
        unfinished.add(own)


def libraries(folder: Path, name: str, made_of: list[str]) -> list[tuple[Path, list[str]]]:
    """The libraries ``name`` made of some texts that there are, with their instances."""
    listed = _listed(_place(folder, name, made_of), name)
    return [(own / f"{name}.so", instances) for own, instances in listed if (own / f"{name}.so").exists()]


def _place(folder: Path, name: str, made_of: list[str]) -> Path:
    key = hashlib.sha256("\0".join([_compiler(), *made_of]).encode()).hexdigest()[:32]
    return Path(os.environ.get(FOLDER) or folder) / f"{name}-{key}"


def _listed(place: Path, name: str) -> list[tuple[Path, list[str]]]:
    """By folder of a library that is made or being made: its instances."""
    return [(path.parent, path.read_text().splitlines()) for path in sorted(place.glob(f"*/{name}.txt"))]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Within the block, no other process holds this lock; that of a process that is killed is released."""
    # Not on Windows, where nothing is compiled.
    import fcntl

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
