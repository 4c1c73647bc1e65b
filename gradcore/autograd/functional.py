"""Jacobians, Hessians and their products with vectors, as in PyTorch's ``autograd.functional``.

``inputs`` are a tensor or a tuple of tensors, as is the function's result; the derivatives have the same structure. They have
no graph unless ``create_graph``. If an output does not depend on an input the derivative is zeros, or with ``strict``
RuntimeError is raised; with both, also for a derivative that has no graph since it is the same for all inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.autograd import grad
from gradcore.engine.modes import enable_grad
from gradcore.engine.value import Value
from gradcore.functional import ones_like, stack, zeros, zeros_like
from gradcore.ops import movement

Tensors = Any
Function = Callable[..., Tensors]

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def vjp(func: Function, inputs: Tensors, v: Tensors = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensors, Tensors]:
    """The outputs, and ``v`` times the Jacobian, a product for each input. ``v`` may be None for one output of one element."""
    several, given = _tensors("inputs", inputs)
    with enable_grad():
        own = entered(given, create_graph)
        several_out, outputs = _tensors("outputs of the user-provided function", func(*own))
        cotangents = _vector("v", v, outputs, "the user-provided function returns")
        found = slopes(outputs, own, cotangents, create_graph, strict)
    return _shaped(several_out, _left(outputs, create_graph)), _shaped(several, _left(found, create_graph))


def jvp(func: Function, inputs: Tensors, v: Tensors = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensors, Tensors]:
    """The outputs, and the Jacobian times ``v``, a product for each output, by two backward passes. ``v`` may be None for one
    input of one element."""
    _, given = _tensors("inputs", inputs)
    with enable_grad():
        own = entered(given, create_graph)
        tangents = _vector("v", v, own, "the input to the user-provided function is")
        several_out, outputs = _tensors("outputs of the user-provided function", func(*own))
        found = pushed(outputs, own, tangents, create_graph, strict)
    return _shaped(several_out, _left(outputs, create_graph)), _shaped(several_out, _left(found, create_graph))


def jacobian(func: Function, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
             strategy: str = "reverse-mode") -> Tensors:
    """The derivative of each output y with respect to each input x: [*y.shape, *x.shape].

    It takes a backward pass for each element of the outputs. ``vectorize`` changes nothing. Raises NotImplementedError for
    another ``strategy``.
    """
    if strategy != "reverse-mode":
        raise NotImplementedError(f"jacobian(strategy={strategy!r}): only 'reverse-mode' is supported")
    several, given = _tensors("inputs", inputs)
    with enable_grad():
        own = entered(given, create_graph)
        several_out, outputs = _tensors("outputs of the user-provided function", func(*own))
        found = [rows(y, own, create_graph, strict) for y in outputs]
    return _shaped(several_out, [_shaped(several, _left(row, create_graph)) for row in found])


def hessian(func: Function, inputs: Tensors, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
            outer_jacobian_strategy: str = "reverse-mode") -> Tensors:
    """The second derivatives of a function with one element by each pair of inputs: [*x.shape, *other.shape]."""
    several, given = _tensors("inputs", inputs)

    def gradients(*xs: Any) -> Tensors:
        return jacobian(lambda *own: _one("hessian", func(*own)).reshape(()), xs, create_graph=True, strict=strict)

    found = jacobian(gradients, given, create_graph, strict, vectorize, outer_jacobian_strategy)
    return found if several else found[0][0]


def hvp(func: Function, inputs: Tensors, v: Tensors = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensors, Tensors]:
    """The output, and the Hessian times ``v``: :func:`vhp`, since a Hessian is symmetric."""
    return _hessian_product("hvp", func, inputs, v, create_graph, strict)


def vhp(func: Function, inputs: Tensors, v: Tensors = None, create_graph: bool = False,
        strict: bool = False) -> tuple[Tensors, Tensors]:
    """The output, and ``v`` times the Hessian of a function with one element: a product for each input, by two passes."""
    return _hessian_product("vhp", func, inputs, v, create_graph, strict)


def _hessian_product(name: str, func: Function, inputs: Tensors, v: Tensors, create_graph: bool,
                     strict: bool) -> tuple[Tensors, Tensors]:
    several, given = _tensors("inputs", inputs)
    with enable_grad():
        own = entered(given, create_graph)
        vectors = _vector("v", v, own, "the input to the user-provided function is")
        output = _one(name, func(*own))
        first = slopes([output], own, None, True, strict)
        found = slopes(first, own, vectors, create_graph, strict)
    return _left([output], create_graph)[0], _shaped(several, _left(found, create_graph))


# -- parts -----------------------------------------------------------------------------------------------------------------


def _tensors(name: str, given: Tensors) -> tuple[bool, tuple[Any, ...]]:
    """Whether the tensors were given in a tuple, and the tensors. Raises TypeError for other objects, a list too."""
    several = isinstance(given, tuple)
    found = tuple(given) if several else (given,)
    for x in found:
        if not isinstance(x, Value):
            raise TypeError(f"The {name} must be either a Tensor or a tuple of Tensors, but got {type(x).__name__}")
    return several, found


def _shaped(several: bool, found: Sequence[Any]) -> Tensors:
    return tuple(found) if several else found[0]


def entered(given: Sequence[Any], create_graph: bool) -> list[Any]:
    """The inputs for the function: detached, or with ``create_graph`` views, so that derivatives reach the inputs' graph."""
    return [movement.view(x, shape=x.spec.shape) if create_graph and x.requires_grad else _leaf(x) for x in given]


