"""What dispatch computes once and then looks up: the call of an op on given specs, and what its gradients keep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from gradcore.devices.calls import Operands
from gradcore.devices.device import Device
from gradcore.engine.state import Where
from gradcore.engine.value import PLAIN
from gradcore.events import WRITTEN, Invocation, Site, Tag
from gradcore.ops.movement import clone
from gradcore.ops.op import Inferred, Op, Rule
from gradcore.spec import TensorSpec
from gradcore.units import count_of

# What a slot holds.
INPUT, OUTPUT, AUX, OVERWRITTEN = range(4)
_KINDS = {"input": INPUT, "output": OUTPUT, "aux": AUX}

#: The most operations for an element of a product that is recomputed: a few percent of those of a layer that reads it.
FEW = 256

#: Kind, index and name of a residual; the index is a flat position for an input.
Slot = tuple[int, int, str]
#: A rule as the engine calls it, with the node's cotangents and residuals.
BoundRule = Callable[[list[Any], list[Any]], Any]
#: Flat positions of its inputs, whether it returns several gradients, the function, and the places of the residuals that it
#: reads and no later rule does.
NodeRule = tuple[tuple[int, ...], bool, BoundRule, tuple[int, ...]]


class KeepPlan:
    """For one call and one set of inputs that need gradients: the residuals to keep, and the rules that read them."""

    __slots__ = ("slots", "rules", "spends", "again", "again_slots", "makes", "beside", "cheap", "follows", "repeats",
                 "gathers")

    def __init__(self, call: Call, mask: tuple[bool, ...]) -> None:
        found = _layout(call.op, call.counts, mask)
        self.slots = found.slots
        self.rules: list[NodeRule] = [(flat, several, _bound(call, reading), ends)
                                      for flat, several, reading, ends in found.rules]
        if call.op.contiguous and len(self.rules) > 1:
            self.rules[0] = _on_copies(*self.rules[0])
        #: The last rule, if its first op is the last that reads its operands.
        self.spends = self.rules[-1][2] if found.spends else None
        #: What the rule that recomputes the output reads, each with its place among ``slots``, None if it has none; and that
        #: rule, called with (None, the content of these).
        self.again_slots = found.again_slots
        self.again = None if found.again is None else _bound(call, found.again)
        #: How many outputs that makes: all views of what is split, otherwise the first.
        self.makes = len(call.specs) if call.op.view else 1
        self.beside = found.beside  #: The inputs that it reads, and the node would not keep otherwise.
        #: Is the output recomputed where that takes nothing but what is kept; only where an input is recomputed, too; from a
        #: far smaller one, taken or added but not multiplied, that is kept in its place; or from inputs kept so, as by a sum?
        self.cheap = self.again is not None and not call.op.gathers and (not call.op.follows or call.uneven) and (
            call.op.flops is None or call.widens(mask))
        self.follows = call.op.follows and not self.cheap
        self.repeats = self.cheap and not call.op.view and all(
            k == INPUT and not mask[i] and not getattr(call.inputs[i], "floating", False) for k, i, _ in self.slots) and any(
            mask[i] and 3 * call.inputs[i].nbytes <= call.specs[0].nbytes for i in self.beside)
        self.gathers = call.op.gathers or ((self.follows or self.repeats) and not self.slots)


def _on_copies(flat: tuple[int, ...], several: bool, rule: BoundRule, ends: tuple[int, ...]) -> NodeRule:
    """The first of several rules whose ops copy cotangents of another layout: one copy serves all of them."""

    def on_copies(gs: list[Any], values: list[Any]) -> Any:
        gs[:] = [g if g is None or g.spec.contiguous else clone(g) for g in gs]
        return rule(gs, values)

    return flat, several, on_copies, ends


class _Reading(NamedTuple):
    """What a rule is called with: the function that binds it and its constants, and where the constants come from."""

    fn: Callable[..., Any]
    maker: Callable[..., BoundRule]
    constants: tuple[tuple[str, Any], ...]


class _Layout(NamedTuple):
    """What plans of all specs have in common."""

    slots: tuple[Slot, ...]
    rules: tuple[tuple[tuple[int, ...], bool, _Reading, tuple[int, ...]], ...]
    spends: bool
    again_slots: tuple[tuple[Slot, int | None], ...]
    again: _Reading | None
    beside: tuple[int, ...]


# Bounded, since ops such as cat take any number of tensors.
@functools.lru_cache(maxsize=4096)
def _layout(op: Op, counts: tuple[int, ...], mask: tuple[bool, ...]) -> _Layout:
    """The plan of an op whose inputs have so many tensors, as far as specs and attributes do not matter."""
    positions = _positions(counts)
    slots: list[Slot] = []
    rules: list[tuple[tuple[int, ...], bool, _Reading]] = []
    read: list[set[int]] = []
    for rule in op.rules:
        targets = [positions[op.inputs.index(n)] for n in rule.inputs]
        needs = tuple(any(mask[i] for i in group) for group in targets)
        if any(needs):
            flat = tuple(i for group in targets for i in group)
            several = len(rule.inputs) > 1 or op.inputs.index(rule.inputs[0]) in op.lists
            wanted = [n for n, need in zip(rule.inputs, needs, strict=True) if need]
            params = [p for p in rule.params if rule.reads(p, wanted)]
            rules.append((flat, several, _reading(op, positions, rule, slots, needs, params)))
            read.append({k for k, (_, _, name) in enumerate(slots) if name in params})
    # What the last rule reads goes with the node.
    ends = [tuple(mine.difference(*read[k + 1:])) for k, mine in enumerate(read[:-1])] + [()]
    bound = tuple([(*rule, done) for rule, done in zip(rules, ends, strict=False)])
    spends = bool(rules) and getattr(rules[-1][2].fn, "spends", False)
    again_slots: list[Slot] = []
    again = None if op.again is None else _reading(op, positions, op.again, again_slots, (), op.again.params)
    placed = tuple([(s, slots.index(s) if s in slots else None) for s in again_slots])
    beside = tuple([s[1] for s, place in placed if s[0] == INPUT and place is None])
    return _Layout(tuple(slots), bound, spends, placed, again, beside)


@functools.lru_cache(maxsize=4096)
def _positions(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Flat positions of each declared input."""
    *starts, _ = accumulate(counts, initial=0)
    return tuple([tuple(range(at, at + count)) for at, count in zip(starts, counts, strict=True)])


