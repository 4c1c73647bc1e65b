"""The dicts ``_forward_hooks`` and the like of a module, by which code written for PyTorch lists hooks, or drops them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any
from weakref import ref

from gradcore.engine.hooks import Table, to_end


class HookDict(MutableMapping[int, Any]):
    """A module's own hooks of one kind, by the ``id`` of their handles, in the order in which they run.

    As in PyTorch it keeps them when the module is given another dict, and brings them back when it is given again.
    """

    __slots__ = ("_module", "_kind", "_table")

    def __init__(self, module: Any, kind: str) -> None:
        # Weakly, as a dict that is kept must not keep the module's memory.
        self._module = ref(module)
        self._kind = kind
        #: None until the module has hooks.
        self._table: Any = None
        self._table = self._now()

    def _now(self) -> Any:
        """The module's present table, None if there is none."""
        module = self._module()
        hooks = None if module is None else module.__dict__.get("_module_hooks")
        return None if hooks is None else getattr(hooks, self._kind)

    @property
    def _own(self) -> dict[int, Any]:
        """What to read, which is written to only if it is not empty."""
        if self._table is None:
            self._table = self._now()
        return {} if self._table is None else self._table

    def __getitem__(self, key: int) -> Any:
        return self._own[key][0]

    def __setitem__(self, key: int, hook: Any) -> None:
        module, before = self._module(), self._own.get(key)
        if self._table is None:
            self._table = Table() if module is None else module._module_hooks_to_add(self._kind)
        # It is given what the one of its key was registered for, such as keyword arguments, also if that was dropped.
        dropped = {} if module is None else module._module_hooks.dropped
        kind, with_kwargs = dropped.get(key, (tuple, False)) if before is None else _use(before)
        change(self._table, dict.__setitem__, key, kind((hook, with_kwargs)))

    def __delitem__(self, key: int) -> None:
        own, module = self._own, self._module()
        entry = own[key]
        if module is not None:
            _note(module, {key: entry})
        change(own, dict.__delitem__, key)

    def __iter__(self) -> Iterator[int]:
        return iter(self._own)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce__(self) -> Any:
        # A copy of the dict is none of the module.
        return OrderedDict, (list(self.items()),)

    def copy(self) -> OrderedDict[int, Any]:
        """The hooks in a dict of their own."""
        return OrderedDict(self)

    def popitem(self, last: bool = True) -> tuple[int, Any]:
        """Drop the last hook, or the first one, and return it behind its key. Raises KeyError if there is none."""
        key = next(reversed(self) if last else iter(self), None)
        if key is None:
            raise KeyError("dictionary is empty")
        return key, self.pop(key)

    def move_to_end(self, key: int, last: bool = True) -> None:
        """Let a hook run behind the others, or before them. Raises KeyError if it is not there."""
        own = self._own
        if key not in own:
            raise KeyError(key)
        change(own, to_end, [key] if last else [k for k in own if k != key])


def change(hooks: Any, how: Callable[..., Any], *given: Any) -> None:
    """Change a table. All changes by these dicts are made here, where the trace of a function looks for them."""
    how(hooks, *given)


def _use(entry: Any) -> tuple[type, bool]:
    """What a hook was registered for: the class of its entry, and whether it is given keyword arguments."""
    return type(entry), entry[1]


def _note(module: Any, entries: dict[int, Any]) -> None:
    """Remember of hooks that are dropped what they were registered for: copies of the dict have the functions alone."""
    module._module_hooks.dropped.update((k, _use(entry)) for k, entry in entries.items() if _use(entry) != (tuple, False))


def hook_dict(kind: str) -> Any:
    """The attribute of a module that shows its hooks of one kind, and can be set to a dict of others."""

    def put(module: Any, given: Any) -> None:
        table = None
        if isinstance(given, HookDict) and given._module() is module and given._kind == kind:
            table = given._table
        elif not given and "_module_hooks" not in module.__dict__:
            # Without hooks a call runs ``forward`` itself.
            return
        before = module._module_hooks_to_add(kind)
        _note(module, before)
        shown = HookDict(module, kind)
        shown._table = Table() if table is None else table
        if table is None:
            shown.update(given)
        setattr(module._module_hooks, kind, shown._table)

    return property(lambda module: HookDict(module, kind), put)
