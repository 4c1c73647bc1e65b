"""The graph behind views: a recorded in-place write to part of a storage changes the history of every tensor that shows it.

The tensor that a storage was made for is the base of its views. A recorded write gives the base a new edge, behind which
the written part comes from the op that wrote it, and every live view becomes a view of that.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import ref

from gradcore.engine.hooks import hand_on, hang, hooks_of
from gradcore.engine.leaf import Leaf
from gradcore.engine.state import local
from gradcore.engine.tracer import tracer_of
from gradcore.ops.movement import as_strided, permute, write_part


def note_view(view: Any, recorded: bool) -> None:
    """Register a view with its storage, and whether its history is that of its base: see :func:`taken_apart`."""
    views, place, entry = view.storage.views, id(view), (ref(view), recorded)
    if views is None:
        view.storage.views = {place: entry}
        return
    # One that had its place before is gone; without it, the views stay in the order in which they were taken.
    gone = views.pop(place, None)
    views[place] = entry
    # Parameters are viewed in every step, so views that are gone are dropped each time that their number has doubled.
    if gone is None and len(views) & (len(views) - 1) == 0 and len(views) >= 8:
        view.storage.views = {at: e for at, e in views.copy().items() if e[0]() is not None}


def note_views(views: list[Any], source: Any) -> None:
    """Register the views that an op has taken of ``source``."""
    base, recorded = None, local.state.grad
    if source.base is not None:
        base = seen_base(source)
        recorded = recorded and not taken_apart(source)
    for view in views:
        view.base = source if base is None else base
        note_view(view, recorded)


def seen_base(view: Any) -> Any:
    """The base of a view, or None, also for one whose base nobody else can see any more: it becomes a tensor of its own.

    The last op of a composed function may be a view of what the others made: only the function knows of that.
    """
    # One reference is the view's, one the argument of getrefcount.
    if view.base is None or sys.getrefcount(view.base) > 2 or not view.spec.contiguous or _is_bare(view.base):
        return view.base
    if view.base.edge is None or type(view.base.edge[0]) is not Leaf:
        view.base = None
        if view.storage.views is not None:
            view.storage.views.pop(id(view), None)
    return view.base


def _is_bare(tensor: Any) -> bool:
    weak = (local.state.bare or {}).get(id(tensor))
    return weak is not None and weak() is tensor


def counted(written: list[Any]) -> list[Any]:
    """Those of the tensors that an op has written to whose storages count it, while a function of the user's runs.

    As in PyTorch, writes through ``data`` do not count: who calls it there answers for backward. But what was never written may
    be made again from the inputs of its op, so the first write counts.
    """
    return [x for x in written if not x.storage.version or not _is_bare(x if x.base is None else x.base)]


def seen_alone(tensor: Any) -> bool:
    """Are a result's bytes seen through this tensor alone, though nodes may keep them? Then :func:`become` may replace them.

    A trace must see writes to what was there before it, so of that they are not.
    """
    storage, node = tensor.storage, None if tensor.edge is None else tensor.edge[0]
    made = storage.block.tag.role in ("output", "temporary")
    if type(node) is Leaf or seen_base(tensor) is not None or not made:
        return False
    tracer = tracer_of(storage.device.ledger.log)
    if tracer is not None and (node is None or node.id < tracer.first):
        return False
    # References: the tensor's, the local variable's, that of the argument of getrefcount, and those of residuals.
    return sys.getrefcount(tensor.storage) == 3 + storage.block.keeps


def become(tensor: Any, result: Any) -> Any:
    """Let a tensor be what ``result``, which nobody else has seen, is: for its holders, it was overwritten by that."""
    before = tensor.edge
    tensor.storage, tensor.spec, tensor.array, tensor.edge = result.storage, result.spec, result.array, result.edge
    hand_on(before, tensor)
    return tensor


def show_as(tensor: Any, view: Any) -> Any:
    """Let a tensor show its bytes as ``view``, which was taken of it, does: for its graph, an in-place op."""
    before, tracer = tensor.edge, tracer_of(tensor.storage.device.ledger.log)
    if tracer is not None:
        tracer.reshaped(tensor)
    tensor.spec, tensor.array = view.spec, view.array
    if before is not None and type(before[0]) is Leaf:
        before[0].spec = view.spec
    elif view is not tensor:
        tensor.edge = view.edge
        hand_on(before, tensor)
    return tensor


def recorded_as(view: Any) -> bool:
    """Was the graph recorded when the view was taken? Also of one that is not registered."""
    entry = (view.storage.views or {}).get(id(view))
    return entry is None or entry[0]() is not view or entry[1]


def taken_apart(view: Any) -> bool:
    """Is it a view that was taken in no_grad mode, as by the forward of an autograd.Function, or a view of one?"""
    return view.base is not None and not recorded_as(view)


def check_recorded_write(name: str, target: Any, recorded: bool) -> None:
    """Raise RuntimeError, with PyTorch's text, for an in-place write that the graph cannot represent."""
    if target.edge is not None and type(target.edge[0]) is Leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    base = seen_base(target)
    if base is None and recorded and not target.spec.contiguous and _views_of(target):
        # Of a detached tensor, others may be views of the storage.
        _give_base(name, target)
        return
    if base is None or not (recorded or base.edge is not None):
        return
    if base.edge is not None and type(base.edge[0]) is Leaf:
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    if taken_apart(target):
        raise RuntimeError(f"{name}: A view was created in no_grad mode and is being modified inplace with grad mode "
                           "enabled. Either create it outside of no_grad, or clone() it before the write.")
    if recorded and not base.spec.contiguous:
        _give_base(name, base)


