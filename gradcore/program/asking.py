"""What code may ask about a tensor or a generator that neither the key of a call nor a guard tells."""

from __future__ import annotations

from types import CodeType

from gradcore._random import Generator, initial_seed
from gradcore._tensor import Tensor

#: By code of the library's: what it answers.
ASKS: dict[CodeType, str] = {
    Tensor._base.fget.__code__: "a tensor's _base",  # type: ignore[attr-defined]
    Tensor._version.fget.__code__: "a tensor's _version",  # type: ignore[attr-defined]
    Tensor.retains_grad.fget.__code__: "retains_grad",  # type: ignore[attr-defined]
    Tensor.data_ptr.__code__: "the address of a tensor",
    Generator.initial_seed.__code__: "a generator's seed",
    initial_seed.__code__: "a generator's seed",
}

