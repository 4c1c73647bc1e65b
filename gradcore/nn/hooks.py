"""Hooks of modules: functions called with a module's inputs, its outputs, and the gradients of both.

A module has a table of hooks from its first hook on, or once it is compiled; until then, a call only looks for the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from gradcore.arguments import warn
from gradcore.autograd.function import Function
from gradcore.engine.hooks import RemovableHandle, Table, hang
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.nn import paths
from gradcore.nn.hook_dicts import hook_dict

Tensor = Any
Hook = Callable[..., Any]
#: A hook, and whether it is given keyword arguments.
Entry = tuple[Hook, bool]
#: By key.
Entries = dict[int, Entry]


class _Always(tuple[Hook, bool]):
    """The entry of a hook that is called after an error, too."""

    __slots__ = ()


class Tables:
    """Hooks by kind, which a subclass names in ``__slots__``, and of each kind by key, in the order in which they run."""

    __slots__: tuple[str, ...] = ("dropped",)

    def __init__(self) -> None:
        #: Of some that were dropped, by key, what :class:`~gradcore.nn.hook_dicts.HookDict` remembers.
        self.dropped: dict[int, tuple[type, bool]] = {}
        for kind in self.__slots__:
            setattr(self, kind, Table())

    def copy(self) -> Any:
        """A copy of the tables, with the same functions."""
        made = type(self)()
        made.dropped.update(self.dropped)
        for kind in self.__slots__:
            getattr(made, kind).update(getattr(self, kind))
        return made


class Hooks(Tables):
    """The hooks of one module on its calls."""

    __slots__ = ("before", "after", "gradients_before", "gradients")

    before: Entries
    after: Entries
    gradients_before: Entries
    gradients: Entries

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.gradients_before or self.gradients)


#: The hooks on the calls of all modules, which run before a module's own; and those of a module without.
_everywhere, _none = Hooks(), Hooks()


class Hooked:
    """The part of :class:`Module` that registers and runs hooks, and copies them with the module."""

    #: The hooks, from the first one on; of the class, those of all modules, from the first one on.
    _module_hooks: Hooks | None = None
    #: What :meth:`compile` has made.
    _compiled_call_impl: Any = None
    forward: Callable[..., Any]
    _forward_pre_hooks, _forward_hooks = hook_dict("before"), hook_dict("after")
    _backward_pre_hooks, _backward_hooks = hook_dict("gradients_before"), hook_dict("gradients")

    def register_forward_pre_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Call ``hook(module, args)`` before ``forward``; what it returns, unless None, replaces the arguments.

        With ``with_kwargs``, call ``hook(module, args, kwargs)``, which returns both or None.
        """
        return _hang(self, "before", (hook, with_kwargs), prepend)

    def register_forward_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False,
                              always_call: bool = False) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after ``forward``; what it returns, unless None, replaces the output.

        With ``with_kwargs``, call ``hook(module, args, kwargs, output)``. With ``always_call``, also call it after an error of
        ``forward`` or of a hook before it, with the output so far, None if there is none; its own error is then a warning.
        """
        return _hang(self, "after", _after(hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` with the gradients of the outputs; what it returns, unless None, replaces them.

        ``grad_output`` has an entry for each output, None for one that has no gradient.
        """
        return _hang(self, "gradients_before", (hook, False), prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are known.

        What it returns, unless None, replaces ``grad_input``, which has None for positional inputs without gradient.
        """
        return _hang(self, "gradients", (hook, False), prepend)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let later calls of this module, its hooks included, be traced and replayed, as by :func:`gradcore.compile`.

        It takes the arguments of that function, and raises what that raises. Copies of the module are not compiled, and its
        state dict stays the same.
        """
        from gradcore.program.calls.compiling import compile_call
        self._compiled_call_impl = compile_call(self, *args, **kwargs)
        # Without a table, a call runs ``forward`` itself.
        self.__dict__.setdefault("_module_hooks", Hooks())

    def _module_hooks_to_add(self, kind: str) -> Entries:
        """The module's own hooks of one kind, made if there are none yet."""
        own = self.__dict__
        if "_module_hooks" not in own:
            # Hooks are not of gradcore, so their ops look their lines up.
            own.update(_module_hooks=Hooks(), _module_foreign=True)
        found: Entries = getattr(own["_module_hooks"], kind)
        return found

    def _module_hooks_in_order(self) -> tuple[tuple[str, Hook, bool], ...]:
        """All hooks on calls of this module, not of its children: kind, function, and whether it is given keywords."""
        return tuple((kind, *entry) for kind in Hooks.__slots__ for entry in self._module_entries(kind))

    def _module_entries(self, kind: str) -> list[Entry]:
        return [*getattr(_everywhere, kind).values(), *getattr(self.__dict__.get("_module_hooks", _none), kind).values()]

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
            for hook, with_kwargs in (*every.before.values(), *own.before.values()):
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
            after = iter((*every.after.values(), *own.after.values()))
            for entry in after:
                output = self._module_shown(entry, args, kwargs, output)
            return output if watch is None else watch.outputs(output)
        except Exception:
            for entry in self._module_entries("after") if after is None else after:
                if isinstance(entry, _Always):
                    try:
                        output = self._module_shown(entry, args, kwargs, output)
                    except Exception as error:
                        warn("a forward hook with always_call=True raised an error, which is not passed on since there was "
                             f"another one before it: {error}")
            raise
        finally:
            state.site = site

    def _module_shown(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output after a hook has seen it."""
        hook, with_kwargs = entry
        changed = hook(self, args, kwargs, output) if with_kwargs else hook(self, args, output)
        return output if changed is None else changed

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: not compiled, without the places in trees, and with tables of hooks of its own."""
        state = {**self.__dict__, "_module_places": {}, "_module_tree": None, "_module_parents": []}
        for name in ("_module_whole", "_compiled_call_impl"):
            state.pop(name, None)
        for table in ("_module_hooks", "_module_state_hooks"):
            if table in state:
                state[table] = state[table].copy()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _module_number=next(paths.numbers))
        paths.copied(self)
        for child in state["_modules"].values():
            if child is not None:
                paths.adopted(child, self)


def _after(hook: Hook, with_kwargs: bool, always_call: bool) -> Entry:
    return _Always((hook, with_kwargs)) if always_call else (hook, with_kwargs)


def _hang(module: Any, kind: str, entry: Entry, prepend: bool) -> RemovableHandle:
    return hang(module._module_hooks_to_add(kind), entry, prepend)


def _hang_everywhere(kind: str, entry: Entry) -> RemovableHandle:
    handle = hang(getattr(_everywhere, kind), entry)
    # A call looks for hooks here where its module has none of its own.
    Hooked._module_hooks = _everywhere
    return handle


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Module.register_forward_pre_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere("before", (hook, False))


def register_module_forward_hook(hook: Hook, *, with_kwargs: bool = False, always_call: bool = False) -> RemovableHandle:
    """:meth:`Module.register_forward_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere("after", _after(hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Module.register_full_backward_pre_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere("gradients_before", (hook, False))


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Module.register_full_backward_hook` for all modules; ``hook`` runs before a module's own."""
    return _hang_everywhere("gradients", (hook, False))


def key_of(module: Any, kind: Any, name: str) -> int | None:
    """The key of the forward pre-hook of class ``kind`` that computes the parameter ``name``; None if there is none."""
    entries = {} if module._module_hooks is None else module._module_hooks.before
    return next((key for key, (hook, _) in entries.items() if isinstance(hook, kind) and hook.name == name), None)


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
        for hook, _ in self._module._module_entries("gradients_before"):
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
        for hook, _ in self._module._module_entries("gradients"):
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
