"""Watches a function while it is traced, to find what it reads besides its arguments.

While it runs, every Python function that it enters is recorded. Afterwards the globals, closure variables and attributes that
their code names are looked up, and each becomes a guard. What is read in other ways (``getattr`` with a computed name)
no guard can see; a function that asks the clock, files, the system or other C code with a state is not replayed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from functools import cached_property
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np

from gradcore.autograd.function import FunctionCtx
from gradcore.engine.sites import is_inside
from gradcore.engine.value import Value
from gradcore.nn.module import Module
from gradcore.optim import Optimizer
from gradcore.optim.lr_scheduler import LRScheduler
from gradcore.program.guarding.frames import is_generated, line_of, passed, takes_first, users_frames, users_line
from gradcore.program.guarding.guards import Asking, Found, Guard, Once, identical, weakly
from gradcore.program.guarding.libraries import is_library
from gradcore.program.guarding.names import Names, names_of, names_within
from gradcore.program.guarding.optimizers import is_optimizer
from gradcore.program.guarding.reach import Reach
from gradcore.program.guarding.readers import Attribute
from gradcore.program.guarding.values import GENERATORS, asked
from gradcore.program.watching.assignments import Steps, assigned
from gradcore.program.watching.began import Began
from gradcore.program.watching.called import Called
from gradcore.program.watching.former import CHANGES_HOOKS, hung, requiring, table_of
from gradcore.program.watching.gradient_reads import READS_GRADIENT, GradientReads
from gradcore.program.watching.harmless import ASSIGNING, EXCHANGES, OPERATORS, SETS_REQUIRES_GRAD, STORES_WEIGHT, is_harmless
from gradcore.program.watching.looked_up import LOOKING_UP, LookedUp
from gradcore.program.watching.newness import New
from gradcore.program.watching.optimizer_runs import OptimizerRuns
from gradcore.program.watching.outside import Outside
from gradcore.program.watching.schedules import Schedules
from gradcore.program.watching.stored import Stored, place_of

_SETS_MODE: CodeType = Module.train.__code__
_UPDATES: CodeType = Optimizer._optim_launch.__code__
_LOADS: CodeType = Optimizer._optim_load.__code__
#: What :meth:`Watcher._saw_library` looks at, by id, since the hash of code takes long.
_LOOKED_AT = {id(c): c for c in (*ASSIGNING, *READS_GRADIENT, *CHANGES_HOOKS, *EXCHANGES, *STORES_WEIGHT, _SETS_MODE, _LOADS)}
#: Methods that run first with a new object, or with a copy.
_BEGINS = frozenset(("__init__", "__setstate__"))
#: Methods that change a list, a dict or a set.
_CHANGING = frozenset(("append", "extend", "insert", "pop", "popitem", "remove", "discard", "add", "clear", "update",
                       "setdefault", "sort", "reverse"))


class Watcher:
    """A context manager that records the functions which run in it, with the objects that are their ``self``.

    Places with a key among those ``carried`` are not looked at.
    """

    def __init__(self, function: Any, carried: frozenset[tuple[Any, ...]]) -> None:
        self._carried = carried
        #: Those among them that the code could reach; set by :meth:`guards`.
        self.reached: set[tuple[Any, ...]] = set()
        self._function = getattr(function, "__func__", function)
        self.steps = Steps()
        #: What the run makes.
        self.new = New()
        #: The user's functions that run. A frame would keep tensors alive.
        self.called = Called(self.new)
        #: By id of an object: the object, and the code objects that ran with it as an argument.
        self.objects: dict[int, tuple[Any, set[CodeType]]] = {}
        #: By id: the modules, optimizers and schedulers among the arguments of the user's functions, each with the
        #: argument's name and the code of these functions.
        self.passed: dict[int, tuple[str, Any, set[CodeType]]] = {}
        self.began = Began(self.new)
        self.optimizers = OptimizerRuns(self.objects)
        #: Ids of objects whose ``__init__`` ran, or that are copies: they are new, so what the function does to them needs no
        #: guard.
        self.fresh: set[int] = set()
        self.drawn: list[str] = []
        self._outside = Outside(self.drawn, self.began)
        #: By id of a list, dict or set: a text with the line that changed it by one of its methods.
        self.changed: dict[int, str] = {}
        self._looked_up = LookedUp(self.drawn, self._outside.guards, self.new)
        #: Code objects that ran with a :class:`FunctionCtx` as their first argument, of which each run has its own.
        self.keeping: set[CodeType] = set()
        #: By instruction that assigns, or whose result is assigned: how often that changed nothing that a replay would not.
        self.harmless: Counter[tuple[CodeType, int]] = Counter()
        self.gradients = GradientReads(self.drawn)
        self._requiring, self._hung, self.schedules = requiring(), hung(), Schedules(self.drawn)
        #: By id, as a class may be unhashable: the modules whose mode ``train()`` or ``eval()`` set, with the mode of before.
        self.modes: dict[int, tuple[Module, bool]] = {}
        #: The id of the user's frame that runs the function, which others of the user's may be below.
        self._runs = 0
        #: The profiler that it takes the place of.
        self._before: Any = None
        self._ended = False

    def __enter__(self) -> Watcher:
        self._runs = id(next(iter(users_frames(sys._getframe(), 0)), None))
        for name, generator in (("random", random._inst), ("numpy.random", np.random.mtrand._rand)):
            self.began.note_value(Reach(Names()), name, generator, ("draws", name))
        if isinstance(self._function, FunctionType):
            # Code does not name the contents of a default.
            self.began.note(Reach(names_within(self._function.__code__)).of_function(self._function))
        self._before = sys.getprofile()
        self.new.__enter__()
        sys.setprofile(self._saw)
        self.steps.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ended:  # The block ends when what it has seen was asked for.
            return
        self.steps.__exit__()
        self.new.__exit__()
        if sys.getprofile() != self._saw:
            self.drawn.append("a profiler that it started or stopped has hidden what it read: profile around the call")
        before = self._before
        if before is None or callable(before):
            sys.setprofile(before)
        else:  # A profiler in C, such as cProfile's, sets itself.
            before.enable()
        self._ended = True  # Last: after an interrupt it is done again.

    def _saw(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if self._outside.tells(frame, event, arg):
            return
        if event == "return" and arg is not None and id(code) in OPERATORS:
            # If it raises, nothing is assigned.
            self._saw_harmless(frame)
        if event not in ("call", "c_call") or ((inside := is_inside(code)) and event == "c_call"):
            return
        self._outside.saw(frame, event, arg)
        if event == "call" and id(code) in LOOKING_UP:
            self._looked_up.enters(frame)
        if is_library(code.co_filename):
            return
        if event == "c_call":
            self._saw_builtin(frame, arg)
            return
        first: Any = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if id(code) in _LOOKED_AT:
            self._saw_library(frame, first)
        if code.co_name in _BEGINS and not isinstance(first, FunctionCtx):
            if isinstance(first, Optimizer) and id(first) not in self.fresh:
                self.optimizers.begins(first)
            self.fresh.add(id(first))
        if isinstance(first, LRScheduler):
            self.schedules.saw(frame, first, id(first) in self.fresh or first in self.new, lambda x: id(x) not in self.fresh)
        if code is _UPDATES and isinstance(first, Optimizer):
            self.optimizers.updates(first)
            self.schedules.updates(frame, first)
        if isinstance(first, (Module, LRScheduler, Optimizer)) and id(first) not in self.fresh:
            self._enters(first, frame, inside)
        if is_optimizer(first) and id(first) not in self.fresh:
            self.optimizers.enters(first)
        if isinstance(first, FunctionCtx):
            self.keeping.add(code)
        if not inside or is_generated(frame):
            self._saw_arguments(frame)
        if not inside:
            self._saw_variables(frame)

    def _saw_library(self, frame: FrameType, first: Any) -> None:
        """Record what a function of the library's is about to change or to read, of its ``first`` argument."""
        code = frame.f_code
        if code in ASSIGNING and is_harmless(frame, self._carried, self.new):
            self._saw_harmless(frame)
        if code is SETS_REQUIRES_GRAD and frame.f_locals["wanted"] != first.requires_grad:
            self._requiring.saw(first, frame, self.new)
        if code in CHANGES_HOOKS and (table := table_of(frame)) is not None:
            self._hung.saw(table, frame)
        if code in READS_GRADIENT:
            self.gradients.saw(frame)
        if code is _SETS_MODE and isinstance(first, Module):
            self.modes = {id(m): (m, m.training) for m in first.modules() if id(m) not in self.fresh} | self.modes
        if code in EXCHANGES and id(first) not in self.fresh and not is_harmless(frame, self._carried, self.new):
            self.drawn.append(f"{users_line(frame)} changes which parameters, buffers or children a {type(first).__name__} has")
        if code in STORES_WEIGHT:
            self.drawn.append(f"{users_line(frame)} calls a layer in which nn.utils.{STORES_WEIGHT[code]} stores a weight: a "
                              "parametrization stores none")
        if code is _LOADS and id(first) not in self.fresh:
            self.drawn.append(f"{users_line(frame)} loads the state of a {type(first).__name__}, which a replay would not do")

    def _saw_harmless(self, frame: FrameType) -> None:
        """Record that the caller's instruction changed nothing that a replay would not."""
        if frame.f_back is not None:
            self.harmless[frame.f_back.f_code, frame.f_back.f_lasti] += 1

    def _saw_arguments(self, frame: FrameType) -> None:
        """Record objects and random generators among the arguments of a function of the user's."""
        code = frame.f_code
        for name, x in passed(frame):
            has_any = asked(x, "__dict__") is not None or hasattr(type(x), "__slots__")
            if has_any and not isinstance(x, (Value, FunctionCtx)) and id(x) not in self.fresh and not (
                    self._knows(x, code) or x in self.new):
                if isinstance(x, (Module, Optimizer, LRScheduler)):
                    self.passed.setdefault(id(x), (name, x, set()))[2].add(code)
                    self.began.note(self._reach_at(frame).of_object(x))
                else:
                    self._enters(x, frame, False)
            if isinstance(x, GENERATORS):
                self.began.note_value(Reach(Names()), f"the argument {name}", x, ("draws", id(x)))

    def _knows(self, owner: Any, code: CodeType) -> bool:
        return any(id(owner) in seen and code in seen[id(owner)][-1] for seen in (self.objects, self.passed))

    def _saw_variables(self, frame: FrameType) -> None:
        """Record a call of a function of the user's, and what variables it has that no call before had."""
        code, seen = frame.f_code, frame.f_locals
        self._looked_up.enters(frame)
        if first := self.called.enters(frame):
            self.began.note(self._reach_at(frame).of_code(code, frame.f_globals))
        if self.called.gets_others(frame, first, self.objects):
            self.began.note_variables(users_frames(frame, self._runs), self._reach_at(frame))
        for n in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]:
            if isinstance(x := seen.get(n), (list, dict, set)) and self.called.is_default(x, code):
                self.began.note_value(self._reach_at(frame), f"the default of {n} of {code.co_name}", x, ("default", id(x)))
        for n, x in self.called.variables(frame):
            if self.began.is_older(x):
                self.began.note_value(self._reach_at(frame), f"the variable {n} of {code.co_name}'s closure", x,
                                      ("cell", n, id(x)))

    def _reach_at(self, frame: FrameType) -> Reach:
        """A walk by what the code of a frame names, and the user's code that it runs for, which gets what it returns."""
        return Reach(Names().union(*[names_within(f.f_code) for f in users_frames(frame, self._runs)]))

    def _enters(self, owner: Any, frame: FrameType, inside: bool) -> None:
        """Record that code runs with this object as an argument."""
        codes = self.objects.setdefault(id(owner), (owner, set()))[1]
        if frame.f_code not in codes:
            codes.add(frame.f_code)
            if not inside:
                self.began.note(self._reach_at(frame).of_object(owner))

    def _saw_builtin(self, frame: FrameType, called: Any) -> None:
        """Record calls of builtins that change a container, or that draw a number or an item, which differs the next time."""
        of = getattr(called, "__self__", None)
        kind = type(of).__module__
        self._looked_up.saw(frame, called)
        if isinstance(of, (list, dict, set)) and called.__name__ in _CHANGING:
            self.changed[id(of)] = f"{line_of(frame)} calls {called.__name__}()"
        if (called is next and not takes_first(frame)) or kind in ("random", "_random") or kind.startswith("numpy.random"):
            what = getattr(called, "__qualname__", repr(called))
            self.drawn.append(f"{line_of(frame)} calls {what}, which gives a different value each time")

    @cached_property
    def stored(self) -> Stored:
        """What the functions stored outside, without a reference to what has it; once the run has ended."""
        changing = [(of, a, self.steps.owners(of.code, a)) for of in self.called.found
                    for a in assigned(of.code, of.containers(), of.code in self.keeping)
                    if self.steps.changes(of.code, a, self.harmless, self.gradients.dropped)]
        return Stored(changing, self.new, self._carried, self.began, self.steps.restored)

    def guards(self) -> list[Asking]:
        """Guards for everything that was seen."""
        found: dict[tuple[Any, ...], Asking] = {}

        def add(more: Found) -> None:
            for guard, key in more:
                if place := place_of(key, self._carried):
                    self.reached.add(place)
                elif not isinstance(guard, Once) and not self.schedules.sets(key):
                    found.setdefault(key, guard)

        # The attribute names in the library's own methods apply only to the object that these ran with.
        reach = Reach(self.names, {i: Names().union(*map(names_of, codes)) for i, (_, codes) in self.objects.items()})
        for owner in (self._function, *[owner for owner, _ in self.objects.values()]):
            if not isinstance(owner, LRScheduler):
                add(reach.of_object(owner))
        for place, guard in self._outside.guards.items():
            add(reach.of_value(guard.name, guard.look, guard.look(), place))
        for i, (name, x, _) in self.passed.items():
            # That it is the same object says the key of the call, or the place where the function has it from.
            key = "argument", i
            add(one for one in reach.of_value(f"the argument {name}", weakly(x), x, key) if one[1] != key)
        if isinstance(self._function, FunctionType):
            add(_of_its_code(self._function))
        for code, variables, functions in self.called.found:
            add(reach.of_code(code, variables))
            for function in functions:
                add(reach.of_function(function, self.called.reads_defaults(function)))
                add(_of_its_code(function))
        add(self.called.methods(self.names.read | self.names.called | {"forward"}))
        return list(found.values())

    @cached_property
    def names(self) -> Names:
        """All attributes that the functions name; once the run has ended."""
        return self._looked_up.names.union(*map(names_of, self.called.codes()))

    def reads_rates(self, optimizer: Optimizer) -> bool:
        """May the function read the learning rates of an optimizer, besides by ops of updates?"""
        return self.optimizers.reads_rates(optimizer, self.names)

    def changes(self, numbers: bool) -> list[str]:
        """Reasons against a replay: what the functions changed in Python objects, which a replay would not do.

        ``numbers`` says that the run made tensors of Python numbers, which must have been seen where they came from.
        """
        found = [*(reason for reason, _ in self.stored.others()), *self._requiring.changes(), *self._hung.changes(),
                 *self.drawn, *(guard.refusal() for guard in self._outside.guards.values() if not guard.holds())]
        found += self.optimizers.kept()
        found += dict.fromkeys(f"{self.changed[id(x)]} on {name}, which it refers to" for of in self.called.found
                               for name, values in of.containers().items() for x in values if id(x) in self.changed)
        found += self.schedules.changes(self.names, self.reads_rates)
        # A local name may stand for a shared container, so writes to items are found by comparing contents.
        return found or [*self.called.hidden(), *self.began.changes(numbers, self.schedules.sets),
                         *self.optimizers.changes()]


def _of_its_code(function: FunctionType) -> Found:
    """Whether a function has the code that ran: a module that is loaded again, in a notebook say, may give it another."""
    code = function.__code__
    yield Guard(f"the code of {function.__name__}", Attribute(function, "__code__"), code, identical), ("code", id(function))
