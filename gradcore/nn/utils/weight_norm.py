"""Weight normalization by a hook. Salimans and Kingma, arXiv:1602.07868."""

from __future__ import annotations

from typing import Any

from gradcore import functional
from gradcore.engine.modes import no_grad
from gradcore.nn.hooks import key_of
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter
from gradcore.ops import elementwise

Tensor = Any


def length_of(v: Tensor, dim: int | None) -> Tensor:
    """The norm of each slice of ``dim``, with the other sizes 1; for None, and for -1 as in PyTorch, the norm of the whole."""
    squares = elementwise.square(v)
    if dim is None or dim == -1:
        return elementwise.sqrt(functional.sum(squares))
    kept = functional.dim_of(dim, v)
    others = [d for d in range(v.spec.ndim) if d != kept]
    # Without others, each number is a slice: a sum over no dimensions would be one over all.
    return elementwise.sqrt(functional.sum(squares, others, True) if others else squares)


class WeightNorm:
    """The hook that computes the weight before each call."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = dim

    def weight(self, module: Module) -> Tensor:
        v = getattr(module, f"{self.name}_v")
        return v * (getattr(module, f"{self.name}_g") / length_of(v, self.dim))

    def __call__(self, module: Module, args: Any) -> None:
        module.__dict__[self.name] = self.weight(module)


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Replace a parameter by ``name_v``, a direction, and ``name_g``, the norm of each slice of ``dim``.

    The weight is v * g / ||v||, and part of the graph. Raises RuntimeError if it is already applied.
    """
    if key_of(module, WeightNorm, name) is not None:
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    weight = module.get_parameter(name)
    hook = WeightNorm(name, dim)
    with no_grad():
        length = Parameter(length_of(weight, dim))
        direction = Parameter(functional.clone(weight))
    delattr(module, name)
    module.register_parameter(f"{name}_g", length)
    module.register_parameter(f"{name}_v", direction)
    hook(module, ())
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Make the weight a plain parameter again. Raises ValueError if :func:`weight_norm` was not applied."""
    return made_plain(module, WeightNorm, name, "weight_norm", "g", "v")


def made_plain(module: Any, kind: Any, name: str, called: str, *parts: str) -> Any:
    """Make a weight a plain parameter again that a hook of class ``kind`` computes from ``parts``."""
    key = key_of(module, kind, name)
    if key is None:
        raise ValueError(f"{called} of '{name}' not found in {module}")
    hooks = module._forward_pre_hooks
    with no_grad():
        weight = Parameter(hooks[key].weight(module))
    del hooks[key], module.__dict__[name]
    for part in parts:
        delattr(module, f"{name}_{part}")
    module.register_parameter(name, weight)
    return module
