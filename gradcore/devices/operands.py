"""What a device is told of a call, so that it can choose a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradcore.spec import TensorSpec


@dataclass(frozen=True)
class Operands:
    """The operands of an op, for a device whose kernels do not take every dtype."""

    op: str
    inputs: tuple[Any, ...]
    #: Results, then auxiliary ones.
    outputs: tuple[TensorSpec, ...]
    #: Positions of the inputs that the kernel writes to.
    writes: tuple[int, ...]
    #: Returns the bytes of workspace that the op would declare with float32 in place of 16-bit floats; None for none.
    wide_workspace: Callable[[], int | None]