def _bound(call: Call, reading: _Reading) -> BoundRule:
    """A rule as ``lambda gs, values: fn(gs[0], values[1], c0)``, which halves the cost of looking up its arguments."""
    constants: list[Any] = []
    for kind, what in reading.constants:
        if kind == "needs":
            constants.append(what)
        elif kind == "attr":
            constants.append(call.attrs.get(what, call.op.attrs[what]))
        elif kind == "attrs":
            constants.append({**call.op.attrs, **call.attrs})
        else:
            specs = tuple([call.inputs[i] for i in call.positions[what]])
            constants.append(specs if what in call.op.lists else specs[0])
    return reading.maker(reading.fn, *constants)


def _reading(op: Op, positions: Sequence[tuple[int, ...]], rule: Rule, slots: list[Slot], needs: tuple[bool, ...],
             read: Sequence[str]) -> _Reading:
    """What a rule is called with. ``values`` are the content of ``slots``, to which what it reads is added; a parameter that is
    not ``read`` is None."""
    constants: list[tuple[str, Any]] = []
    arguments = [_argument(op, positions, name, slots, needs, constants) if name in read else "None" for name in rule.params]
    return _Reading(rule.fn, _maker(", ".join(arguments), len(constants)), tuple(constants))


def _argument(op: Op, positions: Sequence[tuple[int, ...]], name: str, slots: list[Slot], needs: tuple[bool, ...],
              constants: list[tuple[str, Any]]) -> str:
    """The Python expression for a rule's argument when the node runs; what it reads is added to slots or constants."""
    kind, what = op.sources[name]
    if kind == "g":
        return f"gs[{what}]"
    if kind == "gs":
        return "tuple(gs)"
    if kind in ("needs", "attr", "attrs", "spec"):
        constants.append((kind, needs if kind == "needs" else what))
        return f"c{len(constants) - 1}"

    def at(slot: Slot) -> str:
        if slot not in slots:
            slots.append(slot)
        return f"values[{slots.index(slot)}]"

    if kind != "input":
        return at((_KINDS[kind], what, name))
    held = OVERWRITTEN if name in op.writes else INPUT
    places = [at((held, i, name)) for i in positions[what]]
    return f"[{', '.join(places)}]" if what in op.lists else places[0]


