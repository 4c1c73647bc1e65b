"""The declaration of an op: a name, a shape rule, and a gradient rule for each input.

A rule's parameter names say what it keeps. ``lambda g, y, x_spec: ...`` keeps the storage of input ``y`` and the shape
of input ``x``; nothing else of the forward pass stays alive for it. The names a rule may use:

======================  ================================================================================================
``g``, ``g_<output>``   the cotangent of the output (of that output, None for zero); of an auxiliary output, too: a gradient
                        that reads one is itself a function of it
``gs``                  the cotangents of all outputs, where their number depends on the call
an input's name         that input, kept until the node has run
``<input>_spec``        its spec (the type, for a Python number); keeps no bytes
``out``, an output's    that result, or an auxiliary output of ``infer``
or auxiliary name
an attribute's name     the attribute
``attrs``               all attributes by name, as a dict, unless it is an attribute
``needs``               which of a joint rule's inputs want a gradient, as a tuple of bool, unless it is an attribute
======================  ================================================================================================

A fused gradient is an op like any other. :func:`derived` gives it a gradient of its own: a function of ops that computes the
same, which is run and differentiated when the fused gradient is differentiated.

A cheap op says in ``again`` how to recompute its output, with ops, from its inputs and auxiliary outputs. If all of these
are kept anyway, are parameters, or can be recomputed themselves, the output is not kept: backward recomputes it when a rule
reads it (Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174). With ``follows``, that is
done only where one of its inputs is a number or broadcast, or is recomputed and read by a rule. With ``gathers``, the output
has the bytes of its inputs, which are kept in its place where that takes less memory. An op of products is recomputed only
where these are of few terms, with constants, and its output is larger than the input: as in an interpolation.

An op of products says in ``flops`` how many floating-point operations it takes: a function of specs of its inputs and
outputs, and of its attributes, by name.

An op says in ``may_alias`` which inputs its output, or the first of several, may overwrite, if such an input has the same size
and layout and is not read later: no kernel of the op reads an element of these inputs after writing that element of the output.
A rule says by :func:`spending` that nothing is read later than by its first op.

The rules of a node run in the order of their declaration, joint ones first, and what no later one reads goes back to the pool
after each: the rule that reads the larger operand comes first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradcore.spec import TensorSpec

Infer = Callable[..., Any]


@dataclass(slots=True)
class Inferred:
    """The result of a shape rule: outputs, auxiliary outputs that only rules see, and bytes of workspace on every device.

    The kernel gets a workspace unless it is None; for operands without elements it has 0 bytes. ``library`` is how many
    bytes a library that the CPU's kernel calls may allocate for itself; they are not in the log.
    """

    outputs: tuple[TensorSpec, ...]
    aux: tuple[tuple[str, TensorSpec], ...] = ()
    workspace: int | None = None
    library: int = 0

    @classmethod
    def of(cls, result: Any) -> Inferred:
        """What a shape rule returned, which may be a single spec, or a tuple of them."""
        return result if isinstance(result, cls) else cls(result if isinstance(result, tuple) else (result,))


@dataclass(frozen=True)
class Rule:
    """The gradient of one input, or of several (``fn`` then returns a tuple with one for each)."""

    inputs: tuple[str, ...]
    fn: Callable[..., Any]
    #: The inputs whose gradients read a parameter, if not all do. The parameter is None when none of them is wanted.
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: What ``fn`` is called with: the names of its parameters, unless given.
    params: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.params:
            object.__setattr__(self, "params", tuple(inspect.signature(self.fn).parameters))

    def reads(self, name: str, wanted: Iterable[str]) -> bool:
        """Does the gradient of any of the inputs ``wanted`` read the parameter ``name``?"""
        readers = self.only.get(name)
        return readers is None or any(n in readers for n in wanted)


def spending(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A rule whose first op is the last that reads its operands: ``spending(lambda g, out: relu_grad(g, out))``.

    If the node runs no rule after it, and nothing else refers to the cotangent or a kept tensor that the op reads, its output
    takes that one's place.
    """
    setattr(fn, "spends", True)
    return fn


