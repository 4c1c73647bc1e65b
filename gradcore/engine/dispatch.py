"""``apply``: the only place where an op runs.

It looks up the call for the op and the specs of its operands, allocates, launches, and builds the node if a gradient is
wanted. Devices differ below it, in kernels and memory; the sequence of allocations and launches is decided here, by shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from sys import _getframe
from time import perf_counter_ns
from typing import Any

from gradcore.devices.device import Device, device_of_new
from gradcore.devices.storage import Storage, new_storage
from gradcore.engine.hooks import hand_on
from gradcore.engine.node import build_node, note_overwritten
from gradcore.engine.operands import TENSORS, apart, flatten, grouped, numbers, operands, signs, together
from gradcore.engine.plans import Call, KeepPlan, infer
from gradcore.engine.saved import Packed, Saved
from gradcore.engine.sites import CODES, find_site
from gradcore.engine.spending import take_over
from gradcore.engine.state import State, Where, launch_within, local
from gradcore.engine.tracer import tracer_of
from gradcore.engine.value import PLAIN, alias, install_made, value_over
from gradcore.engine.views import counted, note_views, rebase
from gradcore.engine.writing import before_write
from gradcore.errors import SpecError
from gradcore.events import LAUNCH, VIEW, Raw, Site, Tag
from gradcore.memory.resource import Stream
from gradcore.ops.movement import clone
from gradcore.ops.op import Op, install_runner
from gradcore.spec import TensorSpec

#: Numbers nodes in order of creation, so that the inputs of a node always have smaller numbers.
next_number = itertools.count(1).__next__

#: A device forgets its calls when there are more, which texts and pictures of all sizes lead to: then what they hold goes, too.
MOST_CALLS = 50_000

_tensor: Any = None
_new = object.__new__


def install_tensor(*types: type) -> None:
    """Tell the engine the tensor class of the floor above, followed by subclasses to treat alike."""
    global _tensor
    _tensor = types[0]
    install_made(_tensor)
    TENSORS.update(types)


def apply(op: Op, *args: Any, **attrs: Any) -> Any:
    """Run ``op`` on tensors and Python numbers.

    Raises :class:`SpecError` and TypeError for operands that do not fit, :class:`DeviceError` for tensors on different
    devices, :class:`~gradcore.errors.OutOfMemory`. Whatever it raises, nothing stays allocated and no graph is built.
    """
    state = local.state
    site = state.site or find_site(_getframe(1))
    scope = state.scope
    counts = None
    if len(args) < len(op.inputs):
        # Absent inputs; inferring the call checks whether they may be absent.
        args = args + (None,) * (len(op.inputs) - len(args))
    if op.lists:
        args, counts = flatten(op, args)
    specs: list[Any] = [op, site, scope]
    arrays = []
    device = None
    traced = False
    for a in args:
        if type(a) in TENSORS:
            specs.append(a.spec)
            arrays.append(a.array)
            if a.edge is not None:
                traced = True
            there = a.storage.device
            if there is not device:
                if device is not None and there.compute is not device.compute:
                    return apply(op, *together(op, args, counts), **attrs)
                device = there
        elif type(a) in PLAIN:
            specs.append(type(a))
            arrays.append(a)
        else:
            return apply(op, *operands(op, args, counts), **attrs)
    if device is None:
        device = device_of_new(attrs.pop("device", None))
    if attrs or counts:
        # 1, 1.0 and True are equal and hash alike, so the types are part of the key.
        specs += (counts, *attrs, *attrs.values(), *map(type, attrs.values()))
        if op.signs:
            specs += signs(attrs)
    key = tuple(specs)
    found = device.calls.get(key)
    if found is None:
        device = device.compute
        found = device.calls.get(key) or _look_up(op, key, len(args), counts, attrs, device)
    call, tags = found
    number = state.node
    edges = plan = None
    if traced and state.grad:
        edges = [None if type(a) in PLAIN else a.edge for a in args]
        plan = call.plans.get(tuple(map(bool, edges))) or call.plan(edges)
        if plan is not None:
            number = next_number()
    if call.single:
        return _run(state, device, call, tags[0], args, arrays, edges, plan, number, site, scope)
    return _apply_general(state, op, call, device, args, attrs, arrays, edges, plan, number, tags, site, scope)


def operator(op: Op, beside: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``apply`` as the method of a Python operator, with a short cut for two tensors.

    ``beside`` converts an operand that is neither a tensor nor a Python number, or leaves the operator to it: NotImplemented.
    """

    def method(self: Any, other: Any) -> Any:
        if type(other) not in TENSORS:
            given = other if type(other) in PLAIN else beside(self, other)
            return given if given is NotImplemented else apply(op, self, given)
        state = local.state
        site = state.site
        if site is None:
            frame = _getframe(1)
            lines = CODES.get(id(frame.f_code))
            site = lines.get(frame.f_lasti) if lines else None
            if site is None:
                site = find_site(frame)
        scope = state.scope
        device = self.storage.device
        if other.storage.device is not device:
            return apply(op, self, other)
        key = (op, site, scope, self.spec, other.spec)
        found = device.calls.get(key)
        if found is None:
            device = device.compute
            found = device.calls.get(key) or _look_up(op, key, 2, None, {}, device)
        call, tags = found
        if not call.single:
            return apply(op, self, other)
        number = state.node
        edges = plan = None
        if state.grad and (self.edge is not None or other.edge is not None):
            edges = [self.edge, other.edge]
            plan = call.plans.get((self.edge is not None, other.edge is not None)) or call.plan(edges)
            if plan is not None:
                number = next_number()
        return _run(state, device, call, tags[0], (self, other), [self.array, other.array], edges, plan, number, site, scope)

    return method


