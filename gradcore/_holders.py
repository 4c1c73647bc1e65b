"""Who holds live bytes: the names in the program that lead to the tensors over them, found with the garbage collector's help.

A log tells what is live, and not why. Nothing is kept for this while a program runs: the collector's objects are searched when
somebody asks, for names that then hold the bytes.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import CellType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from gradcore.devices.device import Device
from gradcore.engine.below import reachable
from gradcore.engine.node import Node
from gradcore.engine.saved import Packed, Saved
from gradcore.engine.sites import is_inside
from gradcore.engine.value import Value
from gradcore.memory.ledger import Ledger
from gradcore.memory.stack import install_namer

#: The most references that lead from a name to a tensor, and the most objects that are followed at a time: each costs a look at
#: every reference in the program.
_DEPTH, _WIDTH = 14, 48
#: A way through the nodes of a graph, as to what an ``autograd.Function`` left on its ctx.
_GRAPH = re.compile(r"(.*?)\.edge\[0\].*?( in .*)")
#: Collections of a module, whose names are left out: ``net.0.weight``.
_PARTS = frozenset(("_modules", "_parameters", "_buffers"))


def holders_of(ledger: Ledger, serials: Iterable[int]) -> dict[int, str]:
    """By serial of a live buffer: what holds it, such as ``history[0] in __main__`` or ``the graph of loss in train()``.

    At most two names are given of each. What no name was found for is left out.
    """
    wanted = set(serials)
    # Not isinstance, which would ask objects that answer for others.
    values = [o for o in gc.get_objects() if issubclass(type(o), Value)]
    found: dict[int, list[Any]] = {serial: [] for serial in wanted}
    for value in values:
        storage: Any = getattr(value, "storage", None)
        block = getattr(storage, "block", None)
        if block is not None and storage.device.ledger is ledger and block.serial in found:
            found[block.serial].append(value)
    apart = {serial for serial, over in found.items() if not over}
    if apart:
        _by_graphs(ledger, values, apart, found)
    targets = [x for over in found.values() for x in over[:2]]
    chosen = {serial: [id(x) for x in over[:2]] for serial, over in found.items()}
    # They would be found as holders.
    del values, found
    names = _named(targets)
    shown = {serial: _apart(sorted({_GRAPH.sub(r"the graph of \1\2", names[x]) for x in over if x in names}, key=len))
             for serial, over in chosen.items()}
    return {serial: ("the graph of " if serial in apart else "") + " and ".join(n) for serial, n in shown.items() if n}


def _apart(names: list[str]) -> list[str]:
    """These names, the shortest first, without those of a part of another's object: a view leads to its base."""
    whole: list[str] = []
    for name in names:
        path, _, where = name.partition(" in ")
        if not any(path.startswith(other) and where == there for other, _, there in (n.partition(" in ") for n in whole)):
            whole.append(name)
    return whole


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
    """A walk from objects to what refers to them, until names are found. Its own containers are no holders."""

    def __init__(self, targets: list[Any]) -> None:
        self.targets = targets
        self.names: dict[int, str] = {}
        #: By id of a holder: what it holds, as (id, how).
        self.below: dict[int, list[tuple[int, str]]] = {}
        self.seen: dict[int, Any] = {id(o): o for o in targets}
        self.unheld: set[int] = set()
        self.variables = dict(_variables())

    def name(self, child: int, name: str) -> None:
        """``child`` has a name, and what it holds gets one from that."""
        waiting = [(child, name)]
        while waiting:
            child, name = waiting.pop()
            if child not in self.names:
                self.names[child] = name
                waiting += [(below, _joined(name, how)) for below, how in self.below.get(child, ())]

    def step(self, frontier: list[Any]) -> list[Any]:
        """Note what refers to these objects; the result is what has no name yet, to look at next."""
        ids = {id(o) for o in frontier}
        own = {id(o) for o in (self.targets, self.seen, frontier)}
        held: set[int] = set()
        following = []
        for holder in gc.get_referrers(*frontier):
            if id(holder) in own:
                continue
            for child, how in _parts(holder, ids):
                held.add(child)
                root = self.root(holder, how)
                if root is not None:
                    self.name(child, root)
                    continue
                self.below.setdefault(id(holder), []).append((child, how))
                if id(holder) in self.names:
                    self.name(child, _joined(self.names[id(holder)], how))
                elif id(holder) not in self.seen:
                    self.seen[id(holder)] = holder
                    following.append(holder)
        self.unheld |= ids - held
        return [o for o in following if id(o) not in self.names]

    def root(self, holder: Any, how: str) -> str | None:
        """The name that such a part of a holder has in the program; None if the holder itself needs one."""
        if type(holder) is FrameType:
            return f"{how} in {holder.f_code.co_qualname}(), whose frame a traceback holds"
        if type(holder) is GeneratorType:
            return f"{how} in the generator {holder.__qualname__}()"
        if issubclass(type(holder), Device):
            # Every tensor leads to it.
            return f"device{how} in gradcore"
        return None


