"""Hooks of modules: functions called with a module's inputs, its outputs, and the gradients of both.

A module has tables of hooks from its first hook on, once a program asks for one, or once it is compiled; until then, a call
only looks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from gradcore.arguments import warn
from gradcore.autograd.function import Function
from gradcore.engine.hooks import RemovableHandle, Table, hang, new_key
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.nn import paths

Tensor = Any
Hook = Callable[..., Any]


class Key(int):
    """The key of a hook on calls. It says how that is called, so that a program can drop a hook and put it back."""

    #: Is it given keyword arguments? Is it called after an error, too?
    with_kwargs = always = False


def _key(with_kwargs: bool, always: bool = False) -> Key:
    key = Key(new_key())
    key.with_kwargs, key.always = with_kwargs, always
    return key


class Tables:
    """Hooks by kind, which a subclass names in ``__slots__``, and of each kind by key, in the order in which they run."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for kind in self.__slots__:
            setattr(self, kind, Table())

    def copy(self) -> Any:
        """A copy of the tables, with the same functions."""
        made = type(self)()
        for kind in self.__slots__:
            getattr(made, kind).update(getattr(self, kind))
        return made


class Hooks(Tables):
    """The hooks of one module on its calls."""

    __slots__ = ("before", "after", "gradients_before", "gradients")

    before: Table[int, Hook]
    after: Table[int, Hook]
    gradients_before: Table[int, Hook]
    gradients: Table[int, Hook]

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.gradients_before or self.gradients)


#: The hooks on the calls of all modules, which run before a module's own; and those of a module without.
_everywhere, _none = Hooks(), Hooks()
_TABLES = "_module_hooks", "_module_state_hooks"


def shown(hooks: Any) -> Any:
    """The same hooks. The trace of a function looks here for tables that it may change."""
    return hooks


def _table(kind: str) -> Any:
    """The attribute of a module that is the table of its own hooks of one kind, as in PyTorch, and can be set to another."""
    def put(module: Any, given: Any) -> None:
        setattr(module._module_own_hooks(), kind, given if isinstance(given, Table) else Table(given))

    return property(lambda module: shown(getattr(module._module_own_hooks(), kind)), put)


