"""PyTorch's settings of threads and determinism, which are remembered and change nothing here."""

from __future__ import annotations

import os

#: OpenMP takes a list, too, of a number for each level of nested regions, and goes on without one that is none.
_asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
_threads = [int(_asked if _asked.isdecimal() else 0) or os.cpu_count() or 1]
#: Whether algorithms are to be deterministic, and whether others only warn.
_deterministic = [False, False]


def set_num_threads(num: int) -> None:
    """Remember a number of threads. NumPy's own number is set by the variable OMP_NUM_THREADS before it is imported.

    Raises RuntimeError for a number below 1, TypeError for anything but an int.
    """
    if not isinstance(num, int) or isinstance(num, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(num).__name__}")
    if num < 1:
        raise RuntimeError("set_num_threads expects a positive integer")
    _threads[0] = num


def get_num_threads() -> int:
    """The number last given to :func:`set_num_threads`, by default OMP_NUM_THREADS or the number of processors."""
    return _threads[0]


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Remember the mode. It changes nothing: kernels add in the same order in every run."""
    _deterministic[:] = bool(mode), bool(warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """The mode last given to :func:`use_deterministic_algorithms`."""
    return _deterministic[0]


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """The ``warn_only`` last given to :func:`use_deterministic_algorithms`."""
    return _deterministic[1]
