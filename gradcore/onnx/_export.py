"""``gradcore.onnx.export``: traces a forward pass and writes it as an ONNX file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcore import functional
from gradcore.engine.modes import no_grad
from gradcore.engine.value import Value as Tensor
from gradcore.engine.value import tensors_in
from gradcore.errors import TraceError
from gradcore.nn.module import Module
from gradcore.onnx.batch import open_batch, open_shape
from gradcore.onnx.build import Builder
from gradcore.onnx.graph import IR, OPSET, Graph, Value, onnx_type
from gradcore.program.calls.compiled import Compiled
from gradcore.program.program import Operand, Program
from gradcore.program.shipping.loaded import LoadedProgram
from gradcore.program.shipping.saved import forward_part, tensor_names
from gradcore.program.tracing.trace import Trace
from gradcore.program.tracing.tracing import Tracing
from gradcore.report.files import write_whole

INSTALL = "the package onnx is not installed: pip install 'gradcore[onnx]'"


def export(model: Any, example: Any, path: str | os.PathLike[str] | None, *, input_names: Sequence[str] | None = None,
           output_names: Sequence[str] | None = None, dynamic_batch: bool = False) -> Any:
    """Write the forward pass of ``model`` on ``example`` as an ONNX file of opset 18, and return the ``onnx.ModelProto``.

    ``model`` is a module, which is run in evaluation mode, or a function of tensors; ``example`` is its argument, or a tuple of
    arguments, whose shapes and dtypes the file is for. A :class:`LoadedProgram`, or a compiled function that has been called,
    is exported as traced, and ``example`` may be None. Parameters and other captured tensors become initializers with their
    names, and nodes are named after layers. If ``path`` is None, nothing is written.

    With ``dynamic_batch``, the first dimension of the first argument, and of all arguments with the same first size, may have
    any size: the model is traced with three sizes, and the dimensions that differ are left open.

    Raises :class:`ExportError` for an op without a counterpart, with op, layer and source line; ImportError without onnx.
    """
    try:
        import onnx
    except ImportError:
        raise ImportError(INSTALL) from None
    if dynamic_batch:
        if isinstance(model, (Compiled, LoadedProgram)):
            raise ValueError("dynamic_batch: a program has a fixed batch size: export the module or function that it was "
                             "traced from")
        # At least 2, since views drop dimensions of size 1.
        size = max(_batch(example), 2)
        # And not only one more, for which what is rounded, such as the size of a chunk, may be the same.
        sizes = size, size + 1, 2 * size + 1
        built = [_built(model, _of_size(example, n), input_names, output_names) for n in sizes]
        g, inputs, outputs = built[0]
        open_batch(g, [other for other, *_ in built[1:]])
        names: dict[tuple[int, ...], str] = {sizes: "batch"}
        shapes = [open_shape(values, names) for values in zip(*(begin + end for _, begin, end in built), strict=True)]
    else:
        g, inputs, outputs = _built(model, example, input_names, output_names)
        shapes = [list(v.shape) for v in inputs + outputs]
    h = onnx.helper
    nodes = [h.make_node(n.kind, n.inputs, n.outputs, name=n.name, doc_string=n.doc, **n.attrs) for n in g.nodes]
    made = h.make_graph(
        nodes, getattr(type(model), "__name__", "program"),
        [h.make_tensor_value_info(v.name, onnx_type(v.dtype), s) for v, s in zip(inputs, shapes, strict=False)],
        [h.make_tensor_value_info(v.name, onnx_type(v.dtype), s) for v, s in zip(outputs, shapes[len(inputs):], strict=True)],
        [onnx.numpy_helper.from_array(array, name) for name, array in g.initializers.items()])
    proto = h.make_model(made, producer_name="gradcore", ir_version=IR, opset_imports=[h.make_opsetid("", OPSET)])
    if path is not None:
        write_whole(path, proto.SerializeToString())
    return proto


def _built(model: Any, example: Any, input_names: Sequence[str] | None,
           output_names: Sequence[str] | None) -> tuple[Graph, list[Value], list[Value]]:
    """The graph of a model, its inputs and its outputs."""
    trace, names, given = _traced(model, example)
    builder = Builder(trace, names)
    inputs = builder.inputs(_unique(input_names or given, len(trace.program.inputs), "input"))
    for i in builder.needed:
        builder.instruction(i)
    outputs = builder.outputs(_unique(output_names, len(trace.program.outputs), "output"))
    builder.graph.prune(outputs)
    return builder.graph, inputs, outputs


def _batch(example: Any) -> int:
    found = [a.shape[0] for a in (example if isinstance(example, tuple) else (example,)) if getattr(a, "shape", ())]
    if not found or not found[0]:
        raise ValueError("dynamic_batch: expected the first example tensor to have at least one dimension")
    return int(found[0])


def _of_size(example: Any, size: int) -> tuple[Any, ...]:
    """An example whose batch is repeated, and cut to ``size``."""
    batch = _batch(example)
    found = []
    for a in example if isinstance(example, tuple) else (example,):
        if getattr(a, "shape", ()) and a.shape[0] == batch:
            array = a.storage.device.read(a.storage, a.spec) if isinstance(a, Tensor) else np.asarray(a)
            a = functional.tensor(array[np.arange(size) % batch], device=a.storage.device if isinstance(a, Tensor) else None)
        found.append(a)
    return tuple(found)


def _unique(names: Sequence[str] | None, count: int, kind: str) -> list[str]:
    found = [kind] if count == 1 and names is None else [f"{kind}_{k}" for k in range(count)] if names is None else list(names)
    if len(found) != count or len(set(found)) != count:
        raise ValueError(f"expected {count} different names of {kind}s, but got {found}")
    return found


def _traced(model: Any, example: Any) -> tuple[Trace, dict[int, str], list[str] | None]:
    """A trace of a forward pass, the names of captured tensors, and the names of the inputs if they are known."""
    if isinstance(model, LoadedProgram):
        return model._trace, model._names, None
    if isinstance(model, Compiled):
        entries = model._cached()
        if not entries:
            raise TraceError("the compiled function has no program yet: call it first")
        trace = forward_part(entries[0].replay.trace)
        return trace, tensor_names(trace, entries[0].guards)[0], None
    if not callable(model):
        raise TypeError(f"expected a module, a function or a program, but got {type(model).__name__}")
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, Module) else []
    try:
        if any(training for _, training in modes):
            model.eval()
        return _run(model, example)
    finally:
        for m, training in modes:
            m.training = training


def _run(function: Callable[..., Any], example: Any) -> tuple[Trace, dict[int, str], list[str] | None]:
    arguments = example if isinstance(example, tuple) else (example,)
    with no_grad():
        arguments = tuple(_plain(a) for a in arguments)
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        outputs: list[Any] = []
        with Tracing(function) as tracing:
            outputs = list(tensors_in(function(*arguments)))
            trace = tracing.finish(tensors, outputs)
    if not outputs:
        raise TraceError("the function returns no tensor: there is nothing to export")
    if trace is None:
        trace = _views(tensors, outputs)
    return trace, tensor_names(trace, tracing.guards)[0], _parameters(function, arguments)


def _views(inputs: list[Any], outputs: list[Any]) -> Trace:
    """The trace of a function without ops, which returns views of its arguments."""
    buffers = {id(t.storage): k for k, t in enumerate(inputs)}
    if any(id(t.storage) not in buffers for t in outputs):
        raise TraceError("the function computes nothing from its arguments: there is nothing to export")
    program = Program(device=inputs[0].storage.device.name, buffers=(), instructions=(),
                      inputs=tuple(Operand(k, t.spec) for k, t in enumerate(inputs)),
                      outputs=tuple(Operand(buffers[id(t.storage)], t.spec) for t in outputs))
    return Trace(program, [], {}, {}, [], {}, [])


def _plain(a: Any) -> Any:
    """An argument as a contiguous tensor with its own storage."""
    if isinstance(a, Tensor):
        return a.detach().clone().contiguous()  # type: ignore[attr-defined]
    return functional.tensor(a) if isinstance(a, (np.ndarray, np.generic)) else a


def _parameters(function: Any, arguments: tuple[Any, ...]) -> list[str] | None:
    try:
        names = list(inspect.signature(getattr(function, "forward", function)).parameters.values())
    except (TypeError, ValueError):
        return None
    if len(names) < len(arguments) or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                                          for p in names[:len(arguments)]):
        return None
    return [p.name for p, a in zip(names, arguments, strict=False) if isinstance(a, Tensor)]
