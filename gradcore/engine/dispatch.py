"""``apply``: the only place an op runs.

It looks up what is known of the op on these specs, allocates, launches, and, where a gradient is wanted, builds the
node. Devices differ below it, in the kernels and the memory; the sequence of what happens is decided here, by shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from sys import _getframe
from time import perf_counter_ns
from typing import Any

import numpy as np

from gradcore.devices.device import Device, Storage, get_device
from gradcore.engine.node import Leaf, Node, Saved, Value
from gradcore.engine.plans import INPUT, OUTPUT, OVERWRITTEN, Call, frozen_attrs
from gradcore.engine.state import SCOPES, SITES, find_site, here, local
from gradcore.errors import DeviceError, SpecError
from gradcore.events import TAGS, VIEW, Tag
from gradcore.ops.movement import clone
from gradcore.ops.op import Op, install_runner
from gradcore.spec import TensorSpec

#: Numbers nodes in order of creation, so that a larger number never feeds a smaller one.
_numbers = itertools.count(1).__next__

_tensor_types: set[type] = set()
_PLAIN = frozenset((int, float, bool, type(None)))
_make: Any = None


def install_tensor(*types: type) -> None:
    """The tensor class of the floor above, first, and those that behave as it does."""
    global _make
    _make = types[0]
    _tensor_types.update(types)


def make_value(storage: Storage, spec: TensorSpec, array: Any, edge: Any) -> Any:
    """A tensor of the installed class."""
    return _make(storage, spec, array, edge)


def apply(op: Op, *args: Any, **attrs: Any) -> Any:
    """Run ``op`` on tensors and Python numbers.

    Raises :class:`SpecError` and TypeError for operands that do not fit, :class:`DeviceError` for tensors on different
    devices, :class:`~gradcore.errors.OutOfMemory`. Whatever it raises, nothing stays allocated and no graph is built.
    """
    state = local.state
    specs: list[Any] = [op]
    arrays: list[Any] = []
    edges: list[Any] = []
    device = None
    mask = 0
    bit = 1
    counts: tuple[int, ...] | None = None
    if op.lists:
        args, counts = _flatten(op, args)
    for a in args:
        if type(a) in _tensor_types:
            specs.append(a.spec)
            arrays.append(a.array)
            edge = a.edge
            edges.append(edge)
            if edge is not None:
                mask |= bit
            if device is not a.storage.device:
                device = _same_device(op, device, a.storage.device)
        else:
            if type(a) not in _PLAIN:
                a = _operand(op, a)
                if type(a) in _tensor_types:
                    return apply(op, *(_operand(op, b) for b in args), **attrs)
            specs.append(type(a))
            arrays.append(a)
            edges.append(None)
        bit += bit
    if device is None:
        device = get_device(attrs.pop("device", None))
    if attrs or counts:
        key = (*specs, counts, frozen_attrs(op, attrs))
    else:
        key = tuple(specs)
    call = device.calls.get(key)
    if call is None:
        call = _infer(op, tuple(specs[1:]), counts, attrs, device, key)
    site = state.site
    if site is None:
        site = find_site(_getframe(1))
    scope = state.scope
    tags = call.tags.get((site, scope)) or call.make_tags(site, scope)
    if mask and (not state.grad or not call.plan(mask).rules):
        mask = 0
    number = _numbers() if mask else state.node

    if not call.single:
        if call.scattered:
            return _apply_contiguous(op, call, args, attrs)
        return _apply_general(op, call, device, args, arrays, edges, mask, number, tags, site, scope)

    spec = call.specs[0]
    block = device.ledger.allocate(spec.nbytes, device.stream, tags[0], number)
    storage = Storage(device, block)
    array = block.arrays.get(spec)
    if array is None:
        array = device.array(block, spec)
    arrays.append(array)
    if device.ledger.log is None:
        device.launch(0, call.kernel, arrays, 0, 0, (), ())
    else:
        device.launch(call.invocation, call.kernel, arrays, tags[0], number, _serials(args), (storage.serial,))
    result = _make(storage, spec, array, None)
    if mask:
        node = _build_node(call, args, (result,), (), edges, mask, number, site, scope)
        result.edge = (node, 0)
    return result


def _build_node(call: Call, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any], mask: int, number: int,
                site: int, scope: int, overwritten: Saved | None = None) -> Node:
    """The node of one run, with the residuals that its rules name. It must be built before outputs point at it: a
    node never reaches its own output, so an output is kept without its edge."""
    started = perf_counter_ns() if local.state.recording else 0
    plan = call.plans[mask]
    node = Node(number, plan, edges, call, scope, site)
    if plan.slots:
        saved: list[Any] = []
        for kind, index, name in plan.slots:
            if kind == INPUT:
                value = args[index]
                if type(value) in _tensor_types:
                    value = Saved(value, edges[index], None, number, name)
            elif kind == OVERWRITTEN:
                value = overwritten
            else:
                made = outputs[index] if kind == OUTPUT else aux[index]
                value = Saved(made, None, index if kind == OUTPUT else len(outputs) + index, number, name)
            saved.append(value)
        node.saved = saved
    if started:
        local.state.building += perf_counter_ns() - started
    return node


def _apply_general(op: Op, call: Call, device: Device, args: tuple[Any, ...], arrays: list[Any], edges: list[Any],
                   mask: int, number: int, tags: tuple[int, ...], site: int, scope: int) -> Any:
    """Views, in-place ops, several outputs, auxiliary outputs, workspace."""
    log = device.ledger.log
    overwritten: Saved | None = None
    outputs: Sequence[Any]
    aux: list[Any] = []
    if op.view:
        source = args[0]
        if log is not None:
            log.append((VIEW, call.invocation, tags[0], number, source.storage.serial))
        outputs = [_make(source.storage, spec, device.array(source.storage.block, spec), None) for spec in call.specs]
        for result in outputs:
            result.base = source if source.base is None else source.base
        source.storage.viewed = True
    else:
        written = [args[i] for i in call.writes]
        if op.writes:
            overwritten = _before_write(op, call, written, edges, mask, number)
        if op.in_place:
            outputs = []
        else:
            outputs = [_fresh(device, s, tags[i], number) for i, s in enumerate(call.specs)]
        at = len(call.specs)
        aux = [_fresh(device, s, tags[at + i], number) for i, (_, s) in enumerate(call.aux)]
        arrays.extend([v.array for v in outputs])
        arrays.extend([v.array for v in aux])
        if call.workspace:
            workspace = _fresh(device, TensorSpec.of((call.workspace,), np.uint8), tags[-1], number)
            arrays.append(workspace.array)
        device.launch(call.invocation, call.kernel, arrays, tags[0], number, _serials(args),
                      tuple([v.storage.serial for v in (*outputs, *aux)]))
        for value in written:
            value.storage.version += 1
            value.storage.written_by = tags[0]
        if op.in_place:
            outputs = written[:1]
    if mask:
        node = _build_node(call, args, outputs, aux, edges, mask, number, site, scope, overwritten)
        for k, result in enumerate(outputs):
            if result.spec.dtype.kind == "f":
                result.edge = (node, k)
    return tuple(outputs) if call.several else outputs[0]


def _apply_contiguous(op: Op, call: Call, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Run an op whose kernel wants contiguous operands: the others are copied by an op of their own first."""
    if any(i in call.writes for i in call.scattered):
        raise SpecError(f"{op.name}: a tensor that is written to must be contiguous")
    flat = [clone(a) if i in call.scattered else a for i, a in enumerate(args)]
    grouped = [flat[group[0]:group[-1] + 1] if k in op.lists else flat[group[0]]
               for k, group in enumerate(call.positions) if group]
    return apply(op, *grouped[:len(args)], **attrs)


