"""``gradcore.nn.utils.prune``: parameters times masks of 0 and 1, which a hook multiplies before each call of the module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from typing import Any

from gradcore import functional
from gradcore.nn.module import Module
from gradcore.nn.utils.vectors import parameters_to_vector

__all__ = ["BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "PruningContainer",
           "RandomStructured", "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity", "is_pruned",
           "l1_unstructured", "ln_structured", "random_structured", "random_unstructured", "remove"]

Tensor = Any


class BasePruningMethod(ABC):
    """A pruning method computes a mask, in :meth:`compute_mask`.

    ``PRUNING_TYPE`` says what it is given of a parameter that has been pruned before: the elements that are left
    ("unstructured"), the slices along its ``dim`` in which some are ("structured"), or all ("global").
    """

    PRUNING_TYPE: str
    _tensor_name: str

    def __call__(self, module: Module, inputs: Any) -> None:
        module.__dict__[self._tensor_name] = self.apply_mask(module)

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """A mask of the shape of ``t``, the importance of each element, on top of a mask from before."""

    def apply_mask(self, module: Module) -> Tensor:
        """The parameter times its mask, as part of the graph."""
        original = getattr(module, f"{self._tensor_name}_orig")
        return getattr(module, f"{self._tensor_name}_mask").to(original.dtype) * original

    @classmethod
    def apply(cls, module: Any, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any) -> Any:
        """Prune a parameter of a module: it becomes ``name_orig``, beside the buffer ``name_mask``. Returns the method, or the
        :class:`PruningContainer` of all if it has been pruned before. Changes nothing if the mask cannot be made.
        """
        method = cls(*args, **kwargs)
        method._tensor_name = name
        tensor = getattr(module, name)
        if importance_scores is not None and importance_scores.shape != tensor.shape:
            raise AssertionError(f"importance_scores should have the same shape as parameter {name} of {module}")
        scores = (tensor if importance_scores is None else importance_scores).detach()
        found = _method_of(module, name)
        if found is None:
            whole, before = method, functional.ones_like(tensor.detach())
        else:
            whole = found[1] if isinstance(found[1], PruningContainer) else PruningContainer(found[1])
            whole = PruningContainer(*whole, method)
            before = getattr(module, f"{name}_mask").detach().clone()
        mask = whole.compute_mask(scores, default_mask=before)
        if found is None:
            delattr(module, name)
            module.register_parameter(f"{name}_orig", tensor)
        else:
            del module._forward_pre_hooks[found[0]]
        module.register_buffer(f"{name}_mask", mask)
        whole(module, ())
        module.register_forward_pre_hook(whole)
        return whole

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """A tensor times the mask that the method computes for it."""
        if importance_scores is not None and importance_scores.shape != t.shape:
            raise AssertionError("importance_scores should have the same shape as tensor t")
        scores = (t if importance_scores is None else importance_scores).detach()
        before = functional.ones_like(t.detach()) if default_mask is None else default_mask
        return t * self.compute_mask(scores, default_mask=before)

    def remove(self, module: Any) -> None:
        """Make the parameter a plain one again, with 0 where it was pruned. The hook stays: :func:`remove` takes it away."""
        name = self._tensor_name
        pruned = self.apply_mask(module).detach()
        parameter = getattr(module, f"{name}_orig")
        parameter.data = pruned
        del module.__dict__[name]
        delattr(module, f"{name}_orig")
        delattr(module, f"{name}_mask")
        module.register_parameter(name, parameter)


class PruningContainer(BasePruningMethod):
    """Methods that have pruned one parameter in turn."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add a method, which has to be of the same parameter."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if self._tensor_name != method._tensor_name:
            raise ValueError(f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to "
                             f"PruningContainer {self}. Found '{method._tensor_name}'")
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: int) -> BasePruningMethod:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask from before, where the last method has set more elements to 0. Reads on the host which are left."""
        method, mask = self._pruning_methods[-1], default_mask.to(t.dtype).clone()
        if method.PRUNING_TYPE == "unstructured":
            part: Any = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError('Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.')
            dim = range(t.ndim)[method.dim]
            part = _slices(dim, default_mask.sum([d for d in range(t.ndim) if d != dim]) != 0)
        elif method.PRUNING_TYPE == "global":
            part = ...
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
        mask[part] = method.compute_mask(t[part], default_mask=default_mask[part]).to(mask.dtype)
        return mask


class Identity(BasePruningMethod):
    """Prunes nothing, and makes a mask of ones for others."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Some(BasePruningMethod):
    """Prunes ``amount`` elements or slices, or that share of them."""

    def __init__(self, amount: Any) -> None:
        if not isinstance(amount, Real):
            raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
        if float(amount) < 0 or (not isinstance(amount, Integral) and float(amount) > 1):
            raise ValueError(f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer")
        self.amount = amount

    def _count(self, size: int) -> int:
        """How many of ``size`` are pruned."""
        if not isinstance(self.amount, Integral):
            return round(float(self.amount) * size)
        if int(self.amount) > size:
            raise ValueError(f"amount={self.amount} should be smaller than the number of parameters to prune={size}")
        return int(self.amount)


class _Elements(_Some):
    PRUNING_TYPE = "unstructured"

    def _importance(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count, mask = self._count(t.numel()), default_mask.clone()
        if count:
            mask.view(-1)[self._importance(t).reshape(-1).topk(count, largest=False).indices] = 0
        return mask


class RandomUnstructured(_Elements):
    """Prunes random elements."""

    def _importance(self, t: Tensor) -> Tensor:
        return functional.zeros_like(t).uniform_()


class L1Unstructured(_Elements):
    """Prunes the smallest elements."""

    def _importance(self, t: Tensor) -> Tensor:
        return t.abs()


class _Channels(_Some):
    PRUNING_TYPE = "structured"

    def __init__(self, amount: Any, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _importance(self, t: Tensor, dim: int) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.ndim <= 1:
            raise ValueError("Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
                             f"{t.shape} with {t.ndim} dims")
        if not -t.ndim <= self.dim < t.ndim:
            raise IndexError(f"Invalid index {self.dim} for tensor of size {t.shape}")
        dim = range(t.ndim)[self.dim]
        count = self._count(t.shape[dim])
        if not count:
            return default_mask
        mask = functional.zeros_like(t)
        mask[_slices(dim, self._importance(t, dim).topk(t.shape[dim] - count).indices)] = 1
        return mask * default_mask.to(mask.dtype)


class RandomStructured(_Channels):
    """Prunes random slices of a dimension."""

    def _importance(self, t: Tensor, dim: int) -> Tensor:
        return functional.zeros(t.shape[dim], device=t.device).uniform_()


class LnStructured(_Channels):
    """Prunes the slices of a dimension with the smallest ``n``-norm."""

    def __init__(self, amount: Any, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _importance(self, t: Tensor, dim: int) -> Tensor:
        return t.norm(self.n, [d for d in range(t.ndim) if d != dim])


class CustomFromMask(BasePruningMethod):
    """Prunes what a given mask says."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise AssertionError(f"got a mask of shape {list(self.mask.shape)} for a parameter of {list(default_mask.shape)}")
        return default_mask * self.mask.to(default_mask.dtype)


def _slices(dim: int, index: Any) -> tuple[Any, ...]:
    """An index along one dimension."""
    return (*[slice(None)] * dim, index)


def _method_of(module: Any, name: str) -> tuple[int, BasePruningMethod] | None:
    """The key and the hook that prunes a parameter, if one does."""
    return next(((key, hook) for key, hook in module._module_items("before")
                 if isinstance(hook, BasePruningMethod) and hook._tensor_name == name), None)


def identity(module: Any, name: str) -> Any:
    """Give a parameter a mask of ones. Returns the module, as all of these functions do."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Any, name: str, amount: Any) -> Any:
    """Prune random elements of a parameter: a number of them, or a share between 0.0 and 1.0."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Any, name: str, amount: Any, importance_scores: Tensor | None = None) -> Any:
    """Prune the smallest elements of a parameter, or the least important ones."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Any, name: str, amount: Any, dim: int) -> Any:
    """Prune random slices of a dimension."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(module: Any, name: str, amount: Any, n: Any, dim: int, importance_scores: Tensor | None = None) -> Any:
    """Prune the slices of a dimension with the smallest ``n``-norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def global_unstructured(parameters: Any, pruning_method: Any, importance_scores: Any = None, **kwargs: Any) -> None:
    """Prune elements of several parameters, pairs of a module and a name, as if they were one."""
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    if not isinstance(importance_scores, dict | None):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    pairs, given = [*parameters], importance_scores or {}
    tensors = [getattr(module, name).detach() for module, name in pairs]
    scores = parameters_to_vector([given.get(pair, x).detach() for pair, x in zip(pairs, tensors, strict=True)])
    before = parameters_to_vector([getattr(module, f"{name}_mask", functional.ones_like(x))
                                   for (module, name), x in zip(pairs, tensors, strict=True)])
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(f'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method {pruning_method} '
                        f"of type {method.PRUNING_TYPE}")
    mask, at = PruningContainer(method).compute_mask(scores, before), 0
    for (module, name), x in zip(pairs, tensors, strict=True):
        custom_from_mask(module, name, mask[at:at + x.numel()].view_as(x))
        at += x.numel()


def custom_from_mask(module: Any, name: str, mask: Tensor) -> Any:
    """Prune the elements of a parameter at which a mask is 0."""
    CustomFromMask.apply(module, name, mask)
    return module


def remove(module: Any, name: str) -> Any:
    """Make a pruned parameter a plain one again, with 0 where it was pruned."""
    found = _method_of(module, name)
    if found is None:
        raise ValueError(f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed")
    found[1].remove(module)
    del module._forward_pre_hooks[found[0]]
    return module


def is_pruned(module: Any) -> bool:
    """Is a parameter of the module, or of one inside it, pruned?"""
    return any(isinstance(hook, BasePruningMethod) for part in module.modules() for _, hook in part._module_items("before"))
