"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradcore import functional
from gradcore.ops.optimizer import adam_, nadam_
from gradcore.optim.optimizer import Group, Numbers
from gradcore.optim.stepped import Moments, Tensors, check_options


class Adam(Moments):
    """Adam: Kingma and Ba, arXiv:1412.6980. The step count in a parameter's state is a number, not a tensor.

    With ``decoupled_weight_decay`` it is :class:`AdamW`, apart from the default decay.
    With ``amsgrad`` the step is divided by the root of the largest second moment so far, which is one more tensor of state:
    Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, ICLR 2018. This takes a few more ops per parameter.
    ``foreach``, ``fused`` and ``capturable`` have no effect: all parameters of a group are updated by one op anyway.
    """

    _op = adam_

    @staticmethod
    def _decisive(group: Group) -> Any:
        # The ops before the update have the first beta as an attribute.
        return tuple(group["betas"]) if group["amsgrad"] else group["betas"][1]

    @staticmethod
    def _operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        beta1, step = float(group["betas"][0]), numbers["step"]
        if group["amsgrad"]:
            # NAdam's op with a weight of 0 for the gradient itself, the bias-corrected mean, and a mean that does not move.
            return group["lr"], step, 1 / (1 - beta1 ** step), 0.0, 1.0
        return group["lr"], step, beta1

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, decoupled_weight_decay: bool = False) -> None:
        check_options(type(self).__name__, lr, weight_decay, eps, betas, differentiable)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach,
                                  "capturable": capturable, "differentiable": differentiable, "fused": fused,
                                  "decoupled_weight_decay": decoupled_weight_decay})

    def _names(self, group: Group) -> Sequence[str]:
        return (*super()._names(group), *["max_exp_avg_sq"][:bool(group["amsgrad"])])

    def _run(self, group: Group, numbers: Numbers, params: Tensors, grads: Tensors, states: Sequence[Tensors]) -> None:
        if not group["amsgrad"]:
            super()._run(group, numbers, params, grads, states)
            return
        means, squares, largest = states
        beta1, beta2 = map(float, group["betas"])
        weight_decay, decoupled = float(group["weight_decay"]), group["decoupled_weight_decay"]
        decay = 0.0 if decoupled else weight_decay
        for p, g, mean, square, most in zip(params, grads, means, squares, largest, strict=True):
            g = -g if group["maximize"] else g
            g = functional.add(g, p, alpha=decay) if decay else g
            mean.lerp_(g, 1 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            most.copy_(functional.maximum(most, square))
        # NAdam's op makes the update if its moments do not change: the mean moves by 0, and the largest square towards itself.
        roots, copies = [most.sqrt() for most in largest], [most.clone() for most in largest]
        self._launch(nadam_, group, numbers, params, roots, means, copies, beta2=beta2,
                     eps=float(group["eps"]), weight_decay=weight_decay if decoupled else 0.0, decoupled=True, maximize=False)


class AdamW(Adam):
    """Adam with decoupled weight decay: Loshchilov and Hutter, arXiv:1711.05101."""

    # Scripts ask by the signature whether there is an option fused.
    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, foreach=foreach,
                         capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=True)

    def _load(self, state_dict: Group) -> None:
        super()._load(state_dict)
        for group in self.param_groups:
            # It stays decoupled, even if the state is from Adam.
            group["decoupled_weight_decay"] = True
