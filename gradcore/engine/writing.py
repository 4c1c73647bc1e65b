"""What an in-place op looks at before it writes, and the copy that it keeps of what it overwrites."""

from __future__ import annotations

from typing import Any

from gradcore.engine.plans import OVERWRITTEN, Call, KeepPlan
from gradcore.engine.recipes import spare
from gradcore.engine.saved import Packed, Saved, keep
from gradcore.engine.state import local, unwatching
from gradcore.engine.value import alias
from gradcore.engine.views import check_recorded_write
from gradcore.errors import SpecError
from gradcore.ops.movement import clone
from gradcore.ops.op import Op


def before_write(op: Op, call: Call, written: list[Any], edges: list[Any] | None, plan: KeepPlan | None,
                 number: int) -> Saved | Packed | None:
    """Raise for writes that an in-place op must not make; keep a copy of what it overwrites if a rule reads that."""
    if op.in_place and len(written) == 1 and call.specs and call.specs[0].shape != written[0].spec.shape:
        raise SpecError(f"{op.name}: output with shape {list(written[0].spec.shape)} doesn't match the broadcast shape "
                        f"{list(call.specs[0].shape)}")
    for target in written:
        if target.spec.overlapping:
            raise SpecError(f"{op.name}: unsupported operation: more than one element of the written-to tensor refers "
                            "to a single memory location. Please clone() the tensor before performing the operation.")
        spare(target.storage)
    if not local.state.grad:
        return None
    for target in written:
        check_recorded_write(op.name, target, plan is not None)
    if plan is None or edges is None:
        return None
    for kind, index, name in plan.slots:
        if kind == OVERWRITTEN:
            # A selective checkpoint keeps no copy: the op that writes runs again, with the copy that it needs.
            with unwatching():
                copied = clone(alias(written[0], None))
            # It has the edge of what was written to, whose node recomputes what that was before the first write.
            copied.storage.version = written[0].storage.version
            return keep(copied, edges[index], None, number, name)
    return None
