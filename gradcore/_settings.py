"""Settings that scripts for PyTorch make: they are remembered, and change nothing here."""

from __future__ import annotations

import os

_threads = [int(os.environ.get("OMP_NUM_THREADS") or 0) or os.cpu_count() or 1]
_deterministic = [False]


def set_num_threads(num: int) -> None:
    """Remember a number of threads. NumPy's own are chosen by the environment's OMP_NUM_THREADS, before it is imported.

    Raises RuntimeError for a number below 1, TypeError for what is no int.
    """
    if not isinstance(num, int) or isinstance(num, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(num).__name__}")
    if num < 1:
        raise RuntimeError("set_num_threads expects a positive integer")
    _threads[0] = num


def get_num_threads() -> int:
    """What :func:`set_num_threads` was given last, and before that OMP_NUM_THREADS, or the number of processors."""
    return _threads[0]


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Remember the mode: kernels add in the same order in every run, whatever it is."""
    _deterministic[0] = bool(mode)


def are_deterministic_algorithms_enabled() -> bool:
    """What :func:`use_deterministic_algorithms` was given last."""
    return _deterministic[0]
