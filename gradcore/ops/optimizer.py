"""Optimizer updates: one op for all parameters of a group, in place, by cache-sized pieces.

Learning rate and step count are operands, not attributes: a schedule changes them every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.op import Inferred, op
from gradcore.spec import PIECE, TensorSpec


def _update(name: str, temporaries: int, params: Sequence[TensorSpec], *others: Sequence[TensorSpec]) -> Inferred:
    for other in others:
        for p, o in zip(params, other, strict=bool(other)):
            if p.shape != o.shape or p.dtype != o.dtype:
                raise SpecError(f"{name}: a parameter is {p} and its gradient or state {o}")
    # A second temporary holds what is made of a gradient that is not taken as it is.
    room = max((min(p.numel, PIECE) * p.dtype.itemsize + 16 for p in params), default=0)
    return Inferred((), workspace=temporaries * room)


def _sgd_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], moments: Sequence[TensorSpec], lr: type, *,
              momentum: float, dampening: float, weight_decay: float, nesterov: bool, maximize: bool,
              first: bool) -> Any:
    return _update("sgd", 2 if maximize or weight_decay or nesterov else 1, params, grads, moments)


def _adam_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec],
               squares: Sequence[TensorSpec], lr: type, step: type, *, beta1: float, beta2: float, eps: float,
               weight_decay: float, decoupled: bool, maximize: bool) -> Any:
    return _update("adam", 2 if maximize or (weight_decay and not decoupled) else 1, params, grads,
                   means, squares)


sgd_ = op("sgd_", _sgd_spec, contiguous=True, writes=("params", "moments"),
          doc="Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.")
adam_ = op("adam_", _adam_spec, contiguous=True, writes=("params", "means", "squares"),
           doc="Kingma and Ba, arXiv:1412.6980; decoupled: Loshchilov and Hutter, arXiv:1711.05101.")
