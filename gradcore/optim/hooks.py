"""Hooks of optimizers, around ``step``, ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.engine.hooks import RemovableHandle, Table, hang

Hook = Callable[..., Any]
#: The hooks of all optimizers by key: whether they are called after the step, and the function. One table, which a compiled
#: function asks at each call.
everywhere: dict[int, tuple[bool, Hook]] = Table()


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Optimizer.register_step_pre_hook` for all optimizers; ``hook`` runs before an optimizer's own."""
    return hang(everywhere, (False, hook))


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """:meth:`Optimizer.register_step_post_hook` for all optimizers; ``hook`` runs after an optimizer's own."""
    return hang(everywhere, (True, hook))


class Hooked:
    """The part of :class:`Optimizer` that registers and calls hooks."""

    #: Around a step. An optimizer that wraps another may have none of these, since it need not call ``__init__``.
    _optim_before: dict[int, Hook]
    _optim_after: dict[int, Hook]
    #: Around the state dict by kind, made when the first of a kind is registered, for the same reason.
    _optim_of_state: dict[str, dict[int, Hook]]

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step; what it returns, unless None, replaces ``(args, kwargs)``.

        As in PyTorch, the optimizer is the first of ``args``, and the closure, if there is one, the second.
        """
        return hang(self._optim_before, hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return hang(self._optim_after, hook)

    def _optim_call_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for hook in (*_of_all(False), *self._optim_before.values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(f"a pre-hook of {type(self).__name__}.step must return None or a tuple of (new_args, "
                                       f"new_kwargs), but got {changed!r:.200}")
                args, kwargs = changed
        return args, kwargs

    def _optim_call_after(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for hook in (*self._optim_after.values(), *_of_all(True)):
            hook(self, args, kwargs)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` before ``state_dict``; with ``prepend`` before the hooks that are there."""
        return self._optim_hang("before saving", hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` after ``state_dict``; what it returns, unless None, is returned instead."""
        return self._optim_hang("after saving", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before ``load_state_dict``, with a shallow copy; what it returns, unless None,
        is loaded instead.
        """
        return self._optim_hang("before loading", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` after ``load_state_dict``."""
        return self._optim_hang("after loading", hook, prepend)

    def _optim_hang(self, kind: str, hook: Hook, prepend: bool) -> RemovableHandle:
        return hang(self.__dict__.setdefault("_optim_of_state", {}).setdefault(kind, Table()), hook, prepend)

    def _optim_call_state_hooks(self, kind: str, *state: Any) -> Any:
        """Call the hooks of a kind with the optimizer and perhaps a state dict; returns that, or what has replaced it."""
        for hook in list(self.__dict__.get("_optim_of_state", {}).get(kind, {}).values()):
            changed = hook(self, *state)
            if state and changed is not None:
                state = (changed,)
        return state[0] if state else None


def _of_all(after: bool) -> list[Hook]:
    return [hook for later, hook in everywhere.values() if later is after] if everywhere else []
