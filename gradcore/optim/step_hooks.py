"""Hooks around an optimizer's ``step``, and around that of every optimizer."""

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


class StepHooks:
    """The hooks of one optimizer. One that wraps another may have none, since it need not call ``__init__``."""

    _optim_before: dict[int, Hook]
    _optim_after: dict[int, Hook]

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


def _of_all(after: bool) -> list[Hook]:
    return [hook for later, hook in everywhere.values() if later is after] if everywhere else []
