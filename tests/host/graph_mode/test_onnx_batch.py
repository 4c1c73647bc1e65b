"""Batch sizes that are left open: what two sizes in a row have in common, others may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import ExportError
from tests.conftest import raises
from tests.host.graph_mode.test_onnx import INSTALL, MISSING

pytestmark = pytest.mark.skipif(MISSING, reason=INSTALL)


@pytest.mark.parametrize("function", [
    lambda x: x.chunk(2, 0)[0] * 2.0, lambda x: x * max(x.shape[0], 4), lambda x: x[:(x.shape[0] + 1) // 2].sum()])
def test_sizes_that_are_rounded(function: Any) -> None:
    with raises(ExportError, "dynamic_batch", "depend on the batch size"):
        gradcore.onnx.export(function, gradcore.randn(3, 4), None, dynamic_batch=True)


def test_other_ops_for_another_size() -> None:
    with raises(ExportError, "runs different ops for another batch size"):
        gradcore.onnx.export(lambda x: x + 1.0 if x.shape[0] % 2 else x * 2.0, gradcore.randn(3, 4), None, dynamic_batch=True)


def test_a_dimension_beside_the_batch_is_expanded() -> None:
    import onnxruntime

    def repeated(x: Any) -> Any:
        return x[:, None].expand(-1, 5, -1) * 2.0

    proto = gradcore.onnx.export(repeated, gradcore.randn(3, 4), None, dynamic_batch=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = gradcore.randn(7, 4)
    assert session.run(None, {proto.graph.input[0].name: x.numpy()})[0].tolist() == repeated(x).tolist()


def test_one_row_that_is_repeated_for_each_sample_stays_refused() -> None:
    """An Expand with 1 in the place of the batch would keep the one row."""
    row = gradcore.ones(1, 2, 4)
    with raises(ExportError, "the values of Expand", "depend on the batch size"):
        gradcore.onnx.export(lambda x: x @ row.expand(x.shape[0], -1, -1).transpose(1, 2), gradcore.randn(3, 2, 4), None,
                             dynamic_batch=True)


def test_a_node_without_an_op_is_named_alone() -> None:
    with raises(ExportError, "the values of Slice depend"):
        gradcore.onnx.export(lambda x: x[-1], gradcore.randn(3, 4), None, dynamic_batch=True)


def test_a_captured_tensor_for_each_size() -> None:
    tables = {n: gradcore.randn(n, 4) for n in range(1, 9)}
    with raises(ExportError, "has different inputs for another batch size"):
        gradcore.onnx.export(lambda x: x + tables[x.shape[0]], gradcore.randn(3, 4), None, dynamic_batch=True)


def test_names_of_open_dimensions() -> None:
    def parts(x: Any, y: Any) -> Any:
        return x * y, (x[:, None] * x[None]).reshape(-1, 4), x.reshape(-1), y.T.reshape(-1)

    proto = gradcore.onnx.export(parts, (gradcore.randn(2, 4), gradcore.randn(2, 4)), None, dynamic_batch=True)
    values = [*proto.graph.input, *proto.graph.output]
    names = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]
    # Dimensions of one name are equal.
    assert names == [["batch", 4]] * 3 + [["batch_1", 4], ["batch_2"], ["batch_2"]]


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_whose_states_begin_with_zeros(kind: Any) -> None:
    """The zeros had the batch size; ONNX has them by default."""
    import onnxruntime

    layer = kind(5, 3, 2, batch_first=True, bidirectional=True)

    def steps(x: Any) -> Any:
        out, last = layer(x)
        return out[:, -1], last[0], (last[0] if isinstance(last, tuple) else last)[-1]

    proto = gradcore.onnx.export(steps, gradcore.randn(2, 4, 5), None, dynamic_batch=True)
    assert {node.op_type for node in proto.graph.node}.isdisjoint({"Expand"})
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for n in (1, 7):
        x = gradcore.randn(n, 4, 5)
        for found, expected in zip(session.run(None, {proto.graph.input[0].name: x.numpy()}), steps(x), strict=True):
            np.testing.assert_allclose(found, expected.detach().numpy(), 1e-5, 1e-6)
