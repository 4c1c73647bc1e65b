"""Sample calls of public functions and methods, run in gradcore and in torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.rows import Operand


@dataclass(frozen=True)
class Form:
    """A call with sample operands: ``call(library, *tensors)``, where the library is gradcore or torch."""

    name: str
    call: Callable[..., Any]
    operands: tuple[Operand, ...]
    #: Whether the function is differentiable at the sample, so that finite differences apply.
    smooth: bool = True
    #: Whether gradients are compared.
    gradient: bool = True
    #: Relative and absolute tolerance in float32.
    tolerance: float = 1e-5
    #: Relative and absolute tolerance in float64.
    double: float = 1e-11

    def __str__(self) -> str:
        return self.name

    @property
    def function(self) -> str:
        """The name of the called function: the part of the form's name before a colon."""
        return self.name.partition(":")[0]

    def values(self, dtype: Any) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        return [operand.values(rng, dtype) for operand in self.operands]

    def wanted(self) -> list[int]:
        """The indices of the operands that get a gradient."""
        return [k for k, o in enumerate(self.operands) if o.kind == "float"] if self.gradient else []

    def made(self, library: Any, tensors: list[Any]) -> list[Any]:
        """The results, as a list; ``tensors`` are contiguous, one per operand."""
        result = self.call(library, *[o.show(x) for o, x in zip(self.operands, tensors, strict=True)])
        return list(result) if isinstance(result, (tuple, list)) else [result]


def all_forms() -> list[Form]:
    from tests import (
        forms_composed,
        forms_factors,
        forms_folds,
        forms_gathered,
        forms_layers,
        forms_networks,
        forms_pointwise,
        forms_products,
        forms_shapes,
        forms_special,
    )

    modules = (forms_pointwise, forms_composed, forms_shapes, forms_folds, forms_products, forms_factors, forms_gathered,
               forms_networks, forms_layers, forms_special)
    return [form for module in modules for form in module.FORMS]


def quiet(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call with warnings of both libraries suppressed."""
    def called(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return call(*args)

    return called