def _run(state: State, device: Device, call: Call, tag: Tag, args: tuple[Any, ...], arrays: list[Any],
         edges: list[Any] | None, plan: KeepPlan | None, number: int, site: Site, scope: Where) -> Any:
    """The usual case in a straight line: one new output, and nothing else."""
    stream = device.stream
    if device.several:
        stream = _on_stream(device, args)
    log = device.ledger.log
    read = () if log is None else _serials(args)
    result = _new(_tensor)
    spent = take_over(state, call, device, args, tag, number) if state.spending else None
    if spent is not None:
        result.storage = spent.storage
        block = spent.storage.block
    else:
        # new_storage, in line.
        storage = result.storage = _new(Storage)
        storage.device = device
        storage.version = 0
        storage.views = None
        block = storage.block = device.memory.allocate(call.nbytes, stream, tag, number)
    spec = result.spec = call.spec
    try:
        array = result.array = block.arrays[spec]
    except KeyError:
        array = result.array = device.array(block, spec)
    result.edge = result.base = None
    if log is not None:
        _log_launch(log, call, tag, number, args, read, (result,))
    try:
        if len(arrays) == 2:
            # Unpacking a list takes half as long as calling NumPy.
            first, second = arrays
            state.launch(call.kernel, first, second, array)
        else:
            state.launch(call.kernel, *arrays, array)
    except RuntimeError as error:
        if not launch_within(error, tag, call.kernel, *arrays, array):
            raise
    if plan is not None:
        assert edges is not None
        # The node is built before the output refers to it: a node never refers to its own output.
        result.edge = (build_node(call, plan, args, (result,), (), edges, number, site, scope), 0)
    return result


def _on_stream(device: Device, args: tuple[Any, ...]) -> Stream:
    """The stream that an op runs on; operands that belong to other streams are noted as used there."""
    stream = device.current
    for a in args:
        if type(a) in TENSORS:
            a.storage.block.use_on(stream)
    return stream


