"""Relatives of Adam: NAdam, RAdam, Adamax and Lion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore.ops.optimizer import adamax_, lion_, nadam_, radam_
from gradcore.optim.optimizer import Group, Numbers
from gradcore.optim.stepped import Betas, Moments, check_options


class NAdam(Moments):
    """Adam with Nesterov momentum: Dozat, ICLR 2016. ``mu_product`` in a parameter's state is a number, not a tensor.

    ``foreach`` and ``capturable`` have no effect.
    """

    _optim_op = nadam_
    _optim_numbers: Numbers = {"step": 0, "mu_product": 1.0}

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        step, beta1 = numbers["step"], float(group["betas"][0])
        mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** (k * group["momentum_decay"])) for k in (step, step + 1))
        product = numbers["mu_product"] = numbers["mu_product"] * mu
        return group["lr"], step, mu_next / (1 - product * mu_next), (1 - mu) / (1 - product), beta1

    def __init__(self, params: Iterable[Any], lr: Any = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *,
                 foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
                 differentiable: bool = False) -> None:
        check_options("NAdam", lr, weight_decay, eps, betas, differentiable, momentum_decay=momentum_decay)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
                                  "maximize": maximize, "foreach": foreach, "capturable": capturable,
                                  "differentiable": differentiable})


class RAdam(Moments):
    """Rectified Adam, whose first steps do not use the second moment: Liu et al., arXiv:1908.03265.

    ``foreach`` and ``capturable`` have no effect.
    """

    _optim_op = radam_

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        beta1, beta2 = map(float, group["betas"])
        return group["lr"], numbers["step"], _rectification(numbers["step"], beta2), beta1

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False) -> None:
        check_options("RAdam", lr, weight_decay, eps, betas, differentiable)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "maximize": maximize, "foreach": foreach, "capturable": capturable,
                                  "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable})


def _rectification(step: int, beta2: float) -> float:
    """The factor of the adaptive step, with the bias correction of the second moment; 0 for the steps that do not use it."""
    longest = 2 / (1 - beta2) - 1
    correction = 1 - beta2 ** step
    length = longest - 2 * step * beta2 ** step / correction
    if length <= 5:
        return 0.0
    share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return float((share * correction) ** 0.5)


class Adamax(Betas):
    """Adam with u, the largest size of the gradient so far, in the place of the second moment: Kingma and Ba, arXiv:1412.6980.

    u fades by the second beta. ``foreach`` and ``capturable`` have no effect.
    """

    _optim_op = adamax_
    _optim_kept = ("exp_avg", "exp_inf")
    _optim_attributes = ("eps", "weight_decay")

    def __init__(self, params: Iterable[Any], lr: Any = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, foreach: bool | None = None, *, maximize: bool = False,
                 differentiable: bool = False, capturable: bool = False) -> None:
        check_options("Adamax", lr, weight_decay, eps, betas, differentiable)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
                                  "capturable": capturable})


class Lion(Betas):
    """p -= lr * sign(beta1 * m + (1 - beta1) * g), with decoupled weight decay: Chen et al., arXiv:2302.06675.

    m is a running mean of the gradient by beta2, so the state is half of Adam's. PyTorch has no optimizer of this name.
    """

    _optim_op = lion_
    _optim_kept = ("exp_avg",)

    def __init__(self, params: Iterable[Any], lr: Any = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0, *, maximize: bool = False) -> None:
        check_options("Lion", lr, weight_decay, betas=betas)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "maximize": maximize})

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return group["lr"], float(group["betas"][0])
