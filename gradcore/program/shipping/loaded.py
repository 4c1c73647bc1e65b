"""``gradcore.load_program``: runs a program from a file, in a process without the code that it was traced from."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import ref

import numpy as np

from gradcore import functional, optim
from gradcore.devices.device import Device, get_device
from gradcore.engine.modes import no_grad
from gradcore.engine.plans import Call
from gradcore.engine.state import scoped
from gradcore.engine.value import Value, value_over
from gradcore.errors import ProgramError, SpecError, TraceError
from gradcore.optim.lr_scheduler.base import rate_of, set_rate
from gradcore.program.planning.plan import Plan, plan
from gradcore.program.program import Operand, Program, options_of
from gradcore.program.replaying.arena import ALIGNED, moved, shift
from gradcore.program.replaying.capture import replay_of
from gradcore.program.shipping.files import Shipment, read_program
from gradcore.program.shipping.saved import current, save_trace
from gradcore.program.shipping.verify import checked_calls
from gradcore.program.tracing.trace import Trace
from gradcore.spec import TensorSpec
from gradcore.units import count_of


def load_program(path: str | os.PathLike[str], device: str | Device = "cpu") -> LoadedProgram:
    """Load the program that ``Compiled.save`` or :meth:`LoadedProgram.save` wrote, onto any device.

    No code of the file is run, and nothing is allocated before every index, size, lifetime and op has been checked. Raises
    :class:`ProgramError`, naming the place, for a file that is damaged or is no program; OSError; and :class:`DeviceError` for
    a device that this machine does not have.
    """
    where = get_device(device)
    shipment, values = read_program(path)
    try:
        return LoadedProgram(shipment, values, where)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None


class LoadedProgram:
    """A program with its tensors, made by :func:`load_program`.

    ``program`` is the plain data, ``plan`` its memory plan. ``state`` maps names, such as ``"0.weight"``, to the tensors that
    a run reads and writes: parameters, buffers and the state of optimizers. They may be written to in place, and not be
    replaced. In a training program the ``.grad`` of parameters has the gradients of the last run.
    """

    def __init__(self, shipment: Shipment, values: dict[str, np.ndarray[Any, Any]], device: Device) -> None:
        program = replace(shipment.program, device=device.name)
        calls = _checked(program, shipment, device)
        self.device = device
        #: Tensors by name.
        self.state: dict[str, Any] = {}
        storages = {}
        for b, name in shipment.names.items():
            tag = program.buffers[b].tag
            with scoped(like=tag, phase="setup", role=tag.role):
                self.state[name] = functional.tensor(values.pop(name), device=device)
            storages[b] = self.state[name].storage
        leaves = []
        for name, x in shipment.leaves:
            leaf = value_over(storages[x.buffer], x.spec)
            leaf.requires_grad = True
            leaf.edge[0].path = name
            leaves.append(leaf)
            self.state[name] = leaf
        #: The tensors of the state, with the memory that the program reads.
        self._held = [(name, t, t.storage, t.spec) for name, t in self.state.items()]
        slots = [leaf.edge[0] for leaf in leaves]
        self._optimizers = [_optimizer(kind, [{n: value_over(storages[v.buffer], v.spec) if isinstance(v, Operand) else v
                                               for n, v in group.items()} for group in groups])
                            for kind, groups in shipment.optimizers]
        updates = [_update(self._optimizers[at], group, [leaves[k] for k in params], dict(update.numbers))
                   for (at, group, params), update in zip(shipment.updates, program.updates, strict=True)]
        self._names = dict(shipment.names)
        self._trace = Trace(
            program, [call.kernel for call in calls], storages, {b: slots[k] for b, k in shipment.slots},
            [(slots[k], x) for k, x in shipment.left], {slots[k]: wanted for k, wanted in shipment.presence}, updates,
            invocations=[call.invocation for call in calls], script=list(shipment.script),
            leaves={slots[k]: x.buffer for k, (_, x) in enumerate(shipment.leaves)})
        self.plan: Plan = plan(program)
        #: Each group's optimizer, the group, and its options as they are in the program.
        self._options = [(o, group, options_of(group)) for o in self._optimizers for group in o.param_groups]
        self._replay = replay_of(self._trace, self.plan)
        written = program.written()
        self._written = {x.buffer for x in program.inputs if x.buffer in written}
        self._used = _used(program)
        #: By slot: the layouts that the gradient in it may have.
        self._layouts = {b: _layouts(program, b, leaf.spec) for b, leaf in self._trace.slots.items()}

    @property
    def program(self) -> Program:
        """The plain data, with the present options and counts of its optimizers."""
        return current(self._trace.program, self._trace)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of every optimizer in the program: ``params``, ``lr``, and other options. Those that are part of the
        instructions may not be changed, which :meth:`run` checks.
        """
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    @property
    def learning_rate(self) -> float:
        """The rate of the first group; setting it sets that of all. Raises AttributeError if the program has no optimizer, or
        only Adafactor, whose rate is part of the program."""
        return rate_of(self._groups()[0])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        groups = self._groups()
        if not value >= 0:
            raise ValueError(f"Invalid learning rate: {value}")
        for group in groups:
            set_rate(group, float(value))

    def _groups(self) -> list[dict[str, Any]]:
        if not (found := self.param_groups):
            raise AttributeError("this program has no learning rate that can be set: it updates no parameters, or by ops with "
                                 "the rate of the trace, as Adafactor does")
        return found

    def __call__(self, *inputs: Any) -> Any:
        """As :meth:`run`, but returns a single output itself, and several as a tuple."""
        found = self.run(*inputs)
        return found[0] if len(found) == 1 else tuple(found)

    def run(self, *inputs: Any) -> list[Any]:
        """Run on tensors or arrays of the traced shapes and dtypes, in the order of the function's tensor arguments.

        Returns the outputs as new tensors. Raises :class:`SpecError` for other inputs, :class:`TraceError` if a parameter has a
        gradient and must not have one, or the other way round, or if an option has changed that is part of the program, or a
        tensor of the state was replaced or given other memory.
        """
        wanted = self._trace.program.inputs
        if len(inputs) != len(wanted):
            raise SpecError(f"the program takes {count_of(len(wanted), 'tensor')}, {', '.join(str(x.spec) for x in wanted)}, "
                            f"but got {len(inputs)}")
        tensors = [self._taken(k, x, t) for k, (x, t) in enumerate(zip(wanted, inputs, strict=True))]
        firsts: dict[int, tuple[Operand, Any]] = {}
        for k, (x, t) in enumerate(zip(wanted, tensors, strict=True)):
            first, there = firsts.setdefault(x.buffer, (x, t))
            if there.storage is not t.storage or not (
                    (first.spec is x.spec and there.spec is t.spec) or _lie_alike(first.spec, there.spec, x.spec, t.spec)):
                raise SpecError(f"input {k} must share the memory of an earlier input, as in the traced run: lie as far from "
                                "it, and have the same strides")
            if x.buffer in self._written and any(t.storage is u.storage and x.buffer != y.buffer
                                                 for y, u in zip(wanted, tensors, strict=True)):
                raise SpecError(f"the program writes to input {k}, which must not share the memory of another input, as in the "
                                "traced run")
        tensors = self._brought(tensors)
        self._check_state()
        self._check_options()
        self._check_gradients()
        return self._replay.run(tensors)

    def _taken(self, k: int, x: Operand, t: Any) -> Any:
        """An input as a tensor, of the traced shape and dtype, on the program's device."""
        if not isinstance(t, Value):
            t = functional.tensor(np.asarray(t), device=self.device)
        if t.spec.shape != x.spec.shape or t.spec.dtype != x.spec.dtype:
            raise SpecError(f"input {k} must be {x.spec.dtype.name}{list(x.spec.shape)}, but is {t.spec.dtype.name}"
                            f"{list(t.spec.shape)}")
        if t.storage.device.compute is not self.device:
            raise SpecError(f"input {k} is on {t.storage.device.name}, and the program on {self.device.name}")
        return t

    def _brought(self, tensors: list[Any]) -> list[Any]:
        """The inputs in the layouts that the program reads: copied if their own are different, those in one memory together."""
        inputs, used = self._trace.program.inputs, self._used
        other = {x.buffer: (k, x, t) for k, (x, t) in enumerate(zip(inputs, tensors, strict=True))
                 if t.spec is not x.spec or t.storage.extent < used[x.buffer][1]}
        for k, x, t in other.values():
            if x.buffer in self._written:
                raise SpecError(f"the program writes to input {k}, whose layout must be {x.spec}, but is {t.spec}")
        with no_grad():
            wholes = {b: functional.empty(used[b][1] - used[b][0], dtype=np.uint8, device=self.device) for b in other}
            specs = [moved(x.spec, -used[x.buffer][0]) for x in inputs]
            for k, (x, t) in enumerate(zip(inputs, tensors, strict=True)):
                if x.buffer in wholes:
                    to, of = _once(specs[k], x.spec), _once(t.spec, x.spec)
                    if to.overlapping or any(n > 1 and s and not own for n, s, own in zip(
                            t.spec.shape, t.spec.strides, x.spec.strides, strict=True)):
                        raise SpecError(f"input {k} must have one place for several elements, as in the traced run, {x.spec}, "
                                        f"but is {t.spec}: expand it")
                    value_over(wholes[x.buffer].storage, to).copy_(value_over(t.storage, of))
            return [value_over(wholes[x.buffer].storage, spec) if x.buffer in wholes else t
                    for x, spec, t in zip(inputs, specs, tensors, strict=True)]

    def _check_state(self) -> None:
        for name, t, storage, spec in self._held:
            if self.state.get(name, t) is not t or t.storage is not storage or t.spec is not spec:
                raise TraceError(f"state[{name!r}] was replaced or given other memory, which the program does not read: write "
                                 "to it in place, as by copy_() under gradcore.no_grad(), or load the program again")

    def _check_options(self) -> None:
        for k, (optimizer, group, traced) in enumerate(self._options):
            # Whether there is a momentum decides which op makes the update; its value is the op's argument, as the rate is.
            other_op = optimizer._optim_decisive(group) != optimizer._optim_decisive(traced)
            for name, value in traced.items():
                if group.get(name) is not value and (isinstance(value, Value) or isinstance(group.get(name), Value)):
                    raise TraceError(f"{name!r} of param_groups[{k}] is {group.get(name)!r}, and was {value!r}: the program "
                                     f"reads {'that tensor, so write to it' if isinstance(value, Value) else 'a number'}")
                if group.get(name) != value and (name not in optimizer._optim_free or (other_op and name != "lr")):
                    raise TraceError(f"{name!r} of param_groups[{k}] is {group.get(name)!r}, but {value!r} is part of the "
                                     "program: trace the function again with the new value")

    def _check_gradients(self) -> None:
        for leaf, wanted in self._trace.presence.items():
            if (leaf.grad is not None) is not wanted:
                raise TraceError(f"the gradient of {leaf.path} must be {'a tensor' if wanted else 'None'} when the program "
                                 "begins, as in the traced run: set it before each run, or save the program of a later step, "
                                 "which finds gradients and clears them")
        for b, leaf in self._trace.slots.items():
            if leaf.grad is not None and leaf.grad.storage.extent < self._trace.program.buffers[b].nbytes:
                raise TraceError(f"the gradient of {leaf.path} has {leaf.grad.storage.extent} bytes of memory, fewer than in "
                                 "the traced run")
            if leaf.grad is not None and leaf.grad.spec not in self._layouts[b]:
                raise TraceError(f"the gradient of {leaf.path} is {leaf.grad.spec}, and was {self._layouts[b][0]} in the "
                                 "traced run: give it a clone with that layout")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with the present values of its tensors and its optimizers' counts. Raises OSError."""
        save_trace(path, self._trace, self._names, {leaf: leaf.path for leaf in self._trace.leaves})

    def __str__(self) -> str:
        return str(self.program)

    def __repr__(self) -> str:
        return f"<program of {count_of(len(self._trace.program.instructions), 'instruction')} on {self.device.name}>"


