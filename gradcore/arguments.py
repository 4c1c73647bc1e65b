"""PyTorch arguments that a function here does not name: NumPy's spellings, sizes by keyword, and those not covered.

PyTorch takes ``axis=`` for ``dim=``, and ``size=`` for the sizes that may stand in a row; a result is copied to the tensor
that is given as ``out=``. What else it takes, by the names in ``torch_arguments.txt`` beside this file, is ignored where it is
None or False, and raises NotImplementedError otherwise. A call with keywords that the function names, or with none, is handed
on as it is.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, wraps
from types import FunctionType
from typing import Any

from gradcore.blame import blame, type_of
from gradcore.missing import sections

#: Second names of parameters, as PyTorch takes them.
ALIASES = {"axis": "dim", "keepdims": "keepdim", "sections": "indices_or_sections",
           "indices": "indices_or_sections", "split_size": "split_size_or_sections",
           "tensor_indices_or_sections": "indices_or_sections"}
#: The same of single functions.
OWN_ALIASES = {"max": {"other": "dim"}, "min": {"other": "dim"}, "uniform_": {"from": "a", "to": "b"},
               "swapaxes": {"axis0": "dim0", "axis1": "dim1"}, "copy_": {"other": "src"},
               "isin": {"element": "elements", "test_element": "test_elements"}}
#: Arguments of PyTorch's that change nothing here, whatever is said.
HARMLESS = frozenset({"_stacklevel", "layout", "memory_format", "implicit", "cudnn_enable", "cudnn_enabled"})
#: What to write instead.
INSTEAD = {
    "generator": "use gradcore.rand or randn with the same shape",
    "sparse": "gradients are dense",
    "antialias": "blur with gradcore.nn.functional.avg_pool2d first",
    "out_dtype": "convert the operands with x.to(dtype)",
    "pin_memory": "call x.pin_memory() on the result",
    "dtype": "convert with x.to(dtype)"}


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn about the first line outside of the package that is being run: the default filter shows each line's warning once."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gradcore."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def with_name(function: Any, name: str, doc: str) -> Any:
    """A function that was made for a name, with this name and a docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def by_reduction(named: dict[str, Any], depth: int) -> dict[str, Any]:
    """Arguments of a loss, with ``reduction`` for the two that PyTorch had before it, and still takes: with a warning about the
    line ``depth`` calls up."""
    older = {name: named[name] for name in ("size_average", "reduce") if name in named}
    if not older:
        return named
    kept = {name: value for name, value in named.items() if name not in older}
    if any(value is not None for value in older.values()):
        off = [name for name, value in older.items() if value is not None and not value]
        kept["reduction"] = "none" if "reduce" in off else "sum" if off else "mean"
        warnings.warn("size_average and reduce args will be deprecated, please use "
                      f"reduction={kept['reduction']!r} instead.", stacklevel=depth + 1)
    return kept


def older_order(function: Callable[..., Any], skipped: int = 0) -> tuple[str, ...]:
    """The names of a loss's parameters as PyTorch orders them, with the two that it had before ``reduction``; without the first
    ``skipped``.
    """
    code = inspect.unwrap(function).__code__
    names = list(code.co_varnames[skipped:code.co_argcount])
    if "reduction" not in names:
        return tuple(names)
    at = names.index("reduction")
    names.insert(at, "reduce")
    # It came in before these.
    names.insert(at - (names[at - 1] in ("ignore_index", "eps")), "size_average")
    return tuple(names)


def older_named(order: tuple[str, ...], args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a loss, by name from the place of ``size_average`` on. Raises TypeError for one that is given twice."""
    first = order.index("size_average") if "size_average" in order else len(order)
    if len(args) <= first or len(args) > len(order):
        return args, named
    by_place = dict(zip(order[first:], args[first:], strict=False))
    twice = by_place.keys() & named.keys()
    if twice:
        raise TypeError(f"got multiple values for argument {min(twice)!r}")
    return args[:first], {**by_place, **named}


def in_todays_order(name: str, count: int, *given: Any) -> tuple[Any, ...]:
    """The ``count`` operands of an older call, ``x.add_(factor, y)``, and the factor, which is a keyword today.

    It warns, as PyTorch does. Raises TypeError for operands that are too many otherwise.
    """
    factor, *tensors = given
    if len(tensors) != count or not isinstance(factor, (int, float)):
        raise TypeError(f"{name}() takes {count} operand{'s' * (count > 1)}, but got {len(given)}")
    keyword = "alpha" if count == 1 else "value"
    # The caller of the caller's wrapper.
    warnings.warn(f"This overload of {name} is deprecated: write {keyword}={factor!r} behind the operands", stacklevel=4)
    return *tensors, factor


def refusal(name: str, argument: str) -> NotImplementedError:
    """The error for an argument of PyTorch's that is not here: it names it, and what to write instead."""
    instead = INSTEAD.get(argument, "see docs/ops.md and docs/pytorch.md for what is supported")
    return NotImplementedError(f"{name}(): PyTorch's argument {argument!r} is not implemented by gradcore: {instead}")


#: Kinds of dtypes: a result is not copied to a tensor of a lower one.
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2}


