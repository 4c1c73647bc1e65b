"""``assert_close``, with PyTorch's tolerances and texts. It reads tensors on the host, and so allocates no device memory."""

from __future__ import annotations

import cmath
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.functional.types import promote_types

#: (rtol, atol) by the name of a dtype; others are compared for equality.
_TOLERANCES = {"float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
_NUMBERS = {int: "int64", float: "float64", complex: "float64"}
_UNSIGNED = ("uint16", "uint32", "uint64")

Array = np.ndarray[Any, Any]


class _Differs(Exception):
    """What ``assert_close`` is to raise, with the keys of the item in the containers."""

    def __init__(self, kind: type[Exception], text: str, at: tuple[Any, ...]) -> None:
        super().__init__(text)
        self.kind, self.text, self.at = kind, text, at

    def error(self, msg: Any) -> Exception:
        if isinstance(msg, str):
            return self.kind(msg)
        where = f"\n\nThe failure occurred for item {''.join(str([key]) for key in self.at)}" if self.at else ""
        return self.kind(msg(self.text + where) if callable(msg) else self.text + where)


def assert_close(actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None,
                 atol: float | None = None, equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True,
                 check_layout: bool = True, check_stride: bool = False,
                 msg: str | Callable[[str], str] | None = None) -> None:
    """Raise AssertionError unless ``|actual - expected| <= atol + rtol * |expected|`` for each element.

    ``actual`` and ``expected`` are tensors, what :func:`gradcore.as_tensor` takes, numbers, None, or sequences and mappings
    of them. Tolerances are by default PyTorch's for the dtype, the looser ones of two: equality for integers. NaN is close to
    NaN only with ``equal_nan``. Devices and dtypes must agree, with ``check_stride`` strides too; of meta tensors only those
    are compared. ``check_layout`` has no effect. ``msg`` replaces the text, or makes it from PyTorch's, except of what cannot
    be compared: containers of different lengths or keys, and objects of different types.
    """
    __tracebackhide__ = True
    said = None
    try:
        # First, as in PyTorch, what cannot be compared.
        pairs = [_Compared(*pair, allow_subclasses, rtol, atol) for pair in _pairs(actual, expected, ())]
        said = msg
        for pair in pairs:
            pair.compare(equal_nan, check_device, check_dtype, check_stride)
    except _Differs as error:
        raise error.error(said) from None


def _pairs(actual: Any, expected: Any, at: tuple[Any, ...]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """What is to be compared, of containers item by item."""
    if all(isinstance(x, Sequence) and not isinstance(x, str) for x in (actual, expected)):
        if len(actual) != len(expected):
            raise _Differs(AssertionError, f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", at)
        for k in range(len(actual)):
            yield from _pairs(actual[k], expected[k], (*at, k))
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        ours, theirs = set(actual), set(expected)
        if ours != theirs:
            raise _Differs(AssertionError, "The keys of the mappings do not match:\n"
                           f"Missing keys in the actual mapping: {sorted(theirs - ours)}\n"
                           f"Additional keys in the actual mapping: {sorted(ours - theirs)}", at)
        keys: Any = ours
        with contextlib.suppress(TypeError):
            keys = sorted(ours)
        for key in keys:
            yield from _pairs(actual[key], expected[key], (*at, key))
    else:
        yield actual, expected, at


class _Compared:
    """Two things that are no containers. Raises :class:`_Differs` with a TypeError if they are of kinds that do not compare."""

    def __init__(self, actual: Any, expected: Any, at: tuple[Any, ...], subclasses: bool, rtol: float | None,
                 atol: float | None) -> None:
        self.at = at
        both: tuple[Any, ...] = actual, expected
        self.plain = any(x is None for x in both) or all(isinstance(x, (bool, np.bool_)) for x in both)
        self.numbers = not self.plain and all(isinstance(x, (int, float, complex, np.number)) for x in both)
        if self.numbers:
            both = tuple(x.item() if isinstance(x, np.number) else x for x in both)
        elif not self.plain:
            related = isinstance(actual, type(expected)) or isinstance(expected, type(actual))
            alike = related and (subclasses or type(actual) is type(expected))
            if alike:
                with contextlib.suppress(Exception):
                    both = tuple(x if isinstance(x, Tensor) else functional.as_tensor(x) for x in both)
            if not alike or not all(isinstance(x, Tensor) for x in both):
                raise _Differs(TypeError, "No comparison pair was able to handle inputs of type "
                               f"{type(actual)} and {type(expected)}.", at)
        self.actual, self.expected = both
        if self.plain:
            return
        if (rtol is None) != (atol is None):
            raise _Differs(ValueError, "Both 'rtol' and 'atol' must be either specified or omitted, but got no "
                           f"{'rtol' if rtol is None else 'atol'}.", at)
        names = [_NUMBERS.get(type(x), "") if self.numbers else x.dtype.name for x in both]
        usual = [_TOLERANCES.get(name, (0.0, 0.0)) for name in names]
        self.rtol = max(r for r, _ in usual) if rtol is None else rtol
        self.atol = max(a for _, a in usual) if atol is None else atol

    def compare(self, equal_nan: bool, check_device: bool, check_dtype: bool, check_stride: bool) -> None:
        a, b = self.actual, self.expected
        if self.plain:
            if a is None or b is None:
                self._require(a is b, f"None mismatch: {a} is not {b}")
            self._require(bool(a) is bool(b), f"Booleans mismatch: {a} is not {b}")
        elif self.numbers:
            self._require(not check_dtype or type(a) is type(b), f"The (d)types do not match: {type(a)} != {type(b)}.")
            nans = equal_nan and cmath.isnan(a) and cmath.isnan(b)
            close = cmath.isfinite(abs(a - b)) and abs(a - b) <= self.atol + self.rtol * abs(b)
            self._require(a == b or nans or close, self._of_numbers(a, b))
        else:
            self._compare_tensors(equal_nan, check_device, check_dtype, check_stride)

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            raise _Differs(AssertionError, text, self.at)

    def _compare_tensors(self, equal_nan: bool, check_device: bool, check_dtype: bool, check_stride: bool) -> None:
        a, b = self.actual, self.expected
        for name, ours, theirs, checked in (
                ("shape", a.shape, b.shape, True), ("stride()", a.stride(), b.stride(), check_stride),
                ("device", a.device, b.device, check_device), ("dtype", a.dtype, b.dtype, check_dtype)):
            self._require(not checked or ours == theirs,
                          f"The values for attribute '{name}' do not match: {ours} != {theirs}.")
        if a.is_meta or b.is_meta:
            return
        x, y = (np.asarray(t.detach().cpu().numpy()) for t in (a, b))
        if x.dtype != y.dtype:
            common = promote_types(*(np.dtype(np.int64) if v.dtype.name in _UNSIGNED else v.dtype for v in (x, y)))
            x, y = x.astype(common), y.astype(common)
        with np.errstate(all="ignore"):
            matches = self._close(x, y, equal_nan)
            if matches.all():
                return
            self._require(False, self._of_numbers(x.item(), y.item()) if not x.ndim else self._of_arrays(x, y, matches))

    def _close(self, x: Array, y: Array, equal_nan: bool) -> Array:
        close: Array = np.asarray(x == y)
        if equal_nan:
            close = close | ((x != x) & (y != y))
        if not self.rtol and not self.atol:
            return close
        if x.dtype.kind in "biu":
            x, y = (v.astype(functional.get_default_dtype()) for v in (x, y))
        error = np.abs(x - y)
        return np.asarray(close | (np.isfinite(error) & (error <= self.atol + np.abs(self.rtol * y))))

    def _of_numbers(self, a: Any, b: Any) -> str:
        error = abs(a - b)
        share = float("inf") if b == 0 else error / abs(b)
        return self._text("Scalars", f"Expected {b} but got {a}.", error, None, share, None)

    def _of_arrays(self, x: Array, y: Array, matches: Array) -> str:
        wrong, count = matches.size - int(matches.sum()), matches.size
        if x.dtype.kind in "biu":
            x, y = x.astype(np.int64), y.astype(np.int64)
        error = np.where(matches, x.dtype.type(0), np.abs(x - y))
        size = np.abs(y)
        if x.dtype.kind == "i":
            share = error.astype(functional.get_default_dtype()) / size.astype(functional.get_default_dtype())
        else:
            share = error / size
        share = np.where(matches, share.dtype.type(0), share)
        places = [tuple(map(int, np.unravel_index(int(np.argmax(v)), v.shape))) for v in (error, share)]
        return self._text("Tensor-likes", f"Mismatched elements: {wrong} / {count} ({wrong / count:.1%})",
                          error[places[0]].item(), places[0], share[places[1]].item(), places[1])

    def _text(self, what: str, extra: str, error: Any, at: Any, share: Any, share_at: Any) -> str:
        equality = not self.rtol and not self.atol

        def line(kind: str, value: Any, place: Any, allowed: float) -> str:
            text = (f"{kind.title()} difference: {value}" if place is None else
                    f"Greatest {kind} difference: {value} at index {place}")
            return text if equality else f"{text} (up to {allowed} allowed)"

        return (f"{what} are not {'equal' if equality else 'close'}!\n\n{extra}\n{line('absolute', error, at, self.atol)}\n"
                f"{line('relative', share, share_at, self.rtol)}")
