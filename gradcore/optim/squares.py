"""RMSprop, Adagrad and Adadelta, which divide the gradient by the root of its accumulated squares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradcore.ops.optimizer import adadelta_, adagrad_, rmsprop_
from gradcore.optim.optimizer import Group, Numbers
from gradcore.optim.stepped import Stepped, Tensors, check_options


class RMSprop(Stepped):
    """p -= lr * g / (sqrt(v) + eps), where v is a running mean of g^2: Tieleman and Hinton, 2012.

    ``centered`` subtracts the square of the mean gradient from v (Graves, arXiv:1308.0850). ``foreach`` and ``capturable``
    have no effect.
    """

    _optim_op = rmsprop_
    _optim_attributes = ("alpha", "eps", "weight_decay")

    def __init__(self, params: Iterable[Any], lr: Any = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
                 foreach: bool | None = None, maximize: bool = False, differentiable: bool = False) -> None:
        check_options("RMSprop", lr, weight_decay, eps, differentiable=differentiable, momentum=momentum, alpha=alpha)
        super().__init__(params, {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
                                  "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach,
                                  "maximize": maximize, "differentiable": differentiable})

    _optim_free = ("lr", "momentum")

    @staticmethod
    def _optim_decisive(group: Group) -> Any:
        return group["momentum"] > 0

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return group["lr"], float(group["momentum"])

    def _optim_names(self, group: Group) -> Sequence[str | None]:
        return "square_avg", "grad_avg" if group["centered"] else None, "momentum_buffer" if group["momentum"] > 0 else None


class Adagrad(Stepped):
    """p -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(s) + eps), where s is the sum of all g^2.

    Duchi et al., JMLR 12 (2011). ``foreach`` and ``fused`` have no effect.
    """

    _optim_op = adagrad_
    _optim_kept = ("sum",)
    _optim_attributes = ("eps", "weight_decay")

    def __init__(self, params: Iterable[Any], lr: Any = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
                 initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
                 maximize: bool = False, differentiable: bool = False, fused: bool | None = None) -> None:
        check_options("Adagrad", lr, weight_decay, eps, differentiable=differentiable, lr_decay=lr_decay,
                      initial_accumulator_value=initial_accumulator_value)
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
                                  "initial_accumulator_value": initial_accumulator_value, "foreach": foreach,
                                  "maximize": maximize, "differentiable": differentiable, "fused": fused})

    def _optim_fill(self, group: Group, state: Tensors) -> None:
        for s in state if group["initial_accumulator_value"] else ():
            s.fill_(group["initial_accumulator_value"])

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        # The op divides: what divided a rate that is a tensor would not be the update itself.
        return group["lr"], 1 + (numbers["step"] - 1) * group["lr_decay"] if group["lr_decay"] else 1


class Adadelta(Stepped):
    """p -= lr * sqrt(u + eps) / sqrt(v + eps) * g, where u is a running mean of squared updates, and v of g^2.

    Zeiler, arXiv:1212.5701. ``foreach`` and ``capturable`` have no effect.
    """

    _optim_op = adadelta_
    _optim_kept = ("square_avg", "acc_delta")
    _optim_attributes = ("rho", "eps", "weight_decay")

    def __init__(self, params: Iterable[Any], lr: Any = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0,
                 foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False,
                 differentiable: bool = False) -> None:
        check_options("Adadelta", lr, weight_decay, eps, differentiable=differentiable)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
                                  "capturable": capturable, "foreach": foreach, "differentiable": differentiable})
