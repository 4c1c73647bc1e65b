"""The state of a thread: grad mode, layer and phase, among others; and marks of phases in the logs."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any
from weakref import ref

import numpy as np

from gradcore.devices.device import Device, devices
from gradcore.errors import LocatedError
from gradcore.events import MARK, Scope, Site, Tag
from gradcore.interning import Interned


class Where:
    """A scope as threads, nodes and keys of caches hold it: equal scopes have one, which hashes by identity, and goes with its
    last holder. Make one with :func:`where`; the constructor would not look for the one that there is."""

    __slots__ = ("plain", "watched", "others", "__weakref__")

    def __init__(self, plain: Scope, watched: bool) -> None:
        self.plain = plain
        #: Does the thread's ``watch`` see the ops that run here? As a scope's, it is a part of keys that dispatch has anyway.
        self.watched = watched
        #: Its layer in other phases, by these and by the line that called backward: see :meth:`at`.
        self.others: dict[tuple[str, Site | None], Where] = {}

    def at(self, phase: str, caller: Site | None) -> Where:
        """The same layer in another phase, and in backward with the line that called it; nothing is watched there."""
        found = self.others.get((phase, caller))
        if found is None:
            found = self.others[phase, caller] = where(self.plain._replace(phase=phase, caller=caller, role=None))
        return found


#: Weak, or the layers of all models that there ever were would pile up.
_places: Interned[tuple[Scope, bool], Where] = Interned()


def where(scope: Scope, watched: bool = False) -> Where:
    """The one :class:`Where` of a scope."""
    key = scope, watched
    found = _places.get(key)
    if found is None:
        found = _places.one(key, Where(scope, watched))
    return found


def unwatched(scope: Where) -> Where:
    """The same place where nothing sees the ops."""
    return where(scope.plain) if scope.watched else scope


SETUP = where(Scope("", "setup"))
FORWARD = where(Scope("", "forward"))
#: Steps that are being recorded.
_steps = 0


class State:
    """The mutable context of one thread. If ``site`` is None, ops look their source line up."""

    __slots__ = ("grad", "scope", "site", "node", "launch", "recompute", "packing", "anomaly", "autocast", "placed",
                 "remade", "partial", "sweep", "spending", "inference", "asked", "aside", "bare", "watch", "__weakref__")

    def __init__(self) -> None:
        self.grad = True
        #: Are outputs of cheap ops recomputed in backward, instead of kept?
        self.recompute = True
        #: The hooks (pack, unpack) for residuals, if any.
        self.packing: Any = None
        #: Does backward look for NaN in what each node returns?
        self.anomaly = False
        #: The :class:`~gradcore.engine.autocast.Region` that the thread is in.
        self.autocast: Any = None
        #: Did code ask where in its storage a tensor begins, or say where a view does?
        self.placed = False
        # A thread that begins to work within a step is a part of it.
        self.scope = FORWARD if _steps else SETUP
        self.site: Site | None = None
        #: Number of the node whose gradient is being computed, 0 outside backward.
        self.node = 0
        #: What holds a tensor as its ``value`` for further nodes of the backward pass that is running, which lets go of what is
        #: left at its end; None outside backward.
        self.remade: list[ref[Any]] | None = None
        #: Has the caller of a backward pass that is running asked for the gradients of some tensors only?
        self.partial = False
        #: Weakly and by id what tensors gave as their ``data`` to the ``forward`` of a function of the user's that is running;
        #: None outside.
        self.bare: dict[int, ref[Any]] | None = None
        #: The backward pass that is running, or None.
        self.sweep: Any = None
        #: What the next op reads for the last time, if it reads it: cotangents, and a node's residuals; and the node, or None
        #: if it is to keep these. None if there is nothing.
        self.spending: tuple[list[Any], Any, Any] | None = None
        #: Is the thread in ``inference_mode``?
        self.inference = False
        #: Is it in ``detect_anomaly``, and was NaN to be looked for there?
        self.asked = (False, True)
        #: The leaves to which a backward inside one that is only recorded would have added; None outside of such.
        self.aside: set[Any] | None = None
        #: What runs the ops of scopes that are watched, with ``run(plan, compute, *arguments of compute)``.
        self.watch: Any = None
        #: ``launch(kernel, *arrays)``
        self.launch = _kernel_context().run


def _kernel_context() -> contextvars.Context:
    """The context that a thread's kernels run in, with NumPy's settings: ten times cheaper than setting them each time.

    As on a GPU, infinities and NaNs raise no warning. The buffers that NumPy allocates for casts are undeclared
    temporaries, so they are kept small. Broadcast and spaced rows are copied there, too, if two or more fit, which pays off for
    short ones: of 768 elements two just do not fit.
    """
    context = contextvars.copy_context()
    context.run(np.seterr, all="ignore")
    context.run(np.setbufsize, 1520)
    return context


def launch_within(error: RuntimeError, tag: Tag, kernel: Callable[..., Any], *arrays: Any) -> bool:
    """Run a kernel that could not enter the context since the thread runs another one there, as an op is called in a signal's
    handler or while an object goes. False for any other error; a device's gets the op in its text."""
    if isinstance(error, LocatedError):
        error.locate(tag.op, tag.layer, tag.phase, str(tag.site))
    if not str(error).startswith("cannot enter context"):
        return False
    _kernel_context().run(kernel, *arrays)
    return True


class _Local(threading.local):
    def __init__(self) -> None:
        self.state = State()


local = _Local()


class scoped:
    """Run a block of code in the layer of ``like``, or in another phase or role; what is not given is unchanged.

    No generator: one that an interrupt has left waiting would set the scope when it is collected, after all around it have.
    """

    __slots__ = ("_given", "_before")

    def __init__(self, *, like: Tag | Scope | None = None, phase: str | None = None, role: str | None = None) -> None:
        self._given = like, phase, role

    def __enter__(self) -> None:
        like, phase, role = self._given
        state = local.state
        self._before = state.scope
        old = self._before.plain
        layer = old if like is None else like
        state.scope = where(Scope(layer.layer, old.phase if phase is None else phase, old.caller,
                                  old.role if role is None else role, layer.network), self._before.watched)

    def __exit__(self, *exc: object) -> None:
        local.state.scope = self._before


class unwatching:
    """Run a block of code whose ops nothing sees: they are no part of what a program computes."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        state = local.state
        self._before, state.scope = state.scope, unwatched(state.scope)

    def __exit__(self, *exc: object) -> None:
        local.state.scope = self._before


class within_step:
    """A context of the phase ``forward``, and of the threads that begin meanwhile. To end it twice is to end it once.

    Another thread may end it, as one that closes a generator does.
    """

    _before: Where | None = None

    def __enter__(self) -> None:
        global _steps
        state = local.state
        scope = where(state.scope.plain._replace(phase="forward"), state.scope.watched)
        self._state = state
        _steps += 1
        self._before, state.scope = state.scope, scope

    def __exit__(self, *exc: object) -> None:
        global _steps
        if self._before is not None:
            # What watched at its beginning may have ended before it.
            before = self._before if self._state.watch is not None else unwatched(self._before)
            _steps -= 1
            self._state.scope, self._before = before, None


def mark(what: str, label: str, on: Iterable[Device] | None = None) -> None:
    """Write a named moment into every log that is being written, or into those of the devices ``on``."""
    for device in devices() if on is None else on:
        if device.ledger.log is not None:
            device.ledger.log.append((MARK, what, label, perf_counter_ns()))
