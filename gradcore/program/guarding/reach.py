"""Finds what code can reach: globals, closure variables, defaults, and from there every object by attributes it names."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from functools import partial
from importlib.util import resolve_name
from itertools import chain
from types import CodeType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType, NoneType
from typing import Any
from weakref import ref

import numpy as np

from gradcore.engine.owners import MOST
from gradcore.engine.value import Value
from gradcore.nn.members import KINDS
from gradcore.nn.module import Module
from gradcore.nn.parameter import is_lazy
from gradcore.program.guarding.absent import absent, answered
from gradcore.program.guarding.entries import of_entries
from gradcore.program.guarding.frames import id_in
from gradcore.program.guarding.guards import (
    Found,
    Guard,
    Never,
    Once,
    TensorGuard,
    draws_from,
    identical,
    items_of,
    member_of,
    same_buffer,
    same_items,
    same_method,
    same_object,
    same_of_its_class,
    too_long,
    unseen,
    weakly,
)
from gradcore.program.guarding.libraries import data_of, is_bound, is_drawn_from, is_of_library, is_whole, why_hidden
from gradcore.program.guarding.modules import ModuleGuard, hooks_in
from gradcore.program.guarding.names import Names, globals_of, imports_of
from gradcore.program.guarding.optimizers import INTERNAL, is_optimizer, of_optimizer
from gradcore.program.guarding.readers import Attribute, AttributeOf, Has, Item
from gradcore.program.guarding.values import (
    GENERATORS,
    LONG,
    MOST_INSIDE,
    VALUES,
    asked,
    attributes_of,
    buffer_of,
    comparison,
    copied,
    equal,
    has_buffer,
    is_plain,
    is_settings,
    kinds_in,
    same_array,
    state_of,
)

#: Attributes that modules use internally, which need no guards of their own.
_INTERNAL = frozenset((*KINDS, "training", "forward", "_non_persistent_buffers_set", "_module_places", "_module_tree",
                       "_module_parents", "_module_hooks", "_module_state_hooks", "_module_foreign", "_module_whole"))

#: What is compared by its value, or by its items.
_DATA = (int, float, complex, str, bytes, bytearray, list, tuple, deque, set, frozenset, dict, np.ndarray)

_absent = object()


class Reach:
    """A walk over what code can reach, which yields a guard for each thing. No object is entered twice.

    ``own`` has further attribute names for single objects, by id.
    """

    def __init__(self, names: Names, own: Mapping[int, Names] | None = None) -> None:
        self._names = names
        self._own = own or {}
        self._entered: set[tuple[int, bool]] = set()

    def of_code(self, code: CodeType, variables: dict[str, Any]) -> Found:
        """Guards for the globals that a code object names, and the modules that it imports."""
        for name in globals_of(code):
            key = "global", id(variables), name
            if name in variables:
                yield from self.of_value(f"the global {name}", Item(variables, name), variables[name], key)
            else:
                # One of the name of a builtin would hide it; code may also ask globals(), or catch a NameError.
                yield Guard(f"whether there is a global {name}", Has(variables, name), False, identical), key
        for name in imports_of(code):
            if name.startswith("."):
                package = variables.get("__package__") or str(variables.get("__name__")).rpartition(".")[0]
                name = resolve_name(name, package) if package else ""
            if name in sys.modules and not is_of_library(name):
                yield from self.of_value(f"the module {name}", Item(sys.modules, name), sys.modules[name], ("import", name))

    def of_function(self, function: FunctionType, defaults: bool = True) -> Found:
        """Guards for a function's closure variables and, if they were read, its defaults."""
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            variable = f"the variable {name} of {code.co_name}'s closure"
            if id_in(cell) is None:
                yield Guard(f"what {variable} holds", partial(id_in, cell), None, identical), ("empty", id(cell))
                continue
            yield from self.of_value(variable, Attribute(cell, "cell_contents"), cell.cell_contents, ("cell", id(cell)))
        for attribute in ("__defaults__", "__kwdefaults__"):
            if defaults and getattr(function, attribute):
                yield from self.of_value(f"the defaults of {code.co_name}", Attribute(function, attribute),
                                         getattr(function, attribute), (attribute, id(function)))

    def of_value(self, name: str, look: Callable[[], Any], value: Any, key: tuple[Any, ...]) -> Found:
        """Guards for a value, and for what the code can reach from it."""
        if isinstance(value, _DATA) and type(value) not in VALUES:
            yield from self._beside_value(name, look, value, key)
        if is_lazy(value):
            # It has no bytes yet.
            yield Guard(name, look, (value, type(value)), same_of_its_class), key
        elif isinstance(value, Value):
            yield TensorGuard(name, look, value), key
            yield from self._of_tensor(value)
        elif is_plain(value):
            yield Guard(name, look, copied(value), comparison(value)), key
            for kind in kinds_in(value):
                yield from self.of_object(kind)
        elif isinstance(value, np.ndarray) and value.size <= MOST and not value.dtype.hasobject:
            yield Guard(name, look, value.copy(), same_array), key
            # NumPy adds in the order in which items lie.
            yield Guard(f"the strides of {name}", lambda: look().strides, value.strides, equal), (*key, "strides")
        elif isinstance(value, GENERATORS):
            yield Once(name, lambda: state_of(look()), state_of(value), equal, draws_from(name)), key
        elif is_drawn_from(value):
            # It does not show its state; code that refers to one is taken to draw from it.
            yield Never(draws_from(name)), key
        elif has_buffer(value):
            yield Guard(name, look, buffer_of(value), same_buffer), key
        elif isinstance(value, ref) and isinstance(value(), Value):
            yield Never(f"the function refers to {name}, a weak reference to a tensor, which a guard would keep alive: refer "
                        "to the tensor itself"), key
        elif isinstance(value, (MethodType, slice, np.dtype)):
            yield Guard(name, look, value, same_method), key
            if isinstance(value, MethodType) and isinstance(
                    value.__self__, object if "__self__" in self._names.read else (*_DATA, *GENERATORS)):
                yield from self._of_bound(name, look, value, key)
        elif isinstance(value, (list, tuple, deque, set, frozenset)) and len(value) <= MOST:
            yield Guard(name, look, tuple(value), same_items), key
            yield items_of(name, look), (*key, "ids")
            if isinstance(value, deque):
                yield Guard(f"maxlen of {name}", lambda: look().maxlen, value.maxlen, equal), (*key, "maxlen")
            if len(value) > MOST_INSIDE:
                yield unseen(name), (*key, "unseen")
            elif self.enters(value, items=True):
                for k, item in enumerate(value):
                    # A set has no places, but its items are known to be the same.
                    at = weakly(item) if isinstance(value, (set, frozenset)) else lambda k=k: look()[k]  # type: ignore[misc]
                    yield from self.of_value(f"{name}[{k}]", at, item, (*key, k))
        elif isinstance(value, (dict, MappingProxyType)) and len(value) <= MOST:
            yield from of_entries(name, look, value, key, self)
        else:
            yield self._identity(name, look, value), key
            yield from too_long(name, look, key) if isinstance(value, LONG) else ()
            if why := why_hidden(value, name):
                yield Never(f"the function refers to {name}, {why}"), (*key, "opaque")
            yield from self.of_object(value)
            if is_bound(value):
                yield from self._of_bound(name, look, value, key)
            if isinstance(value, ref) and value() is not None:
                yield from self.of_value(f"{name}()", lambda: look()(), value(), (*key, "target"))

    def _beside_value(self, name: str, look: Callable[[], Any], value: Any, key: tuple[Any, ...]) -> Found:
        """Guards for the attributes of a number, a list or an array of a class of the user's, of which an equal one may have
        others; and for that class."""
        names, own = self._names, attributes_of(value) or {}
        if found := names.among(own):
            yield self._identity(name, look, value), (*key, "itself")
        for attribute in found:
            yield from self._attribute(value, attribute, own[attribute])
        yield (Guard(f"which attributes {name} has", lambda: names.among(attributes_of(look()) or {}), found, equal),
               (*key, "attributes"))
        yield from self.of_object(type(value))

    def _of_bound(self, name: str, look: Callable[[], Any], method: Any, key: tuple[Any, ...]) -> Found:
        """Guards for the object that a method is bound to: ``get = table.get``."""
        yield from self.of_value(f"what {name} is bound to", lambda: look().__self__, method.__self__, (*key, "bound"))

    def of_object(self, owner: Any) -> Found:
        """Guards for the attributes of an object that code names, and for the parameters, buffers and children of a module."""
        # Not a generator of its own, which would be one more level for each object in a chain of them.
        if not self.enters(owner):
            return iter(())
        names = self._names.union(*[self._own[i] for i in (id(owner),) if i in self._own])
        if "__match_args__" in names.read:
            names = names.union(Names(frozenset(getattr(type(owner), "__match_args__", ()))))
        if isinstance(owner, FunctionType):
            return self._of_these(owner, {a: vars(owner)[a] for a in names.among(vars(owner))})
        if isinstance(owner, ModuleType) and is_of_library(owner.__name__):
            return iter(())
        if isinstance(owner, type) and is_of_library(owner):
            return self._of_attributes(owner, names)
        if isinstance(owner, partial):
            found = self._of_these(owner, {part: getattr(owner, part) for part in ("func", "args", "keywords")})
        else:
            found = self._of_module(owner, names) if isinstance(owner, Module) else self._of_attributes(owner, names)
        return chain(absent(owner, names.asked - _INTERNAL), answered(owner, (names.read | names.called) - _INTERNAL), found)

    def _of_these(self, owner: Any, own: Mapping[str, Any]) -> Found:
        for name, value in own.items():
            yield from self._attribute(owner, name, value)

    def _of_module(self, module: Module, names: Names) -> Found:
        yield ModuleGuard(module), ("module", id(module))
        own = module.__dict__
        members = {name for part in KINDS for name in own[part]}
        for name in names.among({a: x for a, x in own.items() if a not in members and a not in _INTERNAL}):
            yield from self._attribute(module, name, own[name])
        for kind in ("_parameters", "_buffers"):
            for tensor in own[kind].values():
                yield from self._of_tensor(tensor)
        for child in own["_modules"].values():
            # Code may read a child's options and not call it.
            yield from self.of_object(child)
        for hook in hooks_in(module):
            if isinstance(hook, partial):
                yield from self.of_object(hook)
        # A call of a module runs its forward without naming it.
        yield from self._of_class(module, names._replace(read=names.read | {"forward"}))

    def _of_attributes(self, owner: Any, names: Names) -> Found:
        """Guards for the attributes of any other object, of a class or of a module of Python."""
        own = {} if isinstance(owner, type) else asked(owner, "__dict__", {})
        if is_optimizer(owner):
            yield from of_optimizer(owner, self._names, self)
            names, own = self._names, {a: x for a, x in own.items() if a not in INTERNAL and not a.startswith("_optim_")}
        whole = (own.keys() - getattr(type(owner), "_compile_derived", ()) if is_whole(type(owner))
                 else getattr(type(owner), "_compile_decides", ()))
        if names.whole and not isinstance(owner, (type, ModuleType)) and is_settings(every := attributes_of(owner)):
            whole = every or {}
            yield (Guard(f"which attributes a {type(owner).__name__} has", lambda: tuple(own), tuple(own), equal),
                   ("attributes", id(owner)))
        names = names._replace(read=names.read.union(whole, data_of(owner) if names.whole else ()))
        for name in names.among(own):
            yield from self._attribute(owner, name, own[name])
        if not isinstance(owner, ModuleType):
            yield from self._of_class(owner, names)

    def _of_tensor(self, tensor: Value | None) -> Found:
        """Guards for the attributes that a parameter has been given, such as marks for an optimizer, or may be given."""
        own = getattr(tensor, "__dict__", None)
        if own is not None and self.enters(tensor):
            for name in self._names.among(own):
                yield from self._attribute(tensor, name, own[name])
            yield from absent(tensor, self._names.asked)

    def _of_class(self, owner: Any, names: Names) -> Found:
        """Guards for what an object, or a class, has from its class: data, slots included, and methods."""
        kind = owner if isinstance(owner, type) else type(owner)
        if is_of_library(kind):
            return
        own = {} if owner is kind else asked(owner, "__dict__", {})
        if owner is kind and not is_of_library(type(kind)):
            # What a class has from a metaclass of the user's.
            yield from self.of_object(type(kind))
            yield from absent(kind, frozenset(a for a in names.read | names.called if hasattr(type(kind), a)))
        if names.upward:
            yield from self._hidden(kind, own, names.read | names.called)
        members = {a: x for c in reversed(kind.__mro__) for a, x in vars(c).items() if a not in own}
        of = weakly(owner)
        for name in sorted((names.read | names.called) & members.keys()):
            member = members[name]
            if isinstance(asked(member, "__func__", member), FunctionType):
                method = getattr(owner, name)
                yield Guard(f"{name} of {kind.__name__}",
                            lambda a=name: getattr(x := getattr(of(), a, None), "__func__", x),  # type: ignore[misc]
                            getattr(method, "__func__", method), identical), ("method", id(owner), name)
                yield from self.of_object(getattr(method, "__func__", method))
            elif isinstance(member, MemberDescriptorType) or not hasattr(type(member), "__get__"):
                value = asked(owner, name, _absent)
                if value is not _absent:
                    yield from self._attribute(owner, name, value)
                else:
                    yield (Guard(f"whether a {kind.__name__} has {name}", lambda a=name: hasattr(of(), a),  # type: ignore[misc]
                                 False, identical), ("absent", id(owner), name))
            else:
                # A descriptor, such as a property: what code of the user's it calls is watched by itself.
                look = Attribute(kind, name) if isinstance(member, property) else partial(member_of, kind, name)
                yield Guard(f"{name} of {kind.__name__}", look, member, identical), ("property", kind, name)
                for part in ("fget", "__func__", "func", "args", "keywords"):
                    if not isinstance(asked(member, part), (FunctionType, NoneType)):
                        yield from self._attribute(member, part, getattr(member, part))

    def _hidden(self, kind: type, own: Container[str], names: Collection[str]) -> Found:
        """Guards for what classes have that an object's ``own`` attributes, or a class before them, hide: ``super().x``."""
        before: set[str] = set()
        for c in kind.__mro__:
            for name in [] if is_of_library(c) else sorted(names & vars(c).keys()):
                if name in own or name in before:
                    member, of, key = vars(c)[name], weakly(c), ("hidden", id(c), name)
                    place = f"{name} of {c.__name__}", lambda a=name, of=of: vars(of())[a]
                    yield from [(Guard(*place, member, identical), key)] if hasattr(type(member), "__get__") else self.of_value(
                        *place, member, key)
            before.update(vars(c))

    def _attribute(self, owner: Any, name: str, value: Any) -> Found:
        own, of = asked(owner, "__dict__", {}), weakly(owner)
        look = Item(own, name) if name in own and not isinstance(owner, type) else AttributeOf(of, name)
        if isinstance(owner, (ModuleType, type)):
            whose = owner.__name__
        else:
            whose = "a " * (not isinstance(owner, Module)) + type(owner).__name__
            if name in own and not isinstance(owner, Module):
                yield Guard(f"the dict of {whose}", AttributeOf(of, "__dict__"), own, identical), ("dict", id(owner))
        yield from self.of_value(f"{name} of {whose}", look, value, ("attribute", id(owner), name))

    def enters(self, value: Any, items: bool = False) -> bool:
        """Is this the first time that the walk comes to the object, or to the ``items`` of a container, which may be one?"""
        known = (id(value), items) in self._entered
        self._entered.add((id(value), items))
        return not known

    @staticmethod
    def _identity(name: str, look: Callable[[], Any], value: Any) -> Guard:
        if not isinstance(value, FunctionType):
            try:
                # Weakly: the object may refer to the compiled function, and a guard must not keep its memory alive.
                return Guard(name, look, ref(value), same_object)
            except TypeError:
                pass
        return Guard(name, look, value, identical)