def _fresh(device: Device, spec: TensorSpec, tag: int, number: int) -> Any:
    storage = device.allocate(spec.nbytes, tag, number)
    return _make(storage, spec, device.array(storage.block, spec), None)


def _before_write(op: Op, call: Call, written: list[Any], edges: list[Any], mask: int, number: int) -> Saved | None:
    """Refuse what an in-place op may not do; keep a copy of what it overwrites if a rule asks for it."""
    for target in written:
        spec = target.spec
        if op.in_place and len(written) == 1 and call.specs[0].shape != spec.shape:
            raise SpecError(f"{op.name}: output with shape {list(spec.shape)} doesn't match the broadcast shape "
                            f"{list(call.specs[0].shape)}")
        if any(n > 1 and s == 0 for n, s in zip(spec.shape, spec.strides, strict=True)):
            raise SpecError(f"{op.name}: unsupported operation: more than one element of the written-to tensor refers "
                            "to a single memory location. Please clone() the tensor before performing the operation.")
        if target.edge is not None and type(target.edge[0]) is Leaf and local.state.grad:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        if mask and target.storage.viewed:
            raise NotImplementedError(f"{op.name} while gradients are recorded, on a tensor that is a view or has "
                                      "views: write to a clone(), or use the out-of-place op")
    if not mask:
        return None
    for kind, index, name in call.plans[mask].slots:
        if kind == OVERWRITTEN:
            target = written[0]
            copy = clone(_make(target.storage, target.spec, target.array, None))
            return Saved(copy, edges[index], None, number, name)
    return None