def into(name: str, out: Any, made: Any) -> Any:
    """The tensors given as ``out=``, with the values of a result in them, in the dtype that they have.

    One without elements takes the result's shape. Raises TypeError for what is no tensor, ValueError for another number of
    them, RuntimeError for another shape, for floats that would become integers, and where one of them requires a gradient.
    """
    if isinstance(made, tuple):
        outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(outs) != len(made):
            raise ValueError(f"{name}(): argument 'out' must be {len(made)} tensors, but got {len(outs)}")
        outs = tuple(into(name, *pair) for pair in zip(outs, made, strict=True))
        return type(made)(*outs) if hasattr(made, "_fields") else outs
    if not hasattr(out, "copy_"):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type_of(out)}")
    # Within no_grad, what shows a tensor that requires a gradient requires none.
    if made.requires_grad or (out.requires_grad and out.view_as(out).requires_grad):
        raise RuntimeError(f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of "
                           "the arguments requires grad.")
    if _RANKS[made.dtype.kind] > _RANKS[out.dtype.kind]:
        raise RuntimeError(f"{name}(): result type {made.dtype.name} can't be cast to the desired output type {out.dtype.name}")
    if out.shape == made.shape:
        return out.copy_(made)
    if out.numel():
        raise RuntimeError(f"{name}(): the result has shape {list(made.shape)}, but out has {list(out.shape)}: give one of the "
                           "result's shape, or one without elements")
    out.data = made.to(out, copy=True)
    return out


def by_numpy(function: Callable[..., Any], input: Any, dim: Any, keepdim: bool, dtype: Any, axis: Any, keepdims: bool,
             out: Any) -> Any:
    """A reduction that names NumPy's spellings and ``out`` itself, for it is called too often to be wrapped."""
    if dim is not None and axis is not None:
        raise TypeError(f"{function.__name__}() got multiple values for argument 'dim'")
    made = function(input, axis if dim is None else dim, keepdim or keepdims, dtype=dtype)
    return made if out is None else into(function.__name__, out, made)


@cache
def torch_arguments() -> dict[str, dict[str, frozenset[str]]]:
    """The arguments of PyTorch's functions and methods: by the path of their module or class, then by name."""
    return {path: {name: frozenset(names.split()) for name, _, names in (line.partition(":") for line in lines.splitlines())}
            for path, lines in sections("torch_arguments.txt").items()}