def _leaf(x: Any) -> Any:
    """A leaf over a tensor's bytes, which nobody sees afterwards: a backward by a graph that leads to it leaves no gradient."""
    leaf = x.detach().requires_grad_()
    leaf.edge[0].frozen = True
    return leaf


def _left(found: Sequence[Any], create_graph: bool) -> list[Any]:
    return [*found] if create_graph else [x.detach() for x in found]


def _one(name: str, output: Any) -> Any:
    if isinstance(output, tuple):
        raise RuntimeError(f"The function given to {name} should return a single Tensor, but got {len(output)} in a tuple")
    if not isinstance(output, Value):
        raise TypeError(f"The function given to {name} must return a single Tensor, but got {type(output).__name__}")
    if output.spec.numel != 1:
        raise RuntimeError(f"The Tensor returned by the function given to {name} should contain a single element, but it has "
                           f"shape {list(output.spec.shape)}")
    return output


def _vector(name: str, v: Tensors, like: Sequence[Any], where: str) -> list[Any]:
    if v is None:
        if len(like) != 1 or like[0].spec.numel != 1:
            raise RuntimeError(f"The vector {name} can only be None if {where} a single Tensor with a single element.")
        return [ones_like(like[0])]
    _, found = _tensors(name, v)
    if [x.spec.shape for x in found] != [x.spec.shape for x in like]:
        raise RuntimeError(f"{name} has invalid size: should be {[list(x.spec.shape) for x in like]} but got "
                           f"{[list(x.spec.shape) for x in found]}.")
    return [*found]


def slopes(outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any] | None, create_graph: bool,
           strict: bool, retain_graph: bool = True) -> list[Any]:
    """The gradients, with zeros for inputs that no output depends on. With ``strict`` raises RuntimeError for these, for an
    output that depends on no input, and with ``create_graph`` for a gradient that depends on none."""
    kept = [k for k, y in enumerate(outputs) if y.requires_grad]
    found: Sequence[Any] = [None] * len(inputs)
    if kept:
        given = None if cotangents is None else [cotangents[k] for k in kept]
        found = grad([outputs[k] for k in kept], inputs, given, retain_graph=retain_graph, create_graph=create_graph,
                     allow_unused=True)
    for k, g in enumerate(found):
        if g is None and strict:
            raise RuntimeError(f"The output of the user-provided function is independent of input {k}. This is not allowed in "
                               "strict mode.")
        if strict and create_graph and not g.requires_grad:
            raise RuntimeError(f"The jacobian of the user-provided function is independent of input {k}. This is not allowed "
                               "in strict mode when create_graph=True.")
    if strict and len(kept) < len(outputs):
        raise RuntimeError("An output of the user-provided function does not require gradients. The outputs must be computed "
                           "in a differentiable manner from the input when running in strict mode.")
    return [zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def pushed(outputs: Sequence[Any], inputs: Sequence[Any], tangents: Sequence[Any], create_graph: bool,
           strict: bool) -> list[Any]:
    """The Jacobian times ``tangents``, by two backward passes."""
    # The vector-Jacobian product is linear in its vector, and the derivative by that is the Jacobian-vector product.
    zero = [zeros_like(y).requires_grad_(y.spec.floating) for y in outputs]
    found = iter(slopes(slopes(outputs, inputs, zero, True, strict), [z for z in zero if z.requires_grad], tangents,
                        create_graph, strict))
    return [next(found) if z.requires_grad else z for z in zero]


def rows(y: Any, inputs: Sequence[Any], create_graph: bool, strict: bool) -> list[Any]:
    """The derivatives of one output by each input, computed for one element of the output at a time."""
    rows = []
    for k in range(y.spec.numel):
        one = zeros(y.spec.numel, dtype=y.spec.dtype, device=y.storage.device)
        one[k] = 1
        rows.append(slopes([y], inputs, [movement.reshape(one, shape=y.spec.shape)], create_graph, strict))
    if not rows:
        return [zeros(*y.spec.shape, *x.spec.shape, dtype=x.spec.dtype, device=x.storage.device) for x in inputs]
    return [movement.reshape(stack(column), shape=(*y.spec.shape, *x.spec.shape))
            for x, column in zip(inputs, zip(*rows, strict=True), strict=True)]