def joint(*inputs: str, **only: tuple[str, ...]) -> Callable[[Callable[..., Any]], Rule]:
    """A rule for several inputs: ``joint("x", "weight", x=("weight",))(lambda g, x, weight, needs: ...)``.

    ``x=("weight",)`` says that only the gradient of ``weight`` reads ``x``: where it is not wanted, ``x`` is not kept.
    """
    return lambda fn: Rule(inputs, fn, only)


def derived(*inputs: str) -> Callable[[Callable[..., Any]], Rule]:
    """A joint rule by differentiating a function of ops: ``derived("dy", "x")(lambda dy, x: dy * cos(x))``.

    Called with the op's inputs and attributes by name, the function returns what the op returns: several results as a tuple,
    with None for one that is not needed. Its parameters are what the rule keeps; the gradients are those of ``inputs``, which
    are among them.
    """

    def rule(fn: Callable[..., Any]) -> Rule:
        names = tuple(inspect.signature(fn).parameters)
        places = [names.index(n) for n in inputs]
        return Rule(inputs, lambda gs, *values: _differentiate(fn, places, gs, values), params=("gs", *names))

    return rule


class Op:
    """A declared op. Calling it runs it, through the one runner that ``engine.dispatch`` installs.

    ``rules`` maps an input's name to its gradient rule; ``joints`` are rules for several inputs. Raises TypeError at once for a
    rule that names something that the op does not have.
    """

    def __init__(self, name: str, infer: Infer, *joints: Rule, outputs: tuple[str, ...] = ("out",), aux: tuple[str, ...] = (),
                 writes: tuple[str, ...] = (), view: bool = False, contiguous: bool = False,
                 again: Callable[..., Any] | None = None, follows: bool = False, gathers: bool = False,
                 may_alias: tuple[str, ...] = (),
                 any_strides: bool = False, signs: bool = False, flops: Callable[..., int] | None = None,
                 doc: str = "", **rules: Callable[..., Any]) -> None:
        if name in _table:
            raise TypeError(f"op {name!r} is declared twice")
        self.name = name
        self.infer = infer
        self.outputs = outputs
        #: The inputs that the op writes to.
        self.writes = writes
        #: An in-place op allocates no output: it returns the first input that it wrote.
        self.in_place = name.endswith("_")
        #: Does the kernel need contiguous inputs? Others are copied first, by ops of their own.
        self.contiguous = contiguous
        #: Is the output a view of the first input's storage? Then nothing is allocated or launched.
        self.view = view
        self.aux = aux
        self.__doc__ = doc
        parameters = inspect.signature(infer).parameters.values()
        self.inputs = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self.attrs = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        self.optional = frozenset(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and (
            p.default is None or str(p.annotation).endswith("| None")))
        #: Positions of inputs that are lists of tensors.
        self.lists = tuple(i for i, n in enumerate(self.inputs)
                           if str(infer.__annotations__.get(n)).startswith(("list", "Sequence")))
        self.sources = self._found_sources()
        self.rules = (*joints, *(Rule((n,), fn) for n, fn in rules.items()))
        self.differentiable = frozenset(n for rule in self.rules for n in rule.inputs)
        for rule in self.rules:
            self._check(rule)
        #: How to recompute the output, as a rule for no input.
        self.again = None if again is None else Rule((), again)
        if self.again is not None:
            self._check_again(self.again)
        #: Is it recomputed only where an input is, or is a number, or broadcast?
        self.follows = follows
        #: Is it recomputed from inputs that are kept for that?
        self.gathers = gathers
        #: The inputs that the output may overwrite.
        self.may_alias = may_alias
        self._check_aliases()
        #: Do its kernels write outputs of any strides, although the shape rule gives them certain ones?
        self.any_strides = any_strides
        #: Does the result show the sign of an attribute that is 0?
        self.signs = signs
        #: A rule for no input, too.
        self.flops = None if flops is None else Rule((), flops)
        if self.flops is not None:
            self._check(self.flops)
        _table[name] = self

    def _found_sources(self) -> dict[str, tuple[str, Any]]:
        """Where a rule's parameters come from: ``(kind, index or name)``. Of sources with one name the last counts."""
        def numbered(kind: str, names: Iterable[str], form: str = "{}") -> dict[str, tuple[str, Any]]:
            return {form.format(name): (kind, k) for k, name in enumerate(names)}

        return {**numbered("g", (*self.outputs, *self.aux), "g_{}"), **numbered("spec", self.inputs, "{}_spec"),
                "needs": ("needs", None), "attrs": ("attrs", None), **{name: ("attr", name) for name in self.attrs},
                **numbered("aux", self.aux), **numbered("output", self.outputs), **numbered("input", self.inputs),
                "gs": ("gs", None), "g": ("g", 0)}

    def _check(self, rule: Rule) -> None:
        for name in rule.inputs:
            if name not in self.inputs:
                raise TypeError(f"op {self.name!r} has a rule for {name!r}, but its inputs are {self.inputs}")
        for name in rule.params:
            if name not in self.sources:
                raise TypeError(
                    f"op {self.name!r}: the rule for {'/'.join(rule.inputs)} has the parameter {name!r}; expected g, needs, "
                    f"inputs {self.inputs}, their _spec, outputs {self.outputs}, {self.aux} or {tuple(self.attrs)}")
            if name in self.aux and f"g_{name}" not in rule.params:
                raise TypeError(f"op {self.name!r}: the rule for {'/'.join(rule.inputs)} reads {name!r} but not g_{name}: its "
                                "gradient is a function of it, whose own gradient would be lost")

    def _check_again(self, rule: Rule) -> None:
        for name in rule.params:
            if self._kind(name) not in ("input", "aux", "attr", "attrs", "spec") or self.in_place:
                raise TypeError(f"op {self.name!r}: again has the parameter {name!r}; a functional op's output is recomputed "
                                f"from inputs {self.inputs}, their _spec, auxiliary outputs {self.aux} and {tuple(self.attrs)}")

    def _check_aliases(self) -> None:
        single = len(self.outputs) == 1 and not (self.aux or self.writes or self.view)
        for name in self.may_alias:
            if not single or name not in self.inputs or self.inputs.index(name) in self.lists:
                raise TypeError(f"op {self.name!r}: may_alias names {name!r}; a functional op of one output may write it over "
                                f"inputs that are not lists, of {self.inputs}")

    def over(self, attrs: Mapping[str, Any]) -> tuple[str, ...]:
        """The inputs that the first output may overwrite: none if it is the gradient that ``needs`` leaves out."""
        return self.may_alias if attrs.get("needs", (True,))[0] else ()

    def _kind(self, name: str) -> str:
        return self.sources.get(name, ("",))[0]

    @property
    def node_name(self) -> str:
        """``MulBackward0``, as PyTorch names its nodes."""
        return "".join(part[:1].upper() + part[1:] for part in self.name.split("_") if part) + "Backward0"

    def count_flops(self, inputs: tuple[Any, ...], outputs: tuple[TensorSpec, ...], attrs: Mapping[str, Any]) -> int:
        """The floating-point operations of a launch: two for each multiplication and addition in its products."""
        if self.flops is None:
            return 0
        given = {**self.attrs, **attrs, **dict(zip((*self.inputs, *self.outputs), (*inputs, *outputs), strict=False))}
        return self.flops.fn(*[given[name] for name in self.flops.params])

    def keeps(self) -> dict[str, tuple[str, ...]]:
        """For each input, what a gradient for it keeps alive: names of inputs, ``out``, auxiliary outputs."""
        return {name: tuple(p for p in rule.params if rule.reads(p, (name,))
                            and self._kind(p) in ("input", "output", "aux"))
                for name in self.inputs for rule in self.rules if name in rule.inputs}

    def __reduce__(self) -> tuple[Any, ...]:
        return get_op, (self.name,)

    def __repr__(self) -> str:
        return f"<op {self.name}({', '.join(self.inputs)})>"


_table: dict[str, Op] = {}


#: Declares an op. Untyped, since rules call ops and compute with tensors, of which this floor has no class.
op: Any = Op


def get_op(name: str) -> Op:
    return _table[name]


def all_ops() -> dict[str, Op]:
    """Every declared op by name."""
    return dict(_table)


def install_runner(runner: Callable[..., Any]) -> None:
    """Set what calling an op does; ``engine.dispatch`` does this once."""
    setattr(Op, "__call__", runner)


_differentiate: Any = None


def install_differentiation(differentiate: Callable[..., Any]) -> None:
    """Set how rules of :func:`derived` are computed; ``engine.derived`` does this once."""
    global _differentiate
    _differentiate = differentiate
