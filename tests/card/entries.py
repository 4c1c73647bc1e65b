"""The table of the simulated GPU's functions, with the types of their arguments, and the error codes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

#: cudaError_t: invalid argument, out of memory, invalid handle, not ready, too many resources for a launch, unsupported, a call
#: that invalidates a capture, an invalidated capture, an illegal address, unknown.
INVALID, NO_MEMORY, GONE, NOT_READY, TOO_MUCH, UNSUPPORTED, CAPTURING, NO_CAPTURE, FAULT, UNKNOWN = (
    1, 2, 400, 600, 701, 801, 900, 901, 700, 999)

#: CUgraphNodeType.
KERNEL, COPY, FILL = 0, 1, 2

#: By name: the type of a function's result, and those of its arguments.
ENTRIES: dict[str, tuple[Any, tuple[Any, ...]]] = {}


def entry(*types: Any, names: str = "", returns: Any = ctypes.c_int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of a method that implements the function of its name, and of further names."""

    def note(method: Callable[..., Any]) -> Callable[..., Any]:
        for name in (method.__name__, *names.split()):
            ENTRIES[name] = returns, types
        return method

    return note


def put(address: int, kind: Any, value: Any) -> None:
    kind.from_address(address).value = value
