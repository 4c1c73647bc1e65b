"""``gradcore.compile``: traces a function once, and replays the trace as long as the function would do the same."""

from __future__ import annotations

import copy
import functools
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from types import MethodType
from typing import Any
from weakref import ref

from gradcore.engine.state import local
from gradcore.errors import TraceError
from gradcore.forking import long
from gradcore.program.calls.attempts import FIRST, SAME, Attempts
from gradcore.program.calls.check import checked
from gradcore.program.calls.entry import Entry
from gradcore.program.calls.keys import Keys, difference, modes, shared_memory, storage_of
from gradcore.program.calls.traced import TracedCall
from gradcore.program.calls.unread import Unread
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Program
from gradcore.program.shipping.saved import save_entry
from gradcore.program.tracing.carried import Carried, joined, parted
from gradcore.program.tracing.recorder import busy
from gradcore.program.tracing.templates import rebuilt
from gradcore.program.tracing.views import relate
from gradcore.units import count_of

#: One thread traces at a time, since a device has one log. Re-entrant only so that its owner can be asked for.
_tracing: Any = long()
#: Seconds after which a thread runs without a trace: the thread that traces may be waiting for this one.
_PATIENCE = 5.0


class Compiled:
    """A compiled function, made by :func:`compile`, which says what the function may contain.

    ``programs`` are those in the cache; ``traces`` has the reason for each of the last thousand traces.
    """

    def __init__(self, function: Callable[..., Any], *, check_every: int = 0, max_programs: int = 8,
                 leaves: bool = False, capture: bool = True) -> None:
        self._function = function
        self._capture = capture
        #: What it never reads of its arguments: a call with another number there needs no other program.
        self._unread = Unread(function)
        #: Are leaves among the arguments keyed like other tensors, rather than by identity as parameters?
        self._take_leaves = leaves
        self._check_every = check_every
        self._most = max_programs
        self._entries: OrderedDict[Any, list[Entry]] = OrderedDict()
        self._calls = 0
        self._attempts = Attempts(function, max_programs)
        #: What the function assigns tensors to, outside of it.
        self._carried = Carried()
        #: The key of the last trace, and why the last program was dropped since, if one was.
        self._before: Any = None
        self._lost = ""
        functools.update_wrapper(self, function, updated=())

    @property
    def traces(self) -> list[str]:
        return self._attempts.traces

    @property
    def programs(self) -> list[Program]:
        return [entry.replay.program for entry in self._cached()]

    @property
    def plans(self) -> list[Plan]:
        """The memory plan of each of ``programs``."""
        return [entry.replay.plan for entry in self._cached()]

    def _cached(self) -> list[Entry]:
        # Of copies, since another thread may be tracing a program, or a finalizer dropping one.
        return [entry for entries in [*self._entries.values()] for entry in [*entries]]

    def save(self, path: str | os.PathLike[str], index: int = 0) -> None:
        """Write the ``index``-th of ``programs`` with the tensors that it captured to a file for :func:`gradcore.load_program`.

        If the caller differentiates the function, the file holds only the forward run. Raises :class:`TraceError` if there is
        no such program (call the function first), TypeError for values that a file cannot hold, and OSError.
        """
        found = self._cached()
        if not -len(found) <= index < len(found):
            why = f"its last trace: {self.traces[-1]}" if self.traces else "call the function first"
            raise TraceError(f"cannot save program {index}: the cache has {count_of(len(found), 'program')}; {why}")
        entry = found[index]
        for schedule in entry.replay.trace.schedules[:1]:
            raise TraceError(f"cannot save program {index}, which steps a {type(schedule()).__name__}, as no file can: call "
                             "schedule.step() after the function")
        for place in entry.carried[:1]:
            raise TraceError(f"cannot save program {index}, which keeps a tensor in {place.name} from one call to the next: "
                             "pass that as an argument, and return it")
        save_entry(path, entry.replay.trace, entry.guards, entry.template)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind like a function: a compiled function in a class is a method of its instances."""
        return self if instance is None else MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy of the function, compiled separately: programs are bound to the memory that they were traced over."""
        return type(self)(copy.deepcopy(self._function, memo), check_every=self._check_every, max_programs=self._most,
                          leaves=self._take_leaves, capture=self._capture)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._attempts.eager or busy.depth or local.state.node:
            # Inside a backward, or inside a trace, which records the single ops, the function runs uncompiled.
            return self._function(*args, **kwargs)
        keys = Keys(self._take_leaves)
        tensors, key_of = keys.tensors, keys.of
        parts = modes()
        seen_args, seen_kwargs = self._unread.seen(args, kwargs)
        for a in seen_args:
            parts.append(key_of(a))
        for name, a in seen_kwargs.items():
            parts.append((name, key_of(a)))
        for place in self._carried.places and self._carried.present():
            parts.append((place, key_of(place.get())))
        if len(keys.seen) > 1 and len(set(map(storage_of, keys.seen))) < len(keys.seen):
            parts += shared_memory(keys.seen)
        key = tuple(parts)
        for entry in self._entries.get(key, ()):
            if entry.fits(tensors):
                return self._replay(entry, tensors, args, kwargs)
        if self._attempts.puts_off():
            return self._function(*args, **kwargs)
        try:
            if not _tracing.acquire(timeout=_PATIENCE):
                return self._function(*args, **kwargs)
            for entry in self._entries.get(key, ()):
                # Another thread has traced it in the meantime.
                if entry.fits(tensors):
                    return self._replay(entry, tensors, args, kwargs)
            self._attempts.begin(self._reason(key, tensors))
            self._before, self._lost = key, ""
            self._forget_lost()
            if self._attempts.give_up():
                self._entries.clear()
                return self._function(*args, **kwargs)
            with self._attempts:
                return self._trace(key, keys, args, kwargs)
        finally:
            # Twice if an interrupt came before it the last time.
            while _tracing._is_owned():
                _tracing.release()

    # -- replay --------------------------------------------------------------------------------------------------------

    def _replay(self, entry: Entry, tensors: list[Any], args: Any, kwargs: Any) -> Any:
        self._attempts.made = 0
        if self._check_every:
            self._calls += 1
            if self._calls % self._check_every == 0:
                with busy:
                    # The function is told that it is compiled, as in its trace.
                    return parted(entry.carried, checked(entry.replay, entry.template, tensors, lambda: joined(
                        entry.carried, self._function(*args, **kwargs))))
        outputs = entry.replay.run(tensors)
        trace = entry.replay.trace
        for module, mode in trace.modes:
            module().training = mode
        for schedule in trace.schedules:
            schedule().step()
        if entry.views:
            relate(entry.views, outputs, tensors)
        return parted(entry.carried, rebuilt(entry.template, outputs, tensors))

    # -- trace ---------------------------------------------------------------------------------------------------------

    def _trace(self, key: Any, keys: Keys, args: Any, kwargs: Any) -> Any:
        call = TracedCall(self._function, self._carried, keys, args, kwargs)
        obstacles: list[str] = []
        try:
            call.run()
            if call.tracing.replayed():
                self._attempts.refuse(["it runs the gradient of an earlier compiled call: compile both as one function"])
            elif call.trace is None:
                self._attempts.found_nothing()
            elif obstacles := call.obstacles(key):
                self._attempts.refuse(obstacles)
            else:
                self._remember(key, call.entry(self._capture))
        finally:
            result = call.result()
        if call.trace is not None:
            self._carried.settle(call.tracing.reached, not obstacles)
            if obstacles:
                self.traces[-1] += self._carried.offer(call.tracing.carriable)
        return result

    def _remember(self, key: Any, entry: Entry) -> None:
        self._attempts.succeeded()
        for other in self._cached():
            # The traced run has replaced the gradients that it left.
            other.replay.let_go()
        self._entries.setdefault(key, []).insert(0, entry)
        self._entries.move_to_end(key)
        while len(self._cached()) > self._most:
            oldest = next(iter(self._entries))
            # Finalizers take programs out of the lists, at any time, so each list is changed at one stroke.
            del self._entries[oldest][-1:]
            if not self._entries[oldest]:
                del self._entries[oldest]
        entry.watch(functools.partial(_lose, ref(self), key))

    def _forget_lost(self) -> None:
        """Drop the programs that can never be valid again, and with them the memory that only they still hold."""
        for key, entries in list(self._entries.items()):
            for entry in [*entries]:
                if entry.is_lost():
                    _take_out(entries, entry)
            if not entries:
                del self._entries[key]

    def _reason(self, key: Any, tensors: list[Any]) -> str:
        for entry in self._entries.get(key, ()):
            return entry.why_not(tensors)
        if not self.traces:
            return FIRST
        if key == self._before:
            return self._lost or SAME
        return difference(key, self._before)

    def explain(self) -> str:
        """A report as text: the reason for each trace; for each program its first four inputs, instructions, arena, guards."""
        lines = [f"trace {k}: {reason}" for k, reason in enumerate(self.traces, self._attempts.earlier + 1)]
        for entry in self._cached():
            found = entry.replay.plan
            saved = f" ({found.apart:,} without writing results over operands)" if found.bound < found.apart else ""
            program = entry.replay.program
            inputs = [str(i.spec) for i in program.inputs[:4]] + ["..."] * (len(program.inputs) > 4)
            lines.append(f"program of {count_of(len(program.instructions), 'instruction')}{' for ' * bool(inputs)}"
                         f"{', '.join(inputs)}: arena {found.nbytes:,} bytes, lower bound {found.bound:,}{saved}, "
                         f"{count_of(len(entry.guards), 'guard')}")
            lines += [f"  {line}" for line in entry.replay.explain()]
        return "\n".join(lines or ["no call has been traced"])

    def draw(self, path: str | os.PathLike[str] | None = None, program: int = 0) -> Any:
        """The plan of one of ``programs``, address against time, as text; with a ``path`` an SVG is also written there.

        Raises IndexError if there is no such program, OSError if the file cannot be written.
        """
        from gradcore.program.planning.drawing import drawn
        found = [entry.replay for entry in self._cached()]
        if program >= len(found):
            raise IndexError(f"cannot draw program {program}: the cache has {count_of(len(found), 'program')}"
                             f"{'' if found else '; call the function first'}")
        return drawn(found[program].program, found[program].plan, path)

    def __repr__(self) -> str:
        return f"<compiled {self._function!r}: {count_of(len(self.programs), 'program')}>"


def _lose(compiled: ref[Compiled], key: Any, entry: Entry, why: str) -> None:
    """Drop a program that can never be valid again. A finalizer calls this."""
    if (owner := compiled()) is not None:
        owner._lost = why
        _take_out(owner._entries.get(key, []), entry)


def _take_out(entries: list[Entry], entry: Entry) -> None:
    with suppress(ValueError):
        entries.remove(entry)
