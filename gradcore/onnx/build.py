"""Converts a program to an ONNX graph, instruction by instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import gradcore.onnx.folds
import gradcore.onnx.networks
import gradcore.onnx.pointwise
import gradcore.onnx.recurrent  # noqa: F401
from gradcore.engine.operands import grouped
from gradcore.errors import ExportError
from gradcore.onnx.graph import Graph, Value
from gradcore.onnx.table import CONVERTERS, Refused
from gradcore.onnx.views import positions, view
from gradcore.ops.op import all_ops
from gradcore.program.program import Instruction, Operand, Program
from gradcore.program.shipping.saved import shown_spec
from gradcore.program.tracing.trace import Trace
from gradcore.spec import TensorSpec, contiguous_strides


class Builder:
    """Keeps track of the value in each buffer. ``names`` are those of captured tensors, by buffer."""

    def __init__(self, trace: Trace, names: dict[int, str]) -> None:
        self.trace = trace
        self.program: Program = trace.program
        self.names = names
        self.graph = Graph()
        self.ops = all_ops()
        #: By buffer: its value, and the dense spec that it was written with.
        self._held: dict[int, tuple[Value, TensorSpec]] = {}
        self._flat: dict[int, Value] = {}
        self._shown: dict[tuple[int, TensorSpec], Value] = {}
        self.needed = self._needed()
        self._read = {x.buffer for i in self.needed for x in i.tensors()} | {
            x.buffer for x in self.program.outputs}

    def _needed(self) -> list[Instruction]:
        """The instructions that an output depends on, in order."""
        wanted = {x.buffer for x in self.program.outputs}
        found = []
        for i in reversed(self.program.instructions):
            if wanted & ({x.buffer for x in i.outputs} | {x.buffer for x in i.targets()}):
                wanted |= {x.buffer for x in i.tensors()}
                found.append(i)
        return found[::-1]

    def inputs(self, names: Sequence[str]) -> list[Value]:
        found = []
        for name, x in zip(names, self.program.inputs, strict=True):
            if not x.spec.contiguous or x.spec.offset or x.buffer in self._held:
                raise ExportError(f"input {name!r} is a view, {x.spec}: trace with arguments that own their memory")
            value = self.graph.value(self.graph.free(name), x.spec.shape, x.spec.dtype)
            self._hold(x, value)
            found.append(value)
        return found

    def outputs(self, names: Sequence[str]) -> list[Value]:
        found = []
        for name, x in zip(names, self.program.outputs, strict=True):
            self.graph.layer = self.graph.doc = ""
            value = self._value(x)
            (made,) = self.graph.several("Identity", [value], [(value.shape, value.dtype)])
            name = self.graph.free(name)
            self.graph.nodes[-1] = replace(self.graph.nodes[-1], outputs=(name,))
            found.append(self.graph.value(name, made.shape, made.dtype))
        return found

    # -- buffers -------------------------------------------------------------------------------------------------------

    def _hold(self, x: Operand, value: Value) -> None:
        self._held[x.buffer] = value, x.spec
        self._flat.pop(x.buffer, None)
        for key in [k for k in self._shown if k[0] == x.buffer]:
            del self._shown[key]

    def _base(self, buffer: int, dtype: np.dtype[Any]) -> Value:
        """The value of a buffer, contiguous in memory order."""
        if buffer not in self._held:
            self._captured(buffer, dtype)
        value, spec = self._held[buffer]
        if buffer not in self._flat:
            order = sorted(range(spec.ndim), key=lambda d: -spec.strides[d]) if not spec.contiguous else range(spec.ndim)
            self._flat[buffer] = self.graph.transpose(value, list(order))
        return self._flat[buffer]

    def _captured(self, buffer: int, dtype: np.dtype[Any]) -> None:
        storage = self.trace.storages.get(buffer)
        if storage is None:
            raise ExportError(f"the result of {self.program.buffers[buffer].tag.op} from before the run has been freed: its "
                              "values are not known")
        spec = shown_spec(storage)
        if spec.dtype != dtype:
            spec = TensorSpec.of((storage.extent // dtype.itemsize,), dtype)
        array = storage.device.read(storage, spec)
        # Not by ascontiguousarray, which gives a 0-d array a dimension.
        self._hold(Operand(buffer, spec), self.graph.initializer(self.names[buffer], np.asarray(array, order="C")))

    def _value(self, x: Operand) -> Value:
        base = self._base(x.buffer, x.spec.dtype)
        held, spec = self._held[x.buffer]
        if spec is x.spec:
            return held
        key = x.buffer, x.spec
        if key not in self._shown:
            if base.dtype != x.spec.dtype:
                raise ExportError(f"memory of {base.dtype} is viewed as {x.spec}, which ONNX cannot express")
            self._shown[key] = view(self.graph, base, x.spec)
        return self._shown[key]

    def _write(self, x: Operand, value: Value) -> None:
        """Write the result of an in-place op, to the whole buffer, or to elements of it by position."""
        dense = TensorSpec.strided(x.spec.shape, x.spec.dtype, contiguous_strides(x.spec.shape), 0)
        if x.spec is dense and x.spec.nbytes == self.program.buffers[x.buffer].nbytes:
            self._hold(x, value)
            return
        g = self.graph
        base = self._base(x.buffer, x.spec.dtype)
        flat = g.reshape(base, (int(np.prod(base.shape)),))
        places = g.constant(positions(x.spec).reshape(-1))
        changed = g.node("ScatterElements", flat, places, g.reshape(value, (x.spec.numel,)), axis=0)
        whole = TensorSpec.of(base.shape, base.dtype)
        self._hold(Operand(x.buffer, whole), g.reshape(changed, base.shape))

    # -- instructions --------------------------------------------------------------------------------------------------

    def instruction(self, i: Instruction) -> None:
        self.graph.layer, self.graph.doc = i.tag.layer, f"{i.op}, {i.tag.site.short}"
        op = self.ops[i.op]
        name = i.op if i.op in CONVERTERS or not op.in_place else i.op[:-1]
        converter = CONVERTERS.get(name)
        if converter is None or (op.in_place and len(i.writes) != 1):
            raise self._refused(i, "no equivalent in ONNX is known")
        target = i.operands[i.writes[0]] if op.in_place else i.outputs[0]
        try:
            made = converter(self.graph, target.spec, *self._arguments(i, op), **{**op.attrs, **dict(i.attrs)})
        except Refused as reason:
            raise self._refused(i, str(reason)) from None
        made = made if isinstance(made, list) else [made]
        if op.in_place:
            self._write(target, self.graph.as_spec(made[0], target.spec))
            return
        for x, value in zip(i.outputs, made, strict=False):
            if value is not None:
                self._hold(x, self.graph.as_spec(value, x.spec))
        made += [None] * (len(i.outputs) - len(made))
        for k, (x, value) in enumerate(zip(i.outputs, made, strict=True)):
            if value is None and x.buffer in self._read:
                raise self._refused(i, f"its result {k} is used, which ONNX does not provide")

    def _arguments(self, i: Instruction, op: Any) -> list[Any]:
        return grouped(op, [self._value(x) if isinstance(x, Operand) else x for x in i.operands], i.counts)

    def _refused(self, i: Instruction, reason: str) -> ExportError:
        return ExportError(f"{i.op} in layer {i.tag.layer or '(root)'}, {i.tag.site}, cannot be exported to ONNX: {reason}")