def _serials(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Of the bytes that each operand shows, before the output is allocated, which may take their place; 0 for a number."""
    return tuple([a.storage.block.serial if type(a) in TENSORS else 0 for a in args])


def _log_launch(log: list[Raw], call: Call, tag: Tag, number: int, args: tuple[Any, ...], read: tuple[int, ...],
                outputs: tuple[Any, ...]) -> None:
    if (tracer := tracer_of(log)) is not None:
        tracer.launched(call, args, outputs)
    made = tuple([v.storage.block.serial for v in outputs])
    log.append((LAUNCH, call.invocation, tag, number, read, made, perf_counter_ns()))


def _apply_general(state: State, op: Op, call: Call, device: Device, args: tuple[Any, ...], attrs: dict[str, Any],
                   arrays: list[Any], edges: list[Any] | None, plan: KeepPlan | None, number: int,
                   tags: tuple[Tag, ...], site: Site, scope: Where) -> Any:
    """Views, in-place ops, several outputs, auxiliary outputs, workspace; and any op that is watched."""
    compute: Callable[..., Any] = _compute
    if call.special:
        if call.scattered:
            return _apply_contiguous(op, call, args, attrs)
        if state.watch is not None:
            # None if a generator that began while ops were watched has ended, and set the scope of its beginning.
            compute = partial(state.watch.run, plan, _compute)
    overwritten: Saved | Packed | None = None
    written = [args[i] for i in call.writes] if op.writes else []
    aux: list[Any] = []
    if op.view:
        outputs = _views(call, device, args[0], tags[0], number)
    else:
        if op.writes:
            if op.in_place and not op.lists:
                copies = apart(args, "dim" not in attrs)
                if copies is not None:
                    return apply(op, *copies, **attrs)
            overwritten = before_write(op, call, written, edges, plan, number)
        outputs, aux = compute(state, op, call, device, args, arrays, written, number, tags)
    if plan is not None:
        assert edges is not None
        node = build_node(call, plan, args, outputs, aux, edges, number, site, scope, overwritten)
        if op.writes:
            note_overwritten(node, written, overwritten)
        for k, result in enumerate(outputs):
            if result.spec.floating:
                before, result.edge = result.edge, (node, k)
                if before is not None:
                    hand_on(before, result)
        if op.in_place and outputs[0].storage.views is not None:
            rebase(outputs[0])
    return tuple(outputs) if call.several else outputs[0]


def _compute(state: State, op: Op, call: Call, device: Device, args: tuple[Any, ...], arrays: list[Any], written: list[Any],
             number: int, tags: tuple[Tag, ...]) -> tuple[list[Any], list[Any]]:
    """Allocate, log and launch: the outputs, which an in-place op has written to an operand, and the auxiliary outputs."""
    stream = _on_stream(device, args) if device.several else device.stream
    log = device.ledger.log
    read = () if log is None else _serials(args)
    outputs, aux = [], []
    spent = take_over(state, call, device, args, tags[0], number) if state.spending else None
    if spent is not None:
        outputs.append(alias(spent, None))
    if not op.in_place:
        made = len(outputs)
        outputs += [fresh(device, spec, tag, number, stream) for spec, tag in zip(call.specs[made:], tags[made:], strict=False)]
    arrays += [value.array for value in outputs]
    if call.aux:
        for (_, spec), tag in zip(call.aux, tags[len(call.specs):], strict=False):
            aux.append(fresh(device, spec, tag, number, stream))
            arrays.append(aux[-1].array)
    if call.workspace is not None:
        workspace = fresh(device, call.workspace, tags[-1], number, stream)
        arrays.append(workspace.array)
    if log is not None:
        _log_launch(log, call, tags[0], number, args, read, (*outputs, *aux))
    try:
        state.launch(call.kernel, *arrays)
    except RuntimeError as error:
        if not launch_within(error, tags[0], call.kernel, *arrays):
            raise
    for value in written if state.bare is None else counted(written):
        value.storage.version += 1
        value.storage.written_by = tags[0]
    return written[:1] if op.in_place else outputs, aux


def _views(call: Call, device: Device, source: Any, tag: Tag, number: int) -> list[Any]:
    """Tensors that show ``source``'s bytes under the call's specs, without a graph."""
    log = device.ledger.log
    if log is not None:
        if (tracer := tracer_of(log)) is not None:
            tracer.viewed(source)
        log.append((VIEW, call.invocation, tag, number, source.storage.serial))
    outputs = [value_over(source.storage, spec) for spec in call.specs]
    note_views(outputs, source)
    return outputs


def _apply_contiguous(op: Op, call: Call, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Run an op whose kernel needs contiguous operands, after a copy (an op of its own) of each that is not."""
    if any(i in call.writes for i in call.scattered):
        raise SpecError(f"{op.name}: a tensor that is written to must be contiguous")
    flat = [clone(a) if i in call.scattered else a for i, a in enumerate(args)]
    return apply(op, *grouped(op, flat, map(len, call.positions)), **attrs)


def fresh(device: Device, spec: TensorSpec, tag: Tag, number: int, stream: Stream | None = None) -> Any:
    """An uninitialized tensor, on the current stream or a given one."""
    value = _new(_tensor)
    value.storage = new_storage(device, spec.nbytes, device.current if stream is None else stream, tag, number)
    block = value.storage.block
    value.spec = spec
    array = block.arrays.get(spec)
    value.array = device.array(block, spec) if array is None else array
    value.edge = value.base = None
    return value


def _look_up(op: Op, key: tuple[Any, ...], count: int, counts: tuple[int, ...] | None, attrs: dict[str, Any],
             device: Device) -> tuple[Call, tuple[Tag, ...]]:
    """The call, which is inferred if the specs are new, and its tags for one line of source; both are cached. Attributes that
    are tensors become the numbers in these."""
    if given := numbers(op, attrs):
        attrs.update(given)
        key = (*key[:3 + count], counts, *attrs, *attrs.values(), *map(type, attrs.values()),
               *(signs(attrs) if op.signs else ()))
    site, scope = key[1:3]
    anywhere = (op, *key[3:])
    call = device.calls.get(anywhere)
    if call is None:
        call = infer(op, key[3:3 + count], counts, attrs, device)
    if len(device.calls) > MOST_CALLS:
        device.calls.clear()
    device.calls[anywhere] = call
    found = device.calls[key] = (call.watched() if scope.watched else call, call.make_tags(site, scope))
    return found


install_runner(apply)
