"""``check_every``: compares a replay with the eager run of the same call, which finds changes that no guard sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradcore.devices.storage import Storage
from gradcore.dtypes import is_floating
from gradcore.errors import TraceError
from gradcore.events import Tag
from gradcore.program.guarding.values import equal, is_plain, same_array
from gradcore.program.replaying.differentiable import Differentiable
from gradcore.program.replaying.replay import Replay
from gradcore.program.tracing.templates import Array, Instance, Output, Templates, gradients_of, outputs_in
from gradcore.program.watching.newness import New
from gradcore.spec import TensorSpec

#: Largest difference that counts as rounding, relative to the largest absolute value of a tensor, by bytes of an element.
_TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-12}


def checked(replay: Replay | Differentiable, template: Any, tensors: list[Any], eager: Callable[[], Any]) -> Any:
    """Replay a call, undo what that changed, run it eagerly, compare the two, and return the eager result.

    ``template`` is that of the traced run's result. Raises TraceError if a result, a gradient, or any tensor that was
    written to, differs by more than rounding, or exists in one of the two only.
    """
    try:
        return _checked(replay, template, tensors, eager)
    finally:
        # The eager run's gradients have taken the place of those that the replay left.
        replay.let_go()


def _checked(replay: Replay | Differentiable, template: Any, tensors: list[Any], eager: Callable[[], Any]) -> Any:
    trace = replay.trace
    written = [trace.storages[b] for b in trace.program.written() if b in trace.storages] + [t.storage for t in tensors]
    before = [_read(s) for s in written]
    # Asking for the state of a parameter that has none would make one.
    numbers = [(state[p], dict(state[p])) for o, _, params in trace.updates for state in [o().state] for p in params
               if p in state]
    gradients = [(leaf, leaf.grad, None if leaf.grad is None else _read(leaf.grad.storage)) for leaf in _leaves(trace)]
    results = [_values(t) for t in replay.run(tensors)]
    after = [_read(s) for s in written]
    slots = [None if leaf.grad is None else _values(leaf.grad) for leaf, _, _ in gradients]
    for storage, values, now in zip(written, before, after, strict=True):
        # Memory of another library may be read only.
        if storage.nbytes or not same_array(now, values):
            _write(storage, values)
    for state, old in numbers:
        state.clear()
        state.update(old)
    for leaf, grad, old_values in gradients:
        leaf.grad = grad
        if old_values is not None:
            _write(grad.storage, old_values)
    with New() as new:
        result = eager()
        templates = Templates(tensors, gradients_of(x.leaf for x in outputs_in(template) if x.leaf is not None), new)
        now, outputs = templates.of(result), templates.outputs
    for name, was, found in _differences("the result", template, now, outputs):
        _differ(name, was, found)
    for k, (ours, tensor) in enumerate(zip(results, outputs, strict=True)):
        _compare(f"result {k}", ours, _values(tensor))
    for storage, values in zip(written, after, strict=True):
        _compare(_name(storage.block.tag), values, _read(storage))
    for (leaf, _, _), slot in zip(gradients, slots, strict=True):
        name = f"the gradient of {leaf.path or leaf.spec}"
        if slot is not None and leaf.grad is not None:
            _compare(name, slot, _values(leaf.grad))
        elif slot is not None or leaf.grad is not None:
            _differ(name, *["None" if g is None else "a tensor" for g in (slot, leaf.grad)])
    return result


def _differences(name: str, ours: Any, eager: Any, outputs: list[Any]) -> Iterator[tuple[str, str, str]]:
    """The differences of two templates of results: the place in the result, and what the replay and the eager run have there.

    ``outputs`` are the tensors of the eager run.
    """
    if isinstance(ours, Output) and ours.leaf is not None and ours.leaf.grad is eager is None:
        # The replay returned None, too, or left a gradient, which is found among those.
        return
    if type(ours) is not type(eager):
        yield name, _described(ours), _described(eager)
    elif isinstance(ours, Output):
        if not _same_tensor(ours, eager, outputs):
            yield name, "one tensor", "another"
    elif isinstance(ours, (list, tuple)):
        if len(ours) != len(eager):
            yield name, _described(ours), _described(eager)
        for k, (was, now) in enumerate(zip(ours, eager, strict=False)):
            yield from _differences(f"{name}[{k}]", was, now, outputs)
    elif isinstance(ours, dict):
        if not equal(tuple(eager), tuple(ours)):
            yield name, f"the keys {[*ours]}", f"the keys {[*eager]}"
        else:
            for key in ours:
                yield from _differences(f"{name}[{key!r}]", ours[key], eager[key], outputs)
    elif isinstance(ours, Array):
        yield from _differences(name, ours.items["array"], eager.items["array"], outputs)
    elif isinstance(ours, Instance):
        if ours.kind is not eager.kind or [*ours.items] != [*eager.items]:
            yield name, _described(ours), _described(eager)
        else:
            for key in ours.items:
                yield from _differences(f"{name}.{key}", ours.items[key], eager.items[key], outputs)
    elif not (same_array(eager, ours) if isinstance(ours, np.ndarray) else equal(eager, ours) if is_plain(ours) else True):
        yield name, _described(ours), _described(eager)


def _same_tensor(ours: Output, eager: Output, outputs: list[Any]) -> bool:
    if ours.value is not None:
        return ours.value is (outputs[eager.index] if eager.index >= 0 else eager.value)
    return (ours.index, ours.argument, ours.leaf, None) == (eager.index, eager.argument, eager.leaf, eager.value)


def _described(x: Any) -> str:
    if isinstance(x, Output):
        return "a tensor"
    if isinstance(x, Instance):
        return f"a {x.kind.__name__} with {', '.join(x.items)}"
    if isinstance(x, (list, tuple, dict)):
        return f"a {type(x).__name__} of {len(x)}"
    return repr(x)


def _leaves(trace: Any) -> list[Any]:
    return list(dict.fromkeys([*trace.presence, *trace.slots.values(), *[leaf for leaf, _ in trace.left], *trace.leaves]))


def _values(tensor: Any) -> np.ndarray[Any, Any]:
    return _read(tensor.storage, tensor.spec)


def _spec(storage: Storage) -> TensorSpec:
    tag = storage.block.tag
    if tag.spec is not None and tag.spec.nbytes == storage.extent:
        return tag.spec.like()
    return TensorSpec.of((storage.extent,), np.uint8)


def _read(storage: Storage, spec: TensorSpec | None = None) -> np.ndarray[Any, Any]:
    device, spec = storage.device, spec or _spec(storage)
    if device.type != "meta":
        return device.read(storage, spec)
    # A checked call has the same log there, though nothing to compare.
    device.note_read(storage, spec)
    return np.empty(0)


def _write(storage: Storage, values: np.ndarray[Any, Any]) -> None:
    storage.device.upload(storage, _spec(storage), values)


def _name(tag: Tag) -> str:
    return f"the {tag.role} of {tag.layer or '(root)'} made at {tag.site}, {tag.spec}"


def _compare(what: str, ours: np.ndarray[Any, Any], eager: np.ndarray[Any, Any]) -> None:
    if same_array(eager, ours):
        return
    if ours.shape == eager.shape and ours.dtype == eager.dtype and is_floating(ours.dtype):
        # Infinities and NaNs must be equal in both.
        finite = np.isfinite(ours) & np.isfinite(eager)
        same = np.array_equal(ours[~finite], eager[~finite], equal_nan=True)
        wide, near = ours[finite].astype(np.float64), eager[finite].astype(np.float64)
        largest = float(np.abs(near).max(initial=0.0))
        if same and float(np.abs(wide - near).max(initial=0.0)) <= _TOLERANCE[ours.dtype.itemsize] * largest:
            return
    _differ(what, _brief(ours), _brief(eager))


def _differ(what: str, ours: str, eager: str) -> None:
    raise TraceError(f"a replay differs from the eager run in {what}: {ours} and {eager}. The function depends on something "
                     "that no guard checks (getattr with a computed name, sys.modules, an object of a library): pass it as an "
                     "argument")


def _brief(values: np.ndarray[Any, Any]) -> str:
    return np.array2string(values.reshape(-1)[:4], precision=6, threshold=4) + ("..." if values.size > 4 else "")
