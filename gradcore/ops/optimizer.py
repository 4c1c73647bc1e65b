"""Optimizer updates: one op for all parameters of a group, in place, by cache-sized pieces; norm and scale of all gradients.

Learning rate, step count, momentum and an average's first beta are operands, not attributes: a schedule changes them every
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.dtypes import join
from gradcore.errors import SpecError
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import pieces
from gradcore.spec import TensorSpec
from gradcore.tiling import CHUNK


def _update(name: str, temporaries: int, params: Sequence[TensorSpec], *others: Sequence[TensorSpec]) -> Inferred:
    for other in others:
        for p, o in zip(params, other, strict=bool(other)):
            if p.shape != o.shape or p.dtype != o.dtype:
                raise SpecError(f"{name}: the parameter is {p}, but its gradient or state is {o}")
    # A second temporary holds what is made of a gradient that is not taken as it is.
    return Inferred((), workspace=max((pieces(p, temporaries) for p in params), default=0))


def _sgd_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], moments: Sequence[TensorSpec], lr: type,
              momentum: type, *, dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool) -> Any:
    return _update("sgd", 2 if maximize or weight_decay or nesterov else 1, params, grads, moments)


def _adam_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec],
               squares: Sequence[TensorSpec], lr: type, step: type, beta1: type, *, beta2: float, eps: float,
               weight_decay: float, decoupled: bool, maximize: bool) -> Any:
    return _update("adam", 2 if maximize or (weight_decay and not decoupled) else 1, params, grads,
                   means, squares)


def _amsgrad_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec],
                  squares: Sequence[TensorSpec], largest: Sequence[TensorSpec], lr: type, step: type, beta1: type, *,
                  beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool) -> Any:
    return _update("amsgrad", 2 if maximize or (weight_decay and not decoupled) else 1, params, grads,
                   means, squares, largest)


def _rmsprop_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], squares: Sequence[TensorSpec],
                  means: Sequence[TensorSpec], moments: Sequence[TensorSpec], lr: type, momentum: type, *, alpha: float,
                  eps: float, weight_decay: float, maximize: bool) -> Any:
    return _update("rmsprop", 2, params, grads, squares, means, moments)


def _adagrad_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], sums: Sequence[TensorSpec], lr: type, *,
                  eps: float, weight_decay: float, maximize: bool) -> Any:
    return _update("adagrad", 2, params, grads, sums)


def _adadelta_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], squares: Sequence[TensorSpec],
                   deltas: Sequence[TensorSpec], lr: type, *, rho: float, eps: float, weight_decay: float,
                   maximize: bool) -> Any:
    return _update("adadelta", 2, params, grads, squares, deltas)


def _nadam_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec],
                squares: Sequence[TensorSpec], lr: type, step: type, ahead: type, behind: type, beta1: type, *,
                beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool) -> Any:
    return _update("nadam", 2, params, grads, means, squares)


def _radam_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec],
                squares: Sequence[TensorSpec], lr: type, step: type, factor: type, beta1: type, *, beta2: float, eps: float,
                weight_decay: float, decoupled: bool, maximize: bool) -> Any:
    return _update("radam", 2, params, grads, means, squares)


def _lion_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec], lr: type,
               beta1: type, *, beta2: float, weight_decay: float, maximize: bool) -> Any:
    return _update("lion", 2, params, grads, means)


def _adamax_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], means: Sequence[TensorSpec],
                 infs: Sequence[TensorSpec], lr: type, step: type, beta1: type, *, beta2: float, eps: float,
                 weight_decay: float, maximize: bool) -> Any:
    return _update("adamax", 2, params, grads, means, infs)


def _rprop_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], prevs: Sequence[TensorSpec],
                sizes: Sequence[TensorSpec], smaller: type, larger: type, least: type, most: type, *, maximize: bool) -> Any:
    return _update("rprop", 2, params, grads, prevs, sizes)


def _asgd_spec(params: Sequence[TensorSpec], grads: Sequence[TensorSpec], averages: Sequence[TensorSpec], eta: type,
               mu: type, lambd: type, *, weight_decay: float, maximize: bool) -> Any:
    return _update("asgd", 2, params, grads, averages)


def _dtype_of(name: str, tensors: Sequence[TensorSpec]) -> np.dtype[Any]:
    kinds = {t.dtype for t in tensors}
    if len(kinds) != 1 or not tensors[0].floating:
        names = ", ".join(sorted(kind.name for kind in kinds)) or "none"
        raise SpecError(f"{name}: expected tensors of one floating dtype, but got {names}")
    return tensors[0].dtype


def _square_sum_spec(tensors: Sequence[TensorSpec]) -> Inferred:
    # The squares of numbers that fit in 16 bits need not.
    out = TensorSpec.of((), join(_dtype_of("square_sum", tensors), np.dtype(np.float32)))
    return Inferred((out,), workspace=sum(-(-t.numel // CHUNK) for t in tensors) * out.nbytes)


def _scale_spec(tensors: Sequence[TensorSpec], factor: TensorSpec) -> Inferred:
    if factor.shape or factor.dtype != _dtype_of("scale_", tensors):
        raise SpecError(f"scale_: expected a factor of shape [] and of the tensors' dtype, but got {factor}")
    return Inferred(())


square_sum = op("square_sum", _square_sum_spec, contiguous=True,
                doc="The sum of the squares of all elements of all tensors, 0-d, in float32 or float64.")
scale_ = op("scale_", _scale_spec, contiguous=True, writes=("tensors",),
            doc="Every tensor times a number on its device, which the host need not know.")
sgd_ = op("sgd_", _sgd_spec, contiguous=True, writes=("params", "moments"),
          doc="Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.")
adam_ = op("adam_", _adam_spec, contiguous=True, writes=("params", "means", "squares"),
           doc="Kingma and Ba, arXiv:1412.6980; decoupled: Loshchilov and Hutter, arXiv:1711.05101.")
amsgrad_ = op("amsgrad_", _amsgrad_spec, contiguous=True, writes=("params", "means", "squares", "largest"),
              doc="Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, ICLR 2018: Adam with the root of the largest "
                  "square so far.")
rmsprop_ = op("rmsprop_", _rmsprop_spec, contiguous=True, writes=("params", "squares", "means", "moments"),
              doc="Tieleman and Hinton, lecture 6.5 of Neural Networks for Machine Learning, 2012; with ``means``, which "
                  "center the squares, Graves, arXiv:1308.0850.")
adagrad_ = op("adagrad_", _adagrad_spec, contiguous=True, writes=("params", "sums"),
              doc="Duchi, Hazan and Singer, JMLR 12 (2011).")
adadelta_ = op("adadelta_", _adadelta_spec, contiguous=True, writes=("params", "squares", "deltas"),
               doc="Zeiler, arXiv:1212.5701.")
nadam_ = op("nadam_", _nadam_spec, contiguous=True, writes=("params", "means", "squares"),
            doc="Dozat, Incorporating Nesterov Momentum into Adam, ICLR 2016: p -= lr * (behind * g + ahead * m) / (sqrt(v) + "
                "eps), v corrected for its start.")
radam_ = op("radam_", _radam_spec, contiguous=True, writes=("params", "means", "squares"),
            doc="Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, arXiv:1908.03265: "
                "``factor`` scales the adaptive step, and 0 says that there is none yet.")
lion_ = op("lion_", _lion_spec, contiguous=True, writes=("params", "means"),
           doc="Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675.")
adamax_ = op("adamax_", _adamax_spec, contiguous=True, writes=("params", "means", "infs"),
             doc="Kingma and Ba, arXiv:1412.6980, section 7.1, with ``eps`` added to the gradient's size.")
rprop_ = op("rprop_", _rprop_spec, contiguous=True, writes=("params", "prevs", "sizes"),
            doc="Riedmiller and Braun, A direct adaptive method for faster backpropagation learning, ICNN 1993: an "
                "element's step size grows by ``larger`` while its gradient keeps its sign, and shrinks by ``smaller`` when "
                "it changes.")
asgd_ = op("asgd_", _asgd_spec, contiguous=True, writes=("params", "averages"),
           doc="Polyak and Juditsky, Acceleration of stochastic approximation by averaging, SIAM J. Control Optim. 30 (1992): "
               "p = (1 - lambd * eta) * p - eta * g, and the average moves by ``mu`` towards p.")
