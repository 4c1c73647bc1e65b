"""``python -m bench.agreement``: what it measures and prints, and that it covers every table of sample calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from bench import agreement
from gradcore.devices.host.device import HOST_KERNELS
from tests.forms import all_forms
from tests.rows import ROWS

pytestmark = pytest.mark.oracle


def test_every_table_of_calls_is_a_family(torch: Any) -> None:
    named = {p.stem for p in Path(__file__).parents[2].glob("*.py") if p.stem.startswith(("rows_", "forms_"))}
    # CUDA kernels, large operands, and updates, whose reference is a formula in NumPy.
    assert named - {"rows_cuda", "rows_big", "rows_optimizers"} == set(agreement.FAMILIES) - {"optimizers"}
    calls = [c for f in agreement.FAMILIES if f != "optimizers" for c in agreement.calls_of(f)]
    assert len(calls) == len([r for r in ROWS if r.torch is not None]) + len(all_forms())


@pytest.mark.parametrize(("ours", "theirs", "expected"), [
    ([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.5], [1.0, 2.0], 0.25), ([np.nan, np.inf, 4.0], [np.nan, np.inf, 4.0], 0.0),
    ([np.nan, 1.0], [1.0, 1.0], np.inf), ([np.inf, 1.0], [-np.inf, 1.0], np.inf), ([1e-9], [0.0], 1e-9), ([], [], 0.0),
    ([1.0], [1.0, 1.0], np.inf), ([True], [False], 1.0)])
def test_an_error_is_relative_to_the_largest(ours: Any, theirs: Any, expected: float, torch: Any) -> None:
    assert agreement.error_of(gradcore.tensor(ours), torch.tensor(theirs)) == pytest.approx(expected)


def test_the_table_of_a_family(torch: Any) -> None:
    lines: list[str] = []
    agreement.table(torch, ["rows_losses", "optimizers"], 2, lines.append)
    assert len(lines) == 7 and lines[1].startswith("rows_losses") and lines[4].startswith("optimizers")
    for line in (lines[1], lines[4]):
        count, *errors = line.split()[1:]
        # PyTorch's NAdam keeps a product in float32, whatever the dtype of the parameters.
        assert int(count) >= 8 and float(errors[0]) < 2e-5 and float(errors[2]) < 1e-9


def test_a_planted_error_shows(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call = next(c for c in agreement.calls_of("rows_pointwise") if c.op == "exp2")
    assert agreement.compare(torch, call, np.float32).values < 1e-6
    device = gradcore.device("cpu")
    monkeypatch.setitem(device.kernels, "exp2", lambda x, out: np.multiply(HOST_KERNELS["exp2"](x), 1.001, out))
    device.calls.clear()
    try:
        assert agreement.compare(torch, call, np.float32).values == pytest.approx(1e-3, rel=1e-2)
    finally:
        device.calls.clear()
