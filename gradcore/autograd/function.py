"""``autograd.Function``: functions with a user-defined gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import signature
from typing import Any
from weakref import ref

from gradcore import functional
from gradcore.engine.custom import custom_node
from gradcore.engine.hook_calls import as_user
from gradcore.engine.hooks import hand_on
from gradcore.engine.modes import no_grad
from gradcore.engine.node import Node
from gradcore.engine.owners import note_write
from gradcore.engine.residuals import residuals
from gradcore.engine.state import local
from gradcore.engine.value import Value, alias
from gradcore.engine.views import check_recorded_write, note_view, rebase
from gradcore.errors import DeviceError, NoSecondDerivative, SpecError
from gradcore.ops.movement import broadcasts, cast, sum_to

Tensor = Any


class FunctionCtx:
    """Carries data from ``forward`` to ``backward``: tensors by :meth:`save_for_backward`, anything else as attributes."""

    def __init__(self) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self._function_to_save: tuple[Any, ...] = ()
        self._function_dirty: tuple[Any, ...] = ()
        self._function_plain: tuple[Any, ...] = ()
        self._function_materialize = True
        self._function_values: list[Any] | None = None
        self._function_node: Any = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for :attr:`saved_tensors` in ``backward``; they are released when it has run. Raises TypeError for
        other objects."""
        _check("save_for_backward can only save variables", tensors, TypeError, (Value, type(None)))
        self._function_to_save = tensors

    def save_for_forward(self, *tensors: Tensor) -> None:
        """Accepted as in PyTorch, without effect, since there is no forward mode."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declare that ``forward`` wrote to these inputs, and returns them: otherwise ``apply`` raises RuntimeError, as this
        does for other objects."""
        _check("mark_dirty can only accept variables", tensors, RuntimeError)
        self._function_dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare that these outputs have no gradient. Raises RuntimeError for other objects than tensors."""
        _check("mark_non_differentiable only accepts variable arguments", tensors, RuntimeError)
        self._function_plain = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether ``backward`` gets missing cotangents as zero tensors (the default), or as None."""
        self._function_materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of :meth:`save_for_backward`. Raises RuntimeError once they have been released."""
        if self._function_values is not None:
            return tuple(self._function_values)
        node = None if self._function_node is None else self._function_node()
        if node is None:
            return ()
        return tuple(residuals(node, []))


def _check(rule: str, given: tuple[Any, ...], error: type[Exception], kinds: Any = Value) -> None:
    for k, x in enumerate(given):
        if not isinstance(x, kinds):
            raise error(f"{rule}, but argument {k} is of type {type(x).__name__}")


class Function:
    """A function with its own gradient: subclasses define static methods, and are called by ``apply``.

    ``forward(ctx, *args)`` computes without a graph; ``backward(ctx, *grad_outputs)`` returns a gradient, or None, for each
    argument of ``forward``. Instead, ``forward(*args)`` and ``setup_context(ctx, inputs, output)`` may be defined.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Store on ``ctx`` what backward needs, for a ``forward`` that takes no ``ctx``: subclasses define it."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients of the inputs of ``forward``, in order, for those of its outputs: subclasses define it."""
        raise NotImplementedError("You must implement the backward method for your custom autograd.Function to use it "
                                  "with backward.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward``, and build a node for it if an argument requires a gradient.

        Arguments given by name come after the others in ``needs_input_grad``, and in what ``backward`` returns. If there is
        a ``setup_context``, its ``inputs`` are all arguments of ``forward``, also those that have their default.
        """
        ctx = FunctionCtx()
        whole = cls.setup_context is not Function.setup_context
        if whole:
            bound = signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        given = (*args, *kwargs.values())
        edges = [a.edge if isinstance(a, Value) else None for a in given]
        ctx.needs_input_grad = tuple(e is not None for e in edges)
        state = local.state
        outer, state.bare = state.bare, {}
        try:
            with no_grad():
                if whole:
                    result = cls.forward(*args, **kwargs)
                    cls.setup_context(ctx, given, result)
                else:
                    result = cls.forward(ctx, *args, **kwargs)
        finally:
            state.bare = outer
        several = isinstance(result, (tuple, list))
        outputs = list(result) if several else [result]
        if ctx._function_dirty:
            cls._function_note_written(ctx._function_dirty, outputs)
        if local.state.grad and any(ctx.needs_input_grad):
            outputs = cls._function_record(ctx, given, edges, outputs)
        ctx._function_to_save = ctx._function_dirty = ctx._function_plain = ()
        return tuple(outputs) if several else outputs[0]

    @classmethod
    def _function_note_written(cls, dirty: tuple[Any, ...], outputs: list[Any]) -> None:
        returned = {id(o) for o in outputs}
        for t in dirty:
            if id(t) not in returned:
                raise RuntimeError(f"{cls.__name__}: Some elements marked as dirty during the forward method were not returned "
                                   "as output. The inputs that are modified inplace must all be outputs of the Function.")
            # The write may have been one that gradcore did not see, such as one through NumPy.
            note_write(t, cls.__name__)

    @classmethod
    def _function_record(cls, ctx: FunctionCtx, args: tuple[Any, ...], edges: list[Any], outputs: list[Any]) -> list[Any]:
        dirty = {id(t) for t in ctx._function_dirty}
        for a in args:
            if id(a) in dirty:
                check_recorded_write(cls.__name__, a, True)
        given = {id(a) for a in args}
        results = [_seen_again(o) if id(o) in given and id(o) not in dirty and isinstance(o, Value) else o for o in outputs]
        tensors = [r for r in results if isinstance(r, Value)]
        marked = {id(t) for t in ctx._function_plain}
        plain = {id(r) for o, r in zip(outputs, results, strict=True) if id(o) in marked}
        node = custom_node(cls.__name__, edges, tensors, ctx._function_to_save, _rule(cls, ctx, args, results), plain)
        ctx._function_node = ref(node)
        for k, o in enumerate(tensors):
            if o.spec.floating and id(o) not in plain:
                before, o.edge = o.edge, (node, k)
                hand_on(before, o)
                if id(o) in dirty and o.storage.views is not None:
                    rebase(o)
        return results


def _seen_again(x: Any) -> Any:
    """An argument that is returned unchanged: a view of it, so that it can have an edge of its own."""
    view = alias(x, None)
    view.base = x if x.base is None else x.base
    note_view(view, recorded=False)
    return view


def _rule(cls: type[Function], ctx: FunctionCtx, args: tuple[Any, ...], results: list[Any]) -> Callable[..., Any]:
    inputs, outputs = ([(x.spec, x.storage.device) if isinstance(x, Value) else None for x in xs] for xs in (args, results))
    name = cls.__name__

    def rule(gs: list[Any], values: list[Any]) -> list[Any]:
        # The node knows the tensors among the outputs; backward takes a cotangent for each output, None for any other object.
        of_tensors = iter(gs)
        gs = [None if made is None else next(of_tensors) for made in outputs]
        if ctx._function_materialize:
            gs = [functional.zeros(made[0].shape, dtype=made[0].dtype, device=made[1]) if g is None and made is not None else g
                  for g, made in zip(gs, outputs, strict=True)]
        ctx._function_values = list(values)
        try:
            with as_user():
                found = cls.backward(ctx, *gs)
        finally:
            ctx._function_values = None
        parts = list(found) if isinstance(found, (tuple, list)) else [found]
        while len(parts) > len(inputs) and parts[-1] is None:
            parts.pop()
        if len(parts) != len(inputs):
            raise RuntimeError(f"function {name}Backward returned an incorrect number of gradients (expected {len(inputs)}, "
                               f"got {len(parts)})")
        return [_fitted(name, k, part, given) for k, (part, given) in enumerate(zip(parts, inputs, strict=True))]

    return rule


def _fitted(name: str, k: int, g: Any, given: Any) -> Any:
    """A returned gradient, summed to the shape of its input, of which ``given`` has spec and device. Raises TypeError,
    :class:`SpecError` or :class:`DeviceError` if that is impossible."""
    if g is None:
        return None
    if given is None:
        raise RuntimeError(f"function {name}Backward returned a gradient different than None at position {k + 1}, but the "
                           "corresponding forward input was not a Variable")
    spec, device = given
    if not isinstance(g, Value):
        raise TypeError(f"{name}Backward: expected Variable or None (got {type(g).__name__}) as gradient {k}")
    if not broadcasts(spec.shape, g.spec.shape):
        raise SpecError(f"Function {name}Backward returned an invalid gradient at index {k} - got {list(g.spec.shape)} but "
                        f"expected shape compatible with {list(spec.shape)}")
    if g.storage.device.compute is not device.compute:
        if not g.spec.shape:
            # As in PyTorch: of a number on the CPU, from operands elsewhere.
            return sum_to(functional.transfer(g, device), to=spec)
        raise DeviceError(f"Function {name}Backward returned an invalid gradient at index {k} - expected device {device} but "
                          f"got {g.storage.device}")
    # A sum of bool is none, and one of few bits wraps.
    fitted = sum_to(g if g.spec.floating else cast(g, dtype=spec.dtype), to=spec)
    # As an object of its own: the function may hold the tensor, or return it for several inputs.
    return alias(g, g.edge) if fitted is g else fitted


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a ``backward`` that computes without a graph: differentiating its results again raises an error."""

    @functools.wraps(fn)
    def wrapped(ctx: Any, *args: Any) -> Any:
        with no_grad():
            found = fn(ctx, *args)
        if not local.state.grad:
            return found
        several = isinstance(found, tuple)
        outputs = [alias(o, None) if isinstance(o, Value) else o for o in (found if several else (found,))]
        edges = [a.edge for a in args if isinstance(a, Value)]
        if any(e is not None for e in edges):
            tensors = [o for o in outputs if isinstance(o, Value)]
            node: Node = custom_node("Once", edges, tensors, (), _refuse)
            for k, o in enumerate(tensors):
                o.edge = (node, k)
        return tuple(outputs) if several else outputs[0]

    return wrapped


def _refuse(gs: Any, values: Any) -> Any:
    raise NoSecondDerivative("trying to differentiate twice a function that was marked with @once_differentiable")
