"""Who holds live bytes: the names in the program that lead to the tensors over them, found with the garbage collector's help.

A log tells what is live, and not why. Nothing is kept for this while a program runs: the collector's objects are searched when
somebody asks, for names that then hold the bytes.
"""

from __future__ import annotations

import gc
import sys
import traceback
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gradcore._references import LEADING, Cells, How, Name, mro, own_dict, parts, referrers, variables, waits_inside
from gradcore.devices.device import Device, devices
from gradcore.engine.autocast import Casts
from gradcore.engine.backward import Sweep
from gradcore.engine.below import reachable
from gradcore.engine.dispatch import next_number
from gradcore.engine.node import Node
from gradcore.engine.recipes import beside
from gradcore.engine.saved import Packed, Saved
from gradcore.engine.value import Value
from gradcore.memory.ledger import Ledger
from gradcore.memory.stack import install_namer

#: The most objects that are followed at a time; and the most times, each of which costs a look at every reference in the
#: program. How far a name may be is not limited: to a weight of a network it is three references for each module around it.
_WIDTH, _LOOKS = 48, 80
#: Collections of a module, whose names are left out: ``net.0.weight``.
_PARTS = frozenset(("_modules", "_parameters", "_buffers"))
#: Kinds of objects that refer to what has a better name elsewhere, as optimizers do to parameters: a name that leads through
#: one of them is given to what has no other.
BORROWERS: set[type] = set()
#: Kinds of objects that only gradcore's own variables may lead to, and what the program calls what these hold. The loss of
#: loss_of(model(x)).backward() has no other name.
_OWN: dict[type, str] = {Sweep: "the backward that runs", Casts: "autocast until its region ends"}
#: What is not worth a word of what makes up a cycle.
_PLUMBING = frozenset((dict, list, tuple, types.CellType, types.FrameType, types.TracebackType))
#: Reads the slot: a subclass may have a property of the name, as that of a lazy layer's parameters, which raises ValueError.
_storage: Any = vars(Value)["storage"].__get__


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from running by itself: it would free what is to be found."""
    was = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was:
            gc.enable()


def last_node() -> int:
    """The number of the last node that was built."""
    # The counter's text is the only way to its number that leaves it as it is.
    counter: Any = next_number
    return int(repr(counter.__self__)[len("count("):-1]) - 1


def live_nodes() -> list[tuple[int, int]]:
    """The numbers of the nodes that are alive, each with that of the oldest node that it continues from, or its own.

    It takes a look at every reference in the program.
    """
    with uncollected():
        return [(number, min([number, *(e[0].id for e in getattr(o, "edges", ()) if e is not None and type(e[0]) is Node)]))
                for o in gc.get_referrers(Node) if type(o) is Node and (number := getattr(o, "id", 0))]


def holders_of(ledger: Ledger, serials: Iterable[int], given: Mapping[int, tuple[str, str]] | None = None) -> dict[int, str]:
    """By serial of a live buffer: what holds it, such as ``history[0] in __main__`` or ``the graph of loss in train()``.

    At most two names are given of each. What no name was found for is left out. No code of the program's own is run.
    ``given`` has names, and where they are, of objects that no variable has, by id.
    """
    try:
        with uncollected():
            return _holders(ledger, set(serials), given or {})
    except BaseException as error:
        # Such as an interrupt, whose traceback would keep every tensor of the program alive.
        traceback.clear_frames(error.__traceback__)
        raise


def _holders(ledger: Ledger, wanted: set[int], given: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    chosen = _chosen(ledger, wanted)
    targets = [x for over, _ in chosen.values() for x in over]
    ids = {serial: ([id(x) for x in over], what) for serial, (over, what) in chosen.items()}
    # It would be found as a holder.
    del chosen
    names = _Search(targets, given).names
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
        try:
            storage: Any = _storage(value)
        except AttributeError:
            continue
        block = getattr(storage, "block", None)
        if block is not None and storage.device.ledger is ledger and block.serial in found:
            found[block.serial].append(value)
    apart = {serial for serial, over in found.items() if not over}
    if apart:
        _by_graphs(ledger, values, apart, found)
    return {serial: (over[:2], LEADING[Node] if serial in apart else "") for serial, over in found.items()}


def _apart(names: list[Name]) -> list[str]:
    """These names, the shortest first, without those of a part of another's object: a view leads to its base."""
    whole: list[Name] = []
    for name in sorted(set(names), key=lambda n: (len(str(n)), n)):
        if not any(name.where == n.where and name.path.startswith((f"{n.path}.", f"{n.path}[")) for n in whole):
            whole.append(name)
    return [str(name) for name in whole]