def _used(program: Program) -> dict[int, tuple[int, int]]:
    """By buffer of inputs: where the bytes begin that the program uses, as far as their alignment goes, and where they end. The
    traced input may have been a small part of its memory."""
    found = {x.buffer: x.spec.span for x in program.inputs}
    for x in chain(program.inputs, program.outputs, *(i.tensors() for i in program.instructions)):
        if x.buffer in found and x.spec.numel:
            found[x.buffer] = min(found[x.buffer][0], x.spec.span[0]), max(found[x.buffer][1], x.spec.span[1])
    return {b: (low - low % ALIGNED, high) for b, (low, high) in found.items()}


def _lie_alike(first: TensorSpec, there: TensorSpec, x: TensorSpec, t: TensorSpec) -> bool:
    """Do two tensors, ``there`` and ``t``, lie in one memory as ``first`` and ``x`` do, which may begin elsewhere?"""
    return shift(t, x) == shift(there, first) and t.strides == x.strides and there.strides == first.strides


def _once(spec: TensorSpec, expanded: TensorSpec) -> TensorSpec:
    """A spec with one element for the several that lie in one place where a dimension was ``expanded``."""
    shape = tuple(n if s else min(n, 1) for n, s in zip(spec.shape, expanded.strides, strict=True))
    return TensorSpec.strided(shape, spec.dtype, spec.strides, spec.offset)


