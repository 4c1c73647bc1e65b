"""Stochastic gradient descent, with or without momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore.ops.optimizer import sgd_
from gradcore.optim.optimizer import Group, Numbers, Optimizer, apart, state_like
from gradcore.optim.stepped import check_options


class SGD(Optimizer):
    """p -= lr * m, where m becomes momentum * m + (1 - dampening) * g; at the first step, m is g, as in PyTorch.

    Also with weight decay, and Nesterov's variant. ``foreach`` and ``fused`` have no effect: all parameters of a group are
    updated by one op anyway.
    """

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, momentum: float = 0, dampening: float = 0,
                 weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None) -> None:
        check_options("SGD", lr, weight_decay, differentiable=differentiable, momentum=momentum)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                                  "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
                                  "differentiable": differentiable, "fused": fused})

    _optim_free = ("lr", "momentum")

    @staticmethod
    def _optim_decisive(group: Group) -> Any:
        return bool(group["momentum"])

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return group["lr"], float(group["momentum"])

    def _optim_update(self, group: Group) -> None:
        momentum = group["momentum"]
        # The first step sets the momentum to the gradient, so parameters without momentum yet take a separate op.
        calls: dict[Any, tuple[list[Any], list[Any], list[Any]]] = {}
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            buffer = self.state[p].get("momentum_buffer") if momentum else None
            first = bool(momentum) and buffer is None
            if first:
                buffer = state_like(p)
            key = (id(p.storage.device), p.spec.dtype, apart(p), first)
            params, grads, buffers = calls.setdefault(key, ([], [], []))
            params.append(p)
            grads.append(grad)
            if buffer is not None:
                buffers.append(buffer)
        for (*_, first), (params, grads, buffers) in calls.items():
            self._optim_launch(sgd_, group, {}, params, grads, buffers, dampening=float(group["dampening"]),
                               weight_decay=float(group["weight_decay"]), nesterov=group["nesterov"],
                               maximize=group["maximize"], first=first)
            if first:
                # Only now, since a failed update must not count as the first step.
                for p, buffer in zip(params, buffers, strict=True):
                    self.state[p]["momentum_buffer"] = buffer
