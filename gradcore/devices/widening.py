"""Floats of 16 bits on the CPU: a kernel computes in float32 on copies, and its results are rounded once.

NumPy adds up, multiplies matrices and evaluates functions in float16 and bfloat16 step by step, rounding each time, or not
at all. The copies are no part of the device's account, which a GPU that computes in registers must agree with: they stand
beside it, with what libraries allocate for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.device import Narrow

#: Ops that move values and compute nothing: NumPy runs them on any dtype.
MOVES = frozenset("""cast cat cleared clone copy_ empty eye fill_ full masked_fill_ put_ put_along_ roll slice_grad take tril
    triu where write_part""".split())
#: A number beside a tensor is compared as what the tensor's dtype makes of it.
_COMPARED = frozenset("eq ne lt le gt ge eq_ ne_ lt_ le_ gt_ ge_".split())
_FLOAT = np.dtype(np.float32)


def widened(kernel: Callable[..., Any], call: Narrow) -> tuple[Callable[..., Any], int]:
    """The kernel on float32 copies of what is narrower, and how many bytes they take at most."""
    if call.op in MOVES:
        return kernel, 0
    count = len(call.inputs)
    narrow = [isinstance(s, type) is False and s.narrow for s in call.inputs]
    made = [s.narrow for s in call.outputs]
    rounded = next((s.dtype for s, n in zip(call.inputs, narrow, strict=True) if n), None) if call.op in _COMPARED else None
    written = [k for k in call.writes if narrow[k]]

    def run(*arrays: Any, **attrs: Any) -> None:
        inputs = [a.astype(_FLOAT) if n else a for a, n in zip(arrays, narrow, strict=False)]
        if rounded is not None:
            inputs = [a if isinstance(a, np.ndarray) else float(rounded.type(a)) for a in inputs]
        results = arrays[count:count + len(made)]
        outputs = [np.empty(a.shape, _FLOAT) if n else a for a, n in zip(results, made, strict=True)]
        room = () if call.workspace is None else (np.empty(call.workspace, np.uint8),)
        kernel(*inputs, *outputs, *room, **attrs)
        for k in written:
            arrays[k][...] = inputs[k]
        for a, value in zip(results, outputs, strict=True):
            if a is not value:
                a[...] = value

    wide = [s for s, n in zip((*call.inputs, *call.outputs), (*narrow, *made), strict=True) if n]
    return run, sum(4 * s.numel for s in wide) + (call.workspace or 0)
