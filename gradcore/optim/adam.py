"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradcore.ops.optimizer import adam_, amsgrad_
from gradcore.optim.optimizer import Group
from gradcore.optim.stepped import Moments, check_options


class Adam(Moments):
    """Adam: Kingma and Ba, arXiv:1412.6980. The step count in a parameter's state is a number, not a tensor.

    With ``decoupled_weight_decay`` it is :class:`AdamW`, apart from the default decay.
    With ``amsgrad`` the step is divided by the root of the largest second moment so far, which is one more tensor of state:
    Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, ICLR 2018.
    ``foreach``, ``fused`` and ``capturable`` have no effect: all parameters of a group are updated by one op anyway.
    """

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, decoupled_weight_decay: bool = False) -> None:
        check_options(type(self).__name__, lr, weight_decay, eps, betas, differentiable)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay,
                                  "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach,
                                  "capturable": capturable, "differentiable": differentiable, "fused": fused,
                                  "decoupled_weight_decay": decoupled_weight_decay})

    def _optim_names(self, group: Group) -> Sequence[str | None]:
        return (*self._optim_kept, "max_exp_avg_sq") if group["amsgrad"] else self._optim_kept

    def _optim_op_of(self, group: Group) -> Any:
        return amsgrad_ if group["amsgrad"] else adam_


class AdamW(Adam):
    """Adam with decoupled weight decay: Loshchilov and Hutter, arXiv:1711.05101."""

    # Scripts ask by the signature whether there is an option fused.
    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, foreach=foreach,
                         capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=True)

    def _optim_load(self, state_dict: Group) -> None:
        super()._optim_load(state_dict)
        for group in self.param_groups:
            # It stays decoupled, even if the state is from Adam.
            group["decoupled_weight_decay"] = True
