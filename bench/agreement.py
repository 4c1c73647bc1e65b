"""Differences from PyTorch's results, by family of ops: ``python -m bench.agreement [--families losses order] [--worst 3]``.

Every sample call of the tests is run by both libraries, in float32 and float64, with values and, if there are any, gradients.
The error of a tensor is the largest difference divided by the largest magnitude in PyTorch's; equal infinities, and NaN in
both, do not differ. The worst error of each family is printed, with its call.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.timing import one_thread

one_thread()

import numpy as np  # noqa: E402

import gradcore  # noqa: E402
from tests.forms import Form  # noqa: E402
from tests.rows import Row, parts  # noqa: E402

#: Modules of tests/ with sample calls: of ops (rows), and of public functions and methods (forms).
FAMILIES = ("rows_elementwise", "rows_pointwise", "rows_shapes", "rows_order", "rows_linalg", "rows_networks", "rows_images",
            "rows_attention", "rows_losses", "rows_recurrent", "rows_factors", "rows_sampling", "forms_pointwise",
            "forms_composed", "forms_shapes", "forms_special", "forms_folds", "forms_gathered", "forms_products",
            "forms_factors", "forms_networks", "forms_layers", "optimizers")
#: Names and options of optimizers that both libraries have; each takes twenty steps.
OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGD", {"momentum": 0.9, "nesterov": True}), ("Adam", {}), ("AdamW", {"weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.5}), ("Adagrad", {}), ("Adadelta", {}), ("NAdam", {}), ("RAdam", {}),
    ("Adamax", {}), ("Rprop", {}), ("ASGD", {"t0": 5}))


@dataclass(frozen=True)
class Compared:
    """One call in one dtype: the worst error of its results and of its gradients, None without gradients."""

    name: str
    dtype: str
    values: float
    gradients: float | None


def error_of(ours: Any, theirs: Any) -> float:
    """The largest difference divided by the largest magnitude in PyTorch's result; infinite for another shape."""
    a, b = (np.asarray(t.detach() if hasattr(t, "detach") else t) for t in (ours, theirs))
    if a.shape != b.shape:
        return float("inf")
    if not b.size:
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    off = np.abs(np.where(same, 0, a - b))
    if not np.isfinite(off).all():
        return float("inf")
    top = np.abs(b[np.isfinite(b)]).max(initial=0)
    return float(off.max() / top) if top else float(off.max())


def compare(torch: Any, call: Row | Form, dtype: Any) -> Compared:
    """Run the call in both libraries, on the same values."""
    worst = max(map(error_of, *_made(torch, call, dtype, [])[2:]), default=0.0)
    ours, theirs, mine, there = _made(torch, call, dtype, call.wanted())
    roots = [(a, b) for a, b in zip(mine, there, strict=True) if getattr(b, "requires_grad", False) and a.requires_grad]
    if not roots:
        return Compared(str(call), np.dtype(dtype).name, worst, None)
    rng = np.random.default_rng(1)
    seeds = [rng.uniform(-1, 1, tuple(a.shape)).astype(np.asarray(a.detach()).dtype) for a, _ in roots]
    torch.autograd.backward([b for _, b in roots], [torch.from_numpy(s) for s in seeds])
    gradcore.autograd.backward([a for a, _ in roots], [gradcore.tensor(s) for s in seeds])
    pairs = [(x.grad, y.grad) for x, y in zip(ours, theirs, strict=True) if x.grad is not None and y.grad is not None]
    return Compared(str(call), np.dtype(dtype).name, worst, max((error_of(a, b) for a, b in pairs), default=None))


def _made(torch: Any, call: Row | Form, dtype: Any, wanted: list[int]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """The operands in both libraries, with gradients for those ``wanted``, and the results."""
    values = call.values(dtype)
    ours = [gradcore.tensor(v, requires_grad=k in wanted) for k, v in enumerate(values)]
    theirs = [torch.tensor(v, requires_grad=k in wanted) for k, v in enumerate(values)]
    if isinstance(call, Row):
        return ours, theirs, parts(call.call(ours)), parts(call.expected(torch, theirs))
    return ours, theirs, call.made(gradcore, ours), call.made(torch, theirs)


def optimized(torch: Any, dtype: Any) -> list[Compared]:
    """Compare the parameters after twenty steps of each optimizer."""
    found = []
    for name, options in OPTIMIZERS:
        ends = []
        for library in (gradcore, torch):
            rng = np.random.default_rng(0)
            x, target = (library.tensor(rng.normal(size=(8, 8)).astype(dtype)) for _ in range(2))
            w = library.tensor(rng.normal(size=(8, 8)).astype(dtype), requires_grad=True)
            optimizer = getattr(library.optim, name)([w], lr=0.01, **options)
            for _ in range(20):
                optimizer.zero_grad()
                ((x @ w - target) ** 2).mean().backward()
                optimizer.step()
            ends.append(w)
        found.append(Compared(name, np.dtype(dtype).name, error_of(*ends), None))
    return found


def calls_of(family: str) -> list[Row | Form]:
    """The sample calls of a module of tests/ that have a reference in PyTorch."""
    module = importlib.import_module(f"tests.{family}")
    return [r for r in module.ROWS if r.torch is not None] if family.startswith("rows") else list(module.FORMS)


def table(torch: Any, families: Iterable[str], worst: int, show: Callable[[str], None]) -> None:
    show(f"{'family':18} {'calls':>6}  {'float32 values':>14}  {'gradients':>9}  {'float64 values':>14}  {'gradients':>9}")
    for family in families:
        found = [c for dtype in (np.float32, np.float64) for c in (
            optimized(torch, dtype) if family == "optimizers" else [compare(torch, call, dtype) for call in calls_of(family)])]
        cells = [max((x for c in found if c.dtype == dtype for x in [read(c)] if x is not None), default=0.0)
                 for dtype in ("float32", "float64") for read in (lambda c: c.values, lambda c: c.gradients)]
        show(f"{family:18} {len(found) // 2:6}  {cells[0]:14.1e}  {cells[1]:9.1e}  {cells[2]:14.1e}  {cells[3]:9.1e}")
        ranked = sorted((c for c in found if c.dtype == "float32"), key=lambda c: -max(c.values, c.gradients or 0))
        for c in ranked[:worst]:
            show(f"    {max(c.values, c.gradients or 0):.1e}  {c.name}")


def main() -> None:
    import warnings

    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="FAMILY")
    parser.add_argument("--worst", type=int, default=1, help="calls to name in each family")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table(torch, options.families, options.worst, print)


if __name__ == "__main__":
    main()
