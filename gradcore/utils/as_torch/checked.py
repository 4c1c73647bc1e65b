"""PyTorch's decompositions that return which matrices have none, instead of raising an error."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from gradcore import functional, linalg
from gradcore.errors import LinAlgError


def _checked(function: Callable[..., Any], found: type[Any]) -> Callable[..., Any]:
    """The function that also says for each matrix of a batch, by 1 for 0, that what it returns for it is NaN or infinite."""

    def one_by_one(A: Any, **named: Any) -> Any:
        try:
            return function(A, **named)
        except LinAlgError:
            if A.ndim == 2:
                return functional.full_like(A, float("nan"))
            return functional.stack([one_by_one(a, **named) for a in A.flatten(0, -3)]).reshape(A.shape)

    def checked(A: Any, *, check_errors: bool = False, **named: Any) -> Any:
        made = (function if check_errors else one_by_one)(A, **named)
        return found(made, (~made.detach().isfinite()).flatten(-2).any(-1).int())

    checked.__name__ = checked.__qualname__ = found.__name__
    return checked


FUNCTIONS = {"cholesky_ex": _checked(linalg.cholesky, namedtuple("cholesky_ex", "L info")),
             "inv_ex": _checked(linalg.inv, namedtuple("inv_ex", "inverse info"))}