def _by_graphs(ledger: Ledger, values: list[Any], apart: set[int], found: dict[int, list[Any]]) -> None:
    """Add to ``found`` the tensors whose graphs keep the buffers ``apart``: the fewest nodes above these first."""
    tops = [v for v in values if type((getattr(v, "edge", None) or (None,))[0]) is Node]
    by_node: dict[int, list[Any]] = {}
    for top in tops:
        by_node.setdefault(top.edge[0].id, []).append(top)
    above: dict[int, list[int]] = {}
    keepers: dict[int, list[int]] = {}
    # What several nodes share leads to the same.
    met = set[int]()
    for number, node in reachable(tops).items():
        for edge in node.edges:
            if edge is not None and type(edge[0]) is Node:
                above.setdefault(edge[0].id, []).append(number)
        stack = [*(node.saved or ()), node.recipe]
        while stack:
            kept = stack.pop()
            if type(kept) is Saved:
                if kept.storage.device.ledger is ledger and kept.storage.serial in apart:
                    keepers.setdefault(kept.storage.serial, []).append(number)
            elif id(kept) not in met:
                met.add(id(kept))
                stack += (*beside(kept), *(kept.kept if type(kept) is Packed else ()))
    for serial, waiting in keepers.items():
        climbed = set[int]()
        for number in waiting:
            if number not in climbed:
                climbed.add(number)
                found[serial] += by_node.get(number, ())
                if len(found[serial]) > 1:
                    break
                waiting += above.get(number, ())


