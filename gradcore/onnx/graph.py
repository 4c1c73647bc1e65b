"""An ONNX graph under construction: nodes in order, shared constants, and unique names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcore.onnx.views import Expand, Gather, Reshape, Slice, Step, Transpose
from gradcore.spec import TensorSpec

#: Versions of operators and file format: 18 is the first with all operators used here, and with axes of reductions as inputs.
OPSET, IR = 18, 8

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)


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
        found, k = name, 1
        while found in self._taken:
            k += 1
            found = f"{name}_{k}"
        self._taken.add(found)
        return found

    def initializer(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        name = self.free(name)
        self.initializers[name] = array
        self.shapes[name] = array.shape
        return Value(name, array.shape, array.dtype)

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
        """Add a node with several results of given shapes and dtypes."""
        name = self.free(f"{self.layer.replace('.', '/')}/{kind}" if self.layer else kind)
        values = [Value(self.free(f"{name}:{k}"), tuple(shape), np.dtype(dtype)) for k, (shape, dtype) in enumerate(results)]
        self.shapes.update((v.name, v.shape) for v in values)
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

    # -- helpers of converters -----------------------------------------------------------------------------------------

    def cast(self, x: Value, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        return x if x.dtype == dtype else self.node("Cast", x, dtype=dtype, to=onnx_type(dtype))

    def number(self, x: Any, dtype: Any) -> Value:
        """A tensor or a Python number as a tensor of ``dtype``."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.constant(x, dtype)

    def pointwise(self, kind: str, *inputs: Any, dtype: Any, result: Any = None, **attrs: Any) -> Value:
        """An operator on broadcast operands, which are cast to ``dtype``."""
        values = [self.number(x, dtype) for x in inputs]
        return self.node(kind, *values, shape=np.broadcast_shapes(*(v.shape for v in values)), dtype=result or dtype, **attrs)

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
        starts, ends, steps = (self.constant([parts[d][k] for d in changed], np.int64) for k in range(3))
        shape = tuple(len(range(n)[slice(a, None if b < -n else b, s)]) for n, (a, b, s) in zip(x.shape, parts, strict=True))
        return self.node("Slice", x, starts, ends, self.constant(changed, np.int64), steps, shape=shape)

    def fold(self, kind: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
        if not dims:
            # Without axes, ONNX reduces all dimensions; for a 0-d tensor, this is the same.
            return self.node(kind, x, shape=shape, keepdims=int(keepdim))
        return self.node(kind, x, self.constant(list(dims), np.int64), shape=shape, keepdims=int(keepdim))

    def view(self, x: Value, steps: Sequence[Step]) -> Value:
        """Apply the steps of a view as nodes."""
        for step in steps:
            if isinstance(step, Reshape):
                x = self.reshape(x, step.shape)
            elif isinstance(step, Slice):
                x = self.slice(x, step.parts)
            elif isinstance(step, Transpose):
                x = self.transpose(x, step.perm)
            elif isinstance(step, Expand):
                x = self.expand(x, step.shape)
            elif isinstance(step, Gather):
                x = self.node("Gather", x, self.constant(step.positions), shape=step.positions.shape, axis=0)
        return x

    def as_spec(self, x: Value, spec: TensorSpec) -> Value:
        """A result cast to the traced op's dtype, and broadcast to its shape."""
        return self.expand(self.cast(x, spec.dtype), spec.shape)


def onnx_type(dtype: Any) -> int:
    """ONNX's number for a dtype."""
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
