"""Derivatives as functions: ``grad``, ``vjp``, ``jvp``, ``jacrev`` and what is made of them.

Arguments and results may be nested lists, tuples and dicts of tensors. A derivative has a graph if the function or its
arguments lead to tensors that require a gradient, so that derivatives can be nested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gradcore._tensor import Tensor
from gradcore.autograd.functional import entered, pushed, rows, slopes
from gradcore.engine.below import leaves_below
from gradcore.engine.modes import enable_grad, is_grad_enabled
from gradcore.engine.value import tensors_in
from gradcore.func.batching import need_randomness
from gradcore.trees import filled, leaves

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


class _Call:
    """One call of a function, with the arguments that it is differentiated by in tensors of their own."""

    def __init__(self, what: str, func: Function, argnums: Argnums, args: tuple[Any, ...], kwargs: dict[str, Any],
                 has_aux: bool) -> None:
        self.what, self.has_aux = what, has_aux
        #: Do derivatives need a graph if the function leads to other tensors that require a gradient?
        graphs = is_grad_enabled()
        #: The arguments, as they are given.
        self.chosen, at = _chosen(argnums, args)
        given = list(leaves(self.chosen))
        for x in given:
            if not isinstance(x, Tensor):
                raise ValueError(f"Thing passed to transform API must be Tensor, got {type(x)}")
            if not x.spec.floating:
                raise RuntimeError(f"only Tensors of floating point dtype can require gradients, but got {x.spec}")
        with enable_grad():
            self.own = entered(given, True)
            inside = filled(self.chosen, self.own)
            replaced = dict(zip(at, inside if isinstance(argnums, tuple) else (inside,), strict=True))
            result = func(*[replaced.get(k, a) for k, a in enumerate(args)], **kwargs)
        self.aux = None
        if has_aux:
            if not (isinstance(result, tuple) and len(result) == 2):
                raise RuntimeError(f"{what}: output of function f should be a tuple: (output, aux) if has_aux is True")
            result, self.aux = result
        self.result = result
        self.outputs = list(leaves(result))
        mine = {x.edge[0] for x, before in zip(self.own, given, strict=True) if not before.requires_grad}
        #: Do its results, and their derivatives, keep their graph?
        self.graph = graphs and not mine.issuperset(leaves_below([*tensors_in((result, self.aux))]))

    def need_tensors(self) -> None:
        for y in self.outputs:
            if not isinstance(y, Tensor):
                raise RuntimeError(f"{self.what}: expected f(*primals) to return only tensors, got unsupported type {type(y)}")

    def need_floating(self) -> None:
        for y in self.outputs:
            if not y.spec.floating:
                raise RuntimeError("vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got Tensor with "
                                   f"dtype {y.dtype}")

    def left(self, tree: Any) -> Any:
        """Results without the graph of this call, unless they keep it."""
        return tree if self.graph else filled(tree, (x.detach() if isinstance(x, Tensor) else x for x in leaves(tree)))

    def with_aux(self, *results: Any) -> Any:
        found = (*results, self.left(self.aux)) if self.has_aux else results
        return found if len(found) > 1 else found[0]


def _call_of(what: str, func: Function, primals: tuple[Any, ...], has_aux: bool = False) -> _Call:
    """A call that is differentiated by all arguments, and returns tensors."""
    call = _Call(what, func, tuple(range(len(primals))), primals, {}, has_aux)
    call.need_tensors()
    return call


def _chosen(argnums: Argnums, args: tuple[Any, ...]) -> tuple[Any, list[int]]:
    """The arguments that are chosen, a tuple if ``argnums`` is one, and their positions."""
    if not isinstance(argnums, (int, tuple)) or isinstance(argnums, bool):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    several = argnums if isinstance(argnums, tuple) else (argnums,)
    for k in several:
        if not isinstance(k, int):
            raise RuntimeError(f"argnums elements must be int, got {type(k)}")
        if not -len(args) <= k < len(args):
            raise RuntimeError(f"Got argnum={k}, but only {len(args)} positional inputs")
    at = [k % len(args) for k in several]
    if len({*at}) < len(at) or not at:
        raise RuntimeError(f"argnums must name different arguments, at least one, got {argnums}")
    found = tuple(args[k] for k in at)
    return (found if isinstance(argnums, tuple) else found[0]), at


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """The gradient of a function that returns a scalar, by its arguments ``argnums``, as a function of the same arguments.

    With ``has_aux`` the function returns a pair, whose second part the gradient's function returns as well: (gradient, aux).
    Raises ValueError or RuntimeError for arguments that are no floating tensors, and for a result that is no scalar.
    """
    value_too = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        found, value = value_too(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return run


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """As :func:`grad`, with the function's value: (gradient, value), or (gradient, (value, aux))."""

    @functools.wraps(func, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        call = _Call("grad_and_value(f)(*args)", func, argnums, args, kwargs, has_aux)
        y = call.result
        if not isinstance(y, Tensor):
            raise RuntimeError(f"{call.what}: Expected f(*args) to return a Tensor, got {type(y)}")
        if y.spec.ndim:
            raise RuntimeError(f"{call.what}: Expected f(*args) to return a scalar Tensor, got tensor with {y.spec.ndim} dims. "
                               "Maybe you wanted to use the vjp or jacrev APIs instead?")
        with enable_grad():
            found = slopes([y], call.own, None, call.graph, False, retain_graph=call.graph)
        return filled(call.chosen, found), call.with_aux(call.left(y))

    return run


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The function's results, and a function from cotangents, of their structure, to a tuple with a product of cotangents and
    Jacobian for each argument. With ``has_aux`` also the second part of what the function returns.

    The graph is released with that function. Raises as :func:`grad`, and RuntimeError for results that are not floating, and
    for cotangents of another structure or shape.
    """
    call = _call_of("vjp(f, *primals)", func, primals, has_aux)
    call.need_floating()

    def back(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> tuple[Any, ...]:
        given = _alike("cotangents", cotangents, call.result, call.outputs)
        if create_graph is None:
            create_graph = is_grad_enabled() and (call.graph or any(g.requires_grad for g in given))
        with enable_grad():
            found = slopes(call.outputs, call.own, given, create_graph, False, retain_graph)
        return tuple(filled(call.chosen, found))

    return call.with_aux(call.left(call.result), back)


def _alike(name: str, given: Any, result: Any, outputs: list[Any]) -> list[Any]:
    """The tensors of ``given``, which must have the structure and the shapes of a result."""
    found = list(leaves(given))
    if _structure(given) != _structure(result):
        raise RuntimeError(f"Expected pytree structure of {name} to be the same as pytree structure of outputs to the "
                           f"function. {name}: {_structure(given)}, primal output: {_structure(result)}")
    for k, (g, y) in enumerate(zip(found, outputs, strict=True)):
        if not isinstance(g, Tensor) or g.spec.shape != y.spec.shape:
            shape = list(g.spec.shape) if isinstance(g, Tensor) else type(g)
            raise RuntimeError(f"Mismatch in shape: grad_output[{k}] has a shape of {shape} and output[{k}] has a shape of "
                               f"{list(y.spec.shape)}.")
    return found


def _structure(tree: Any) -> str:
    return repr(filled(tree, ("*" for _ in leaves(tree)))).replace("'*'", "*")


def jvp(func: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, strict: bool = False,
        has_aux: bool = False) -> Any:
    """The function's results, and the Jacobian times ``tangents``, in their structure, by two backward passes.

    Raises as :func:`grad`, and RuntimeError for tangents of another structure or shape, or with ``strict`` for a result that
    does not depend on the arguments.
    """
    what = "jvp(f, primals, tangents)"
    for name, x in (("primals", primals), ("tangents", tangents)):
        if not isinstance(x, tuple):
            raise RuntimeError(f"{what}: Expected {name} to be a tuple. E.g. it should be valid to call f(*{name}).")
    if _structure(primals) != _structure(tangents):
        raise RuntimeError(f"{what}: Expected primals and tangents to have the same structure: {_structure(primals)}, "
                           f"{_structure(tangents)}")
    call = _call_of(what, func, primals, has_aux)
    return call.with_aux(call.left(call.result), _forward(call, tangents, strict))


def _forward(call: _Call, tangents: tuple[Any, ...], strict: bool = False) -> Any:
    given = list(leaves(tangents))
    for x, t in zip(call.own, given, strict=True):
        if not isinstance(t, Tensor) or t.spec.shape != x.spec.shape:
            raise RuntimeError(f"a tangent has another size than its primal, {list(x.spec.shape)}: "
                               f"{list(t.spec.shape) if isinstance(t, Tensor) else type(t)}")
    if strict and not all(y.requires_grad for y in call.outputs):
        raise RuntimeError("jvp(f, primals, tangents): Output is independent of the inputs. This is not allowed in strict "
                           "mode.")
    graph = is_grad_enabled() and (call.graph or any(t.requires_grad for t in given))
    with enable_grad():
        return filled(call.result, pushed(call.outputs, call.own, given, graph, False))


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """The function's results, and the function from tangents to the Jacobian times them; its graph is released with it."""
    call = _call_of("linearize(f, *primals)", func, primals)
    return call.left(call.result), lambda *tangents: _forward(call, tangents)


def jacrev(func: Function, argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None) -> Function:
    """The Jacobian, by a backward pass for each element of the results: for each of these, in their structure, and each chosen
    argument, in its structure, a tensor [*result.shape, *argument.shape]. ``chunk_size`` changes nothing.

    Raises as :func:`grad`, RuntimeError for results that are not floating, and ValueError for a ``chunk_size`` below 1.
    """
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError(f"jacrev: `chunk_size` should be greater than 0, but got {chunk_size}")
    return _jacobian(func, argnums, has_aux, floating=True)


def _jacobian(func: Function, argnums: Argnums, has_aux: bool, floating: bool) -> Function:
    @functools.wraps(func, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        call = _Call("jacrev(f)(*args)", func, argnums, args, kwargs, has_aux)
        call.need_tensors()
        if floating:
            call.need_floating()
        with enable_grad():
            found = [filled(call.chosen, rows(y, call.own, call.graph, False)) for y in call.outputs]
        return call.with_aux(filled(call.result, found))

    return run


def jacfwd(func: Function, argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error") -> Function:
    """The Jacobian, of results that are not floating zeros; it is computed as by :func:`jacrev`. ``randomness`` changes
    nothing, but must be one of ``vmap``'s."""
    need_randomness(randomness)
    return _jacobian(func, argnums, has_aux, floating=False)


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """The Jacobian of the gradient: for each pair of chosen arguments, a tensor [*result.shape, *one.shape, *other.shape]."""
    return jacrev(jacrev(func, argnums), argnums)


__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"]