class _Search:
    """A walk from objects to what refers to them, until the program's names for what holds them are found."""

    def __init__(self, targets: list[Any], given: Mapping[int, tuple[str, str]]) -> None:
        self.targets = targets
        #: By id of a target, or of what leads to one.
        self.names: dict[int, Name] = {}
        #: By id of a holder: what it holds, as (id, how).
        self.below: dict[int, list[tuple[int, How]]] = {}
        self.seen: dict[int, Any] = {id(o): o for o in targets}
        #: Borrowers that were met, and not followed yet; None once they are.
        self.aside: list[Any] | None = []
        #: Of almost every program something lives that only a generator holds: the way there takes no look.
        generators = {id(d.generator): ("device.generator", "gradcore") for d in devices() if d.generator is not None}
        self.variables = {**generators, **given, **variables()}
        self.names |= {number: name for number, o in self.seen.items() if (name := self.root(o))}
        try:
            following = list(self.seen)
            for _ in range(_LOOKS):
                # Each look takes as long as the program has objects. What has a name keeps the first one.
                if all(id(o) in self.names for o in targets):
                    break
                following = [number for number in following if number not in self.names]
                if not following:
                    if not self.aside:
                        break
                    following = self.followed(self.aside)
                    continue
                following = following[_WIDTH:] + self.step(tuple(map(self.seen.get, following[:_WIDTH])))
            self.name_rest()
        finally:
            # Two searches at a time may have seen each other.
            self.seen.clear()

    def step(self, frontier: tuple[Any, ...]) -> list[int]:
        """Note what refers to these objects; the result has the ids of what is new and has no name."""
        ids = {id(o) for o in frontier}
        following = []
        own = {id(o) for o in (self.targets, self.seen, frontier)}
        for holder in referrers(frontier):
            # Its own containers are no holders.
            if id(holder) in own:
                continue
            name = self.names.get(id(holder)) or self.root(holder)
            for child, how in parts(holder, ids).items():
                if type(how) is Name and type(holder) is not types.FrameType and not waits_inside(holder):
                    self.name(child, how)
                    continue
                self.below.setdefault(id(holder), []).append((child, how))
                borrower = self.aside is not None and not BORROWERS.isdisjoint(mro(type(holder)))
                if name is not None and not borrower:
                    self.name(child, _joined(name, how))
                elif id(holder) not in self.seen:
                    self.seen[id(holder)] = holder
                    if borrower and self.aside is not None:
                        self.aside.append(holder)
                    else:
                        following.append(id(holder))
        return following

    def followed(self, aside: list[Any]) -> list[int]:
        """Name what has no other name after the borrowers that have one; the result has the ids of the others."""
        self.aside = None
        for holder in aside:
            name = self.root(holder)
            if name is not None:
                self.name(id(holder), name)
        return [id(holder) for holder in aside]

    def root(self, holder: Any) -> Name | None:
        """The name that the program has for an object itself."""
        if issubclass(type(holder), Device):
            # Every tensor leads to it.
            return Name("", "device", "gradcore")
        if type(holder) in _OWN:
            return Name(_OWN[type(holder)], "", "")
        return Name("", *self.variables[id(holder)]) if id(holder) in self.variables else None

    def name(self, child: int, name: Name) -> None:
        """``child`` has a name, and what it holds gets one from that."""
        waiting = deque([(child, name)])
        while waiting:
            # The nearest first: a frame has a variable by itself, and in the dict of its locals() too.
            child, name = waiting.popleft()
            if child not in self.names:
                self.names[child] = name
                waiting += [(below, _joined(name, how)) for below, how in self.below.get(child, ())]

    def name_rest(self) -> None:
        """Say of targets without a name if only a cycle holds them, or a frame that nothing in the program leads to, or what
        waits inside.
        """
        for number in [id(o) for o in self.targets]:
            if number not in self.names and (cycle := self.cycle(number)):
                self.names[number] = Name("", f"a reference cycle of {cycle}, which only gc.collect() frees", "")
        for number, held in self.below.items():
            if type(self.seen.get(number)) is types.FrameType:
                self.name(number, Name("a traceback", "", ""))
            else:
                for child, how in held:
                    # A variable of what waits inside, which is better than nothing.
                    if type(how) is Name:
                        self.name(child, how)

    def cycle(self, target: int) -> str:
        """The type of what leads to an object, if that is garbage: if, as the collector counts, all references to any of it are
        from within; else "".
        """
        holders: dict[int, list[int]] = {}
        for holder, held in self.below.items():
            for child, _ in held:
                holders.setdefault(child, []).append(holder)
        above = {target: self.seen[target]}
        waiting = deque(above)
        while waiting:
            for holder in holders.get(waiting.popleft(), ()):
                if holder not in above:
                    above[holder] = self.seen[holder]
                    waiting.append(holder)
        # That of an object may not have been there before the search read it.
        above |= {id(own): own for own in map(own_dict, list(above.values())) if own is not None}
        within = Counter(id(x) for o in (*above.values(), above, self.seen, self.targets) for x in gc.get_referents(o))
        # Each is held by the iteration, too.
        if len(above) == 1 or any(n - 1 > within[o] for o, n in zip(above, map(sys.getrefcount, above.values()), strict=True)):
            return ""
        # Without what only hangs from the cycle: from what holds nothing upwards.
        holding = Counter(holder for o in above for holder in holders.get(o, ()))
        waiting = deque(o for o in above if not holding[o])
        while waiting:
            for holder in holders.get(waiting.popleft(), ()):
                holding[holder] -= 1
                if not holding[holder]:
                    waiting.append(holder)
        kinds = [(type(o), holding[number]) for number, o in above.items() if type(o) not in _PLUMBING]
        # What has raised it says more than what was called on the way; what hangs from a cycle of containers more than these.
        return next((kind.__name__ for kind, _ in kinds if issubclass(kind, BaseException)), None) or next(
            (kind.__name__ for kind, within in kinds[1:] if within), kinds[1][0].__name__ if len(kinds) > 1 else "containers")


def _joined(name: Name, how: How) -> Name:
    """The name of a part of what has ``name``: ``x in f()`` and ``[0]`` are ``x[0] in f()``."""
    what, path, where = name
    if isinstance(how, Name):
        return how._replace(where=f"{how.where}, whose frame {name} holds")
    if what:
        return name
    if how in LEADING.values() or how == ".grad":
        # The way to a leaf, also to that of a parameter that requires no gradient any more.
        path = path.removesuffix(".edge[0]").removesuffix("._frozen_edge[0]")
    if how in LEADING.values():
        return Name(how, path, where)
    if type(how) is Cells:
        return Name(what, Cells.of(f"{path}{how}", how.names, str(name)), where)
    if type(path) is Cells:
        return Name(what, path.names[int(how[1:-1])], f"the closure of {path.owner}")
    before, dot, last = path.rpartition(".")
    if dot and (last in _PARTS or last == "__dict__") and how[:2] == "['":
        path, how = before, f".{how[2:-2]}"
    return Name(what, f"{path}{how}", where)


install_namer(holders_of)