def _views_of(base: Any) -> list[Any]:
    return [view for seen, _ in (base.storage.views or {}).copy().values() for view in [seen()]
            if view is not None and view.base is base]


def _give_base(name: str, tensor: Any) -> None:
    """Make a tensor that is the base of views, but not contiguous, a view too: of a contiguous tensor of the same elements.

    Raises NotImplementedError if its elements do not lie side by side.
    """
    spec = tensor.spec
    order = sorted(range(spec.ndim), key=lambda d: spec.strides[d], reverse=True)
    flat = permute(tensor, dims=tuple(order))
    if not flat.spec.contiguous:
        raise NotImplementedError(f"{name}: an in-place write with a gradient to a view of a non-contiguous tensor, "
                                  f"{spec}, is not supported: write to a clone(), or use the out-of-place op")
    flat.base = None
    for view in _views_of(tensor):
        view.base = flat
    tensor.base = flat
    note_view(tensor, True)


def rebase(target: Any) -> None:
    """Put the new edge of ``target``, which was written, into the history of its base and of all views of that.

    Detached tensors show the same bytes without sharing their history, and so do views of them.
    """
    base = target.base
    if base is None:
        base = target
    else:
        before, base.edge = base.edge, write_part(base, target, **_place(base.spec, target.spec)).edge
        hand_on(before, base)
    for view, recorded in [(seen(), recorded) for seen, recorded in target.storage.views.copy().values()]:
        if view is not None and view.base is base and view.spec.dtype == base.spec.dtype:
            before, view.edge = view.edge, as_strided(base, **_place(base.spec, view.spec)).edge
            hand_on(before, view)
            if not recorded and view.edge is not None:
                # A function's own gradient would be left out, or a view that was to have none would have one.
                hang(hooks_of(view.edge[0]).before, _refuse)


def _refuse(gradients: Any) -> None:
    raise RuntimeError("A view was created in no_grad mode, or by an autograd.Function, and its base or another view of its "
                       "base has been modified inplace with grad mode enabled. Either create it outside of no_grad, or clone() "
                       "it before the write.")


def _place(base: Any, part: Any) -> dict[str, Any]:
    return {"shape": part.shape, "strides": part.strides, "offset": part.offset - base.offset}
