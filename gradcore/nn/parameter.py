"""``Parameter`` and ``Buffer``: tensors that a module registers when they are assigned to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.engine import dispatch, modes, owners
from gradcore.ops import movement


class Parameter(Tensor):
    """A leaf tensor that shares the storage of ``data``. A module that it is assigned to lists it among its parameters.

    Unlike other tensors it takes attributes, such as a mark for an optimizer; as in PyTorch, ``copy.copy`` has them and
    ``copy.deepcopy`` does not.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__new__" in vars(cls) and "__init__" not in vars(cls):
            # As in PyTorch, its __new__, which may take other arguments, makes all of it.
            cls.__init__ = lambda self, *args, **named: None  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **named: Any) -> Any:
        made = object.__new__(cls)
        if cls.__new__ is not Parameter.__new__:
            Parameter.__init__(made, *args, **named)
        return made

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is not None and not isinstance(data, Tensor):
            raise TypeError(f"Parameter expects a Tensor, but got {type(data).__name__}")
        super().__init__(*(() if data is None else (data,)))
        self.requires_grad = requires_grad
        owners.retag(self, role="parameter")

    def __copy__(self) -> Parameter:
        copy = Parameter(self, self.requires_grad)
        copy.__dict__.update(self.__dict__)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        with modes.no_grad():
            copy = type(self)(movement.clone(self), self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def _refuse(self: Any) -> Any:
    raise ValueError("Attempted to use an uninitialized parameter. This error happens when you are using a lazy module, or "
                     f"{type(self).__name__} itself: call the module with a dummy batch to initialize its parameters before.")


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet. It becomes an ordinary one, the same object, by :meth:`materialize` or in the
    first call of its lazy module; any use before raises ValueError.
    """

    spec = storage = array = property(_refuse, doc="Raises ValueError.")

    @property
    def shape(self) -> Any:
        raise RuntimeError("Can't access the shape of an uninitialized parameter or buffer. Call the module with a dummy batch "
                           "to initialize its parameters before.")

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        self.edge = self.base = None
        self._made_as = requires_grad, device, dtype

    @property
    def requires_grad(self) -> bool:
        """Whether it will require a gradient."""
        return bool(self._made_as[0])

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self._made_as = wanted, *self._made_as[1:]

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a parameter of this shape, with uninitialized values."""
        _, own_device, own_dtype = self._made_as
        device = own_device if device is None else device
        self.become(Parameter(functional.empty(shape, device=device, dtype=dtype or own_dtype)))

    def become(self, made: Parameter) -> None:
        """Become a parameter over the bytes of another."""
        requires_grad = self._made_as[0]
        del self._made_as
        self.__class__ = Parameter  # type: ignore[assignment]
        self.storage, self.spec, self.array = made.storage, made.spec, made.array
        self.requires_grad = requires_grad

    def __copy__(self) -> UninitializedParameter:
        return UninitializedParameter(*self._made_as)

    def __deepcopy__(self, memo: dict[int, Any]) -> UninitializedParameter:
        memo[id(self)] = copy = UninitializedParameter(*self._made_as)
        return copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Buffer(Tensor):
    """A tensor that shares the storage of ``data``. A module that it is assigned to lists it among its buffers.

    It is in the state dict if ``persistent``.
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        super().__init__(*(() if data is None else (data,)))
        self.persistent = persistent
        owners.retag(self, role="buffer")

    def __copy__(self) -> Buffer:
        return Buffer(self, persistent=self.persistent)

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        with modes.no_grad():
            copy = Buffer(movement.clone(self), persistent=self.persistent)
        memo[id(self)] = copy
        return copy


def clear_gradients(parameters: Iterable[Any], set_to_none: bool) -> None:
    """Set the gradients of parameters to None, or fill them with zeros."""
    for p in parameters:
        if set_to_none:
            p.grad = None
        elif p.grad is not None:
            if p.grad.requires_grad:
                p.grad.detach_()
            p.grad.zero_()


def is_lazy(param: Any) -> bool:
    """Is it an :class:`UninitializedParameter`?"""
    return isinstance(param, UninitializedParameter)


dispatch.install_tensor(Tensor, Parameter, Buffer)
