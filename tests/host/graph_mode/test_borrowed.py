"""Memory of another library, of which a log counts no bytes: programs read all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import checkpoint

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def loaded(path: Path, function: Any, *args: Any) -> Any:
    compiled = gradcore.compile(function)
    compiled(*args)
    compiled.save(path / "program")
    return gradcore.load_program(path / "program")


@pytest.mark.parametrize("array", [VALUES * 2, np.asfortranarray(VALUES), np.tile(VALUES, (3, 3))[1::3, 1::3], VALUES[::1, 1:]])
def test_a_captured_array_is_saved(array: Any, tmp_path: Path) -> None:
    w = gradcore.from_numpy(array)
    program = loaded(tmp_path, lambda x: x * w + 1.0, gradcore.ones(3, array.shape[1]))
    np.testing.assert_array_equal(program(np.ones_like(array)).numpy(), array + 1)


def test_an_argument_may_be_an_array(tmp_path: Path) -> None:
    program = loaded(tmp_path, lambda x: x * 2.0, gradcore.from_numpy(VALUES))
    np.testing.assert_array_equal(program(VALUES + 1).numpy(), VALUES * 2 + 2)


def test_a_saved_program_writes_to_an_array(tmp_path: Path) -> None:
    array = VALUES.copy()
    loaded(tmp_path, lambda x: x.mul_(2.0).sum(), gradcore.ones(3, 4))(gradcore.from_numpy(array))
    np.testing.assert_array_equal(array, VALUES * 2)


def test_a_saved_program_adds_to_a_gradient_in_an_array(tmp_path: Path) -> None:
    p = nn.Parameter(gradcore.ones(4))
    p.grad = gradcore.zeros(4)
    program = loaded(tmp_path, lambda x: (x * p).sum().backward(), gradcore.ones(4))
    p = program.state["p"]
    p.grad = gradcore.from_numpy(VALUES[0].copy())
    program.run(np.ones(4, np.float32))
    assert p.grad.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_graph_follows_a_tensor_into_an_array() -> None:
    p = gradcore.ones(3)
    graph = gradcore.trace(lambda x: x * p, gradcore.ones(3))
    graph.execute(gradcore.ones(3))
    p.data = gradcore.from_numpy(np.full(3, 5, np.float32))
    assert graph.execute(gradcore.ones(3)).tolist() == [5.0] * 3


def test_what_a_traced_backward_writes_to_an_array_is_undone() -> None:
    means = []
    for mean in (gradcore.zeros(4), gradcore.from_numpy(np.zeros(4, np.float32))):
        norm = nn.BatchNorm1d(4)
        norm.running_mean = mean
        f = gradcore.compile(lambda x, norm=norm: checkpoint(norm, x, use_reentrant=False))
        f(gradcore.tensor(VALUES, requires_grad=True))
        means.append(norm.running_mean.tolist())
    assert means[0] == means[1]
