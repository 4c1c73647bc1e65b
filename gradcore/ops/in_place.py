"""In-place forms of elementwise ops, made of the functional ones: the same rules, of which those that read what was
overwritten keep a copy of it."""

from __future__ import annotations

import functools
from typing import Any

from gradcore.ops import activation, elementwise, pointwise, special  # noqa: F401 - what is looked up below
from gradcore.ops.creation import zeros_of
from gradcore.ops.op import Inferred, Op, get_op, op
from gradcore.ops.shapes import written_into
from gradcore.overwriting import OVERWRITING
from gradcore.spec import TensorSpec


def _into(base: Op) -> Any:
    @functools.wraps(base.infer)
    def infer(x: TensorSpec, *others: Any, **attrs: Any) -> Inferred:
        found = Inferred.of(base.infer(x, *others, **attrs))
        if not isinstance(x, TensorSpec):
            raise TypeError(f"{base.name}_ writes its first operand, which must be a tensor, but got {x.__name__}")
        return Inferred((written_into(x, found.outputs[0]),), library=found.library)

    return infer


def _declare(name: str) -> Any:
    base = get_op(name)
    # Where the functional op has no gradient, what was there before has one of 0 still.
    rules: dict[str, Any] = {rule.inputs[0]: rule.fn for rule in base.rules}
    rules.setdefault("x", lambda g: zeros_of(g))
    return op(f"{name}_", _into(base), writes=("x",), signs=base.signs, **rules)


IN_PLACE: dict[str, Any] = {name: _declare(name) for name in OVERWRITING}
add_, sub_, mul_, div_ = (IN_PLACE[name] for name in ("add", "sub", "mul", "div"))
