"""An ONNX graph under construction: nodes in order, shared constants, and unique names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gradcore.onnx.table import Refused
from gradcore.program.shipping.saved import free
from gradcore.spec import TensorSpec

#: Versions of operators and file format: 18 is the first with all operators used here, and with axes of reductions as inputs.
OPSET, IR = 18, 8

Shape = tuple[int, ...]


def _operator(kind: str, result: Any = None, *, swapped: bool = False) -> Callable[[Value, Any], Value]:
    """A method that adds a node of this kind for a value and another one, or a number."""

    def method(self: Value, other: Any) -> Value:
        x, y = (other, self) if swapped else (self, other)
        return self.graph.pointwise(kind, x, y, dtype=self.dtype, result=result)

    return method


@dataclass(frozen=True)
class Value:
    """A tensor of the graph, on which Python's operators add nodes. They compute in its dtype, to which they cast the other."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    graph: Graph = field(repr=False, compare=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    __add__, __mul__, __truediv__ = _operator("Add"), _operator("Mul"), _operator("Div")
    __sub__, __rsub__ = _operator("Sub"), _operator("Sub", swapped=True)
    __pow__, __rpow__ = _operator("Pow"), _operator("Pow", swapped=True)
    __and__, __or__, __xor__ = _operator("And"), _operator("Or"), _operator("Xor")
    __lt__, __le__, __gt__ = (_operator(kind, np.bool_) for kind in ("Less", "LessOrEqual", "Greater"))
    equals, at_least, at_most = _operator("Equal", np.bool_), _operator("Max"), _operator("Min")

    def __neg__(self) -> Value:
        return self.graph.node("Neg", self)

    def __abs__(self) -> Value:
        return self.graph.node("Abs", self)

    def __invert__(self) -> Value:
        return self.graph.node("Not", self)


@dataclass(frozen=True)
class Node:
    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    doc: str