def _named(targets: list[Any]) -> dict[int, str]:
    """By id: the name by which the program holds each object, where one is found."""
    search = _Search(targets)
    frontier = targets
    for _ in range(_DEPTH):
        for o in frontier:
            if id(o) in search.variables:
                search.name(id(o), search.variables[id(o)])
        frontier = [o for o in frontier if id(o) not in search.names][:_WIDTH]
        if not frontier:
            break
        frontier = search.step(frontier)
    for o in targets:
        if id(o) not in search.names and not frontier:
            cycle = _cycle(search, o)
            if cycle:
                search.names[id(o)] = cycle
    return search.names


def _cycle(search: _Search, target: Any) -> str:
    """What to say about an object without a name, if all that leads to it is held by a cycle alone; else ""."""
    holders: dict[int, set[int]] = {}
    for holder, parts in search.below.items():
        for child, _ in parts:
            holders.setdefault(child, set()).add(holder)
    above, waiting = set[int](), [id(target)]
    while waiting:
        for holder in holders.get(waiting.pop(), ()):
            if holder not in above:
                above.add(holder)
                waiting.append(holder)
    if not above or above & search.unheld or id(target) in search.unheld:
        return ""
    kinds = (type(search.seen[o]).__name__ for o in above if type(search.seen[o]) not in (dict, list, tuple, CellType))
    return f"a reference cycle of {next(kinds, 'containers')}, which only gc.collect() frees"


def _joined(name: str, how: str) -> str:
    """``name`` with a further part: ``x in f()`` and ``[0]`` are ``x[0] in f()``."""
    path, found, where = name.partition(" in ")
    if path.endswith(".__dict__"):
        path, how = path[:-9], f".{how[2:-2]}"
    before, dot, last = path.rpartition(".")
    if dot and last in _PARTS:
        path, how = before, f".{how[2:-2]}"
    path = f"{path}{how}"
    if path.endswith(".edge[0].grad"):
        path = f"{path[:-13]}.grad"
    return f"{path}{found}{where}"


def _parts(holder: Any, ids: set[int]) -> Iterator[tuple[int, str]]:
    """Those of the objects with these ids that a holder refers to, as (id, how)."""
    kind = type(holder)
    if issubclass(kind, dict):
        pairs = [(f"[{_key(k)}]", v) for k, v in list(dict.items(holder))] + [
            (f".keys()[{i}]", k) for i, k in enumerate(list(dict.keys(holder)))]
    elif issubclass(kind, (list, tuple, deque)):
        pairs = [(f"[{i}]", v) for i, v in enumerate(list(holder))]
    elif kind is CellType:
        pairs = [("", holder.cell_contents)]
    elif kind is FrameType:
        pairs = list(_locals_of(holder))
    elif kind is GeneratorType:
        pairs = list(_locals_of(holder.gi_frame)) if holder.gi_frame is not None else []
    elif issubclass(kind, type):
        # The dict behind the view that a class shows.
        pairs = [(".__dict__", v) for v in gc.get_referents(holder) if type(v) is dict]
    else:
        pairs = list(_attributes(holder))
        if kind is FunctionType:
            pairs += (".__defaults__", holder.__defaults__), (".__kwdefaults__", holder.__kwdefaults__)
    known = {id(v) for _, v in pairs}
    yield from ((id(v), how) for how, v in pairs if id(v) in ids)
    # An object of C, or one that hides what it has.
    yield from ((id(v), "") for v in gc.get_referents(holder) if id(v) in ids and id(v) not in known)


def _key(key: Any) -> str:
    return repr(key) if type(key) in (str, int) else "..."


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object that need no code of its class's to be read."""
    try:
        own = object.__getattribute__(holder, "__dict__")
    except (AttributeError, TypeError):
        own = None
    if type(own) is dict:
        yield ".__dict__", own
        yield from ((f".{name}", value) for name, value in list(own.items()) if type(name) is str)
    for cls in type(holder).__mro__:
        for name, member in list(vars(cls).items()):
            if inspect.ismemberdescriptor(member):
                try:
                    yield f".{name}", member.__get__(holder)
                except (AttributeError, TypeError):
                    continue


def _variables() -> Iterator[tuple[int, str]]:
    """The ids of what variables refer to, with their names: those of functions that run, which the collector does not see, and
    of modules, which it does not see if they are frozen. Of several names of one object the last counts.
    """
    for top in list(sys._current_frames().values()):
        frame: FrameType | None = top
        while frame is not None:
            if not is_inside(frame.f_code):
                yield from ((id(value), f"{name} in {frame.f_code.co_qualname}()") for name, value in _locals_of(frame))
            frame = frame.f_back
    # The program's own module is the first that is loaded, and may be listed once more under another name.
    for module, there in reversed(list(sys.modules.items())):
        if type(there) is ModuleType:
            yield from ((id(value), f"{name} in {module}") for name, value in list(vars(there).items()))


def _locals_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The local variables of a function's frame."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # Those of a module are its namespace.
        return
    shown = frame.f_locals
    pairs = list(shown.items())
    # Before Python 3.13 the frame keeps this dict, which would hold what the function lets go. It is made anew when asked for;
    # what a call of locals() has handed out is left alone.
    if type(shown) is dict and sys.getrefcount(shown) <= 3:
        shown.clear()
    # Others are not of the program's own, such as what pytest remembers for an assertion's text.
    yield from ((name, value) for name, value in pairs if name.isidentifier())


install_namer(holders_of)
