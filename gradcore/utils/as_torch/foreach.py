"""PyTorch's functions of lists of tensors, ``torch._foreach_add_`` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore import linalg, maximum, minimum
from gradcore._tensor import Tensor

_NAMES = """abs acos add asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp
    lgamma log log10 log1p log2 mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc""".split()


def _each(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The function that does to each tensor of a list what the method does; its other arguments are lists, or for all."""

    def function(self: Any, /, *args: Any, **named: Any) -> Any:
        found = [method(x, *(a[i] if isinstance(a, (list, tuple)) else a for a in args), **named) for i, x in enumerate(self)]
        return None if name.endswith("_") else found

    function.__name__ = function.__qualname__ = f"_foreach_{name}"
    return function


def _scaled(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that here takes its factor by position, too, as optimizers pass it."""
    return lambda x, tensor1, tensor2, value=1: method(x, tensor1, tensor2, value=value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"_foreach_{name}": _each(name, method) for name, method in {
        **{name: getattr(Tensor, name) for of in _NAMES for name in (of, f"{of}_")},
        **{name: _scaled(getattr(Tensor, name)) for name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_")},
        "copy_": Tensor.copy_, "zero_": Tensor.zero_, "maximum": maximum, "minimum": minimum,
        "maximum_": lambda x, other: x.copy_(maximum(x, other)), "minimum_": lambda x, other: x.copy_(minimum(x, other)),
        "norm": lambda x, ord=2, dtype=None: linalg.vector_norm(x, ord, dtype=dtype)}.items()}


def _group_tensors_by_device_and_dtype(tensorlistlist: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    """By device and dtype of the first list: the lists of those tensors alone, and their places, or None."""
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for i, first in enumerate(tensorlistlist[0]):
        lists, places = groups.setdefault((first.device, first.dtype), ([[] for _ in tensorlistlist], []))
        places.append(i)
        for part, tensors in zip(lists, tensorlistlist, strict=True):
            if tensors:
                part.append(tensors[i])
    return {key: (lists, places if with_indices else None) for key, (lists, places) in groups.items()}