def _layouts(program: Program, buffer: int, leaf: TensorSpec) -> list[TensorSpec]:
    """The layouts that a gradient of a leaf had in a buffer, as far as instructions tell: they may read views of it, too."""
    whole = TensorSpec.of(leaf.shape, leaf.dtype)
    found = [x.spec for i in program.instructions for x in i.tensors()
             if x.buffer == buffer and x.spec.shape == leaf.shape and x.spec.dtype == leaf.dtype]
    return [whole] if not found or whole in found else found


def _optimizer(kind: str, groups: Sequence[dict[str, Any]]) -> Any:
    """An optimizer without tensors, which only computes the numbers that its class's op takes."""
    found = object.__new__(getattr(optim, kind))
    found.defaults = {}
    found.state = defaultdict(dict)
    found.param_groups = [{**group, "params": []} for group in groups]
    return found


def _update(optimizer: Any, group: int, params: list[Any],
            numbers: dict[str, Any]) -> tuple[Callable[[], Any], dict[str, Any], list[Any]]:
    """An update of a trace: gives the optimizer the parameters of this group, and the ``numbers`` that it counts from."""
    options = optimizer.param_groups[group]
    for p in params:
        options["params"] += [] if any(p is other for other in options["params"]) else [p]
        optimizer.state[p].update(numbers)
    return ref(optimizer), options, params


