"""Turns the error that an argument of the wrong type leads to within the library into a TypeError that names the argument.

Arguments are not looked at before a call. Only where an error comes up that no line here has raised are they compared with
the annotations of the function that was called.
"""

from __future__ import annotations

import inspect
import opcode
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from types import NoneType, TracebackType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

#: What is looked for on a tensor first.
_OF_TENSORS = frozenset({"spec", "storage", "edge", "base", "requires_grad", "detach", "device", "dim", "to"})
#: Whose objects are given in a tensor's place.
_IN_ITS_PLACE = frozenset({"builtins", "numpy", "torch", "cupy"})
_RAISE = opcode.opmap["RAISE_VARARGS"]


def blame(function: Any, error: Exception, args: tuple[Any, ...], named: dict[str, Any], name: str = "",
          bound: bool = False) -> None:
    """Raises TypeError, which says it, where an argument of a call has the wrong type, and the error is no line's own.

    ``name`` is the function's where it goes by another. A method is ``bound``: its first argument has no position.
    """
    function = inspect.unwrap(function)
    name, code = name or function.__name__, function.__code__
    positional = code.co_varnames[:code.co_argcount]
    given = {**dict(zip(positional, args, strict=False)), **named}
    places = {k: f"{k!r} (position {at})" for at, k in enumerate(positional, 1 - bound)}
    if isinstance(error, Warning) or not _unforeseen(error.__traceback__):
        return
    hints = get_type_hints(function, localns={"Tensor": _Tensor})
    fits = {k: _fits(x, hints.get(k, Any)) for k, x in given.items()}
    unsure = {k: x for k, x in given.items() if not fits[k]}
    if isinstance(error, AttributeError):
        place = next((places.get(k, "") for k, x in unsure.items() if x is error.obj), "")
        blame_tensor(name, error, (*unsure.values(), *args[len(positional):]), place)
    for k, x in unsure.items():
        if fits[k] is False:
            what = "" if x is None else f": {shown(x):.60}"
            raise TypeError(f"{name}(): argument {places.get(k, repr(k))} must be {_words(hints[k])}, not "
                            f"{type_of(x)}{what}") from None


def blame_tensor(name: str, error: AttributeError, passed: Iterable[Any], place: str = "") -> None:
    """Raises TypeError, which says it, where code of the library has met an array, a list or a number in a tensor's place.

    It came with the arguments that were ``passed``; ``place`` is the one that it was given as, if that is known.
    """
    if (_is_ours([*_path(error.__traceback__)][-1]) and error.name in _OF_TENSORS
            and _package_of(error.obj) in _IN_ITS_PLACE and _came_in(error.obj, passed)):
        kind, given = type_of(error.obj), shown(error.obj)
        # Of an array the shape says more than the first values.
        what = f"(): argument {place} must be Tensor, not {kind}" if place else (
            f"() expects tensors, but got {kind} {list(error.obj.shape)}" if hasattr(error.obj, "shape") else
            f"() expects tensors, but got {given:.60} of type {kind}")
        it = given if place and kind in ("list", "tuple") and len(given) < 60 else "it"
        raise TypeError(f"{name}{what}: convert {it} with gradcore.tensor(...)") from None


class _Texts(reprlib.Repr):
    """Writes no more than a few items of a container, survives a class's own repr, and reads no tensor."""

    def repr1(self, x: Any, level: int) -> str:
        if hasattr(type(x), "spec"):
            return f"Tensor {x.spec}"
        # A named tuple's own repr would read its tensors.
        return self.repr_tuple(x, level) if isinstance(x, tuple) else super().repr1(x, level)


_TEXTS = _Texts()
_TEXTS.maxstring = _TEXTS.maxother = 10 ** 6


def type_of(x: Any) -> str:
    """The name of an object's type: ``list``, ``torch.Tensor``, which is no Tensor here, ``numpy.ndarray``."""
    package, name = _package_of(x), type(x).__name__
    return f"{package}.{name}" if package in _IN_ITS_PLACE - {"builtins"} else name


def _package_of(x: Any) -> str:
    # Classes of proxies have a property there.
    return str(type(x).__module__).partition(".")[0]


def shown(x: Any) -> str:
    """What was given, in one line. A tensor is its spec: its values are many, and may not be read in a trace."""
    return " ".join(_TEXTS.repr(x).split())


def _is_ours(trace: TracebackType) -> bool:
    name: str = trace.tb_frame.f_globals.get("__name__", "")
    return name.startswith(("gradcore.", "numpy."))


def _path(trace: TracebackType | None) -> Iterator[TracebackType]:
    """The places that an error came through, the innermost last."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _unforeseen(trace: TracebackType | None) -> bool:
    """Was the error raised by NumPy or by Python itself, and not by a line of the library that says what is wrong, nor below
    code of the user's that the library called?"""
    inside = [*dropwhile(lambda place: not _is_ours(place), _path(trace))]
    return bool(inside) and all(map(_is_ours, inside)) and (
        inside[-1].tb_frame.f_globals["__name__"].startswith("numpy.")
        or inside[-1].tb_frame.f_code.co_code[inside[-1].tb_lasti] != _RAISE)


def _came_in(x: Any, passed: Iterable[Any]) -> bool:
    """Was the object passed, or an item of a list, tuple or dict? The items of anything else may be new, but are not None."""
    return any(x is a or (_came_in(x, a.values() if isinstance(a, dict) else a) if isinstance(a, (list, tuple, dict))
                          else x is not None and hasattr(a, "__iter__") and not hasattr(a, "spec")) for a in passed)


class _Tensor:
    """What annotations call a tensor."""


#: What the class of an object has that may stand for one of these, as NumPy's numbers and tensors of one element do.
_STANDS_FOR = {_Tensor: ("spec",), int: ("__index__",), float: ("__float__", "__index__"), bool: ("__index__", "__array__")}


def _fits(x: Any, hint: Any) -> bool | None:
    """May ``x`` be given for this annotation? None if that is not known: for what is not understood here, and for the items of
    an iterable that may run code of its own.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        found = {_fits(x, part) for part in parts}
        return True in found or (None if None in found else False)
    if kind in (Sequence, Iterable, list, tuple):
        if isinstance(x, (list, tuple)):
            return all(_fits(item, parts[0]) is not False for item in x)
        return None if hasattr(x, "__iter__") and not isinstance(x, str) else False
    if hint in _STANDS_FOR:
        return any(hasattr(type(x), name) for name in _STANDS_FOR[hint])
    return isinstance(x, hint) if isinstance(hint, type) and hint is not Any else None


def _words(hint: Any) -> str:
    """An annotation in words: "int, sequence of int or None"."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        *others, last = (_words(part) for part in parts)
        return f"{', '.join(others)} or {last}"
    if kind in (Sequence, Iterable, list, tuple):
        return "sequence" if parts[0] is Any else f"sequence of {_words(parts[0])}"
    return "None" if hint is NoneType else str(getattr(hint, "__name__", hint)).lstrip("_")
