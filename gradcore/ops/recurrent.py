"""Recurrent layers along a whole sequence: one op a layer and direction, forward and backward.

What the input gives to the gates of all steps, ``given`` [L, N, gates * H], is a matrix product that is made before. What the
weight of the state is to change by is one product, too, in the end of the gradient op.
"""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.activation import relu_grad, sigmoid_grad, tanh, tanh_grad
from gradcore.ops.creation import new_full
from gradcore.ops.linalg import matmul
from gradcore.ops.movement import cat, narrow, reshape, split
from gradcore.ops.op import Inferred, derived, joint, op
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float
from gradcore.spec import TensorSpec


def _check(name: str, gates: int, given: TensorSpec, weight: TensorSpec, bias: TensorSpec | None,
           *states: TensorSpec) -> tuple[int, int, int]:
    """Steps, samples and the size of a state. Raises :class:`SpecError` for operands that do not fit."""
    need_float(name, input=given, weight=weight, bias=bias)
    size = weight.shape[-1]
    batch = given.shape[1] if given.ndim == 3 else -1
    wanted: list[tuple[TensorSpec | None, tuple[int, ...]]] = [(weight, (gates * size, size)), (bias, (gates * size,))]
    wanted += [(state, (batch, size)) for state in states]
    if given.ndim != 3 or given.shape[2] != gates * size or any(
            spec is not None and (spec.shape != shape or spec.dtype != given.dtype) for spec, shape in wanted):
        raise SpecError(f"{name}: expected [L, N, {gates} H] of the input, weight [{gates} H, H], states [N, H], all of one "
                        f"dtype, but got {given}, {', '.join(str(spec) for spec, _ in wanted if spec is not None)}")
    return given.shape[0], batch, size


def _step_bytes(given: TensorSpec, weight: TensorSpec, states: int, kept: int) -> int:
    """Bytes of what a step gives to all gates, of ``states`` states, of ``kept`` numbers, and of a weight or its transpose."""
    batch, width = given.shape[1:]
    return (batch * width + states * batch * weight.shape[1] + kept + weight.numel) * given.dtype.itemsize + 16 * (3 + states)


def _rnn_spec(given: TensorSpec, weight: TensorSpec, h0: TensorSpec, *, relu: bool, backwards: bool) -> Inferred:
    length, batch, size = _check("rnn", 1, given, weight, None, h0)
    return Inferred((TensorSpec.of((length, batch, size), given.dtype),), workspace=_step_bytes(given, weight, 0, 0))


def _rnn_grad_spec(dy: TensorSpec, out: TensorSpec, h0: TensorSpec, weight: TensorSpec, *, relu: bool,
                   backwards: bool) -> Inferred:
    return Inferred((out.like(), weight.like(), h0.like()), workspace=_step_bytes(out, weight, 1, 0))


def _lstm_spec(given: TensorSpec, weight: TensorSpec, h0: TensorSpec, c0: TensorSpec, *, backwards: bool) -> Inferred:
    length, batch, size = _check("lstm", 4, given, weight, None, h0, c0)
    states = TensorSpec.of((length, batch, size), given.dtype)
    return Inferred((states, c0.like()), (("gates", given.like()), ("cells", states)), _step_bytes(given, weight, 0, 0))


def _lstm_grad_spec(dy: TensorSpec | None, dlast: TensorSpec | None, gates: TensorSpec, cells: TensorSpec, out: TensorSpec,
                    h0: TensorSpec, c0: TensorSpec, weight: TensorSpec, *, backwards: bool) -> Inferred:
    return Inferred((gates.like(), weight.like(), h0.like(), c0.like()), workspace=_step_bytes(gates, weight, 2, 0))


def _gru_spec(given: TensorSpec, weight: TensorSpec, bias: TensorSpec | None, h0: TensorSpec, *, backwards: bool) -> Inferred:
    length, batch, size = _check("gru", 3, given, weight, bias, h0)
    return Inferred((TensorSpec.of((length, batch, size), given.dtype),),
                    (("gates", TensorSpec.of((length, batch, 4 * size), given.dtype)),), _step_bytes(given, weight, 0, 0))


def _gru_grad_spec(dy: TensorSpec, gates: TensorSpec, out: TensorSpec, h0: TensorSpec, weight: TensorSpec, *,
                   backwards: bool) -> Inferred:
    length, batch, size = out.shape
    given = TensorSpec.of((length, batch, 3 * size), out.dtype)
    # What the state gives to one gate has gradients of its own, of all steps.
    return Inferred((given, weight.like(), TensorSpec.of((3 * size,), out.dtype), h0.like()),
                    workspace=_step_bytes(given, weight, 2, out.numel))


