"""Guards: each remembers one thing that a traced function read, and tells whether it is still the same.

Plain data is compared by value; tensors, parameters, modules and functions by identity. What a guard asks it states as terms of
Python, which :class:`Terms` compiles together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any
from weakref import ref

from gradcore.engine.leaf import Leaf
from gradcore.events import WRITTEN
from gradcore.program.guarding.readers import Namer, Reader
from gradcore.program.guarding.values import buffer_of, difference, equal, ids_in, is_plain, mark_of

#: What a guard asks, and a sentence that says what has changed if the answer is no, or a function that gives the sentence.
Term = tuple[str, str | Callable[[], str]]


def weakly(x: Any) -> Callable[[], Any]:
    """A function that returns an object, weakly if that is possible: a guard must not keep its memory alive."""
    try:
        return ref(x)
    except TypeError:
        return lambda: x


def same_memory(name: Namer, tensor: Any, storage: Any, spec: Any, why: str | Callable[[], str]) -> Iterator[Term]:
    yield f"{name(tensor)}.storage is {name(storage)}", why
    # Other elements of the same memory, as after p.data = p.data[:4].
    yield f"{name(tensor)}.spec is {name(spec)}", why


class Asking:
    """Base of guards: what one asks of the present state of the process for a replay to do what the traced run did."""

    __slots__ = ()

    def terms(self, name: Namer) -> Iterator[Term]:
        raise NotImplementedError

    def values(self) -> list[Any]:
        """The tensors that are guarded."""
        return []

    def replaced(self) -> list[Any]:
        """The storages that guarded tensors had, of those that have others now."""
        return []


class Guard(Asking):
    """One value that was read: its ``name`` for messages, ``look`` to read it again, what was ``seen``, how to compare."""

    __slots__ = ("name", "look", "seen", "same")

    def __init__(self, name: str, look: Callable[[], Any], seen: Any, same: Callable[[Any, Any], bool]) -> None:
        self.name = name
        self.look = look
        self.seen = seen
        self.same = same

    def holds(self) -> bool:
        try:
            return self.same(self.look(), self.seen)
        except Exception:
            return False

    def terms(self, name: Namer) -> Iterator[Term]:
        why = self.why_not
        now = self.look.term(name) if isinstance(self.look, Reader) else f"{name(self.look)}()"
        if self.same is same_object:
            yield f"{name(self.seen)}() is {now} is not None", why
        elif self.same is identical:
            yield f"{now} is {name(self.seen)}", why
        elif self.same is equal:
            # Immutable data mostly is the same object.
            yield f"((now := {now}) is {name(self.seen)} or {name(equal)}(now, {name(self.seen)}))", why
        else:
            yield f"{name(self.same)}({now}, {name(self.seen)})", why

    def why_not(self) -> str:
        """A sentence that says what has changed."""
        try:
            now = self.look()
        except Exception as error:
            return f"{self.name} can no longer be read: {error!r}"
        if is_plain(now) and is_plain(self.seen):
            return difference(self.name, now, self.seen)
        return f"{self.name} {'is a different object' if self.same in (identical, same_object) else 'has changed'}"

    def refusal(self) -> str:
        """Why a run that has changed what is guarded is not replayed."""
        return f"the function changes what it reads: {self.why_not()}"


#: Guards, each with a key that identifies the place that it reads.
Found = Iterator[tuple[Asking, tuple[Any, ...]]]


class TensorGuard(Guard):
    """A tensor is the same object with the same edge, and shows the same elements of the same memory."""

    __slots__ = ("storage", "spec", "edge")

    def __init__(self, name: str, look: Callable[[], Any], tensor: Any) -> None:
        super().__init__(name, look, tensor, identical)
        self.storage, self.spec, self.edge = tensor.storage, tensor.spec, tensor.edge

    def terms(self, name: Namer) -> Iterator[Term]:
        yield from super().terms(name)
        yield from same_memory(name, self.seen, self.storage, self.spec, f"the memory of {self.name} was replaced")
        yield f"{name(self.seen)}.edge is {name(self.edge)}", f"requires_grad of {self.name} has changed"

    def values(self) -> list[Any]:
        return [self.seen]

    def replaced(self) -> list[Any]:
        return [self.storage] if self.seen.storage is not self.storage else []


class Once(Guard):
    """What is compared after a traced run, which must not change it, but not between runs.

    ``why`` says why a run that did is not replayed, if what has changed does not say it.
    """

    __slots__ = ("why",)

    def __init__(self, name: str, look: Callable[[], Any], seen: Any, same: Callable[[Any, Any], bool], why: str = "") -> None:
        super().__init__(name, look, seen, same)
        self.why = why

    def refusal(self) -> str:
        return self.why or super().refusal()


class Never(Once):
    """Never holds: no run of a function that refers to such an object is replayed.

    With ``numbers``, only a run that makes tensors of Python numbers is not.
    """

    __slots__ = ("numbers",)

    def __init__(self, why: str, numbers: bool = False) -> None:
        super().__init__("", object, None, identical, why)
        self.numbers = numbers


def draws_from(name: str) -> str:
    """Why a run is not replayed that has changed the state of a generator or an iterator."""
    return f"the function draws from {name}, which gives different values each time"


def unseen(name: str) -> Never:
    return Never(f"it makes a tensor of Python numbers, and {name} has too many items to be compared: make the tensor outside",
                 numbers=True)


def too_long(name: str, look: Callable[[], Any], key: tuple[Any, ...]) -> list[tuple[Once, tuple[Any, ...]]]:
    """Guards for a container that is too long to be compared in each call; what ``seen`` is, ``note`` finds out."""
    return [(unseen(name), (*key, "unseen")),
            (Once(name, look, None, same_mark, f"the function changes what is in {name}"), (*key, "written"))]


def member_of(kind: type, name: str) -> Any:
    """What a class, or the first of its bases that has the name, has under it: a descriptor itself."""
    return next(vars(c)[name] for c in kind.__mro__ if name in vars(c))


def items_of(name: str, look: Callable[[], Any]) -> Once:
    """Which objects a container has, by their ids, so that none is held."""
    return Once(name, lambda: ids_in(look()), ids_in(look()), equal,
                f"the function changes what it reads: {name} has other items, or has them in another order")


def identical(now: Any, seen: Any) -> bool:
    return now is seen


def same_object(now: Any, seen: Any) -> bool:
    # Both are None once the object that a weak reference leads to has gone.
    return now is not None and now is seen()


def same_method(now: Any, seen: Any) -> bool:
    return type(now) is type(seen) and bool(now == seen)


def same_mark(now: Any, seen: Any) -> bool:
    return bool(mark_of(now) == seen)


def same_of_its_class(now: Any, seen: Any) -> bool:
    return now is seen[0] and type(now) is seen[1]


def same_buffer(now: Any, seen: Any) -> bool:
    return bool(buffer_of(now) == seen)


def same_items(now: Any, seen: Any) -> bool:
    return len(now) == len(seen) and all(map(is_, now, seen))


def same_entries(now: Any, seen: Any) -> bool:
    return len(now) == len(seen) and equal(tuple(now), tuple(seen)) and all(map(is_, now.values(), seen.values()))


class Terms:
    """What guards ask, and for every leaf in ``presence`` that it has a gradient, or none, as it says there."""

    def __init__(self, guards: Iterable[Asking], presence: Mapping[Leaf, bool]) -> None:
        self._names: dict[str, Any] = {}
        #: A term that several guards state is asked once.
        self._terms: dict[str, str | Callable[[], str]] = {}
        for guard in guards:
            for term, why in guard.terms(self._name):
                self._terms.setdefault(term, why)
        for leaf, wanted in presence.items():
            self._terms[f"({self._name(leaf)}.grad is not None) is {wanted}"] = (
                f"the gradient of {leaf.described()}, is "
                + ("None and was a tensor" if wanted else "a tensor and was None"))

    def _name(self, x: Any) -> str:
        found = f"x{id(x)}"
        self._names[found] = x
        return found

    def all_hold(self) -> Callable[[], bool]:
        """A function that says whether all terms hold: one expression, since it runs at every call."""
        # A value that cannot be read any more has changed.
        source = f"def check():\n try: return {' and '.join(self._terms) or 'True'}\n except Exception: return False"
        exec(compile(source, WRITTEN, "exec"), self._names)
        # Out of its own globals, so that there is no reference cycle and reference counts free it.
        check: Callable[[], bool] = self._names.pop("check")
        return check

    def why_not(self) -> str:
        """The sentence of the first term that does not hold; "" if all do."""
        for term, why in self._terms.items():
            try:
                holds = eval(term, self._names)
            except Exception:
                holds = False
            if not holds:
                return why if isinstance(why, str) else why()
        return ""
