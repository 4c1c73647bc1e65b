"""Modules made without initial values, and batch norms that lose their running statistics. As in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore


def skipped(library: Any) -> list[Any]:
    made = library.nn.utils.skip_init(library.nn.Linear, 2, out_features=3, dtype=library.float64)
    meta = library.nn.utils.skip_init(library.nn.BatchNorm1d, 2, device="meta")
    found: list[Any] = [type(made) is library.nn.Linear, tuple(made.weight.shape), made.weight.dtype == library.float64,
                        made.weight.requires_grad, made.weight.device.type, meta.running_mean.device.type]
    for wrong in (library.nn.Dropout, library.ones):
        with pytest.raises((RuntimeError, TypeError)):
            library.nn.utils.skip_init(wrong)
    return found


def without_statistics(library: Any) -> list[Any]:
    model = library.nn.Sequential(library.nn.Linear(2, 2), library.nn.BatchNorm1d(2), library.nn.GroupNorm(1, 2))
    same = library.func.replace_all_batch_norm_modules_(model) is model
    model.eval()
    mean = model[:2](library.arange(6.0).reshape(3, 2)).mean(0)
    return [same, list(model.state_dict()), model[1].track_running_stats, library.round(mean, decimals=3).abs().tolist()]


@pytest.mark.parametrize(("program", "outcome"), [
    (skipped, [True, (3, 2), True, True, "cpu", "meta"]),
    (without_statistics, [True, ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"], False, [0, 0]])])
def test_modules_made_otherwise(program: Any, outcome: list[Any]) -> None:
    assert program(gradcore) == outcome


@pytest.mark.oracle
@pytest.mark.parametrize("program", [skipped, without_statistics])
def test_modules_made_otherwise_are_pytorchs(torch: Any, program: Any) -> None:
    assert program(gradcore) == program(torch)