@dataclass
class Graph:
    """Nodes and initializers. ``layer`` and ``doc`` are attached to the nodes that are created next."""

    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    #: The initializers that belong to ops, rather than being tensors of the model.
    constants: set[str] = field(default_factory=set)
    #: Shapes of values by name.
    shapes: dict[str, Shape] = field(default_factory=dict)
    layer: str = ""
    doc: str = ""
    _taken: set[str] = field(default_factory=set)
    _constants: dict[Any, Value] = field(default_factory=dict)

    def free(self, name: str) -> str:
        """An unused name, based on ``name``."""
        return free(name, self._taken, "_")

    def initializer(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        name = self.free(name)
        self.initializers[name] = array
        return self.value(name, array.shape, array.dtype)

    def value(self, name: str, shape: Shape, dtype: Any) -> Value:
        self.shapes[name] = shape
        return Value(name, shape, np.dtype(dtype), self)

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A small constant tensor; equal ones are shared."""
        array = np.asarray(array, dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.initializer("constant", array)
            self.constants.add(self._constants[key].name)
        return self._constants[key]

    def several(self, kind: str, inputs: Sequence[Value | None], results: Sequence[tuple[Shape, Any]],
                **attrs: Any) -> list[Value]:
        """Add a node with several results of given shapes and dtypes.

        An operator that does not take a dtype (products of bools, a power of uint8) computes in a wider one.
        """
        wide = _widened(kind, tuple(None if x is None else x.dtype for x in inputs))
        if wide:
            takes, makes = ([group for group, _ in formal] for formal in _formal(kind, len(inputs), len(results)))
            within = [None if x is None else self.cast(x, wide.get(group, x.dtype))
                      for x, group in zip(inputs, takes, strict=True)]
            specs = [(shape, wide.get(group, dtype)) for (shape, dtype), group in zip(results, makes, strict=True)]
            found = self.several(kind, within, specs, **attrs)
            return [self.cast(v, dtype) for v, (_, dtype) in zip(found, results, strict=True)]
        name = self.free(f"{self.layer.replace('.', '/')}/{kind}" if self.layer else kind)
        values = [self.value(self.free(f"{name}:{k}"), tuple(shape), dtype) for k, (shape, dtype) in enumerate(results)]
        names = ["" if x is None else x.name for x in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(Node(kind, name, tuple(names), tuple(v.name for v in values), attrs, self.doc))
        return values

    def node(self, kind: str, *inputs: Value | None, shape: Shape | None = None, dtype: Any = None, **attrs: Any) -> Value:
        """Add a node with one result, which has the shape and dtype of the first operand unless given."""
        first = inputs[0]
        assert first is not None or (shape is not None and dtype is not None)
        shape = first.shape if shape is None else shape  # type: ignore[union-attr]
        dtype = first.dtype if dtype is None else dtype  # type: ignore[union-attr]
        return self.several(kind, inputs, [(shape, dtype)], **attrs)[0]

    def is_zeros(self, x: Value) -> bool:
        """Is it only zeros, whatever else it depends on? True of what creation ops make, and of views of that."""
        name, made = x.name, {out: node for node in self.nodes for out in node.outputs}
        while name in made and made[name].kind in ("Expand", "Reshape", "Slice", "Transpose"):
            name = made[name].inputs[0]
        return name in self.constants and not self.initializers[name].any()

    def prune(self, results: Sequence[Value]) -> None:
        """Drop the nodes and the constants that no result depends on."""
        used, kept = {v.name for v in results}, []
        for node in reversed(self.nodes):
            if not used.isdisjoint(node.outputs):
                used.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]
        for name in self.constants - used:
            self.initializers.pop(name, None)
        self._constants = {key: value for key, value in self._constants.items() if value.name in used}

    # -- what converters call ------------------------------------------------------------------------------------------

    def cast(self, x: Value, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        return x if x.dtype == dtype else self.node("Cast", x, dtype=dtype, to=onnx_type(dtype))

    def number(self, x: Any, dtype: Any) -> Value:
        """A tensor or a Python number as a tensor of ``dtype``, in which an integer wraps around."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.constant(np.asarray(x).astype(dtype))

    def pointwise(self, kind: str, *inputs: Any, dtype: Any, result: Any = None, **attrs: Any) -> Value:
        """An operator on broadcast operands, which are cast to ``dtype``."""
        values = [self.number(x, dtype) for x in inputs]
        return self.node(kind, *values, shape=np.broadcast_shapes(*(v.shape for v in values)), dtype=result or dtype, **attrs)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        if x.dtype == np.bool_:
            # onnxruntime has no Where of bools.
            return condition & x | ~condition & y
        shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
        return self.node("Where", condition, x, y, shape=shape, dtype=x.dtype)

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.node("Reshape", x, self.constant(shape, np.int64), shape=shape, allowzero=1)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        if list(perm) == list(range(x.ndim)):
            return x
        return self.node("Transpose", x, shape=tuple(x.shape[d] for d in perm), perm=list(perm))

    def expand(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.node("Expand", x, self.constant(shape, np.int64), shape=shape)

    def slice(self, x: Value, parts: Sequence[tuple[int, int, int]]) -> Value:
        """Slice a value; ``parts`` are start, end and step of each dimension."""
        changed = [d for d, (n, part) in enumerate(zip(x.shape, parts, strict=True)) if part != (0, n, 1)]
        if not changed:
            return x
        if len(changed) == 1 and (part := self._joined(x, changed[0], parts[changed[0]])) is not None:
            return part
        starts, ends, steps = (self.constant([parts[d][k] for d in changed], np.int64) for k in range(3))
        shape = tuple(len(range(n)[slice(a, None if b < -n else b, s)]) for n, (a, b, s) in zip(x.shape, parts, strict=True))
        return self.node("Slice", x, starts, ends, self.constant(changed, np.int64), steps, shape=shape)

    def _joined(self, x: Value, dim: int, cut: tuple[int, int, int]) -> Value | None:
        """The tensor that lies just there in what has been joined, as the state of a layer in that of all."""
        made = next((node for node in reversed(self.nodes) if x.name in node.outputs), None)
        if made is None or made.kind != "Concat" or made.attrs["axis"] != dim:
            return None
        start = 0
        for name in made.inputs:
            end = start + self.shapes[name][dim]
            if (start, end, 1) == cut:
                return Value(name, self.shapes[name], x.dtype, self)
            start = end
        return None

    def fold(self, kind: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
        if not dims:
            # Without axes, ONNX reduces all dimensions; for a 0-d tensor, this is the same.
            return self.node(kind, x, shape=shape, keepdims=int(keepdim))
        return self.node(kind, x, self.constant(list(dims), np.int64), shape=shape, keepdims=int(keepdim))

    def as_spec(self, x: Value, spec: TensorSpec) -> Value:
        """A result cast to the traced op's dtype, and broadcast to its shape."""
        return self.expand(self.cast(x, spec.dtype), spec.shape)


#: By dtype that an operator may not take: those in which it computes the same, once its result is cast back.
_WIDER = {"b": (np.int32, np.int64, np.float32), "u": (np.int32, np.int64), "i": (np.int32, np.int64),
          "f": (np.float32, np.float64), "V": (np.float32,)}

#: What an operator declares of its inputs, or its outputs: the name of a type, which is one for all that have it, and what it
#: may be.
Formal = list[tuple[str, frozenset[str]]]


@cache
def _formal(kind: str, inputs: int, outputs: int) -> tuple[Formal, Formal]:
    """What an operator declares of so many inputs and so many outputs."""
    import onnx

    schema = onnx.defs.get_schema(kind, OPSET, "")

    def formal(declared: Sequence[Any], count: int) -> Formal:
        # The last input may stand for any number.
        found = [declared[min(k, len(declared) - 1)] for k in range(count)]
        return [(x.type_str, frozenset(x.types)) for x in found]

    return formal(schema.inputs, inputs), formal(schema.outputs, outputs)


@cache
def _widened(kind: str, dtypes: tuple[np.dtype[Any] | None, ...]) -> dict[str, np.dtype[Any]]:
    """The types of an operator that must be wider than what it is given. Raises :class:`Refused` if none will do."""
    found: dict[str, np.dtype[Any]] = {}
    for dtype, (group, allowed) in zip(dtypes, _formal(kind, len(dtypes), 0)[0], strict=True):
        if dtype is not None and _type_name(dtype) not in allowed:
            wider = [d for d in map(np.dtype, _WIDER[dtype.kind]) if d.itemsize > dtype.itemsize and _type_name(d) in allowed]
            if not wider:
                raise Refused(f"{kind} takes no {dtype.name} in ONNX")
            found[group] = wider[0]
    return found


def _type_name(dtype: np.dtype[Any]) -> str:
    """A dtype as ONNX's operators name it."""
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype.name, dtype.name)})"


def onnx_type(dtype: Any) -> int:
    """ONNX's number for a dtype."""
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
