"""Names in a file that is exported: of inputs, results and captured tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises
from tests.host.graph_mode.test_onnx import INSTALL, MISSING, agrees, ran

pytestmark = pytest.mark.skipif(MISSING, reason=INSTALL)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, tokens: Any, mask: Any, factor: Any = None) -> Any:
        found = gradcore.where(mask, self.table(tokens).sum(dim=-1), -1.0)
        return found * factor, found.argmax(dim=1), {"half": found.to(gradcore.float16), "some": (found > 0).any(dim=0)}


def test_names_and_dtypes() -> None:
    example = (gradcore.tensor([[1, 2, 3], [4, 5, 6]]), gradcore.tensor([[True, False, True]] * 2), 2.5)
    proto = agrees_dict(Two(), example, output_names=["scaled", "best", "half", "some"])
    assert [i.name for i in proto.graph.input] == ["tokens", "mask"]
    assert [o.name for o in proto.graph.output] == ["scaled", "best", "half", "some"]
    assert "table.weight" in [i.name for i in proto.graph.initializer]
    assert any("test_onnx_names.py:" in n.doc_string for n in proto.graph.node)
    with raises(ValueError, "expected 4 different names of outputs"):
        gradcore.onnx.export(Two(), example, None, output_names=["a"])
    with raises(ValueError, "expected 2 different names of inputs"):
        gradcore.onnx.export(Two(), example, None, input_names=["a", "a"])


@pytest.mark.parametrize("function, given, names", [
    (lambda x, y: x + y, ["a", "b"], ["a", "b"]), (lambda x, y, k=2.0: x + y * k, None, ["x", "y"]),
    (lambda x, *y: x + y[0], None, ["input_0", "input_1"])])
def test_names_of_inputs(function: Any, given: Any, names: Any) -> None:
    x = np.ones((2, 3), np.float32)
    proto = agrees(function, (x, gradcore.randn(2, 3)), input_names=given)
    assert [i.name for i in proto.graph.input] == names


def agrees_dict(model: Any, example: Any, **options: Any) -> Any:
    """As :func:`agrees`, for a model whose results include a dict."""
    def flat(*given: Any) -> Any:
        first, second, rest = model(*given)
        return first, second, *rest.values()

    proto, found = ran(model, example, **options)
    with gradcore.no_grad():
        for ours, theirs in zip(flat(*example), found, strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-6)
    return proto
