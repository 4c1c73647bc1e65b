"""Rprop, whose steps depend on the gradient's signs alone, and ASGD, which averages the parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore.ops.optimizer import asgd_, rprop_
from gradcore.optim.optimizer import Group, Numbers, scalar
from gradcore.optim.stepped import Stepped, Tensors, check_options


class Rprop(Stepped):
    """p -= s * sign(g), where each element's s grows while its gradient keeps its sign, and shrinks when it changes.

    Riedmiller and Braun, ICNN 1993. ``lr`` is the first s of every element. ``foreach`` and ``capturable`` have no effect.
    """

    _optim_op = rprop_
    _optim_kept = ("prev", "step_size")
    _optim_attributes = ()
    _optim_free = ("lr", "etas", "step_sizes")

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return *map(float, group["etas"]), *map(float, group["step_sizes"])

    def __init__(self, params: Iterable[Any], lr: Any = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
                 step_sizes: tuple[float, float] = (1e-6, 50), *, capturable: bool = False, foreach: bool | None = None,
                 maximize: bool = False, differentiable: bool = False) -> None:
        check_options("Rprop", lr, 0.0, differentiable=differentiable)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize,
                                  "differentiable": differentiable, "capturable": capturable})

    def _optim_fill(self, group: Group, state: Tensors) -> None:
        state[-1].fill_(scalar(group["lr"]))


class ASGD(Stepped):
    """SGD with a rate ``eta`` that falls from step to step, and with the average of the parameters in ``ax`` of their state.

    Polyak and Juditsky, SIAM J. Control Optim. 30 (1992). Averaging begins after ``t0`` steps; until then ``ax`` is a copy of
    the parameter. ``eta`` and ``mu`` in a parameter's state are numbers, not tensors; a ``lr`` that is a tensor is read from
    the device. ``foreach`` and ``capturable`` have no effect.
    """

    _optim_op = asgd_
    _optim_kept = ("ax",)
    #: An eta below 0 says that there is none yet: that of the first step is its learning rate.
    _optim_numbers: Numbers = {"step": 0, "eta": -1.0, "mu": 1.0}
    _optim_free = ("lr", "lambd", "alpha", "t0")

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        lr, lambd, step = float(group["lr"]), float(group["lambd"]), numbers["step"]
        eta, mu = numbers["eta"], numbers["mu"]
        numbers["eta"] = lr / (1 + lambd * lr * step) ** group["alpha"]
        numbers["mu"] = 1 / max(1, step - group["t0"])
        return lr if eta < 0 else eta, mu, lambd

    def __init__(self, params: Iterable[Any], lr: Any = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
                 weight_decay: float = 0, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
                 capturable: bool = False) -> None:
        check_options("ASGD", lr, weight_decay, differentiable=differentiable)
        super().__init__(params, {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
                                  "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
                                  "capturable": capturable})