@functools.cache
def _maker(arguments: str, count: int) -> Callable[..., BoundRule]:
    names = "".join(f", c{k}" for k in range(count))
    made: Callable[..., BoundRule] = eval(compile(f"lambda fn{names}: lambda gs, values: fn({arguments})", WRITTEN, "eval"))
    return made


class Call:
    """An op on given specs, attributes and device: everything that is the same for each such run."""

    __slots__ = ("op", "inputs", "attrs", "counts", "positions", "specs", "aux", "workspace", "kernel", "invocation", "spec",
                 "nbytes", "plans", "single", "several", "writes", "over", "scattered", "special", "width", "library")

    def __init__(self, op: Op, inputs: tuple[Any, ...], counts: tuple[int, ...], attrs: dict[str, Any],
                 device: Device) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        #: The number of tensors of each declared input, and their flat positions.
        self.counts = counts
        self.positions = _positions(counts)
        grouped: list[Any] = [None if x is type(None) else x for x in inputs]
        if op.lists:
            grouped = [tuple([inputs[i] for i in group]) if k in op.lists else grouped[group[0]]
                       for k, group in enumerate(self.positions)]
        try:
            inferred = op.infer(*grouped, **attrs)
        except AttributeError as error:
            # A shape rule asked the type of a number for its shape.
            if not any(error.obj is kind for kind in (int, float, bool)):
                raise
            inferred = None
        if inferred is None:
            raise TypeError(f"{op.name}(): expected tensors, but got operands "
                            + ", ".join(getattr(s, "__name__", str(s)) for s in inputs))
        listed = isinstance(inferred, tuple)
        inferred = Inferred.of(inferred)
        self.specs: tuple[TensorSpec, ...] = inferred.outputs
        #: Does the op return a tuple?
        self.several = listed or max(len(op.outputs), len(self.specs)) > 1
        self.aux = inferred.aux
        self.workspace = None if inferred.workspace is None else TensorSpec.of((inferred.workspace,), np.uint8)
        #: Bytes that a library may allocate for itself while the kernel runs on the CPU.
        self.library = inferred.library
        #: Flat positions that the op writes to.
        self.writes = [i for name in op.writes for i in self.positions[op.inputs.index(name)]
                       if isinstance(inputs[i], TensorSpec)] if op.writes else []
        #: Flat positions of inputs that the output may take the place of: those of the same layout.
        self.over = [i for name in op.over(attrs) for i in self.positions[op.inputs.index(name)]
                     if inputs[i] is self.specs[0] and inputs[i].contiguous and inputs[i].nbytes]
        self.kernel: Callable[..., Any] = _noop if op.view else self._bind(device, grouped)
        self.invocation = Invocation(op.name, inputs, self.specs, self.aux, inferred.workspace or 0, tuple(attrs.items()))
        self.plans: dict[tuple[bool, ...], KeepPlan | None] = {}
        #: Flat positions of inputs that must be copied into a contiguous layout first.
        self.scattered = [i for i, s in enumerate(inputs) if isinstance(s, TensorSpec)
                          and not s.contiguous] if op.contiguous else []
        #: Does the op not just run: are inputs copied first, or is it watched?
        self.special = bool(self.scattered)
        #: The number of outputs that may receive a cotangent, auxiliary ones included.
        self.width = len(self.specs) + len(self.aux)
        #: Is there one newly allocated output and nothing else? Dispatch has a short path for this usual case.
        self.single = (len(self.specs) == 1 and not self.several and not self.aux and self.workspace is None
                       and not op.view and not op.writes and not self.scattered)
        if self.single:
            self.spec = self.specs[0]
            self.nbytes = self.spec.nbytes

    @property
    def uneven(self) -> bool:
        """Is an operand a number, or smaller than the output?"""
        return any(x.numel < self.specs[0].numel if isinstance(x, TensorSpec) else x in PLAIN for x in self.inputs)

    def widens(self, mask: tuple[bool, ...]) -> bool:
        """Is it a product of few terms with a constant, larger than what wants a gradient, as in an interpolation?"""
        out = self.specs[0]
        return mask.index(True) == 0 and sum(mask) == 1 and self.inputs[0].numel < out.numel and self.op.count_flops(
            self.inputs, self.specs, self.attrs) <= FEW * out.numel

    def _bind(self, device: Device, grouped: list[Any]) -> Callable[..., Any]:
        kernel = device.kernel(self.op.name)
        if self.attrs:
            kernel = functools.partial(kernel, **self.attrs)
        if self.op.lists:
            kernel = _regroup(kernel, self.positions, self.op.lists)
        made = (*(() if self.op.in_place else self.specs), *[s for _, s in self.aux])
        kernel, nbytes = device.suited(kernel, Operands(self.op.name, self.inputs, made, tuple(self.writes),
                                                        lambda: self._wide_workspace(grouped)))
        self.library += nbytes
        return device.bind(kernel, self.op.name, self.op.any_strides)

    def _wide_workspace(self, grouped: list[Any]) -> int | None:
        if self.workspace is None:
            return None
        wide = self.op.infer(*map(_widened, grouped), **{k: _widened(v) for k, v in self.attrs.items()})
        room: int | None = wide.workspace
        return room

    def plan(self, edges: list[Any]) -> KeepPlan | None:
        """The plan for the inputs that have an edge; None if no rule gives any of them a gradient."""
        mask = tuple(map(bool, edges))
        try:
            return self.plans[mask]
        except KeyError:
            made = KeepPlan(self, mask)
            found = self.plans[mask] = made if made.rules and any(s.floating for s in self.specs) else None
            return found

    def watched(self) -> Call:
        """The same call, which the thread's ``watch`` is to run: for keys of a scope that is watched."""
        made = copy(self)
        made.single, made.special = False, True
        return made

    def make_tags(self, site: Site, scope: Where) -> tuple[Tag, ...]:
        """Tags for outputs, then auxiliary outputs, then workspace."""
        where = scope.plain
        role = where.role or ("output" if where.phase in ("forward", "setup") else "temporary")

        name, layer, phase, caller, network = self.op.name, where.layer, where.phase, where.caller, where.network
        made = [Tag(name, layer, phase, role, site, caller, s, None, network) for s in self.specs]
        for _, s in self.aux:
            made.append(Tag(name, layer, phase, "temporary", site, caller, s, None, network))
        made.append(Tag(name, layer, phase, "workspace", site, caller, None, None, network))
        return tuple(made)


