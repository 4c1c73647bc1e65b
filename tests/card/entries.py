"""What a card's functions are made of: which there are, with what arguments, and the errors that they return."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

#: cudaError_t: an argument, no memory, a handle, not done yet, a launch that takes too much, what there is not, a call that
#: ends a capture, a capture that was ended, an address, anything else.
INVALID, NO_MEMORY, GONE, NOT_READY, TOO_MUCH, UNSUPPORTED, CAPTURING, NO_CAPTURE, FAULT, UNKNOWN = (
    1, 2, 400, 600, 701, 801, 900, 901, 700, 999)

#: CUgraphNodeType.
KERNEL, COPY, FILL = 0, 1, 2

#: By name: the type of what a function returns, and those of its arguments.
ENTRIES: dict[str, tuple[Any, tuple[Any, ...]]] = {}


def entry(*types: Any, names: str = "", returns: Any = ctypes.c_int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method that stands for the function of its name, and for those of other names."""

    def note(method: Callable[..., Any]) -> Callable[..., Any]:
        for name in (method.__name__, *names.split()):
            ENTRIES[name] = returns, types
        return method

    return note


def put(address: int, kind: Any, value: Any) -> None:
    kind.from_address(address).value = value