@dataclass(frozen=True)
class Form:
    """What a function takes: its parameters, their second names, and what it leaves to PyTorch."""

    name: str
    parameters: tuple[str, ...]
    #: Those that may be given by position; one before a row.
    positional: tuple[str, ...]
    aliases: dict[str, str]
    #: The parameter that takes what stands in a row, if there is one, and the names that single operands in it have.
    star: str | None
    operands: tuple[str, ...]
    absent: frozenset[str]
    #: Is it a method, whose first parameter has no position?
    bound: bool

    def normal(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by the names that the function has. Raises NotImplementedError for one that it has not."""
        kept: dict[str, Any] = {}
        row: list[Any] = []
        if "reduction" in self.parameters:
            named = by_reduction(named, 3)
        for name, value in named.items():
            real = self.aliases.get(name, name)
            if real in kept or (real != name and real in named):
                raise TypeError(f"{self.name}() got multiple values for argument {real!r}")
            if name == self.star:
                # None of them is said by (), too.
                row.extend((value or (value,)) if isinstance(value, (tuple, list)) else (value,))
            elif real in self.parameters or name in self.operands or name not in self.absent:
                kept[real] = value
            elif not (value is None or value is False or name in HARMLESS):
                raise refusal(self.name, name)
        row.extend(kept.pop(name) for name in self.operands if name in kept)
        if row and not args:
            args = tuple(kept.pop(name) for name in self.positional[:1] if name in kept)
        return (*args, *row), kept


def form_of(function: Any, path: str, name: str) -> Form:
    """The form of a function that PyTorch has at ``path`` by this name."""
    # A signature costs as much as the import of a module, for each of hundreds of functions.
    code = inspect.unwrap(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:count]
    known = torch_arguments().get(path, {}).get(name, frozenset())
    operands = getattr(function, "operands", ())
    row = code.co_varnames[count] if code.co_flags & inspect.CO_VARARGS else None
    star = row if row in known or operands else None
    aliases = {a: real for a, real in (ALIASES | OWN_ALIASES.get(name, {})).items() if real in names and a not in names}
    if names[:1] in (("A",), ("x",), ("self",), ("tensor",)):
        aliases["input"] = names[0]
    return Form(name, names, names[:code.co_argcount], aliases, star, operands,
                known - {*names, *aliases, star, *operands}, path == "Tensor")


def lenient(function: Callable[..., Any], path: str, name: str) -> Callable[..., Any]:
    """The function, taking PyTorch's other arguments; itself where there are none."""
    form = form_of(function, path, name)
    if "size_average" in form.absent:
        return _loss(function, form)
    if not (form.aliases or form.star or form.absent or _meets_tensors(function, form)):
        return function
    plain = frozenset(form.parameters)
    # What makes a tensor makes it like the one that it is for.
    has_out, makes = "out" in form.absent, plain.issuperset(("dtype", "device"))

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            if named:
                if not plain.issuperset(named):
                    if has_out and named.get("out") is not None:
                        out = named.pop("out")
                        if makes and named.get("dtype") is None and hasattr(out, "dtype"):
                            named.update(dtype=out.dtype, device=out.device)
                        return into(name, out, call(*args, **named))
                    args, named = form.normal(args, named)
                return function(*args, **named)
            return function(*args)
        except Exception as error:
            blame(function, error, args, named, form.name, form.bound)
            raise

    return call


def _meets_tensors(function: Any, form: Form) -> bool:
    """Are there operands of the function's that may be something else, and that no op looks at?

    A method has a tensor as its first one. A function that names ``out`` itself is called too often to be wrapped.
    """
    kinds = [kind for name, kind in function.__annotations__.items() if name != "return"]
    in_place = form.name.endswith("_") and not form.bound
    return in_place or ("out" not in form.parameters and any("Tensor" in kind for kind in kinds[form.bound:]))


def _loss(function: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """A loss that takes its arguments in PyTorch's order."""
    order, plain = older_order(function), frozenset(form.parameters)

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            args, named = older_named(order, args, named)
            if not plain.issuperset(named):
                args, named = form.normal(args, named)
            return function(*args, **named)
        except Exception as error:
            blame(function, error, args, named, form.name, form.bound)
            raise

    return call


def accept(namespace: dict[str, Any], path: str, names: Iterable[str]) -> None:
    """Make the functions of a module, PyTorch's ``path``, lenient: those whose names it has there, which are ``names``."""
    for name in names:
        function = namespace.get(name)
        if inspect.isfunction(function):
            namespace[name] = lenient(function, path, name)


def own_constructors(namespace: dict[str, Any], base: type) -> None:
    """Give the subclasses of ``base`` in a module constructors of their own names where they inherit one: an error about its
    arguments names the class that was called, and not what several share.

    That of ``base`` stays inherited: another base of a program's class may come before it.
    """
    kinds: list[Any] = [x for x in namespace.values() if isinstance(x, type) and issubclass(x, base)]
    for kind in kinds:
        shared: Any = kind.__init__
        if "__init__" not in vars(kind) and inspect.isfunction(shared) and shared is not vars(base).get("__init__"):
            own: Any = FunctionType(shared.__code__, shared.__globals__, "__init__", shared.__defaults__, shared.__closure__)
            vars(own).update(vars(shared))
            own.__kwdefaults__, own.__annotations__, own.__doc__ = shared.__kwdefaults__, shared.__annotations__, shared.__doc__
            own.__module__, own.__qualname__ = kind.__module__, f"{kind.__qualname__}.__init__"
            kind.__init__ = own


def take_none(made: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises TypeError for arguments of a constructor without any, which names the class of what is made, as PyTorch does."""
    if args or named:
        why = (f"got an unexpected keyword argument {next(iter(named))!r}" if named else
               f"takes 1 positional argument but {len(args) + 1} were given")
        raise TypeError(f"{type(made).__name__}.__init__() {why}")
