"""What dispatch computes once and then looks up: the call of an op on given specs, and what its gradients keep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gradcore.devices.calls import Operands
from gradcore.devices.device import Device
from gradcore.engine.state import Where
from gradcore.events import WRITTEN, Invocation, Site, Tag
from gradcore.ops.op import Inferred, Op, Rule
from gradcore.spec import TensorSpec

# What a slot holds.
INPUT, OUTPUT, AUX, OVERWRITTEN = range(4)
_KINDS = {"input": INPUT, "output": OUTPUT, "aux": AUX}

#: Kind, index and name of a residual; the index is a flat position for an input.
Slot = tuple[int, int, str]
#: A rule as the engine calls it, with the node's cotangents and residuals.
BoundRule = Callable[[list[Any], list[Any]], Any]


class KeepPlan:
    """For one call and one set of inputs that need gradients: the residuals to keep, and the rules that read them."""

    __slots__ = ("slots", "rules", "again", "again_slots", "beside")

    def __init__(self, call: Call, mask: tuple[bool, ...]) -> None:
        op = call.op
        self.slots: list[Slot] = []
        #: Of each rule: flat positions of the inputs, whether the function returns several gradients, and the function.
        self.rules: list[tuple[tuple[int, ...], bool, BoundRule]] = []
        for rule in op.rules:
            targets = [call.positions[op.inputs.index(n)] for n in rule.inputs]
            needs = tuple(any(mask[i] for i in group) for group in targets)
            if any(needs):
                flat = tuple(i for group in targets for i in group)
                several = len(rule.inputs) > 1 or op.inputs.index(rule.inputs[0]) in op.lists
                wanted = [n for n, need in zip(rule.inputs, needs, strict=True) if need]
                bound = _bound(call, rule, self.slots, needs, [p for p in rule.params if rule.reads(p, wanted)])
                self.rules.append((flat, several, bound))
        self.rules.sort(key=lambda r: r[0])
        #: What the rule that recomputes the output reads; and that rule, called with (None, the content of these slots).
        self.again_slots: list[Slot] = []
        self.again = None if op.again is None else _bound(call, op.again, self.again_slots, (), op.again.params)
        #: The inputs that it reads, and the node would not keep otherwise.
        self.beside = [slot[1] for slot in self.again_slots if slot[0] == INPUT and slot not in self.slots]


def _bound(call: Call, rule: Rule, slots: list[Slot], needs: tuple[bool, ...], read: Sequence[str]) -> BoundRule:
    """A rule as ``lambda gs, values: fn(gs[0], values[1], c0)``, which halves the cost of looking up its arguments.

    ``values`` are the content of ``slots``, to which what it reads is added; a parameter that is not ``read`` is None.
    """
    constants: list[Any] = []
    arguments = [_argument(call, name, slots, needs, constants) if name in read else "None" for name in rule.params]
    return _maker(", ".join(arguments), len(constants))(rule.fn, *constants)


def _argument(call: Call, name: str, slots: list[Slot], needs: tuple[bool, ...], constants: list[Any]) -> str:
    """The Python expression for a rule's argument when the node runs; what it reads is added to slots or constants."""
    op = call.op
    found = op.source(name)
    assert found is not None
    kind, what = found
    if kind == "g":
        return f"gs[{what}]"
    if kind == "gs":
        return "tuple(gs)"
    if kind in ("needs", "attr", "spec"):
        if kind == "needs":
            constants.append(needs)
        elif kind == "attr":
            constants.append(call.attrs.get(what, op.attrs[what]))
        else:
            specs = tuple(call.inputs[i] for i in call.positions[what])
            constants.append(specs if what in op.lists else specs[0])
        return f"c{len(constants) - 1}"

    def at(slot: Slot) -> str:
        if slot not in slots:
            slots.append(slot)
        return f"values[{slots.index(slot)}]"

    if kind != "input":
        return at((_KINDS[kind], what, name))
    held = OVERWRITTEN if name in op.writes else INPUT
    places = [at((held, i, name)) for i in call.positions[what]]
    return f"[{', '.join(places)}]" if what in op.lists else places[0]


@functools.cache
def _maker(arguments: str, count: int) -> Callable[..., BoundRule]:
    names = "".join(f", c{k}" for k in range(count))
    made: Callable[..., BoundRule] = eval(compile(f"lambda fn{names}: lambda gs, values: fn({arguments})", WRITTEN, "eval"))
    return made


