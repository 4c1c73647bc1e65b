"""The dicts ``_forward_hooks`` and the like of a module, by which code written for PyTorch lists hooks, or drops them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any


class HookDict(MutableMapping[int, Any]):
    """A module's own hooks of one kind, by the ``id`` of their handles, in the order in which they run."""

    __slots__ = ("_module", "_kind")

    def __init__(self, module: Any, kind: str) -> None:
        self._module = module
        self._kind = kind

    @property
    def _own(self) -> dict[int, Any]:
        hooks = self._module.__dict__.get("_module_hooks")
        found: dict[int, Any] = {} if hooks is None else getattr(hooks, self._kind)
        return found

    def __getitem__(self, key: int) -> Any:
        return self._own[key][0]

    def __setitem__(self, key: int, hook: Any) -> None:
        self._module._module_hooks_to_add(self._kind)[key] = hook, False

    def __delitem__(self, key: int) -> None:
        del self._own[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def __repr__(self) -> str:
        return repr(dict(self))


def hook_dict(kind: str) -> Any:
    """The attribute of a module that shows its hooks of one kind, and can be set to a dict of others."""

    def put(module: Any, given: Any) -> None:
        shown, wanted = HookDict(module, kind), dict(given)
        # One that stays is still given what it was registered for, such as keyword arguments.
        before = dict(shown._own)
        shown.clear()
        for key, hook in wanted.items():
            shown[key] = hook
            if key in before and before[key][0] is hook:
                shown._own[key] = before[key]

    return property(lambda module: HookDict(module, kind), put)
