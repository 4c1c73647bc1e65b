"""``gradcore.cuda.nvtx``: ranges and marks by which a profiler such as Nsight Systems shows the parts of a program.

Without a GPU no profiler listens: then ranges are counted, so that depths are the same, and nothing else happens.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradcore.devices.availability import cuda_status

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


class _Open(threading.local):
    #: How many ranges this thread has pushed and not popped.
    count = 0


_open = _Open()
_handles = itertools.count(1)


def range_push(msg: str) -> int:
    """Begin a range within those that this thread has begun. Returns its depth, 0 for the outermost."""
    nvtx = _library("range_push", msg)
    if nvtx is not None:
        nvtx.RangePush(msg)
    _open.count += 1
    return _open.count - 1


def range_pop() -> int:
    """End the range that this thread has pushed last. Returns its depth, or -2 if there is none, as NVTX does."""
    if not _open.count:
        return -2
    nvtx = _library("range_pop", "")
    if nvtx is not None:
        nvtx.RangePop()
    _open.count -= 1
    return _open.count


def range_start(msg: str) -> int:
    """Begin a range that any thread may end. Returns its handle for :func:`range_end`."""
    nvtx = _library("range_start", msg)
    # CuPy's takes a color.
    return next(_handles) if nvtx is None else int(nvtx.RangeStart(msg, 0xFF888888))


def range_end(range_id: int) -> None:
    """End the range of a handle that :func:`range_start` has returned."""
    nvtx = _library("range_end", "")
    if nvtx is not None:
        nvtx.RangeEnd(range_id)


def mark(msg: str) -> None:
    """Mark a moment."""
    nvtx = _library("mark", msg)
    if nvtx is not None:
        nvtx.Mark(msg)


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A context manager or decorator: a range around the block, or each call, named ``msg.format(*args, **kwargs)``."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


def _library(name: str, msg: Any) -> Any:
    """CuPy's functions of NVTX, None without a GPU. Raises TypeError for a text that is none."""
    if not isinstance(msg, str):
        raise TypeError(f"{name}(): msg must be a str, but got {type(msg).__name__}")
    if not cuda_status().available:
        return None
    from cupy.cuda import nvtx

    return nvtx