class Hooked:
    """The part of :class:`Module` that registers and runs hooks, and copies them with the module."""

    #: The hooks, from the first one on; of the class, those of all modules, from the first one on.
    _module_hooks: Hooks | None = None
    #: What :meth:`compile` has made.
    _compiled_call_impl: Any = None
    forward: Callable[..., Any]
    _forward_pre_hooks, _forward_hooks = _table("before"), _table("after")
    _backward_pre_hooks, _backward_hooks = _table("gradients_before"), _table("gradients")

    def register_forward_pre_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Call ``hook(module, args)`` before ``forward``; what it returns, unless None, replaces the arguments.

        With ``with_kwargs``, call ``hook(module, args, kwargs)``, which returns both or None.
        """
        return hang(self._module_own_hooks().before, hook, prepend, _key(with_kwargs))

    def register_forward_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False,
                              always_call: bool = False) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after ``forward``; what it returns, unless None, replaces the output.

        With ``with_kwargs``, call ``hook(module, args, kwargs, output)``. With ``always_call``, also call it after an error of
        ``forward`` or of a hook before it, with the output so far, None if there is none; its own error is then a warning.
        """
        return hang(self._module_own_hooks().after, hook, prepend, _key(with_kwargs, always_call))

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` with the gradients of the outputs; what it returns, unless None, replaces them.

        ``grad_output`` has an entry for each output, None for one that has no gradient.
        """
        return hang(self._module_own_hooks().gradients_before, hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are known.

        What it returns, unless None, replaces ``grad_input``, which has None for positional inputs without gradient.
        """
        return hang(self._module_own_hooks().gradients, hook, prepend)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let later calls of this module, its hooks included, be traced and replayed, as by :func:`gradcore.compile`.

        It takes the arguments of that function, and raises what that raises. Copies of the module are not compiled, and its
        state dict stays the same.
        """
        from gradcore.program.calls.compiling import compile_call
        self._compiled_call_impl = compile_call(self, *args, **kwargs)
        # Without tables, a call runs ``forward`` itself.
        self.__dict__.setdefault("_module_hooks", Hooks())

    def _module_own_hooks(self) -> Hooks:
        """The module's tables of hooks, made if there are none yet."""
        own = self.__dict__
        if "_module_hooks" not in own:
            # Hooks are not of gradcore, so their ops look their lines up.
            own.update(_module_hooks=Hooks(), _module_foreign=True)
        found: Hooks = own["_module_hooks"]
        return found

    def _module_hooks_in_order(self) -> tuple[tuple[str, Hook, bool], ...]:
        """All hooks on calls of this module, not of its children: kind, function, and whether it is given keywords."""
        return tuple((kind, hook, getattr(key, "with_kwargs", False)) for kind in Hooks.__slots__
                     for key, hook in self._module_items(kind))

    def _module_items(self, kind: str) -> list[tuple[int, Hook]]:
        return [*getattr(_everywhere, kind).items(), *getattr(self.__dict__.get("_module_hooks", _none), kind).items()]

    def _module_run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``forward`` between the hooks, or replay that."""
        compiled = self._compiled_call_impl
        # A copy that the user's class makes of the whole ``__dict__`` has that of the other module.
        if compiled is None or compiled.module() is not self:
            return self._module_run_between_hooks(args, kwargs)
        return compiled(*args, **kwargs)

    def _module_run_between_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own, every = self.__dict__.get("_module_hooks", _none), _everywhere
        if not (own or every):
            return self.forward(*args, **kwargs)
        output, after, state = None, None, local.state
        site = state.site
        try:
            # A hook of all modules has lines of its own, also where the module is of gradcore.
            state.site = None
            for key, hook in (*every.before.items(), *own.before.items()):
                with_kwargs = getattr(key, "with_kwargs", False)
                changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
                if changed is None:
                    continue
                if not with_kwargs:
                    args = changed if isinstance(changed, tuple) else (changed,)
                elif isinstance(changed, tuple) and len(changed) == 2:
                    args, kwargs = changed
                else:
                    raise RuntimeError("forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                                       f"{changed}.")
            watched = own.gradients or own.gradients_before or every.gradients or every.gradients_before
            watch = _Watch(self) if watched else None
            if watch is not None:
                args = watch.inputs(args)
            output = self.forward(*args, **kwargs)
            after = iter((*every.after.items(), *own.after.items()))
            for key, hook in after:
                output = self._module_output(key, hook, args, kwargs, output)
            return output if watch is None else watch.outputs(output)
        except Exception:
            for key, hook in self._module_items("after") if after is None else after:
                if getattr(key, "always", False):
                    try:
                        output = self._module_output(key, hook, args, kwargs, output)
                    except Exception as error:
                        warn("a forward hook with always_call=True raised an error, which is not passed on since there was "
                             f"another one before it: {error}")
            raise
        finally:
            state.site = site

    def _module_output(self, key: int, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output after a hook has seen it."""
        changed = hook(self, args, kwargs, output) if getattr(key, "with_kwargs", False) else hook(self, args, output)
        return output if changed is None else changed

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: not compiled, and without the places in trees."""
        state = {**self.__dict__, "_module_places": {}, "_module_tree": None, "_module_parents": []}
        for name in ("_module_whole", "_compiled_call_impl"):
            state.pop(name, None)
        return state | {"_module_of": [id(state[name]) for name in _TABLES if name in state]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = self.__dict__
        own.update(state, _module_number=next(paths.numbers))
        others = own.pop("_module_of", ())
        for name in _TABLES:
            # A shallow copy has the other module's. A deep one has copies, which handles that it keeps refer to.
            if id(own.get(name)) in others:
                own[name] = own[name].copy()
        paths.copied(self)
        for child in state["_modules"].values():
            if child is not None:
                paths.adopted(child, self)


def _hang_everywhere(hooks: Table[int, Hook], hook: Hook, key: int | None = None) -> RemovableHandle:
    handle = hang(hooks, hook, key=key)
    # A call looks for hooks here where its module has none of its own.
    Hooked._module_hooks = _everywhere
    return handle


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Module.register_forward_pre_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere(_everywhere.before, hook)


def register_module_forward_hook(hook: Hook, *, with_kwargs: bool = False, always_call: bool = False) -> RemovableHandle:
    """:meth:`Module.register_forward_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere(_everywhere.after, hook, _key(with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Module.register_full_backward_pre_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere(_everywhere.gradients_before, hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Module.register_full_backward_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere(_everywhere.gradients, hook)


def key_of(module: Any, kind: Any, name: str) -> int | None:
    """The key of the forward pre-hook of class ``kind`` that computes the parameter ``name``; None if there is none."""
    return next((key for key, hook in module._module_items("before") if isinstance(hook, kind) and hook.name == name), None)


class _Watch:
    """Collects the gradients of one call, by two identity nodes: one on the inputs, and one on the outputs."""

    def __init__(self, module: Any) -> None:
        self._module = module
        #: The gradients of the outputs, from when they are known until those of the inputs are.
        self.value: tuple[Any, ...] | None = None
        #: Where tensors with a graph are among the inputs, and among the outputs, and how many there are in all.
        self._positions: list[int] = []
        self._count = 0
        self._made: list[int] = []
        self._made_count = 0

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._count = len(args)
        self._positions = [k for k, a in enumerate(args) if isinstance(a, Value) and a.edge is not None]
        if not self._positions:
            return args
        passed = _Pass.apply(self._inputs_known, True, *[args[k] for k in self._positions])
        made = dict(zip(self._positions, passed, strict=True))
        return tuple(made.get(k, a) for k, a in enumerate(args))

    def outputs(self, output: Any) -> Any:
        several = isinstance(output, (tuple, list))
        parts = list(output) if several else [output]
        self._made_count = len(parts)
        self._made = where = [k for k, a in enumerate(parts) if isinstance(a, Value) and a.edge is not None]
        if not where:
            return output
        for k, passed in zip(where, _Pass.apply(self._outputs_known, False, *[parts[k] for k in where]), strict=True):
            parts[k] = passed
        return (type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)) if several else parts[0]

    def _outputs_known(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        at = dict(zip(self._made, found, strict=True))
        grads = tuple(at.get(k) for k in range(self._made_count))
        for _, hook in self._module._module_items("gradients_before"):
            grads = _replaced(grads, hook(self._module, grads))
        self.value = grads
        if local.state.remade is not None:
            # The pass may fail before the inputs, or never reach them.
            local.state.remade.append(ref(self))
        if not self._positions:
            self._show((None,) * self._count)
        return tuple(grads[k] for k in self._made)

    def _inputs_known(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.value is None:
            # No gradient has come by the outputs.
            return grads
        found = dict(zip(self._positions, grads, strict=True))
        shown = self._show(tuple(found.get(k) for k in range(self._count)))
        return tuple(shown[k] for k in self._positions)

    def _show(self, grad_input: tuple[Any, ...]) -> tuple[Any, ...]:
        for _, hook in self._module._module_items("gradients"):
            grad_input = _replaced(grad_input, hook(self._module, grad_input, self.value))
        self.value = None
        return grad_input


def _replaced(grads: tuple[Any, ...], changed: Any) -> tuple[Any, ...]:
    if changed is None:
        return grads
    parts = tuple(changed) if isinstance(changed, (tuple, list)) else (changed,)
    if len(parts) != len(grads):
        raise RuntimeError(f"Backward hook returned an invalid number of grad_input, got {len(parts)}, but expected "
                           f"{len(grads)}")
    return parts


class _Pass(Function):
    """The identity on tensors; a function sees, and may change, all their gradients at once, missing ones as None or zeros."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], tuple[Any, ...]], zeros: bool,
                *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.seen = seen
        ctx.set_materialize_grads(zeros)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, None, *ctx.seen(grads))


#: The name of the nodes that call full backward hooks.
CALLS_HOOKS = _Pass.__name__
