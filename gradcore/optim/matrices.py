"""Muon and Adafactor, which treat a parameter as a matrix. They are composed of ops: more than one for each parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.functional.types import finfo
from gradcore.ops.optimizer import sgd_
from gradcore.optim.optimizer import Group, Numbers, Optimizer, apart, state_like, state_of
from gradcore.optim.stepped import is_tensor

_EPS, _COEFFICIENTS = 1e-7, (3.4445, -4.7750, 2.0315)


def _check(options: dict[str, Any]) -> None:
    """PyTorch's checks, with its messages and their names of the options. Raises ValueError."""
    for name, value in options.items():
        if not is_tensor(name.lower(), value) and not value >= 0.0:
            raise ValueError(f"{name} should be >= 0 but is: {value}")


class Muon(Optimizer):
    """The running mean of the gradient, made nearly orthogonal, is the step: https://kellerjordan.github.io/posts/muon/.

    For matrices alone. Five Newton-Schulz iterations in bfloat16, which needs the package ml_dtypes, take fifteen products and
    some more ops for each parameter; their results are accounted as any op's. Then one op updates all parameters of a group.
    """

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return group["lr"], 0.0

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
                 nesterov: bool = True, ns_coefficients: tuple[float, float, float] = _COEFFICIENTS, eps: float = _EPS,
                 ns_steps: int = 5, adjust_lr_fn: str | None = None) -> None:
        _check({"Learning rate": lr, "momentum": momentum, "weight decay": weight_decay})
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
                                  "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
                                  "adjust_lr_fn": adjust_lr_fn})
        for p in self._optim_parameters():
            if p.ndim != 2:
                raise ValueError(f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}")

    def _optim_update(self, group: Group) -> None:
        calls: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        momentum, nesterov = float(group["momentum"]), group["nesterov"]
        for p in group["params"]:
            if p.grad is None:
                continue
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = state_like(p)
            with state_of(p, role=None):
                step = self.state[p]["momentum_buffer"].lerp(p.grad, 1 - momentum)
                step = p.grad.lerp(step, momentum) if nesterov else step
                step = _orthogonal(step, group["ns_coefficients"], group["ns_steps"], group["eps"])
                # The op multiplies the step and the decay by the same rate.
                step = (step.to(p.dtype) * _ratio(group["adjust_lr_fn"], *p.shape)).contiguous()
            params, steps = calls.setdefault((id(p.storage.device), p.dtype, apart(p)), ([], []))
            params.append(p)
            steps.append(step)
        for params, steps in calls.values():
            self._optim_launch(sgd_, group, {}, params, steps, [], weight_decay=float(group["weight_decay"]), dampening=0.0,
                               nesterov=False, maximize=False, first=False)
            # Only now, and without memory: an update that fails must not move the means.
            for p in params:
                self.state[p]["momentum_buffer"].lerp_(p.grad, 1 - momentum)


def _orthogonal(x: Any, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    if steps >= 100:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = _plus_product(x, a, _plus_product(gram, b, gram, gram, c), x)
    return x.T if tall else x


def _plus_product(x: Tensor, beta: float, left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    """beta * x + alpha * left @ right in float32, rounded once, as PyTorch's ``addmm`` does."""
    return (x.float() * beta + (left.float() @ right.float()) * alpha).bfloat16()


def _ratio(adjust: str | None, rows: int, columns: int) -> float:
    """By what the learning rate is multiplied for a matrix of this shape."""
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _largest(least: float, x: Any) -> Any:
    """Python's ``max``, which PyTorch uses here: a NaN in one element does not reach the others."""
    return functional.where(x > least, x, least)


def _wide(p: Tensor) -> Any:
    """The dtype of numbers beside a parameter: 16 bits are not enough for a count."""
    return np.promote_types(np.float32, p.dtype)


class Adafactor(Optimizer):
    """The gradient over the root of its mean squares, of which rows and columns alone are kept: Shazeer and Stern,
    arXiv:1804.04235. A vector keeps them all.

    Steps are relative to the size of the parameter, and clipped to ``d``. Each parameter takes about thirty ops; what they make
    is accounted as any op's. If memory runs out, the parameter that it was for is unchanged, but those before it are updated:
    all updates at once would take as much memory as the parameters. The step count is a tensor, as in PyTorch, which is what
    makes a replay count; a learning rate that changes is traced again, unless it is a tensor that is written to. ``foreach``
    has no effect.
    """

    def __init__(self, params: Iterable[Any], lr: Any = 1e-2, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 foreach: bool | None = None, maximize: bool = False) -> None:
        _check({"Learning rate": lr})
        if not beta2_decay <= 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        _check({"epsilon1": 0.0 if eps[0] is None else eps[0], "epsilon2": eps[1]})
        if not d >= 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        _check({"weight_decay": weight_decay})
        super().__init__(params, {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay,
                                  "foreach": foreach, "maximize": maximize})

    def _optim_shape_of(self, p: Tensor, name: str) -> tuple[int, ...] | None:
        if name == "step":
            return ()
        *rest, rows, columns = p.spec.shape if p.ndim > 1 else (1, 1)
        return {"row_var": (*rest, rows, 1), "col_var": (*rest, 1, columns)}.get(name, p.spec.shape)

    def _optim_loaded(self, p: Tensor, name: str, value: Any) -> Any:
        if name != "step":
            return super()._optim_loaded(p, name, value)
        with state_of(p):
            if isinstance(value, Tensor):
                # Its value is not read: meta has none.
                return functional.clone(value.detach().to(device=p.device, dtype=_wide(p)).reshape(()))
            return functional.tensor(float(value), dtype=_wide(p), device=p.device)

    def _optim_update(self, group: Group) -> None:
        for p in group["params"]:
            if p.grad is not None:
                with state_of(p, role=None):
                    self._optim_step(group, p, -p.grad if group["maximize"] else p.grad)

    def _optim_step(self, group: Group, p: Any, g: Any) -> None:
        state = self.state[p]
        if not state:
            with state_of(p):
                state.update({name: functional.zeros(self._optim_shape_of(p, name), device=p.device,
                                                     dtype=_wide(p) if name == "step" else p.dtype)
                              for name in ("step", *(("row_var", "col_var") if p.ndim > 1 else ("variance",)))})
        lr, (least, smallest) = group["lr"], group["eps"]
        least = float(finfo(p.dtype).eps) if least is None else least
        step = state["step"] + 1
        weight, size = step ** float(group["beta2_decay"]), math.sqrt(p.numel())
        rate = functional.minimum(step.rsqrt(), lr) if isinstance(lr, Tensor) else step.rsqrt().clamp(max=lr)
        rate = rate * _largest(smallest, p.norm() / size)
        if p.ndim > 1:
            means = {name: state[name].lerp((g * g).mean(dim, keepdim=True), weight)
                     for name, dim in (("row_var", -1), ("col_var", -2))}
            rows, columns = means.values()
            variance = (rows @ columns) / rows.mean(-2, keepdim=True).clamp(min=least)
        else:
            means = {"variance": state["variance"].lerp(g * g, weight)}
            variance = means["variance"]
        update = variance.clamp(min=least * least).rsqrt() * g
        clipped = _largest(1.0, update.norm() / (size * group["d"]))
        update, kept = update * (rate / clipped), 1 - lr * group["weight_decay"]
        # What follows takes no memory, so it cannot fail half way.
        for name, value in {"step": step, **means}.items():
            state[name].copy_(value)
        if group["weight_decay"]:
            p.mul_(kept)
        p.sub_(update)
