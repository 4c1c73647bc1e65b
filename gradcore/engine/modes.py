"""Modes of a thread, such as ``no_grad``, as context managers that are decorators too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from gradcore.engine.state import State, local

F = TypeVar("F", bound=Callable[..., Any])


class Decorator:
    """Base class of context managers that also decorate functions. (One of contextlib's would appear in recorded stacks.)"""

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._alone():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    def _alone(self) -> Any:
        """A context manager for one call of a function, which several threads may call at once."""
        raise NotImplementedError


class Switch:
    """Gives an attribute of the thread's state a value on entry, and what it was on exit.

    Several threads may be inside one object, and each may enter it repeatedly.
    """

    _switch = "grad"

    def __init__(self, value: Any) -> None:
        self._value = value
        #: What each thread that is inside has found, the innermost last.
        self._before: dict[State, list[Any]] = {}

    def __enter__(self) -> Any:
        self._turn_to(self._value)

    def _turn_to(self, value: Any) -> None:
        state = local.state
        before = getattr(state, self._switch)
        if state not in self._before:
            self._before[state] = []
        self._before[state].append(before)
        try:
            setattr(state, self._switch, value)
        except BaseException:
            # Without this an interrupt could leave the switch set.
            setattr(state, self._switch, before)
            raise

    def __exit__(self, *exc: object) -> None:
        state = local.state
        if state not in self._before:
            # A generator that another thread began is closed here: what that thread has set is not this one's.
            return
        before = self._before[state][-1]
        del self._before[state][-1]
        if not self._before[state]:
            del self._before[state]
        setattr(state, self._switch, before)


class Mode(Switch, Decorator):
    """A switch that decorates functions, too.

    A generator function that it decorates runs in the mode, and its caller between two items does not.
    """

    def __call__(self, function: F) -> F:
        return self._stepwise(function) if isgeneratorfunction(function) else super().__call__(function)

    def _alone(self) -> Mode:
        mode = Mode(self._value)
        mode._switch = self._switch
        return mode

    def _stepwise(self, function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            steps = function(*args, **kwargs)
            # Items and errors pass through lists, so that while the generator waits nothing here keeps them alive.
            step, passed = steps.send, [None]
            while True:
                try:
                    with self._alone():
                        made = [step(passed.pop())]
                except StopIteration as end:
                    return end.value
                try:
                    passed.append((yield made.pop()))
                    step = steps.send
                except GeneratorExit:
                    with self._alone():
                        steps.close()
                    raise
                except BaseException as error:
                    passed.append(error)  # type: ignore[arg-type]
                    step = steps.throw

        return wrapped


class Two(Mode):
    """Sets the switch of another mode, too."""

    def __init__(self, enabled: bool, more: Mode) -> None:
        super().__init__(enabled)
        self._more = more

    def __enter__(self) -> None:
        self._more.__enter__()
        try:
            super().__enter__()
        except BaseException:
            self._more.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__()
        finally:
            self._more.__exit__()

    def _alone(self) -> Mode:
        mode = Two(self._value, self._more._alone())
        mode._switch = self._switch
        return mode


class recompute(Mode):
    """Whether graphs built inside recompute the outputs of cheap ops in backward (True, the default everywhere) or keep them.

    Activations, norms and the like are cheap, and so is what a view, a copy, dropout, a conversion or a product makes of a
    recomputed tensor. A recomputed output has the same bits and costs one pass over memory; its bytes belong to the layer that
    first computed it, in the phase ``backward``.

    Inside :class:`~gradcore.autograd.graph.saved_tensors_hooks` nothing is recomputed: the hooks get, and may hold, all
    that the gradients read.
    """

    _switch = "recompute"

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled)


class _Plain(Mode):
    """A mode without arguments, which may decorate a function by its name alone, as ``@no_grad``."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and callable(given[0]) and not named:
            return cls()(given[0])
        if given or named:
            got = ", ".join([*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())])
            raise TypeError(f"{cls.__name__} takes no argument, or the function that it decorates, but got {got}")
        return super().__new__(cls)


class no_grad(_Plain):
    """No graph is built inside: results need no gradient, and keep nothing."""

    def __init__(self) -> None:
        super().__init__(False)


class _Inference(Mode):
    _switch = "inference"


class inference_mode(Two):
    """As :class:`no_grad`; ``inference_mode(False)`` as :class:`enable_grad`."""

    def __new__(cls, mode: Any = True) -> Any:
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode, _Inference(bool(mode)))


class enable_grad(_Plain):
    """A graph is built inside, also within :class:`no_grad`."""

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(Mode):
    """Sets the mode at once, and restores it if used as a context manager."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        before = local.state.grad
        local.state.grad = bool(mode)
        self._first: bool | None = before

    def __enter__(self) -> None:
        super().__enter__()
        if self._first is not None:
            self._before[local.state][-1], self._first = self._first, None

    def __exit__(self, *exc: object) -> None:
        if self._first is None:
            super().__exit__()
        else:
            # It was not entered, as ExitStack.push() takes it.
            local.state.grad, self._first = self._first, None

    def __call__(self, function: F) -> F:
        # What was set at once was meant for the function.
        if self._first is not None:
            local.state.grad, self._first = self._first, None
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Is a graph being built in this thread?"""
    return local.state.grad


def is_inference_mode_enabled() -> bool:
    """Is this thread in :class:`inference_mode`?"""
    return local.state.inference