def _serials(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple([a.storage.serial if type(a) in _tensor_types else 0 for a in args])


def _flatten(op: Op, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    flat: list[Any] = []
    counts: list[int] = []
    for k, a in enumerate(args):
        if k in op.lists:
            if not isinstance(a, (list, tuple)):
                raise TypeError(f"{op.name}() expects a list of tensors as {op.inputs[k]!r}, but got {type(a).__name__}")
            flat.extend(a)
            counts.append(len(a))
        else:
            flat.append(a)
            counts.append(1)
    return tuple(flat), tuple(counts)


def _same_device(op: Op, device: Device | None, other: Device) -> Device:
    if device is not None:
        raise DeviceError(f"{op.name}: Expected all tensors to be on the same device, but found at least two devices, "
                          f"{device.name} and {other.name}!")
    return other


def _operand(op: Op, a: Any) -> Any:
    """A Python number for a NumPy one; anything else that is no tensor is an error that names it."""
    if type(a) in _PLAIN or type(a) in _tensor_types:
        return a
    if isinstance(a, np.generic) and a.dtype.kind in "biuf":
        return a.item()
    if isinstance(a, Value):
        _tensor_types.add(type(a))
        return a
    for plain in (bool, int, float):
        if isinstance(a, plain):
            return plain(a)
    raise TypeError(f"{op.name}() takes tensors and Python numbers, but got {type(a).__name__}; make a tensor of it with "
                    "gradcore.tensor(...)")


def _infer(op: Op, inputs: tuple[Any, ...], counts: tuple[int, ...] | None, attrs: dict[str, Any], device: Device,
           key: Any) -> Call:
    if counts is None:
        missing = len(op.inputs) - len(inputs)
        if missing < 0 or any(n not in op.optional for n in op.inputs[len(inputs):]):
            raise TypeError(f"{op.name}() takes {len(op.inputs)} operands {op.inputs}, but got {len(inputs)}")
        inputs = (*inputs, *[type(None)] * missing)
        counts = (1,) * len(op.inputs)
    for name, spec in zip(op.inputs, inputs):
        if spec is type(None) and name not in op.optional and not op.lists:
            raise TypeError(f"{op.name}(): operand {name!r} must be a tensor or a number, but got None")
    if len(device.calls) > 20_000:
        device.calls.clear()
    call = device.calls[key] = Call(op, inputs, counts, attrs, device)
    return call


def upload(values: np.ndarray[Any, Any], device: Device, *, op: str = "upload", role: str = "input") -> Any:
    """A fresh tensor with the host's values. Uploads allocate on every device alike, the CPU too."""
    state = local.state
    scope = SCOPES[state.scope]
    spec = TensorSpec.of(values.shape, values.dtype)
    tag = TAGS.index(Tag(op, scope.layer, scope.phase, scope.role or role, SITES[here()], scope.caller, spec))
    value = _fresh(device, spec, tag, state.node)
    device.upload(value.storage, spec, values)
    return value


def retag(value: Value, *, role: str | None = None, layer: str | None = None) -> None:
    """The bytes of ``value`` belong to another role or layer from here on: they became a parameter, or a gradient."""
    block = value.storage.block
    tag = TAGS[block.tag]
    changed = tag._replace(role=tag.role if role is None else role, layer=tag.layer if layer is None else layer)
    if changed != tag:
        value.storage.device.ledger.retag(block, TAGS.index(changed))


install_runner(apply)
