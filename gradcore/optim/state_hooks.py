"""Hooks around an optimizer's ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.engine.hooks import RemovableHandle, Table, hang


class StateHooks:
    """The hooks by kind, made when the first of a kind is registered: subclasses need not call ``__init__``."""

    _optim_of_state: dict[str, dict[int, Callable[..., Any]]]

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` before ``state_dict``; with ``prepend`` before the hooks that are there."""
        return self._optim_hang("before saving", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` after ``state_dict``; what it returns, unless None, is returned instead."""
        return self._optim_hang("after saving", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before ``load_state_dict``, with a shallow copy; what it returns, unless None,
        is loaded instead.
        """
        return self._optim_hang("before loading", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` after ``load_state_dict``."""
        return self._optim_hang("after loading", hook, prepend)

    def _optim_hang(self, kind: str, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
        return hang(self.__dict__.setdefault("_optim_of_state", {}).setdefault(kind, Table()), hook, prepend)

    def _optim_call_state_hooks(self, kind: str, *state: Any) -> Any:
        """Call the hooks of a kind with the optimizer and perhaps a state dict; returns that, or what has replaced it."""
        for hook in list(self.__dict__.get("_optim_of_state", {}).get(kind, {}).values()):
            changed = hook(self, *state)
            if state and changed is not None:
                state = (changed,)
        return state[0] if state else None