def _lstm_rule(g_out: Any, g_last: Any, g_gates: Any, g_cells: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any,
               weight: Any, backwards: bool) -> Any:
    if g_gates is None and g_cells is None:
        return lstm_grad(g_out, g_last, gates, cells, out, h0, c0, weight, backwards=backwards)
    return _lstm_back(g_out, g_last, g_gates, g_cells, gates, cells, out, h0, c0, weight, backwards)


def _gru_rule(g: Any, g_gates: Any, gates: Any, out: Any, h0: Any, weight: Any, backwards: bool,
              needs: tuple[bool, ...]) -> Any:
    if g_gates is None:
        dgiven, dweight, dbias, dh0 = gru_grad(g, gates, out, h0, weight, backwards=backwards)
    else:
        dgiven, dweight, dbias, dh0 = _gru_back(g, g_gates, gates, out, h0, weight, backwards)
    return dgiven, dweight, dbias if needs[2] else None, dh0


# -- the gradients step by step, for whoever differentiates them -------------------------------------------------------


def _steps(x: Any, backwards: bool) -> list[Any]:
    """Views [1, N, ...] of the steps, from the one that was run last to the first."""
    parts = split(x, sizes=(1,) * x.spec.shape[0], dim=0)
    return list(parts) if backwards else list(parts)[::-1]


def _joined(steps: list[Any], backwards: bool) -> Any:
    return cat(steps if backwards else steps[::-1], dim=0)


def _first(state: Any) -> Any:
    return reshape(state, (1, *state.spec.shape))


def _nothing(state: Any) -> Any:
    """No cotangent of a state."""
    return new_full(state, (1, *state.spec.shape), 0.0)


def _before(states: Any, first: Any, backwards: bool) -> Any:
    """The states that the steps began with."""
    length = states.spec.shape[0]
    rest = narrow(states, 0, 1 if backwards else 0, length - 1)
    return cat([rest, _first(first)] if backwards else [_first(first), rest], dim=0)


def _to_weight(slopes: Any, before: Any) -> Any:
    """The sum over all steps of slopes^T times the state that the step began with."""
    rows, states = (reshape(x, (x.spec.shape[0] * x.spec.shape[1], x.spec.shape[2])) for x in (slopes, before))
    return matmul(rows, states, transpose_a=True)


def _given(count: int, backwards: bool, *cotangents: Any) -> list[list[Any]]:
    """The steps of each cotangent, None for each step where it is None."""
    return [[None] * count if g is None else _steps(g, backwards) for g in cotangents]