def _widened(x: Any) -> Any:
    """A spec, specs or a dtype with float32 in place of 16-bit floats; anything else unchanged."""
    if isinstance(x, TensorSpec):
        return x.widened()
    if isinstance(x, np.dtype):
        return TensorSpec.of((), x).widened().dtype
    return tuple(map(_widened, x)) if isinstance(x, tuple) else x


def _regroup(kernel: Callable[..., Any], positions: Sequence[tuple[int, ...]], lists: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel that takes flat arrays, and passes those of list inputs on as lists."""
    *starts, end = accumulate(map(len, positions), initial=0)
    spans = [slice(at, at + len(group)) if k in lists else at
             for k, (at, group) in enumerate(zip(starts, positions, strict=True))]

    def grouped(*arrays: Any, **attrs: Any) -> None:
        kernel(*[arrays[span] for span in spans], *arrays[end:], **attrs)

    return grouped


def _noop(*arrays: Any) -> None:
    raise AssertionError("a view launches nothing")


def infer(op: Op, inputs: tuple[Any, ...], counts: tuple[int, ...] | None, attrs: dict[str, Any],
          device: Device) -> Call:
    """The call of an op. Raises TypeError for wrong operands or attributes, and what the op's shape rule raises."""
    for name in attrs:
        if name not in op.attrs:
            raise TypeError(f"{op.name}() got an unexpected keyword argument {name!r}; it takes {tuple(op.attrs)}")
    if counts is None:
        if len(inputs) > len(op.inputs):
            raise TypeError(f"{op.name}() takes {count_of(len(op.inputs), 'operand')} {op.inputs}, but got {len(inputs)}")
        counts = (1,) * len(op.inputs)
    for name, spec in zip(op.inputs, inputs, strict=False) if type(None) in inputs else ():
        if spec is type(None) and name not in op.optional and not op.lists:
            raise TypeError(f"{op.name}(): operand {name!r} must be a tensor or a number, but it is missing or None")
    return Call(op, inputs, counts, attrs, device)