class Call:
    """An op on given specs, attributes and device: everything that is the same for each such run."""

    __slots__ = ("op", "inputs", "attrs", "positions", "specs", "aux", "workspace", "kernel", "invocation", "spec", "nbytes",
                 "plans", "single", "several", "writes", "scattered", "width", "library")

    def __init__(self, op: Op, inputs: tuple[Any, ...], counts: tuple[int, ...], attrs: dict[str, Any],
                 device: Device) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        #: Flat positions of each declared input.
        self.positions: list[tuple[int, ...]] = []
        grouped: list[Any] = []
        at = 0
        for k, count in enumerate(counts):
            self.positions.append(tuple(range(at, at + count)))
            part = inputs[at:at + count]
            grouped.append(part if k in op.lists else (None if part[0] is type(None) else part[0]))
            at += count
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
                       if isinstance(inputs[i], TensorSpec)]
        self.kernel: Callable[..., Any] = _noop if op.view else self._bind(device, grouped)
        self.invocation = Invocation(op.name, inputs, self.specs, self.aux, inferred.workspace or 0, tuple(attrs.items()))
        self.plans: dict[tuple[bool, ...], KeepPlan | None] = {}
        #: Flat positions of inputs that must be copied into a contiguous layout first.
        self.scattered = [i for i, s in enumerate(inputs) if op.contiguous and isinstance(s, TensorSpec)
                          and not s.contiguous]
        #: The number of outputs that may receive a cotangent, auxiliary ones included.
        self.width = len(self.specs) + len(self.aux)
        #: Is there one newly allocated output and nothing else? Dispatch has a short path for this usual case.
        self.single = (len(self.specs) == 1 and not self.several and not self.aux and self.workspace is None
                       and not op.view and not op.writes and not self.scattered)
        if self.single:
            self.spec = self.specs[0]
            self.nbytes = self.spec.nbytes

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
        return device.bind(kernel, self.op.name)

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

    def make_tags(self, site: Site, scope: Where) -> tuple[Tag, ...]:
        """Tags for outputs, then auxiliary outputs, then workspace."""
        where = scope.plain
        role = where.role or ("output" if where.phase in ("forward", "setup") else "temporary")

        def tag(role: str, spec: TensorSpec | None) -> Tag:
            return Tag(self.op.name, where.layer, where.phase, role, site, where.caller, spec, None, where.network)

        return (*(tag(role, s) for s in self.specs), *(tag("temporary", s) for _, s in self.aux),
                tag("workspace", None))


def _widened(x: Any) -> Any:
    """A spec, specs or a dtype with float32 in place of 16-bit floats; anything else unchanged."""
    if isinstance(x, TensorSpec):
        return x.widened()
    if isinstance(x, np.dtype):
        return TensorSpec.of((), x).widened().dtype
    return tuple(map(_widened, x)) if isinstance(x, tuple) else x


def _regroup(kernel: Callable[..., Any], positions: list[tuple[int, ...]], lists: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel that takes flat arrays, and passes those of list inputs on as lists."""
    *starts, end = accumulate(map(len, positions), initial=0)
    spans = [slice(at, at + len(group)) if k in lists else at
             for k, (at, group) in enumerate(zip(starts, positions, strict=True))]

    def grouped(*arrays: Any, **attrs: Any) -> None:
        kernel(*[arrays[span] for span in spans], *arrays[end:], **attrs)

    return grouped


def _noop(*arrays: Any) -> None:
    raise AssertionError("a view launches nothing")


def _check_attrs(op: Op, attrs: dict[str, Any]) -> None:
    """Raise TypeError for an attribute that the op does not have."""
    for name in attrs:
        if name not in op.attrs:
            raise TypeError(f"{op.name}() got an unexpected keyword argument {name!r}; it takes {tuple(op.attrs)}")


def infer(op: Op, inputs: tuple[Any, ...], counts: tuple[int, ...] | None, attrs: dict[str, Any],
          device: Device) -> Call:
    """The call of an op. Raises TypeError for wrong operands or attributes, and what the op's shape rule raises."""
    _check_attrs(op, attrs)
    if counts is None:
        if len(inputs) > len(op.inputs):
            raise TypeError(f"{op.name}() takes {len(op.inputs)} operands {op.inputs}, but got {len(inputs)}")
        counts = (1,) * len(op.inputs)
    for name, spec in zip(op.inputs, inputs, strict=False):
        if spec is type(None) and name not in op.optional and not op.lists:
            raise TypeError(f"{op.name}(): operand {name!r} must be a tensor or a number, but it is missing or None")
    return Call(op, inputs, counts, attrs, device)
