"""The CPU's kernels of in-place ops, made from those of the functional ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.kernels.erf import erf_piece
from gradcore.devices.host.scratch import over
from gradcore.overwriting import OVERWRITING


def _written(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an in-place op: that of the functional op, with the first operand as its output."""
    if isinstance(kernel, np.ufunc):
        # A call with unpacked arguments takes a ufunc half a microsecond longer.
        return (lambda x: kernel(x, x, casting="unsafe")) if kernel.nin == 1 else lambda x, y: kernel(x, y, x, casting="unsafe")
    return lambda x, *others, **attrs: kernel(x, *others, x, **attrs)


def in_place_kernels(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """A kernel for each in-place op, made from those of the functional ops in ``table``."""
    # That of erf has a workspace, which the in-place op does not declare.
    table = table | {"erf": lambda x, out: over(erf_piece, (x,), out, "xxxx")}
    made = {f"{name}_": _written(table[name]) for name in OVERWRITING}
    for name, kernel in made.items():
        kernel.__name__ = name
    return made
