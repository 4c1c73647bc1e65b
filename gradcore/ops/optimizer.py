"""Optimizer updates: one op for all parameters of a group, in place, by cache-sized pieces; norm and scale of all gradients.

Learning rate, step count, momentum and an average's first beta are operands, not attributes: a schedule changes them every
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from gradcore.dtypes import join
from gradcore.errors import SpecError
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import pieces
from gradcore.spec import TensorSpec
from gradcore.tiling import CHUNK


def _update(name: str, states: str, numbers: str, attrs: str, doc: str,
            plain: Callable[..., Any] = lambda **attrs: False) -> Any:
    """An update of parameters from their gradients and ``states``, which it writes, too; all is given by names, in order.

    ``plain`` says by the attributes whether gradients are taken as they are: what is made of one takes a second temporary.
    """
    lists = ("params", "grads", *states.split())
    signature = Signature([*(Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in (*lists, *numbers.split())),
                           *(Parameter(n, Parameter.KEYWORD_ONLY) for n in attrs.split())])

    def infer(*operands: Any, **given: Any) -> Inferred:
        signature.bind(*operands, **given)
        params, *others = operands[:len(lists)]
        for other in others:
            for p, o in zip(params, other, strict=bool(other)):
                if p.shape != o.shape or p.dtype != o.dtype:
                    raise SpecError(f"{name}: the parameter is {p}, but its gradient or state is {o}")
        return Inferred((), workspace=max((pieces(p, 1 if plain(**given) else 2) for p in params), default=0))

    setattr(infer, "__signature__", signature)
    infer.__annotations__ = dict.fromkeys(lists, "Sequence[TensorSpec]")
    return op(f"{name}_", infer, contiguous=True, writes=("params", *states.split()), doc=doc)


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
sgd_ = _update(
    "sgd", "moments", "lr momentum", "dampening weight_decay nesterov maximize first",
    "Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.",
    lambda maximize, weight_decay, nesterov, **attrs: not (maximize or weight_decay or nesterov))


def _as_adam(maximize: bool, weight_decay: float, decoupled: bool, **attrs: Any) -> bool:
    return not (maximize or (weight_decay and not decoupled))


adam_ = _update(
    "adam", "means squares", "lr step beta1", "beta2 eps weight_decay decoupled maximize",
    "Kingma and Ba, arXiv:1412.6980; decoupled: Loshchilov and Hutter, arXiv:1711.05101.", _as_adam)
amsgrad_ = _update(
    "amsgrad", "means squares largest", "lr step beta1", "beta2 eps weight_decay decoupled maximize",
    "Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, ICLR 2018: Adam with the root of the largest square so far.",
    _as_adam)
rmsprop_ = _update(
    "rmsprop", "squares means moments", "lr momentum", "alpha eps weight_decay maximize",
    "Tieleman and Hinton, lecture 6.5 of Neural Networks for Machine Learning, 2012; with ``means``, which center the squares, "
    "Graves, arXiv:1308.0850.")
adagrad_ = _update("adagrad", "sums", "lr divisor", "eps weight_decay maximize",
                   "Duchi, Hazan and Singer, JMLR 12 (2011). The step is lr / divisor.")
adadelta_ = _update("adadelta", "squares deltas", "lr", "rho eps weight_decay maximize", "Zeiler, arXiv:1212.5701.")
nadam_ = _update(
    "nadam", "means squares", "lr step ahead behind beta1", "beta2 eps weight_decay decoupled maximize",
    "Dozat, Incorporating Nesterov Momentum into Adam, ICLR 2016: p -= lr * (behind * g + ahead * m) / (sqrt(v) + eps), v "
    "corrected for its start.")
radam_ = _update(
    "radam", "means squares", "lr step factor beta1", "beta2 eps weight_decay decoupled maximize",
    "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, arXiv:1908.03265: ``factor`` scales the adaptive "
    "step, and 0 says that there is none yet.")
lion_ = _update(
    "lion", "means", "lr beta1", "beta2 weight_decay maximize",
    "Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675.")
adamax_ = _update(
    "adamax", "means infs", "lr step beta1", "beta2 eps weight_decay maximize",
    "Kingma and Ba, arXiv:1412.6980, section 7.1, with ``eps`` added to the gradient's size.")
rprop_ = _update(
    "rprop", "prevs sizes", "smaller larger least most", "maximize",
    "Riedmiller and Braun, A direct adaptive method for faster backpropagation learning, ICNN 1993: an element's step size "
    "grows by ``larger`` while its gradient keeps its sign, and shrinks by ``smaller`` when it changes.")
asgd_ = _update(
    "asgd", "averages", "eta mu lambd", "weight_decay maximize",
    "Polyak and Juditsky, Acceleration of stochastic approximation by averaging, SIAM J. Control Optim. 30 (1992): "
    "p = (1 - lambd * eta) * p - eta * g, and the average moves by ``mu`` towards p.")
