"""Gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcore.engine.backward import run_backward
from gradcore.engine.node import Value
from gradcore.functional import tensor


def gradcheck(func: Callable[..., Any], inputs: Sequence[Any], eps: float = 1e-6, atol: float = 1e-5,
              rtol: float = 1e-3, raise_exception: bool = True) -> bool:
    """Compare each entry of the Jacobian with a central difference of step ``eps``.

    ``inputs`` are float64 tensors, of which those that require a gradient are checked. Returns True, or raises
    RuntimeError naming the input and the entry (returns False with ``raise_exception=False``).
    """
    checked = [k for k, x in enumerate(inputs) if isinstance(x, Value) and x.edge is not None]
    if not checked:
        raise ValueError("gradcheck expects at least one input that requires grad")
    for k in checked:
        if inputs[k].spec.dtype != np.float64:
            raise ValueError(f"gradcheck needs float64: inputs[{k}] is {inputs[k].spec.dtype.name}")
    outputs = _outputs(func, inputs)
    sizes = [out.spec.numel for out in outputs]
    numerics = {k: _numeric(func, inputs, k, sizes, eps) for k in checked}
    for j, out in enumerate(outputs):
        numeric = {k: numerics[k][j] for k in checked}
        analytic = {k: np.zeros((inputs[k].spec.numel, sizes[j])) for k in checked}
        for column in range(sizes[j]):
            seed = np.zeros(out.spec.shape)
            seed.reshape(-1)[column] = 1
            captures: Any = {(id(inputs[k].edge[0]), inputs[k].edge[1]): [None] for k in checked}
            run_backward([out], [tensor(seed)], retain_graph=True, create_graph=False, captures=captures)
            for k in checked:
                g = captures[id(inputs[k].edge[0]), inputs[k].edge[1]][0]
                if g is not None:
                    analytic[k][:, column] = np.asarray(g.tolist(), dtype=np.float64).reshape(-1)
        for k in checked:
            if not np.allclose(analytic[k], numeric[k], rtol, atol):
                if not raise_exception:
                    return False
                worst = np.unravel_index(np.argmax(np.abs(analytic[k] - numeric[k])), numeric[k].shape)
                raise RuntimeError(
                    f"Jacobian mismatch for output {j} with respect to input {k} at entry {tuple(map(int, worst))}: "
                    f"numerical {numeric[k][worst]:.8g}, analytical {analytic[k][worst]:.8g}")
    return True


def gradgradcheck(func: Callable[..., Any], inputs: Sequence[Any], grad_outputs: Sequence[Any] | None = None,
                  eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, raise_exception: bool = True) -> bool:
    """:func:`gradcheck` of the gradients of ``func``, with respect to its inputs and to the cotangents of its outputs.

    The cotangents are ``grad_outputs``, float64 that require a gradient, or drawn at random.
    """
    wanted = [k for k, x in enumerate(inputs) if isinstance(x, Value) and x.edge is not None]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        grad_outputs = [tensor(rng.standard_normal(out.spec.shape), device=out.storage.device, requires_grad=True)
                        for out in _outputs(func, inputs)]

    def gradients(*values: Any) -> tuple[Any, ...]:
        given, cotangents = values[:len(inputs)], values[len(inputs):]
        outputs = _outputs(func, given)
        captures: Any = {(id(given[k].edge[0]), given[k].edge[1]): [None] for k in wanted}
        run_backward(outputs, cotangents, retain_graph=True, create_graph=True, captures=captures)
        return tuple(g for g in (slot[0] for slot in captures.values()) if g is not None)

    return gradcheck(gradients, [*inputs, *grad_outputs], eps, atol, rtol, raise_exception)


def _outputs(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    result = func(*inputs)
    return [r for r in (result if isinstance(result, (tuple, list)) else [result]) if r.spec.floating
            and r.edge is not None]


def _numeric(func: Callable[..., Any], inputs: Sequence[Any], k: int, sizes: list[int],
             eps: float) -> list[np.ndarray[Any, Any]]:
    """The differences of every output, of ``sizes`` elements, for each element of one input."""
    values = np.array(inputs[k].detach().tolist(), dtype=np.float64).reshape(inputs[k].spec.shape)
    found = [np.zeros((values.size, size)) for size in sizes]
    for i in range(values.size):
        ends = []
        for step in (eps, -eps):
            moved = values.copy()
            moved.reshape(-1)[i] += step
            given = list(inputs)
            given[k] = tensor(moved)
            # Gradients stay on: an op may compute differently without them, and outputs are told apart by them.
            given[k].requires_grad = True
            ends.append([np.asarray(out.detach().tolist(), dtype=np.float64).reshape(-1) for out in _outputs(func, given)])
        for j, (above, below) in enumerate(zip(*ends, strict=True)):
            found[j][i] = (above - below) / (2 * eps)
    return found
