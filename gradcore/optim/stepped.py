"""Base classes of optimizers whose state is a step count and tensors like the parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore._tensor import Tensor
from gradcore.optim.optimizer import Group, Numbers, Optimizer, apart, state_like

Tensors = list[Any]


class Stepped(Optimizer):
    """Base class: groups the parameters that one op can update together, with their state.

    Subclasses name the op, the tensors of a parameter's state that it takes after the gradients, and the options that are its
    attributes.
    """

    _optim_numbers: Numbers = {"step": 0}
    _optim_op: Any
    #: The names of the tensors in a parameter's state, if no option changes them.
    _optim_kept: tuple[str, ...]
    #: The options that are numbers among the op's attributes.
    _optim_attributes: tuple[str, ...] = ("weight_decay",)

    def _optim_op_of(self, group: Group) -> Any:
        return self._optim_op

    def _optim_names(self, group: Group) -> Sequence[str | None]:
        """The names of the tensors in a parameter's state, in the order in which the op takes them; None for no tensors."""
        return self._optim_kept

    def _optim_attributes_of(self, group: Group) -> dict[str, Any]:
        """The op's attributes, but for ``maximize``, which all take."""
        return {name: float(group[name]) for name in self._optim_attributes}

    def _optim_fill(self, group: Group, state: Tensors) -> None:
        """Give new state tensors, which are zeros, their initial values."""

    def _optim_update(self, group: Group) -> None:
        names = self._optim_names(group)
        kept = [name for name in names if name is not None]
        wanted = {*self._optim_numbers, *kept}
        calls: dict[Any, tuple[Tensors, Tensors, list[dict[str, Any]]]] = {}
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            state = self.state[p]
            if not state.keys() >= wanted:
                # All state or none, in case memory runs out on the way.
                missing = {name: state_like(p) for name in kept if name not in state}
                self._optim_fill(group, list(missing.values()))
                state.update({**self._optim_numbers, **state, **missing})
            key = (id(p.storage.device), p.spec.dtype, apart(p), *map(state.__getitem__, self._optim_numbers))
            params, grads, states = calls.setdefault(key, ([], [], []))
            params.append(p)
            grads.append(grad)
            states.append(state)
        for params, grads, states in calls.values():
            # All of one call have the same numbers.
            numbers = self._optim_advanced(states[0])
            lists = [[] if name is None else [state[name] for state in states] for name in names]
            self._optim_launch(self._optim_op_of(group), group, numbers, params, grads, *lists,
                               **self._optim_attributes_of(group), maximize=group["maximize"])


class Betas(Stepped):
    """Base class of optimizers whose op takes the first beta as an operand, and the second as an attribute."""

    _optim_free = ("lr", "betas")

    @staticmethod
    def _optim_decisive(group: Group) -> Any:
        return group["betas"][1]

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        return group["lr"], numbers["step"], float(group["betas"][0])

    def _optim_attributes_of(self, group: Group) -> dict[str, Any]:
        return {"beta2": float(group["betas"][1]), **super()._optim_attributes_of(group)}


class Moments(Betas):
    """Base class of Adam and its relatives, with running means of the gradient and of its square."""

    _optim_kept = ("exp_avg", "exp_avg_sq")
    _optim_attributes = ("eps", "weight_decay")

    def _optim_attributes_of(self, group: Group) -> dict[str, Any]:
        return {**super()._optim_attributes_of(group), "decoupled": group["decoupled_weight_decay"]}


def check_options(optimizer: str, lr: Any, weight_decay: float, eps: float = 0.0, betas: Sequence[float] | None = None,
                  differentiable: bool = False, **others: float) -> None:
    """PyTorch's checks of options, with its messages; ``others`` must not be negative. Raises ValueError.

    A step that is differentiated would have another result: for ``differentiable`` it raises NotImplementedError.
    """
    for name, value in (("learning rate", lr), ("epsilon value", eps), ("weight_decay value", weight_decay)):
        _check(name, value)
    if differentiable:
        raise NotImplementedError(f"{optimizer}(differentiable={differentiable}) is not supported")
    if betas is not None and (not hasattr(betas, "__len__") or len(betas) != 2):
        raise ValueError(f"betas must be a tuple of two numbers, but got {betas!r}")
    for k, beta in enumerate(betas or ()):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {k}: {beta}")
    for name, value in others.items():
        _check(f"{name} value", value)


def _check(name: str, value: Any) -> None:
    if is_tensor(name, value):
        return
    if not hasattr(value, "__float__"):
        raise TypeError(f"a {name} must be a number, but got {value!r} of type {type(value).__name__}")
    if not value >= 0.0:
        raise ValueError(f"Invalid {name}: {value}")


def is_tensor(name: str, value: Any) -> bool:
    """Is an option a tensor, whose value is not read on the host? Raises ValueError if it has not one element."""
    if isinstance(value, Tensor) and value.spec.numel != 1:
        raise ValueError(f"a {name} that is a Tensor must be 1-element, but got {value.spec}")
    return isinstance(value, Tensor)
