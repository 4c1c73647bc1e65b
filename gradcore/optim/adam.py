"""Adam, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore import functional
from gradcore.ops.optimizer import adam_, nadam_
from gradcore.optim.optimizer import Group, Numbers, Optimizer, check, state_like, unsupported


class Adam(Optimizer):
    """Kingma and Ba, arXiv:1412.6980. The step count of a parameter is a number in its state.

    With ``decoupled_weight_decay`` it is :class:`AdamW`, whose default decay is another.
    With ``amsgrad`` the step is divided by the root of the largest second moment so far, which is kept beside the others:
    Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, ICLR 2018. It is some ops a parameter and the update.
    ``foreach``, ``fused`` and ``capturable`` are taken and change nothing: all parameters of a group are one op.
    """

    _numbers: Numbers = {"step": 0}

    @staticmethod
    def _operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        if group["amsgrad"]:
            # Nothing of the gradient itself beside the mean, which is corrected for its start.
            return group["lr"], numbers["step"], 1 / (1 - float(group["betas"][0]) ** numbers["step"]), 0.0
        return group["lr"], numbers["step"]

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, decoupled_weight_decay: bool = False) -> None:
        check(lr, weight_decay=weight_decay, eps=eps)
        unsupported(type(self).__name__, differentiable=differentiable)
        for k, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {k}: {beta}")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach,
                                  "capturable": capturable, "differentiable": differentiable, "fused": fused,
                                  "decoupled_weight_decay": decoupled_weight_decay})

    def _update(self, group: Group) -> None:
        # Parameters whose step counts differ, as those of a layer that was frozen for a while, go into separate calls.
        amsgrad = group["amsgrad"]
        calls: dict[Any, tuple[list[Any], ...]] = {}
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            state = self.state[p]
            if not state:
                # All of it or nothing, should memory run out on the way.
                more = {"max_exp_avg_sq": state_like(p)} if amsgrad else {}
                state.update(step=0, exp_avg=state_like(p), exp_avg_sq=state_like(p), **more)
            step = int(state["step"]) + 1
            key = (id(p.storage.device), p.spec.dtype, step)
            lists = calls.get(key)
            if lists is None:
                lists = calls[key] = ([], [], [], [], [])
            lists[0].append(p)
            lists[1].append(grad)
            lists[2].append(state["exp_avg"])
            lists[3].append(state["exp_avg_sq"])
            if amsgrad:
                lists[4].append(state["max_exp_avg_sq"])
        beta1, beta2 = map(float, group["betas"])
        for (_, _, step), (params, grads, means, squares, largest) in calls.items():
            if amsgrad:
                self._launch_amsgrad(group, {"step": step}, params, grads, means, squares, largest)
            else:
                self._launch(adam_, group, {"step": step}, params, grads, means, squares, beta1=beta1, beta2=beta2,
                             eps=float(group["eps"]), weight_decay=float(group["weight_decay"]),
                             decoupled=group["decoupled_weight_decay"], maximize=group["maximize"])

    def _launch_amsgrad(self, group: Group, numbers: Numbers, params: list[Any], grads: list[Any], means: list[Any],
                        squares: list[Any], largest: list[Any]) -> None:
        beta1, beta2 = map(float, group["betas"])
        weight_decay, decoupled = float(group["weight_decay"]), group["decoupled_weight_decay"]
        decay = 0.0 if decoupled else weight_decay
        for p, g, mean, square, most in zip(params, grads, means, squares, largest, strict=True):
            g = -g if group["maximize"] else g
            g = functional.add(g, p, alpha=decay) if decay else g
            mean.lerp_(g, 1 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            most.copy_(functional.maximum(most, square))
        # Moving the mean by nothing, and the largest square towards itself, leaves NAdam's update what is wanted of it.
        roots, copies = [most.sqrt() for most in largest], [most.clone() for most in largest]
        self._launch(nadam_, group, numbers, params, roots, means, copies, beta1=1.0, beta2=beta2,
                     eps=float(group["eps"]), weight_decay=weight_decay if decoupled else 0.0, decoupled=True, maximize=False)


class AdamW(Adam):
    """Adam with weight decay apart from the gradient: Loshchilov and Hutter, arXiv:1711.05101."""

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, **options: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options, decoupled_weight_decay=True)

    def load_state_dict(self, state_dict: Group) -> None:
        """As :meth:`Optimizer.load_state_dict`; the decay stays apart, if the state is :class:`Adam`'s, too."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True
