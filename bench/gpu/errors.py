"""Errors of float32 results, relative to those of the same call in float64 on the CPU, beside the errors of NumPy's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting
from tests.rows import ROWS, Row, parts

#: Other values than those of the tests.
_SEED = 12345
#: A device's error is a problem if it is that many times NumPy's, and larger than this.
_TIMES, _LEAST = 10, 1e-5
_SHOWN = 20


def errors(setting: Setting) -> Outcome:
    """Every sample call of every op with a gradient in float32, on the device, on the CPU, and in float64 on the CPU.

    An op's errors are its largest ones: the largest difference, divided by the largest magnitude in float64.
    """
    outcome = Outcome()
    found: dict[str, tuple[float, float]] = {}
    rows = [row for row in ROWS if row.declared.differentiable and row.wanted()]
    with gradcore.no_grad():
        for k, row in enumerate(rows[::20] if setting.rehearsal else rows):
            if k % 100 == 99:
                _sum_up(outcome, found)
                setting.keep(outcome)
            try:
                values = row.values(np.float32, _SEED)
                exact = _results(row, [_widened(a) for a in values], "cpu")
                ours, numpys = (max(map(_error, _results(row, values, device), exact), default=0.0)
                                for device in (setting.device, "cpu"))
            except Exception as error:
                outcome.problems.append(f"{row}: {type(error).__name__}: {str(error)[:300]}")
                continue
            most, beside = found.get(row.op, (0.0, 0.0))
            found[row.op] = max(most, ours), max(beside, numpys)
            if not ours <= max(_TIMES * numpys, _LEAST):
                outcome.problems.append(f"{row}: an error of {ours:.1e}, NumPy's {numpys:.1e}")
    _sum_up(outcome, found)
    return outcome


def _sum_up(outcome: Outcome, found: dict[str, tuple[float, float]]) -> None:
    outcome.figures = {op: {"error": ours, "NumPy's": numpys} for op, (ours, numpys) in found.items()}
    ranked = sorted(found.items(), key=lambda entry: -entry[1][0] / max(entry[1][1], 1e-8))
    outcome.table = [["op", "error", "NumPy's", "ratio"], *(
        [op, f"{ours:.1e}", f"{numpys:.1e}", f"{ours / max(numpys, 1e-8):.1f}"] for op, (ours, numpys) in ranked[:_SHOWN])]
    larger = sum(ours > 2 * max(numpys, 6e-8) for ours, numpys in found.values())
    outcome.summary = f"{len(found)} ops; the largest error of {larger} is more than twice NumPy's"


def _widened(values: Any) -> Any:
    return values.astype(np.float64) if values.dtype == np.float32 else values


def _results(row: Row, values: list[Any], device: str) -> list[Any]:
    """A call's results in floating point, on the host."""
    made = row.call([gradcore.tensor(a, device=device) for a in values])
    arrays = [part.cpu().numpy() for part in parts(made)]
    return [a for a in arrays if a.dtype.kind == "f"]


def _error(found: Any, exact: Any) -> float:
    found, exact = found.astype(np.float64), exact.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.where((found == exact) | (np.isnan(found) & np.isnan(exact)), 0.0, found - exact))
    top = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
    return float(apart.max(initial=0.0) / (top or 1.0))
