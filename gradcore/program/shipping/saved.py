"""Prepares a trace for a file: names for its objects, and only the first part of a program that has two."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradcore import optim
from gradcore._tensor import Tensor
from gradcore.devices.storage import Storage
from gradcore.engine.leaf import Leaf
from gradcore.engine.value import Value
from gradcore.errors import TraceError
from gradcore.events import DROP, KEEP, LAUNCH
from gradcore.nn.module import Module
from gradcore.program.guarding.guards import Asking, Guard
from gradcore.program.guarding.modules import ModuleGuard
from gradcore.program.program import Operand, Program, Update, options_of, with_lifetimes
from gradcore.program.shipping.files import Shipment, write_program
from gradcore.program.tracing.templates import Output, outputs_in
from gradcore.program.tracing.trace import Trace
from gradcore.spec import TensorSpec

#: The name of a guard, such as "the variable w of step's closure[0]": the two parts of "w[0]".
_PLACE = re.compile(r"^(?:the (?:global |variable )?)?(\S+)(?: of [^\[]*)?(.*)$")


def save_trace(path: str | os.PathLike[str], trace: Trace, names: dict[int, str], leaf_names: dict[Leaf, str]) -> None:
    """Write a trace to a file. Raises OSError, and TypeError for values that a file cannot hold."""
    tensors = {names[b]: _values(storage) for b, storage in trace.storages.items()}
    write_program(path, _shipment(trace, names, leaf_names), tensors)


def _values(storage: Storage) -> Any:
    spec, device = shown_spec(storage), storage.device
    array = device.array(storage.block, spec)
    return array if device.type == "cpu" else device.read(storage, spec)


def shown_spec(storage: Storage) -> TensorSpec:
    """The spec of a whole storage: that of its tag if it fits, otherwise bytes."""
    spec = storage.block.tag.spec
    if spec is not None and spec.contiguous and not spec.offset and spec.nbytes == storage.extent:
        return spec
    return TensorSpec.of((storage.extent,), "uint8")


def current(program: Program, trace: Trace) -> Program:
    """The program with the present options and counts of its optimizers."""
    return replace(program, updates=tuple(
        Update.of(o, _plain(group, trace), {n: o.state[params[0]][n] for n in o._optim_numbers})
        for at, group, params in trace.updates for o in [at()]))


def _plain(group: dict[str, Any], trace: Trace) -> dict[str, Any]:
    """The options of an optimizer's group. One that is a tensor, as a learning rate may be, is an operand if the program reads
    it, else its number."""
    buffers = {id(storage): b for b, storage in trace.storages.items()}

    def plain(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return Operand(buffers[id(x.storage)], x.spec) if id(x.storage) in buffers else x.item()

    return {name: plain(x) for name, x in options_of(group).items()}


def _shipment(trace: Trace, names: dict[int, str], leaf_names: dict[Leaf, str]) -> Shipment:
    # Only leaves that the program reads go into the file; gradients of others, which the function may have dropped, do not.
    leaves = {leaf: k for k, leaf in enumerate(trace.leaves)}
    #: By id: the optimizers, each with its groups that are updated.
    optimizers: dict[int, tuple[Any, dict[int, Any]]] = {}
    updates = []
    for at, group, params in trace.updates:
        optimizer, kind = at(), type(at())
        if getattr(optim, kind.__name__, None) is not kind:
            raise TypeError(f"the program updates parameters by {kind.__module__}.{kind.__name__}, but only optimizers of "
                            "gradcore.optim can be saved")
        _, groups = optimizers.setdefault(id(optimizer), (optimizer, {}))
        groups[id(group)] = group
        updates.append(([*optimizers].index(id(optimizer)), [*groups].index(id(group)),
                        tuple(leaves[p.edge[0]] for p in params)))
    return Shipment(
        current(trace.program, trace), names,
        tuple((leaf_names[leaf], Operand(b, leaf.spec)) for leaf, b in trace.leaves.items()),
        tuple((b, leaves[leaf]) for b, leaf in trace.slots.items()),
        tuple((leaves[leaf], x) for leaf, x in trace.left if leaf in leaves),
        tuple((leaves[leaf], wanted) for leaf, wanted in trace.presence.items() if leaf in leaves),
        tuple((type(o).__name__, tuple(_plain(g, trace) for g in groups.values())) for o, groups in optimizers.values()),
        tuple(updates), tuple(trace.script))


# -- from a compiled function ------------------------------------------------------------------------------------------


def save_entry(path: str | os.PathLike[str], trace: Trace, guards: Sequence[Asking], template: Any) -> None:
    """Write a trace of a compiled function; its tensors get their names from its ``guards``.

    ``template`` is that of its result. Raises :class:`TraceError` for a trace that computes gradients of its
    arguments, which a file cannot represent, and for one that returns a parameter which no op reads.
    """
    trace = _with_all_results(forward_part(trace), template)
    for leaf, b in trace.leaves.items():
        if b not in trace.storages:
            raise TraceError(f"{leaf.described()}, is an argument of the traced function: a saved program "
                             "can only compute gradients of tensors that it captured")
    save_trace(path, trace, *tensor_names(trace, guards))


def _with_all_results(trace: Trace, template: Any) -> Trace:
    """The trace with all tensors that its function returns as outputs, arguments and parameters included."""
    program, buffers = trace.program, {id(storage): b for b, storage in trace.storages.items()}
    gradients = dict(trace.left)
    gradients |= {leaf: Operand(b, leaf.grad.spec) for b, leaf in trace.slots.items() if leaf.grad is not None}

    def operand(of: Output) -> Operand:
        if of.index >= 0:
            return program.outputs[of.index]
        if of.argument >= 0:
            return program.inputs[of.argument]
        if of.leaf is not None:
            found = gradients.get(of.leaf)
            if found is None:
                raise TraceError(f"the function returns the gradient of {of.leaf.described()}, which none "
                                 "of its ops computes: only results of ops can be saved")
            return found
        if id(of.value.storage) not in buffers:
            raise TraceError(f"the function returns {of.value.edge[0].path or 'a parameter'}, {of.value.spec}, which none of "
                             "its ops reads: only tensors that ops read can be saved")
        return Operand(buffers[id(of.value.storage)], of.value.spec)

    return replace(trace, program=replace(program, outputs=tuple(map(operand, outputs_in(template)))))


def tensor_names(trace: Trace, guards: Sequence[Asking]) -> tuple[dict[int, str], dict[Leaf, str]]:
    """A name for each captured buffer and each leaf: from modules, optimizers or variables, or else from its role."""
    modules, tensors = _seen(guards)
    known: dict[int, str] = {}
    for module in modules:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            # The longest path comes from the outermost module.
            if len(name) > len(known.get(id(tensor.storage), "")):
                known[id(tensor.storage)] = name
    for name, tensor in tensors:
        known.setdefault(id(tensor.storage), name)
    taken: set[str] = set()
    leaf_names: dict[Leaf, str] = {}
    names: dict[int, str] = {}
    for leaf, b in trace.leaves.items():
        if b in trace.storages:
            leaf_names[leaf] = free(leaf.path or known.get(id(trace.storages[b]), "parameter"), taken)
            if shown_spec(trace.storages[b]) is leaf.spec:
                names.setdefault(b, leaf_names[leaf])
    for optimizer, group, params in trace.updates:
        known = {id(value.storage): key for key, value in group.items() if isinstance(value, Value)} | known
        state = optimizer().state
        for p in params:
            for key, value in state[p].items():
                if isinstance(value, Value):
                    known[id(value.storage)] = f"{leaf_names[p.edge[0]]}.{key}"
    for b, storage in trace.storages.items():
        if b not in names:
            tag = storage.block.tag
            fallback = tag.op if tag.op == "generator" else tag.role.replace(" ", "_")
            names[b] = free(known.get(id(storage), fallback), taken)
    return names, leaf_names


def _seen(guards: Sequence[Asking]) -> tuple[list[Module], list[tuple[str, Any]]]:
    """The modules, and the other tensors with their names, that guards are for."""
    modules = [module for guard in guards if isinstance(guard, ModuleGuard) and (module := guard.owner()) is not None]
    tensors = [(_PLACE.sub(r"\1\2", guard.name), tensor) for guard in guards if isinstance(guard, Guard)
               for tensor in guard.values()]
    return modules, tensors


def free(name: str, taken: set[str], mark: str = ".") -> str:
    """The name, or with a number behind a ``mark`` if it is taken; from now on it is."""
    found, k = name, 1
    while found in taken:
        k += 1
        found = f"{name}{mark}{k}"
    taken.add(found)
    return found


def forward_part(trace: Trace) -> Trace:
    """The trace of the first part of a program in two, with the buffers that it uses; another trace unchanged."""
    split = trace.program.split
    # Code that asked for a gradient is not there any more; ops that would have been added to one are.
    changes: dict[str, Any] = {} if trace.left or trace.slots else {
        "presence": {leaf: wanted for leaf, wanted in trace.presence.items() if not wanted}}
    if split is None:
        return replace(trace, **changes)
    program = trace.program
    kept = program.instructions[:split]
    used = {b for i in kept for b in i.reads_and_writes()} | {x.buffer for x in (*program.inputs, *program.outputs)}
    new = {b: k for k, b in enumerate(sorted(used))}

    def moved(x: Any) -> Any:
        return replace(x, buffer=new[x.buffer]) if isinstance(x, Operand) else x

    instructions = tuple(replace(i, operands=tuple(map(moved, i.operands)), outputs=tuple(map(moved, i.outputs)),
                                 workspace=moved(i.workspace)) for i in kept)
    outputs = tuple(map(moved, program.outputs))
    cut = Program(device=program.device, buffers=tuple(replace(program.buffers[b], index=k, first=0, last=0)
                                                       for b, k in new.items()),
                  instructions=instructions, inputs=tuple(map(moved, program.inputs)), outputs=outputs)
    changes.update(program=with_lifetimes(cut, {x.buffer for x in outputs}), kernels=trace.kernels[:split], updates=[],
                   second=None, script=_first(trace.script, split),
                   storages={new[b]: s for b, s in trace.storages.items() if b in new},
                   slots={new[b]: leaf for b, leaf in trace.slots.items() if b in new},
                   leaves={leaf: new[b] for leaf, b in trace.leaves.items() if b in new})
    return replace(trace, **changes)


def _first(script: list[tuple[Any, ...]], launches: int) -> list[tuple[Any, ...]]:
    """The records of the first ``launches`` launches, without those about what is kept for backward."""
    found: list[tuple[Any, ...]] = []
    for kind, *rest in script:
        if kind == LAUNCH and not launches:
            break
        launches -= kind == LAUNCH
        if kind not in (KEEP, DROP):
            found.append((kind, *rest))
    return found
