"""``gradcheck`` and ``gradgradcheck``: compare gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcore.engine.backward import run_backward
from gradcore.engine.below import slot_of
from gradcore.engine.value import Value
from gradcore.functional import tensor

Array = np.ndarray[Any, Any]

#: PyTorch's arguments that change nothing: kernels compute the same in every run, and gradients have their inputs' dtypes.
_HARMLESS = frozenset({"nondet_tol", "check_undefined_grad", "check_grad_dtypes", "check_backward_ad", "check_rev_over_rev"})
#: And those that are refused unless they are False.
_REFUSED = frozenset({"check_batched_grad", "check_batched_forward_grad", "check_forward_ad", "check_fwd_over_rev", "masked",
                      "gen_non_contig_grad_outputs"})


def gradcheck(func: Callable[..., Any], inputs: Any, eps: float = 1e-6, atol: float = 1e-5,
              rtol: float = 1e-3, raise_exception: bool = True, fast_mode: bool = False, **others: Any) -> bool:
    """Compare each entry of the Jacobian with a central difference of step ``eps``.

    ``inputs`` are one or several float64 tensors, of which those that require a gradient are checked. ``fast_mode`` compares
    only one number for each input and output: the slope of a random sum of the output along a random direction. Returns True,
    or raises RuntimeError naming the input and the entry (with ``raise_exception=False`` it returns False). Raises ValueError
    if no input requires a gradient, or one that does is not float64.

    PyTorch's ``nondet_tol``, ``check_undefined_grad`` and ``check_grad_dtypes`` change nothing; checks of forward mode and of
    batched gradients raise NotImplementedError.
    """
    _check_others("gradcheck", others)
    inputs = _several(inputs)
    checked = _requiring(inputs)
    if not checked:
        raise ValueError("gradcheck expects at least one input that requires grad")
    for k in checked:
        if inputs[k].spec.dtype != np.float64:
            raise ValueError(f"gradcheck needs float64: inputs[{k}] is {inputs[k].spec.dtype.name}")
    # Of a function whose results lead to no input, the slopes must be 0.
    results = _outputs(func, inputs, led=False)
    led = any(x.edge is not None for x in results)
    outputs = [x for x in results if x.edge is not None or not led]
    rng = np.random.default_rng(0)
    directions = {k: _directions(inputs[k].spec.numel, fast_mode, rng) for k in checked}
    sizes = [out.spec.numel for out in outputs]
    numeric = {k: _numeric(func, inputs, k, directions[k], sizes, eps, led) for k in checked}
    for j, output in enumerate(outputs):
        seeds = _directions(output.spec.numel, fast_mode, rng)
        analytic: dict[int, list[Array]] = {k: [] for k in checked}
        for seed in seeds:
            captures: Any = {slot_of(inputs[k]): [None] for k in checked}
            cotangent = tensor(seed.reshape(output.spec.shape), device=output.storage.device)
            if led:
                run_backward([output], [cotangent], retain_graph=True, create_graph=False, captures=captures)
            for k in checked:
                g = captures[slot_of(inputs[k])][0]
                slopes = np.zeros(inputs[k].spec.numel) if g is None else _flat(g)
                analytic[k].append(directions[k] @ slopes if fast_mode else slopes)
        for k in checked:
            found = np.array(analytic[k]).reshape(len(seeds), len(directions[k])).T
            expected = numeric[k][j] @ seeds.T if fast_mode else numeric[k][j]
            if not np.allclose(found, expected, rtol, atol):
                if not raise_exception:
                    return False
                worst = np.unravel_index(np.argmax(np.abs(found - expected)), expected.shape)
                raise RuntimeError(
                    f"Jacobian mismatch for output {j} with respect to input {k} at entry {tuple(map(int, worst))}: "
                    f"numerical {expected[worst]:.8g}, analytical {found[worst]:.8g}")
    return True


def gradgradcheck(func: Callable[..., Any], inputs: Any, grad_outputs: Any = None,
                  eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, raise_exception: bool = True,
                  fast_mode: bool = False, **others: Any) -> bool:
    """:func:`gradcheck` of the gradients of ``func``, with respect to its inputs and to the cotangents of its outputs.

    The cotangents are ``grad_outputs``, one or several float64 tensors that require a gradient, by default random. A gradient
    without a graph counts as constant, and is checked to be so.
    """
    _check_others("gradgradcheck", others)
    inputs = _several(inputs)
    wanted = _requiring(inputs)
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        grad_outputs = [tensor(rng.standard_normal(out.spec.shape), device=out.storage.device, requires_grad=True)
                        for out in _outputs(func, inputs)]

    grad_outputs = _several(grad_outputs)

    def gradients(*values: Any) -> tuple[Any, ...]:
        given, cotangents = values[:len(inputs)], values[len(inputs):]
        outputs = _outputs(func, given)
        captures: Any = {slot_of(given[k]): [None] for k in wanted}
        run_backward(outputs, cotangents, retain_graph=True, create_graph=True, captures=captures)
        # A zero with a graph that leads to all inputs.
        nothing = sum(given[k].reshape(-1)[:0].sum() for k in wanted)
        return tuple(g if g.edge is not None else g + nothing for g in (slot[0] for slot in captures.values()) if g is not None)

    return gradcheck(gradients, [*inputs, *grad_outputs], eps, atol, rtol, raise_exception, fast_mode)


def _check_others(name: str, others: dict[str, Any]) -> None:
    for argument, value in others.items():
        if argument not in _HARMLESS | _REFUSED:
            raise TypeError(f"{name}() got an unexpected keyword argument {argument!r}")
        if argument in _REFUSED and value:
            raise NotImplementedError(f"{name}({argument}={value!r}) is not supported: only gradients of backward are compared")


def _several(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, Value) else tuple(tensors)


def _requiring(inputs: Sequence[Any]) -> list[int]:
    """The positions of the tensors that require a gradient."""
    return [k for k, x in enumerate(inputs) if isinstance(x, Value) and x.edge is not None]


def _outputs(func: Callable[..., Any], inputs: Sequence[Any], led: bool = True) -> list[Any]:
    """The results that may have slopes, of those that are ``led`` to an input."""
    result = func(*inputs)
    return [r for r in (result if isinstance(result, (tuple, list)) else [result]) if r.spec.floating
            and (r.edge is not None or not led)]


def _directions(size: int, fast: bool, rng: np.random.Generator) -> Array:
    """The directions to differentiate along, [n, size]: all unit vectors, or with ``fast`` one random vector."""
    return rng.standard_normal((1, size)) if fast else np.eye(size)


def _flat(x: Any) -> Array:
    return np.asarray(x.detach().tolist(), dtype=np.float64).reshape(-1)


def _numeric(func: Callable[..., Any], inputs: Sequence[Any], k: int, directions: Array, sizes: Sequence[int],
             eps: float, led: bool) -> list[Array]:
    """For each output: its slopes along the directions of input ``k`` by central differences, [directions, elements]."""
    x = inputs[k]
    own, values = x.data, _flat(x)
    rows = []
    try:
        for direction in directions:
            ends = []
            for step in (eps, -eps):
                # Of the tensor itself, which the function may also have from elsewhere, as a module has its parameters. It
                # still wants a gradient: ops may compute differently if not, and :func:`_outputs` selects by that.
                x.data = tensor((values + step * direction).reshape(x.spec.shape), device=x.storage.device)
                ends.append([_flat(out) for out in _outputs(func, inputs, led)])
            rows.append([(above - below) / (2 * eps) for above, below in zip(*ends, strict=True)])
    finally:
        x.data = own
    return [np.array([row[j] for row in rows]).reshape(len(rows), size) for j, size in enumerate(sizes)]