def _gates(x: Any) -> Any:
    """Views of the four parts, one a gate; None for each part of None."""
    return (None,) * 4 if x is None else split(x, sizes=(x.spec.shape[2] // 4,) * 4, dim=2)


def _plus(x: Any, y: Any) -> Any:
    return x if y is None else x + y


def _rnn_back(dy: Any, out: Any, h0: Any, weight: Any, relu: bool, backwards: bool) -> Any:
    slope, slopes, dh = relu_grad if relu else tanh_grad, [], None
    for d, h in zip(_steps(dy, backwards), _steps(out, backwards), strict=True):
        slopes.append(slope(_plus(d, dh), h))
        dh = matmul(slopes[-1], weight)
    dgiven = _joined(slopes, backwards)
    return dgiven, _to_weight(dgiven, _before(out, h0, backwards)), reshape(dh, h0.spec.shape)


def _lstm_back(dy: Any, dlast: Any, dgates: Any, dcells: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any, weight: Any,
               backwards: bool) -> Any:
    """lstm_grad, where what the gates and cells are asked for joins what comes through the outputs."""
    slopes: list[Any] = []
    dh, dc = _nothing(h0), _nothing(c0) if dlast is None else _first(dlast)
    each = [_steps(x, backwards) for x in (gates, cells, _before(cells, c0, backwards))]
    for gate, cell, was, d, to_gate, to_cell in zip(*each, *_given(len(each[0]), backwards, dy, dgates, dcells), strict=True):
        (i, f, g, o), bent = _gates(gate), tanh(cell)
        dh = _plus(dh, d)
        dc = _plus(dc + tanh_grad(dh * o, bent), to_cell)
        to = [_plus(x, y) for x, y in zip((dc * g, dc * was, dc * i, dh * bent), _gates(to_gate), strict=True)]
        slopes.append(cat([sigmoid_grad(to[0], i), sigmoid_grad(to[1], f), tanh_grad(to[2], g), sigmoid_grad(to[3], o)], dim=2))
        dh, dc = matmul(slopes[-1], weight), dc * f
    dgiven = _joined(slopes, backwards)
    return (dgiven, _to_weight(dgiven, _before(out, h0, backwards)), reshape(dh, h0.spec.shape), reshape(dc, c0.spec.shape))


def _gru_back(dy: Any, dgates: Any, gates: Any, out: Any, h0: Any, weight: Any, backwards: bool) -> Any:
    """gru_grad, where what the gates are asked for joins what comes through the outputs."""
    to_input: list[Any] = []
    to_state: list[Any] = []
    dh, before = _nothing(h0), _before(out, h0, backwards)
    each = [_steps(x, backwards) for x in (gates, before)]
    for gate, was, d, to_gate in zip(*each, *_given(len(each[0]), backwards, dy, dgates), strict=True):
        (r, z, n, from_state), to = _gates(gate), _gates(to_gate)
        dh = _plus(dh, d)
        dn = tanh_grad(_plus(dh * (1 - z), to[2]), n)
        dr, dz = sigmoid_grad(_plus(dn * from_state, to[0]), r), sigmoid_grad(_plus(dh * (was - n), to[1]), z)
        to_input.append(cat([dr, dz, dn], dim=2))
        to_state.append(cat([dr, dz, _plus(dn * r, to[3])], dim=2))
        dh = matmul(to_state[-1], weight) + dh * z
    slopes = _joined(to_state, backwards)
    return (_joined(to_input, backwards), _to_weight(slopes, before), sum(slopes, dims=(0, 1), keepdim=False),
            reshape(dh, h0.spec.shape))


def _flops(h0: TensorSpec, out: TensorSpec, weight: TensorSpec) -> int:
    """Of the weight's products with the states that all steps begin with."""
    return 2 * out.shape[0] * h0.shape[0] * weight.numel


def _flops_back(h0: TensorSpec, out: TensorSpec, weight: TensorSpec) -> int:
    """Of the products that give the gradients of these states, and that of the weight."""
    return 2 * _flops(h0, out, weight)


rnn = op("rnn", _rnn_spec, joint("given", "weight", "h0")(
    lambda g, out, h0, weight, attrs: rnn_grad(g, out, h0, weight, **attrs)), contiguous=True, flops=_flops,
         doc="h' = tanh(given + W h), or relu. Elman, Finding Structure in Time, 1990.")
rnn_grad = op("rnn_grad", _rnn_grad_spec, derived("dy", "out", "h0", "weight")(_rnn_back), contiguous=True,
              outputs=("dgiven", "dweight", "dh0"), flops=_flops_back)
lstm = op("lstm", _lstm_spec, joint("given", "weight", "h0", "c0")(_lstm_rule), contiguous=True, outputs=("out", "last"),
          aux=("gates", "cells"), flops=_flops,
          doc="Gates i, f, g, o of given + W h; c' = f c + i g, h' = o tanh(c'). Hochreiter and Schmidhuber, 1997.")
lstm_grad = op("lstm_grad", _lstm_grad_spec,
               derived("dy", "dlast", "gates", "cells", "out", "h0", "c0", "weight")(
                   lambda dy, dlast, gates, cells, out, h0, c0, weight, backwards: _lstm_back(
                       dy, dlast, None, None, gates, cells, out, h0, c0, weight, backwards)),
               contiguous=True, outputs=("dgiven", "dweight", "dh0", "dc0"), flops=_flops_back)
gru = op("gru", _gru_spec, joint("given", "weight", "bias", "h0")(_gru_rule), contiguous=True, aux=("gates",), flops=_flops,
         doc="Gates r, z; n = tanh(x_n + r h_n), h' = n + z (h - n). Cho et al., arXiv:1406.1078.")
gru_grad = op("gru_grad", _gru_grad_spec,
              derived("dy", "gates", "out", "h0", "weight")(
                  lambda dy, gates, out, h0, weight, backwards: _gru_back(dy, None, gates, out, h0, weight, backwards)),
              contiguous=True, outputs=("dgiven", "dweight", "dbias", "dh0"), flops=_flops_back)
