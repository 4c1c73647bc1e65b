"""Which functions of the user's a traced run calls.

A frame does not say which function it runs. Its code does not either, since all functions that one ``def`` or ``lambda`` has
made share it; but the values of their closure variables tell them apart, and so do their defaults, where a call has got these.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterator
from functools import cached_property
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from gradcore.cells import name_of_file
from gradcore.program.guarding.frames import first_argument, id_in, is_given_objects, iterators, parameters
from gradcore.program.guarding.guards import Guard, identical
from gradcore.program.guarding.libraries import is_of_library, is_users
from gradcore.program.guarding.names import computes_globals, names_of
from gradcore.program.guarding.readers import Attribute
from gradcore.program.guarding.values import asked
from gradcore.program.watching.newness import New

#: Attributes of functions, cells and frames that lead to the variables of others.
_LEADS = frozenset(("__globals__", "__closure__", "cell_contents", "f_globals", "f_locals"))


class Ran(NamedTuple):
    """A code object that ran, with its globals, and those functions with it that may have been the ones that ran."""

    code: CodeType
    variables: dict[str, Any]
    functions: list[FunctionType]

    def containers(self) -> dict[str, list[Any]]:
        """By name: the globals and free variables that are lists, dicts or sets."""
        found = {n: [self.variables.get(n)] for n in self.code.co_names}
        for f in self.functions:
            for n, cell in zip(self.code.co_freevars, f.__closure__ or (), strict=True):
                found.setdefault(n, []).extend([cell.cell_contents] if id_in(cell) else [])
        kept = {n: [x for x in values if isinstance(x, (list, dict, set))] for n, values in found.items()}
        return {n: values for n, values in kept.items() if values}


class Called:
    """Records the calls by ids, so that it keeps no tensor alive. Once the run has ended, ``found`` says what was called."""

    def __init__(self, new: New) -> None:
        self._new = new
        #: By the ids of a code object and of its globals: the two.
        self._codes: dict[tuple[int, int], tuple[CodeType, dict[str, Any]]] = {}
        #: The same ids, with those of the values of all free variables; and the id of a code object with a name and a value's.
        self._closures: set[tuple[Any, ...]] = set()
        self._variables: set[tuple[int, str, int]] = set()
        self._arguments: set[tuple[int, str, int]] = set()
        #: The ids of code, and of iterators that it was given.
        self._given: set[tuple[int, int]] = set()
        #: By the ids of a class of the user's and of a code object that ran with an instance first: the two.
        self._first: dict[tuple[int, int], tuple[type, CodeType]] = {}
        #: By id of a code object: the ids of the defaults of its functions.
        self._defaults: dict[int, frozenset[int]] = {}

    def enters(self, frame: FrameType) -> bool:
        """Record a call; is it the first one of its code with these globals?"""
        code, variables, seen = frame.f_code, frame.f_globals, frame.f_locals
        key = id(code), id(variables)
        self._closures.add((*key, *[id(seen[n]) if n in seen else None for n in code.co_freevars]))
        self._arguments.update((id(code), n, id(seen[n])) for n in parameters(code) if n in seen)
        if not is_of_library(kind := type(first_argument(frame))):
            self._first[id(kind), id(code)] = kind, code
        if key in self._codes:
            return False
        self._codes[key] = code, variables
        return True

    def gets_others(self, frame: FrameType, first: bool, known: Container[int]) -> bool:
        """May a call get objects that are not among its arguments: by an iterator or a view of a dict that no call of the same
        code had, or, if it is the ``first``, by an object whose id is not ``known``, as one that the run has made?"""
        before = len(self._given)
        self._given.update((id(frame.f_code), id(x)) for x in iterators(frame))
        return len(self._given) > before or (first and is_given_objects(frame, known))

    def variables(self, frame: FrameType) -> Iterator[tuple[str, Any]]:
        """The closure variables of a call, as far as no call of the same code had the same."""
        seen = frame.f_locals
        for n in frame.f_code.co_freevars:
            if n in seen and (key := (id(frame.f_code), n, id(seen[n]))) not in self._variables:
                self._variables.add(key)
                yield n, seen[n]

    def is_default(self, x: Any, code: CodeType) -> bool:
        """Is the object a default of a function that had this code when this was first asked?"""
        if id(code) not in self._defaults:
            self._defaults[id(code)] = frozenset(id(x) for f in gc.get_referrers(code) if isinstance(f, FunctionType)
                                                 for _, x in _defaults_of(f))
        return id(x) in self._defaults[id(code)]

    def codes(self) -> list[CodeType]:
        """The code objects that ran."""
        return [code for code, _ in self._codes.values()]

    def methods(self, named: Container[str]) -> Iterator[tuple[Guard, tuple[Any, ...]]]:
        """Guards for the methods that ran and that no code has ``named``: special ones, and those of computed names."""
        for kind, code in self._first.values():
            for c in () if kind in self._new else kind.__mro__:
                for name in [n for n, x in [*vars(c).items()] if n not in named and asked(x, "__code__") is code]:
                    for of in (kind, c):
                        # A class before it may come to hide it.
                        yield (Guard(f"{name} of {of.__name__}", Attribute(of, name), getattr(of, name), identical),
                               ("method", id(of), name))

    def hidden(self) -> list[str]:
        """Reasons against a replay: what code names that leads to variables which no guard sees."""
        return [f"{name_of_file(code.co_filename)}:{code.co_firstlineno}, {code.co_name}() asks for {name}, where no guard "
                "sees what it finds" for code in self.codes() if is_users(code)
                for name in (*sorted(_LEADS & names_of(code).read),
                             *["globals(), to write or by a computed name"] * computes_globals(code))]

    @cached_property
    def found(self) -> list[Ran]:
        """What was called. Functions that the run made itself, and that are gone, are not there: each run makes them anew."""
        found = self._found()
        if any(f in self._new for of in found for f in of.functions):
            # One that calls itself is in a cycle of references, and waits for the collector.
            del found
            gc.collect()
            found = self._found()
        return found

    def _found(self) -> list[Ran]:
        of = {key: Ran(code, variables, []) for key, (code, variables) in self._codes.items()}
        # Those that have the same variables and defaults are one as far as a call is concerned.
        met: set[tuple[int, ...]] = set()
        for f in gc.get_referrers(*self.codes()):
            if isinstance(f, FunctionType):
                key = id(f.__code__), id(f.__globals__)
                alike = *key, *map(id, f.__closure__ or ()), *(id(x) for _, x in _defaults_of(f))
                if alike not in met and (*key, *map(id_in, f.__closure__ or ())) in self._closures:
                    met.add(alike)
                    of[key].functions.append(f)
        for code, _, functions in of.values():
            # Without variables only defaults tell; one whose defaults nobody got is not held, with all that they hold.
            if not code.co_freevars and (read := [f for f in functions if self.reads_defaults(f)]):
                functions[:] = read
        return [*of.values()]

    def reads_defaults(self, f: FunctionType) -> bool:
        """Did a call of the function's code have one of its defaults as an argument?"""
        return any((id(f.__code__), n, id(x)) in self._arguments for n, x in _defaults_of(f))


def _defaults_of(f: FunctionType) -> list[tuple[str, Any]]:
    """The defaults of a function, each with its parameter."""
    last, defaults = f.__code__.co_argcount, f.__defaults__ or ()
    return [*zip(f.__code__.co_varnames[last - len(defaults):last], defaults, strict=True), *(f.__kwdefaults__ or {}).items()]
