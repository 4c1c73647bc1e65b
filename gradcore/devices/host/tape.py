"""Writes CPU kernels out as the NumPy calls that they make on given arrays, so that a replay skips their Python code.

A kernel that branches only on shapes and attributes makes the same calls each time. It is run once on probes, arrays that
record operations instead of doing them; the result are the calls, bound to the arrays' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradcore.devices.calls import Changing, KernelCall

#: Ops whose kernels read no values, which tests check. Kernels of other ops are called themselves.
STRAIGHT = frozenset((
    "add", "sub", "mul", "div", "neg", "reciprocal", "exp", "sqrt", "square", "tanh", "maximum", "minimum", "add_", "sub_",
    "mul_", "div_", "fill_", "copy_", "full", "clone", "cast", "linear", "linear_grad", "matmul", "relu", "relu_grad",
    "tanh_grad", "sum", "amax", "mean", "sgd_", "layer_norm", "layer_norm_apply", "layer_norm_grad", "rms_norm",
    "rms_norm_grad", "batch_norm_apply", "gelu", "gelu_grad", "attention", "attention_grad"))

#: The most calls of a kernel that is written out; beyond that its own Python code costs little in comparison.
MOST = 1024


class TooLong(Exception):
    """Raised if a kernel makes more than :data:`MOST` calls."""


class Probe(np.ndarray):
    """An array whose operations are recorded on the tape instead of being done."""

    tape: list[KernelCall]

    def __array_finalize__(self, source: Any) -> None:
        self.tape = getattr(source, "tape", [])

    def _note(self, function: Callable[..., Any], *args: Any) -> None:
        if len(self.tape) >= MOST:
            raise TooLong
        self.tape.append((function, [plain(a) for a in args]))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out, = options.pop("out", (None,))
        if out is None or method not in ("__call__", "reduce"):
            raise TypeError(f"{ufunc.__name__}.{method} makes an array of its own")
        if method == "reduce":
            self._note(ufunc.reduce, *inputs, options.pop("axis", 0), options.pop("dtype", None), out,
                       options.pop("keepdims", False))
        elif options or len(inputs) + 1 != ufunc.nargs or ufunc in (np.maximum, np.minimum):
            self._note(partial(ufunc, out=plain(out), **options), *inputs)
            options = {}
        else:
            self._note(ufunc, *inputs, out)
        if options:
            raise TypeError(f"{ufunc.__name__}.{method} with {options}")
        return out

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.copyto:
            self._note(partial(np.copyto, **kwargs), *args)
            return None
        if function is np.dot:
            self._note(function, *args)
            return None
        if function is np.may_share_memory:
            return function(*map(plain, args))
        if function is np.amax:
            return np.maximum.reduce(*args, **kwargs)
        raise TypeError(f"{function.__name__} is not written out")

    def astype(self, *args: Any, **options: Any) -> Any:
        """Raise TypeError: the copy would have the present values, and the tape could not repeat it."""
        raise TypeError("astype makes an array of its own")

    copy = astype

    def tolist(self, *args: Any) -> Any:
        """Raise TypeError: a kernel that reads values may make other calls next time."""
        raise TypeError("values are not known before a run")

    item = tobytes = __bool__ = __int__ = __float__ = __index__ = tolist  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return part if isinstance(part, np.ndarray) else self.tolist()

    def __setitem__(self, key: Any, value: Any) -> None:
        key = key if isinstance(key, tuple) else (key,)
        # With an ellipsis the result is an array even if all dimensions are indexed by integers.
        self._note(partial(np.copyto, casting="unsafe"), self[key if any(k is ... for k in key) else (*key, ...)], value)

    def fill(self, value: Any) -> None:
        self._note(plain(self).fill, value)


def plain(x: Any) -> Any:
    """The plain array behind a probe; other objects unchanged."""
    return x.view(np.ndarray) if isinstance(x, Probe) else x


def written_out(op: str, kernel: Callable[..., Any], args: Sequence[Any]) -> list[KernelCall] | None:
    """The calls that ``kernel`` makes on ``args``, which are not touched; None if it has to be called itself."""
    return noted(kernel, args) if op in STRAIGHT else None


def noted(kernel: Callable[..., Any], args: Sequence[Any]) -> list[KernelCall] | None:
    """The calls of a kernel that reads no values, None if one of them cannot be recorded."""
    tape: list[KernelCall] = []
    probes: list[Any] = []
    for a in args:
        if isinstance(a, np.ndarray):
            probe = a.view(Probe)
            probe.tape = tape
            probes.append(probe)
        else:
            probes.append(a)
    try:
        kernel(*probes)
        cells: dict[Any, Any] = {}
        return [(function, _with_cells(function, operands, cells)) for function, operands in tape]
    except (TooLong, TypeError):
        return None
    finally:
        # The tape has arrays that refer to probes, which refer to the tape: the collector does not look into arrays.
        tape.clear()


def _with_cells(function: Callable[..., Any], operands: list[Any], cells: dict[Any, Any]) -> list[Any]:
    """Operands with 0-d arrays in place of numbers, which a ufunc would convert at each call.

    With arrays of one dtype, a number is converted to that dtype, whatever the dtype of the output.
    """
    ufunc = function.func if isinstance(function, partial) else function
    types = {a.dtype for a in operands[:getattr(ufunc, "nin", None)] if isinstance(a, np.ndarray)}
    if not isinstance(ufunc, np.ufunc) or len(types) != 1 or next(iter(types)).kind not in "fi":
        return operands
    dtype, = types
    numbers = (int, float, Changing) if dtype.kind == "f" else (int,)
    return [_cell(x, dtype, cells) if type(x) in numbers else x for x in operands]


def _cell(x: Any, dtype: np.dtype[Any], cells: dict[Any, Any]) -> Any:
    # Keyed by text, since 0.0 and -0.0 are equal.
    key = (id(x) if type(x) is Changing else str(x), dtype)
    if key not in cells:
        cells[key] = np.asarray(x, dtype)
        if type(x) is Changing:
            x.cells.append(cells[key])
        else:
            cells[key].flags.writeable = False
    return cells[key]