def _checked(program: Program, shipment: Shipment, device: Device) -> list[Call]:
    """The calls of a program's instructions, when all that a file says was checked. Raises :class:`ProgramError`."""
    numbers = [_numbers(u.optimizer, dict(u.group), dict(u.numbers)) for u in program.updates]
    survivors = {x.buffer for x in program.outputs} | {x.buffer for _, x in shipment.left if x is not None}
    calls = checked_calls(program, numbers, survivors, device)
    _check_ends(shipment)
    return calls


def _numbers(kind: str, group: dict[str, Any], numbers: dict[str, Any]) -> tuple[Any, ...]:
    """The numbers that the next run will give an update's op. Raises :class:`ProgramError`."""
    cls = getattr(optim, kind)
    if {k: type(v) for k, v in numbers.items()} != {k: type(v) for k, v in cls._optim_numbers.items()}:
        raise ProgramError(f"updates: {kind} counts {', '.join(cls._optim_numbers) or 'nothing'}, but got {str(numbers)[:80]}")
    try:
        found: tuple[Any, ...] = cls._optim_operands(group, cls._optim_advanced(numbers))
    except Exception as error:
        raise ProgramError(f"updates: {kind} cannot continue from {str(numbers)[:80]}: {error!r}") from None
    return found


def _check_ends(s: Shipment) -> None:
    """Check inputs, leaves, and the slots of their gradients. Raises :class:`ProgramError`."""
    buffers = s.program.buffers
    for kind, found in (("input", {x.buffer for x in s.program.inputs}), ("gradient slot", {b for b, _ in s.slots})):
        if found != {b.index for b in buffers if b.kind == kind}:
            raise ProgramError(f"the buffers of kind {kind} do not match what a run is given")
    for name, x in s.leaves:
        if buffers[x.buffer].kind != "captured" or not x.spec.fits(buffers[x.buffer].nbytes) or not x.spec.floating:
            raise ProgramError(f"leaf {name[:80]!r}, {x.spec}, is not in a captured buffer")
        if name in s.names.values() and s.names[x.buffer] != name:
            raise ProgramError(f"leaf {name[:80]!r} has the name of another tensor")
    for k, g in s.left:
        leaf = s.leaves[k][1].spec
        if g is not None and (g.spec.shape != leaf.shape or g.spec.dtype != leaf.dtype
                              or not g.spec.fits(buffers[g.buffer].nbytes)):
            raise ProgramError(f"the gradient of {s.leaves[k][0][:80]!r} is {g.spec}, but the leaf is {leaf}")
    for _, groups in s.optimizers:
        for name, x in chain.from_iterable(group.items() for group in groups):
            if isinstance(x, Operand) and (buffers[x.buffer].kind != "captured" or x.spec.numel != 1
                                           or not x.spec.fits(buffers[x.buffer].nbytes)):
                raise ProgramError(f"the option {name[:80]!r}, {x.spec}, is not one number in a captured buffer")
    if not all(params for _, _, params in s.updates):
        raise ProgramError("an update has no parameters")
