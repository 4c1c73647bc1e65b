"""``gradcore.compile``, and what it makes of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import ref

from gradcore.errors import require_int
from gradcore.nn.module import Module
from gradcore.program.calls.compiled import Compiled


class CompiledModule(Compiled):
    """A compiled module. Attributes that are set on it are set on the module."""

    #: For a module that gets one as an attribute.
    _wraps_module = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN or name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._function, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._function, name)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in _CHAINED:
            return found

        def chained(*args: Any, **kwargs: Any) -> Any:
            """The module's method, whose result is the compiled module instead of the module."""
            result = found(*args, **kwargs)
            return self if result is self._function else result

        return chained

    #: What belongs to the wrapper.
    _OWN = frozenset(vars(Compiled(len)))


#: Methods of a module that return it.
_CHAINED = frozenset(("to", "to_empty", "cpu", "cuda", "float", "double", "half", "bfloat16", "train", "eval", "requires_grad_",
                      "apply", "type"))
#: Special methods of containers. Python looks these up in a class, so that a wrapper's attributes do not show them.
_OF_CONTAINERS = tuple(f"__{x}__" for x in ("len", "getitem", "setitem", "delitem", "iter", "reversed", "contains", "bool"))


@functools.cache
def _class_with(names: tuple[str, ...]) -> type[CompiledModule]:
    """The class for a compiled module: it has those special methods of containers that the module has, and no others, so that
    Python itself says which are missing."""
    def passed_on(name: str) -> Callable[..., Any]:
        return lambda self, *args: getattr(self._function, name)(*args)

    own = {name: passed_on(name) for name in names}
    return type(CompiledModule.__name__, (CompiledModule,), own) if own else CompiledModule


def compile(function: Any = None, *, check_every: int = 0, max_programs: int = 8, capture: bool = True, fullgraph: bool = False,
            dynamic: bool | None = None, backend: Any = None, mode: str | None = None, options: Any = None,
            disable: bool = False) -> Any:
    """Compile a function, module or whole training step: it is traced at its first call and replayed afterwards.

    It is traced again when shapes, dtypes, devices, modes or anything else that it was seen to read changes (see
    docs/graph-mode.md); at most ``max_programs`` are kept. A replay runs none of the function's Python code: it prints only
    while it is traced, and a function that changes a list is not replayed. Raises :class:`TraceError`, naming the line, if
    values of tensors are read on the host or tensors are made from host data. With ``check_every=n`` every n-th call also runs
    eagerly, and TraceError is raised if the two differ. On a GPU a program is launched as one CUDA graph, unless ``capture`` is
    False (see :mod:`gradcore.program.replaying.capture`); :meth:`Compiled.explain` says where that was not possible.

    ``disable`` returns the function unchanged. ``fullgraph``, ``dynamic``, ``backend``, ``mode`` and ``options`` exist for
    PyTorch's sake and change nothing: there is one compiler, a graph is always whole, and each shape has its own program.
    """
    if function is None:
        return functools.partial(compile, check_every=check_every, max_programs=max_programs, capture=capture, disable=disable)
    if not callable(function):
        raise TypeError(f"compile expected a function or a module, but got {type(function).__name__}")
    require_int("check_every", check_every, 0)
    require_int("max_programs", max_programs, 1)
    if disable:
        return function
    kind: type[Compiled] = Compiled
    if isinstance(function, Module):
        kind = _class_with(tuple(name for name in _OF_CONTAINERS if hasattr(type(function), name)))
    return kind(function, check_every=check_every, max_programs=max_programs, capture=capture)


class _Call:
    """What a module does when it is called. The module holds this, and this does not hold the module."""

    def __init__(self, module: Any) -> None:
        own = module.__dict__
        # What was compiled lies in the dict, which its guards refer to: reference counts alone would free neither.
        self.module = ref(module, lambda _: own.pop("_compiled_call_impl", None))
        self.__name__ = type(module).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.module()
        return module._module_run_between_hooks(args, kwargs)


def compile_call(module: Any, **options: Any) -> Any:
    """The compiled call of a module, with the options of :func:`compile`; it does not keep the module alive."""
    return compile(_Call(module), **options)
