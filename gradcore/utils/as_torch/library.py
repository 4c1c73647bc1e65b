"""PyTorch's ``torch.library``: a package's own operators run as the functions they are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gradcore.autograd import Function
from gradcore.utils.as_torch.stand_ins import stand_in

__all__ = ["CustomOpDef", "custom_op", "register_autograd", "register_fake", "register_kernel"]


class CustomOpDef:
    """An operator: a function, perhaps with one for its gradient, which otherwise is that of what the function does."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function
        self._differentiable: type[Function] | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        return (self._function if self._differentiable is None else self._differentiable.apply)(*args, **named)

    def register_autograd(self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None) -> None:
        """Give the gradient as :class:`gradcore.autograd.Function` takes it: ``backward(ctx, *grads)``."""
        context = setup_context or (lambda ctx, inputs, output: None)
        self._differentiable = type(self.name.rpartition(":")[2], (Function,), {
            "forward": staticmethod(self._function), "backward": staticmethod(backward),
            "setup_context": staticmethod(lambda ctx, inputs, output: context(ctx=ctx, inputs=inputs, output=output))})

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Do nothing: on ``meta`` the function itself says what it allocates."""
        return fn

    def register_kernel(self, device_types: Any, func: Callable[..., Any] | None = None, /) -> Any:
        """Do nothing: the function runs on every device."""
        return (lambda fn: fn) if func is None else func


_ops: dict[str, CustomOpDef] = {}
#: ``torch.ops``: ``ops.namespace.name`` is an operator. PyTorch's own are only mentioned.
ops = SimpleNamespace(aten=stand_in("torch.ops", "aten"))


def custom_op(name: str, fn: Callable[..., Any] | None = None, /, *, mutates_args: Any = (), device_types: Any = None,
              schema: str | None = None, tags: Any = None) -> Any:
    """The operator ``namespace::name`` of a function, which is given or decorated; ``torch.ops.namespace.name`` is the same."""
    if fn is None:
        return lambda function: custom_op(name, function)
    namespace, _, short = name.partition("::")
    if not short:
        raise ValueError(f"custom_op(): expected a name such as 'package::name', but got {name!r}")
    _ops[name] = CustomOpDef(name, fn)
    setattr(vars(ops).setdefault(namespace, SimpleNamespace()), short, _ops[name])
    return _ops[name]


def _known(op: str | CustomOpDef) -> CustomOpDef:
    if isinstance(op, str) and op not in _ops:
        raise ValueError(f"there is no operator {op!r}: custom_op makes one")
    return _ops[op] if isinstance(op, str) else op


def register_autograd(op: str | CustomOpDef, backward: Callable[..., Any], /, *,
                      setup_context: Callable[..., Any] | None = None, lib: Any = None) -> None:
    """Give an operator its gradient. Raises ValueError for a name that none has."""
    _known(op).register_autograd(backward, setup_context=setup_context)


def register_fake(op: str | CustomOpDef, func: Callable[..., Any] | None = None, /, **named: Any) -> Any:
    """Do nothing, or give the function that is decorated: on ``meta`` the operator itself says what it allocates."""
    return (lambda fn: fn) if func is None else func


def register_kernel(op: str | CustomOpDef, device_types: Any, func: Callable[..., Any] | None = None, /, **named: Any) -> Any:
    """Do nothing, or give the function that is decorated: the operator's function runs on every device."""
    return (lambda fn: fn) if func is None else func
