"""Recurrent layers along a whole sequence: one op a layer and direction, forward and backward.

What the input gives to the gates of all steps, ``given`` [L, N, gates * H], is a matrix product that is made before. What the
weight of the state is to change by is one product, too, in the end of the gradient op.
"""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.op import Inferred, joint, no_second_derivative, op
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


def _room(given: TensorSpec, weight: TensorSpec, states: int, kept: int) -> int:
    """Bytes of what a step gives to all gates, of ``states`` states, of ``kept`` numbers, and of a weight or its transpose."""
    batch, width = given.shape[1:]
    return (batch * width + states * batch * weight.shape[1] + kept + weight.numel) * given.dtype.itemsize + 16 * (3 + states)


def _rnn_spec(given: TensorSpec, weight: TensorSpec, h0: TensorSpec, *, relu: bool, backwards: bool) -> Inferred:
    length, batch, size = _check("rnn", 1, given, weight, None, h0)
    return Inferred((TensorSpec.of((length, batch, size), given.dtype),), workspace=_room(given, weight, 0, 0))


def _rnn_grad_spec(dy: TensorSpec, out: TensorSpec, h0: TensorSpec, weight: TensorSpec, *, relu: bool,
                   backwards: bool) -> Inferred:
    return Inferred((out.like(), weight.like(), h0.like()), workspace=_room(out, weight, 1, 0))


def _lstm_spec(given: TensorSpec, weight: TensorSpec, h0: TensorSpec, c0: TensorSpec, *, backwards: bool) -> Inferred:
    length, batch, size = _check("lstm", 4, given, weight, None, h0, c0)
    states = TensorSpec.of((length, batch, size), given.dtype)
    return Inferred((states, c0.like()), (("gates", given.like()), ("cells", states)), _room(given, weight, 0, 0))


def _lstm_grad_spec(dy: TensorSpec | None, dlast: TensorSpec | None, gates: TensorSpec, cells: TensorSpec, out: TensorSpec,
                    h0: TensorSpec, c0: TensorSpec, weight: TensorSpec, *, backwards: bool) -> Inferred:
    return Inferred((gates.like(), weight.like(), h0.like(), c0.like()), workspace=_room(gates, weight, 2, 0))


def _gru_spec(given: TensorSpec, weight: TensorSpec, bias: TensorSpec | None, h0: TensorSpec, *, backwards: bool) -> Inferred:
    length, batch, size = _check("gru", 3, given, weight, bias, h0)
    return Inferred((TensorSpec.of((length, batch, size), given.dtype),),
                    (("gates", TensorSpec.of((length, batch, 4 * size), given.dtype)),), _room(given, weight, 0, 0))


def _gru_grad_spec(dy: TensorSpec, gates: TensorSpec, out: TensorSpec, h0: TensorSpec, weight: TensorSpec, *,
                   backwards: bool) -> Inferred:
    length, batch, size = out.shape
    given = TensorSpec.of((length, batch, 3 * size), out.dtype)
    # What the state gives has gradients of its own, of all steps.
    return Inferred((given, weight.like(), TensorSpec.of((3 * size,), out.dtype), h0.like()),
                    workspace=_room(given, weight, 2, given.numel))


def _rnn_rule(g: Any, out: Any, h0: Any, weight: Any, relu: bool, backwards: bool) -> Any:
    return rnn_grad(g, out, h0, weight, relu=relu, backwards=backwards)


def _lstm_rule(g_out: Any, g_last: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any, weight: Any,
               backwards: bool) -> Any:
    return lstm_grad(g_out, g_last, gates, cells, out, h0, c0, weight, backwards=backwards)


def _gru_rule(g: Any, gates: Any, out: Any, h0: Any, weight: Any, backwards: bool, needs: tuple[bool, ...]) -> Any:
    dgiven, dweight, dbias, dh0 = gru_grad(g, gates, out, h0, weight, backwards=backwards)
    return dgiven, dweight, dbias if needs[2] else None, dh0


rnn = op("rnn", _rnn_spec, joint("given", "weight", "h0")(_rnn_rule), contiguous=True,
         doc="h' = tanh(given + W h), or relu. Elman, Finding Structure in Time, 1990.")
rnn_grad = op("rnn_grad", _rnn_grad_spec, contiguous=True, outputs=("dgiven", "dweight", "dh0"),
              **no_second_derivative("rnn", "dy", "out", "h0", "weight"))
lstm = op("lstm", _lstm_spec, joint("given", "weight", "h0", "c0")(_lstm_rule), contiguous=True, outputs=("out", "last"),
          aux=("gates", "cells"),
          doc="Gates i, f, g, o of given + W h; c' = f c + i g, h' = o tanh(c'). Hochreiter and Schmidhuber, 1997.")
lstm_grad = op("lstm_grad", _lstm_grad_spec, contiguous=True, outputs=("dgiven", "dweight", "dh0", "dc0"),
               **no_second_derivative("lstm", "dy", "dlast", "gates", "cells", "out", "h0", "c0", "weight"))
gru = op("gru", _gru_spec, joint("given", "weight", "bias", "h0")(_gru_rule), contiguous=True, aux=("gates",),
         doc="Gates r, z; n = tanh(x_n + r h_n), h' = n + z (h - n). Cho et al., arXiv:1406.1078.")
gru_grad = op("gru_grad", _gru_grad_spec, contiguous=True, outputs=("dgiven", "dweight", "dbias", "dh0"),
              **no_second_derivative("gru", "dy", "gates", "out", "h0", "weight"))

__all__ = ["gru", "gru_grad", "lstm", "lstm_grad", "rnn", "rnn_grad"]
