"""Who holds live bytes: the names in the program that lead to the tensors over them, found with the garbage collector's help.

A log tells what is live, and not why. Nothing is kept for this while a program runs: the collector's objects are searched when
somebody asks, for names that then hold the bytes.
"""

from __future__ import annotations

import gc
import inspect
import operator
import sys
import threading
import traceback
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import chain, compress, repeat, starmap, tee
from typing import Any, NamedTuple

from gradcore.devices.device import Device
from gradcore.engine.below import reachable
from gradcore.engine.node import Leaf, Node
from gradcore.engine.saved import Packed, Saved
from gradcore.engine.sites import is_inside
from gradcore.engine.value import PLAIN, Value
from gradcore.memory.ledger import Ledger
from gradcore.memory.stack import install_namer

#: The most references that lead from a name to a tensor, and the most objects that are followed at a time: each costs a look at
#: every reference in the program.
_DEPTH, _WIDTH = 14, 48
#: Collections of a module, whose names are left out: ``net.0.weight``.
_PARTS = frozenset(("_modules", "_parameters", "_buffers"))
#: What is said of all that some objects lead to, instead of the way there.
_LEADING: dict[type, str] = {Node: "the graph of ", Leaf: "the hooks of ", types.TracebackType: "the traceback of "}
#: Attributes that are not found in an object's ``__dict__`` or slots, and take no code of its class's.
_C_ATTRIBUTES = frozenset(("__dict__", "__defaults__", "__kwdefaults__", "__context__", "__cause__"))
#: What is not worth a word of what makes up a cycle.
_PLUMBING = frozenset((dict, list, tuple, types.CellType, types.FrameType, types.TracebackType))
#: Functions that wait, by the name of the attribute that is their frame.
_WAITING: dict[type, str] = {
    types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
#: Attributes of classes as they are: a metaclass may answer for them.
_vars, _mro = type.__dict__["__dict__"].__get__, type.__dict__["__mro__"].__get__


class _Name(NamedTuple):
    """``the graph of history[0] in __main__``, as what it is of the object, the way to that, and where this begins."""

    what: str
    path: str
    where: str

    def __str__(self) -> str:
        return f"{self.what}{self.path} in {self.where}" if self.where else self.path


#: How a holder refers to something: what this adds to the holder's name, or what is said of it; for a local variable, its name.
_How = str | _Name


def holders_of(ledger: Ledger, serials: Iterable[int]) -> dict[int, str]:
    """By serial of a live buffer: what holds it, such as ``history[0] in __main__`` or ``the graph of loss in train()``.

    At most two names are given of each. What no name was found for is left out. No code of the program's own is run.
    """
    try:
        return _holders(ledger, set(serials))
    except BaseException as error:
        # Such as an interrupt, whose traceback would keep every tensor of the program alive.
        traceback.clear_frames(error.__traceback__)
        raise


def _holders(ledger: Ledger, wanted: set[int]) -> dict[int, str]:
    chosen = _chosen(ledger, wanted)
    targets = [x for over, _ in chosen.values() for x in over]
    ids = {serial: ([id(x) for x in over], what) for serial, (over, what) in chosen.items()}
    # It would be found as a holder.
    del chosen
    names = _Search(targets).names
    texts = {serial: _apart([names[x]._replace(what=names[x].what or what) for x in over if x in names])
             for serial, (over, what) in ids.items()}
    return {serial: " and ".join(text) for serial, text in texts.items() if text}


def _chosen(ledger: Ledger, wanted: set[int]) -> dict[int, tuple[list[Any], str]]:
    """By serial: two tensors at most over a buffer, or else above what keeps it, and what that makes of their names."""
    kinds: list[type] = [Value]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    # An object refers to its class. Not isinstance, which would ask objects that answer for others.
    values = [o for o in gc.get_referrers(*kinds) if issubclass(type(o), Value)]
    found: dict[int, list[Any]] = {serial: [] for serial in wanted}
    for value in values:
        storage: Any = getattr(value, "storage", None)
        block = getattr(storage, "block", None)
        if block is not None and storage.device.ledger is ledger and block.serial in found:
            found[block.serial].append(value)
    apart = {serial for serial, over in found.items() if not over}
    if apart:
        _by_graphs(ledger, values, apart, found)
    return {serial: (over[:2], _LEADING[Node] if serial in apart else "") for serial, over in found.items()}


def _apart(names: list[_Name]) -> list[str]:
    """These names, the shortest first, without those of a part of another's object: a view leads to its base."""
    whole: list[_Name] = []
    for name in sorted(set(names), key=lambda n: len(str(n))):
        if not any(name.where == n.where and name.path.startswith((f"{n.path}.", f"{n.path}[")) for n in whole):
            whole.append(name)
    return [str(name) for name in whole]


def _by_graphs(ledger: Ledger, values: list[Any], apart: set[int], found: dict[int, list[Any]]) -> None:
    """Add to ``found`` the tensors whose graphs keep the buffers ``apart``: the fewest nodes above these first."""
    tops = [v for v in values if type((getattr(v, "edge", None) or (None,))[0]) is Node]
    nodes = reachable(tops)
    above: dict[int, list[int]] = {}
    keepers: dict[int, list[int]] = {}
    for number, node in nodes.items():
        for edge in node.edges:
            if edge is not None and type(edge[0]) is Node:
                above.setdefault(edge[0].id, []).append(number)
        for residual in node.saved or ():
            for kept in residual.kept if type(residual) is Packed else [residual]:
                if type(kept) is Saved and kept.storage.device.ledger is ledger and kept.storage.serial in apart:
                    keepers.setdefault(kept.storage.serial, []).append(number)
    for serial, start in keepers.items():
        order = {number: i for i, number in enumerate(start)}
        waiting = deque(start)
        while waiting:
            for number in above.get(waiting.popleft(), ()):
                if number not in order:
                    order[number] = len(order)
                    waiting.append(number)
        over = [v for v in tops if v.edge[0].id in order]
        found[serial] = sorted(over, key=lambda v: order[v.edge[0].id])


class _Search:
    """A walk from objects to what refers to them, until the program's names for what holds them are found."""

    def __init__(self, targets: list[Any]) -> None:
        self.targets = targets
        #: By id of a target, or of what leads to one.
        self.names: dict[int, _Name] = {}
        #: By id of a holder: what it holds, as (id, how).
        self.below: dict[int, list[tuple[int, _How]]] = {}
        self.seen: dict[int, Any] = {id(o): o for o in targets}
        self.variables = dict(_variables())
        self.names |= {o: self.variables[o] for o in self.seen if o in self.variables}
        try:
            following = list(self.seen)
            for _ in range(_DEPTH):
                following = self.step(tuple(self.seen[o] for o in following if o not in self.names)[:_WIDTH])
            self.name_rest()
        finally:
            # Two searches at a time may have seen each other.
            self.seen.clear()

    def step(self, frontier: tuple[Any, ...]) -> list[int]:
        """Note what refers to these objects; the result has the ids of what is new and has no name."""
        ids = {id(o) for o in frontier}
        following = []
        own = {id(o) for o in (self.targets, self.seen, frontier)}
        for holder in _referrers(frontier):
            # Its own containers are no holders.
            if id(holder) in own:
                continue
            name = self.names.get(id(holder)) or self.root(holder)
            for child, how in _parts(holder, ids).items():
                if type(how) is _Name and type(holder) is not types.FrameType:
                    self.name(child, how)
                    continue
                self.below.setdefault(id(holder), []).append((child, how))
                if name is not None:
                    self.name(child, _joined(name, how))
                elif id(holder) not in self.seen:
                    self.seen[id(holder)] = holder
                    following.append(id(holder))
        return following

    def root(self, holder: Any) -> _Name | None:
        """The name that the program has for an object itself."""
        # Every tensor leads to its device.
        return _Name("", "device", "gradcore") if issubclass(type(holder), Device) else self.variables.get(id(holder))

    def name(self, child: int, name: _Name) -> None:
        """``child`` has a name, and what it holds gets one from that."""
        waiting = [(child, name)]
        while waiting:
            child, name = waiting.pop()
            if child not in self.names:
                self.names[child] = name
                waiting += [(below, _joined(name, how)) for below, how in self.below.get(child, ())]

    def name_rest(self) -> None:
        """Say of targets without a name if only a cycle holds them, or a frame that nothing in the program leads to."""
        for number in [id(o) for o in self.targets]:
            if number not in self.names and (cycle := self.cycle(number)):
                self.names[number] = _Name("", f"a reference cycle of {cycle}, which only gc.collect() frees", "")
        for number in self.below:
            if type(self.seen.get(number)) is types.FrameType:
                self.name(number, _Name("", "a traceback", ""))

    def cycle(self, target: int) -> str:
        """The type of what leads to an object, if that is garbage: if, as the collector counts, all references to any of it are
        from within; else "".
        """
        holders: dict[int, list[int]] = {}
        for holder, parts in self.below.items():
            for child, _ in parts:
                holders.setdefault(child, []).append(holder)
        above = {target: self.seen[target]}
        waiting = deque(above)
        while waiting:
            for holder in holders.get(waiting.popleft(), ()):
                if holder not in above:
                    above[holder] = self.seen[holder]
                    waiting.append(holder)
        within = Counter(id(x) for o in (*above.values(), above, self.seen, self.targets) for x in gc.get_referents(o))
        # Each is held by the iteration, too.
        if len(above) == 1 or any(n - 1 > within[o] for o, n in zip(above, map(sys.getrefcount, above.values()), strict=True)):
            return ""
        kinds = [type(o).__name__ for o in above.values() if type(o) not in _PLUMBING]
        return kinds[1] if len(kinds) > 1 else "containers"


def _referrers(objects: tuple[Any, ...]) -> list[Any]:
    """What refers to these objects, without tuples that ``tuple()`` has not filled yet.

    To read one ends the process, and to hold one while another thread fills it is an error there. So they are left out within
    one call, in which no other thread runs.
    """
    found, kinds, holders, again = tee(chain.from_iterable(starmap(gc.get_referrers, (objects,))), 4)
    # Anything else has at least as many parts as True.
    sizes = map(operator.call, map({id(tuple): len}.get, map(id, map(type, kinds)), repeat(gc.is_tracked)), holders)
    return list(compress(found, map(operator.le, sizes, map(len, map(gc.get_referents, again)))))


def _joined(name: _Name, how: _How) -> _Name:
    """The name of a part of what has ``name``: ``x in f()`` and ``[0]`` are ``x[0] in f()``."""
    what, path, where = name
    if isinstance(how, _Name):
        return how._replace(where=f"{how.where}, whose frame {name} holds")
    if what:
        return name
    if how in _LEADING.values():
        return _Name(how, path.removesuffix(".edge[0]"), where)
    if how == ".grad":
        path = path.removesuffix(".edge[0]")
    before, dot, last = path.rpartition(".")
    if dot and (last in _PARTS or last == "__dict__") and how[:2] == "['":
        path, how = before, f".{how[2:-2]}"
    return _Name(what, f"{path}{how}", where)


def _parts(holder: Any, ids: set[int]) -> dict[int, _How]:
    """Those of the objects with these ids that a holder refers to, and how."""
    kind = type(holder)
    found: dict[int, _How] = {}
    if kind in _LEADING:
        return {id(v): ".grad" if kind is Leaf and v is holder.grad else _LEADING[kind]
                for v in gc.get_referents(holder) if id(v) in ids}
    if issubclass(kind, dict):
        items = list(dict.items(holder))
        found = {id(k): f".keys()[{i}]" for i, (k, _) in enumerate(items) if id(k) in ids}
        found |= {id(v): f"[{_key(k)}]" for k, v in items if id(v) in ids}
    elif issubclass(kind, (list, tuple, deque)):
        base: Any = next(base for base in (list, tuple, deque) if issubclass(kind, base))
        found = {id(v): f"[{i}]" for i, v in enumerate(list(base.__iter__(holder))) if id(v) in ids}
    elif kind is types.FrameType:
        # A call of gradcore's own is of no interest.
        if not is_inside(holder.f_code):
            found = {id(v): _Name("", name, f"{holder.f_code.co_qualname}()") for name, v in _locals_of(holder) if id(v) in ids}
    elif kind in _WAITING:
        frame, call = getattr(holder, _WAITING[kind]), f"the {kind.__name__.replace('_', ' ')} {holder.__qualname__}()"
        if frame is not None:
            found = {id(v): _Name("", name, call) for name, v in _locals_of(frame) if id(v) in ids}
    elif issubclass(kind, type):
        # The dict behind the view that a class shows.
        found = {id(v): ".__dict__" for v in gc.get_referents(holder) if type(v) is dict and id(v) in ids}
    else:
        found = {id(v): how for how, v in _attributes(holder) if id(v) in ids}
    # An object of C, or one that hides what it has.
    return {id(v): "" for v in gc.get_referents(holder) if id(v) in ids} | found


def _key(key: Any) -> str:
    """A key as the program may have written it, unless that is long or takes code of the key's own."""
    size = len(key) if type(key) is str else key.bit_length() if type(key) is int else 0
    return repr(key) if size <= 100 and type(key) in (str, *PLAIN) else "..."


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object that need no code of its class's to be read."""
    for cls in _mro(type(holder)):
        for name, member in list(_vars(cls).items()):
            try:
                if type(member) is types.MemberDescriptorType:
                    yield f".{name}", member.__get__(holder)
                elif type(member) is types.GetSetDescriptorType and name in _C_ATTRIBUTES:
                    own = member.__get__(holder)
                    yield f".{name}", own
                    if type(own) is dict:
                        yield from ((f".{name}", value) for name, value in list(own.items()) if type(name) is str)
            except (AttributeError, TypeError):
                continue


def _variables() -> Iterator[tuple[int, _Name]]:
    """The ids of what variables refer to, with their names: those of functions that run, which the collector does not see, and
    of modules, which it does not see if they are frozen. Of several names of one object the last counts.
    """
    for top in list(sys._current_frames().values()):
        frame: types.FrameType | None = top
        while frame is not None:
            if not is_inside(frame.f_code):
                yield from ((id(value), _Name("", name, f"{frame.f_code.co_qualname}()")) for name, value in _locals_of(frame))
            frame = frame.f_back
    # One of them is this call's own: it would refer to itself, and to its callers.
    del top
    # The program's own module is the first that is loaded, and may be listed once more under another name.
    for module, there in reversed(list(sys.modules.items())):
        if type(there) is types.ModuleType:
            yield from ((id(value), _Name("", name, module)) for name, value in list(vars(there).items()))


def _locals_of(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    """The local variables of a function's frame."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # Those of a module are its namespace.
        return
    shown = frame.f_locals
    pairs = list(shown.items())
    # Before Python 3.13 the frame keeps this dict, which would hold what the function lets go. It is made anew when asked for;
    # what a call of locals() has handed out is left alone. So is what a debugger may have, as Python takes the variables from
    # there when a function that traces returns.
    traced = any(f() for f in (sys.gettrace, sys.getprofile, threading.gettrace, threading.getprofile))
    if type(shown) is dict and sys.getrefcount(shown) <= 3 and not traced:
        shown.clear()
    # Others are not of the program's own, such as what pytest remembers for an assertion's text.
    yield from ((name, value) for name, value in pairs if name.isidentifier())


install_namer(holders_of)
