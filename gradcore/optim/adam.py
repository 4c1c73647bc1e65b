"""Adam, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore.ops.optimizer import adam_
from gradcore.optim.optimizer import Group, Numbers, Optimizer, check, state_like, unsupported


class Adam(Optimizer):
    """Kingma and Ba, arXiv:1412.6980. The step count of a parameter is a number in its state.

    ``foreach``, ``fused`` and ``capturable`` are taken and change nothing: all parameters of a group are one op.
    """

    _decoupled = False
    _numbers: Numbers = {"step": 0}

    @staticmethod
    def _operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return group["lr"], numbers["step"]

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None) -> None:
        check(lr, weight_decay=weight_decay, eps=eps)
        unsupported(type(self).__name__, amsgrad=amsgrad, differentiable=differentiable)
        for k, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {k}: {beta}")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach,
                                  "capturable": capturable, "differentiable": differentiable, "fused": fused})

    def _update(self, group: Group) -> None:
        # Parameters whose step counts differ, as those of a layer that was frozen for a while, go into separate calls.
        calls: dict[Any, tuple[list[Any], list[Any], list[Any], list[Any]]] = {}
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            state = self.state[p]
            if not state:
                # All of it or nothing, should memory run out on the way.
                state.update(step=0, exp_avg=state_like(p), exp_avg_sq=state_like(p))
            step = int(state["step"]) + 1
            key = (p.storage.device, p.spec.dtype, step)
            lists = calls.get(key)
            if lists is None:
                lists = calls[key] = ([], [], [], [])
            lists[0].append(p)
            lists[1].append(grad)
            lists[2].append(state["exp_avg"])
            lists[3].append(state["exp_avg_sq"])
        beta1, beta2 = group["betas"]
        for (_, _, step), (params, grads, means, squares) in calls.items():
            self._launch(adam_, group, {"step": step}, params, grads, means, squares, beta1=float(beta1), beta2=float(beta2),
                         eps=float(group["eps"]), weight_decay=float(group["weight_decay"]), decoupled=self._decoupled,
                         maximize=group["maximize"])


class AdamW(Adam):
    """Adam with weight decay apart from the gradient: Loshchilov and Hutter, arXiv:1711.05101."""

    _decoupled = True

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, **options: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
