"""``gradcore.autograd``: ``backward``, ``grad``, and the public names of the package's modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore._gradients import backward_of
from gradcore._tensor import Tensor
from gradcore.autograd import graph, profiler
from gradcore.autograd.anomaly import detect_anomaly, is_anomaly_check_nan_enabled, is_anomaly_enabled, set_detect_anomaly
from gradcore.autograd.function import Function, FunctionCtx, once_differentiable
from gradcore.autograd.gradcheck import gradcheck, gradgradcheck
from gradcore.autograd.inspection import Graph, kept_by_ops
from gradcore.engine.backward import run_backward
from gradcore.engine.below import GradientEdge, captures_of, slot_of
from gradcore.engine.modes import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gradcore.engine.node import Node
from gradcore.engine.value import Value, alias
from gradcore.functional import select, stack, zeros_like

Tensors = Any

__all__ = ["Function", "FunctionCtx", "Graph", "Node", "Variable", "backward", "detect_anomaly", "enable_grad", "grad",
           "gradcheck", "gradgradcheck", "graph", "inference_mode", "is_anomaly_check_nan_enabled", "is_anomaly_enabled",
           "is_grad_enabled", "kept_by_ops", "no_grad", "once_differentiable", "profiler", "set_detect_anomaly",
           "set_grad_enabled"]


class _AnyTensor(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_AnyTensor):
    """PyTorch's old name of tensors. A call returns a leaf that shares the bytes of ``data``; each tensor is an instance.

    ``volatile`` has no effect. Raises TypeError for data that is no tensor.
    """

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: Any = None) -> Any:
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)


def backward(tensors: Tensors, grad_tensors: Tensors = None, retain_graph: bool | None = None,
             create_graph: bool = False, inputs: Tensors = None) -> None:
    """Add the gradients of ``tensors`` to the leaves that they were computed from, or only to ``inputs``, leaves or not.

    ``grad_tensors`` are the cotangents, one for each tensor; None means 1, for scalars. Raises RuntimeError for a tensor
    without a graph, a missing cotangent, a graph whose residuals have been released, and empty ``inputs``.
    """
    roots, gradients = _roots(tensors, grad_tensors)
    backward_of(roots, gradients, retain_graph, create_graph, inputs)


def grad(outputs: Tensors, inputs: Tensors, grad_outputs: Tensors = None, retain_graph: bool | None = None,
         create_graph: bool = False, only_inputs: bool = True, allow_unused: bool | None = None, is_grads_batched: bool = False,
         materialize_grads: bool = False) -> tuple[Any, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``, returned and not accumulated.

    ``outputs`` and ``inputs`` are each a tensor or an iterable of tensors, such as the values of a dict; each may be a
    :class:`~gradcore.autograd.graph.GradientEdge`. ``only_inputs`` changes nothing, as in PyTorch. With
    ``is_grads_batched`` each of ``grad_outputs`` has a first dimension more, over whose cotangents the gradients are computed
    one after the other, and stacked.

    Raises RuntimeError for an input that the outputs do not depend on; with ``allow_unused`` its gradient is None, with
    ``materialize_grads`` zeros, which require a gradient if ``create_graph``. Raises RuntimeError for empty ``inputs``.
    """
    if is_grads_batched:
        return _for_each(outputs, inputs, _list(() if grad_outputs is None else grad_outputs), retain_graph,
                         create_graph=create_graph, allow_unused=allow_unused, materialize_grads=materialize_grads)
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
                         "allow_unused=False.")
    roots, gradients = _roots(outputs, grad_outputs)
    wanted = _list(inputs)
    if not wanted:
        raise RuntimeError("'inputs' argument to 'grad' cannot be empty.")
    captures = captures_of("grad", wanted)
    run_backward(roots, gradients, captures=captures, retain_graph=retain_graph, create_graph=create_graph, partial=True)
    results = []
    for k, x in enumerate(wanted):
        g = captures[slot_of(x)][0]
        if g is None and isinstance(x, GradientEdge) and (materialize_grads or not allow_unused):
            raise RuntimeError("materialize_grads cannot be used when the given input is a GradientEdge"
                               if materialize_grads else f"The differentiated Tensor at index {k} appears to not have been "
                               "used in the graph. Set allow_unused=True if this is the desired behavior.")
        if g is None and materialize_grads:
            g = zeros_like(x).requires_grad_(create_graph)
        elif g is None and not allow_unused:
            raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph. Set "
                               f"allow_unused=True if this is the desired behavior: inputs[{k}] of shape "
                               f"{list(x.spec.shape)}")
        results.append(g)
    return tuple(results)


def _for_each(outputs: Tensors, inputs: Tensors, batches: list[Any], retain_graph: bool | None,
              **options: Any) -> tuple[Any, ...]:
    """The gradients for each cotangent of the batches, stacked; None stays None. Raises RuntimeError without a common size."""
    counts = {g.spec.shape[0] if isinstance(g, Value) and g.spec.ndim else 0 for g in batches if g is not None}
    if len(counts) != 1 or 0 in counts:
        raise RuntimeError("grad(is_grads_batched=True): expected grad_outputs with a first dimension of one size, at least 1, "
                           f"but got {[None if g is None else list(g.spec.shape) for g in batches]}")
    inputs, outputs, last = _list(inputs), _list(outputs), counts.pop() - 1
    rows = [grad(outputs, inputs, [None if g is None else select(g, 0, k) for g in batches],
                 True if k < last else retain_graph, **options) for k in range(last + 1)]
    return tuple(None if column[0] is None else stack(column) for column in zip(*rows, strict=True))


def _list(tensors: Tensors) -> list[Any]:
    return [tensors] if isinstance(tensors, (Value, GradientEdge)) else list(tensors)


def _roots(tensors: Tensors, cotangents: Tensors) -> tuple[list[Any], Sequence[Any]]:
    roots = _list(tensors)
    gradients = [None] * len(roots) if cotangents is None else _list(cotangents)
    if len(roots) != len(gradients):
        raise RuntimeError(f"got {len(roots)} tensors and {len(gradients)} gradients")
    for k, (x, g) in enumerate(zip(roots, gradients, strict=True)):
        if isinstance(x, GradientEdge):
            if not isinstance(g, Value):
                raise RuntimeError("grad can be implicitly created only for scalar outputs: a GradientEdge needs its gradient")
            roots[k] = alias(g, x[:2])
    for x in (*roots, *(g for g in gradients if g is not None)):
        if not isinstance(x, Value):
            raise TypeError(f"backward: expected tensors, but got {type(x).__name__}")
    return roots, gradients
