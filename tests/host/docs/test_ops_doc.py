"""docs/ops.md matches the op table and the tables of sample calls; GRADCORE_WRITE_README=1 writes it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from gradcore.ops import all_ops
from tests.forms import all_forms
from tests.rows import ROWS

PAGE = Path(__file__).parents[3] / "docs" / "ops.md"


def _functions() -> list[str]:
    """A line for each function and method: how many of its calls are compared, and how many in place."""
    found: dict[str, Counter[bool]] = {}
    for form in all_forms():
        name = form.function.removeprefix("Tensor.")
        in_place = name.endswith("_") and form.function != name
        found.setdefault(name.rstrip("_") if in_place else name, Counter())[in_place] += 1
    return [f"| `{name.replace('|', 'or')}` | {counts[False] or ''} | {counts[True] or ''} |"
            for name, counts in sorted(found.items(), key=lambda item: item[0].lower())]


def _ops() -> list[str]:
    """A line for each op: what each input's gradient keeps, and how many sample calls are compared."""
    compared = Counter(r.op for r in ROWS if r.torch is not None)
    alone = Counter(r.op for r in ROWS if r.torch is None)
    lines = []
    for name, op in sorted(all_ops().items()):
        keeps = "; ".join(f"{i}: {' '.join(kept) or 'nothing'}" for i, kept in op.keeps().items())
        lines.append(f"| `{name}` | {keeps or 'no gradient'} | {compared[name] or ''} | {alone[name] or ''} |")
    return lines


def page() -> str:
    ops, forms = all_ops(), all_forms()
    calls = [r for r in ROWS if r.torch is not None]
    head = f"""# Ops and functions

Written by tests/host/docs/test_ops_doc.py (with GRADCORE_WRITE_README=1) from the op table and the tests' sample calls.

{len(ops)} ops, of which {sum(bool(o.differentiable) for o in ops.values())} are differentiable. {len(calls):,} sample calls \
of ops are compared with PyTorch in float32,
values and gradients, with contiguous, transposed, sliced, expanded, empty, 0-d and size-1 operands. In float64 their first and
second gradients are compared with finite differences. {len(forms):,} calls of functions, methods and operators, in the forms in
which users write them, are compared with PyTorch in float32 and float64, values and gradients.

## What is slow or missing

- `nonzero`, `masked_select`, `unique`, `unique_consecutive`, `bincount`, `where(condition)`, boolean indices,
  `repeat_interleave` by a tensor and `one_hot` without `num_classes` read values on the host, since the shape of their result
  depends on them. The meta device raises an error for them. `x[mask] = number` reads none.
- On the GPU, a sort of n > 2048 elements takes about (log2(n) - 10)^2 / 2 launches; systems of equations, determinants,
  eigenvalues, singular values and QR use one block per matrix. Sums at repeated positions have the same bits in every run:
  there are no atomics, and many positions are sorted first.
- On the CPU, the recurrence in the gradients of `prod` and `cumprod` is a Python loop over the dimension.
- The second derivative of attention stores the scores; that of a recurrent layer takes 12 (RNN) to 88 (LSTM) launches per step.
- Along packed sequences a recurrent layer has a run of its own for every number of sequences that steps have, so many different
  lengths make many short runs.
- `cumsum_`, `cumprod_`, `tril_` and `triu_` allocate their result, and then copy it over the tensor.
- `searchsorted`, `bucketize`, `isin`, `logcumsumexp` and `scatter_reduce` by `prod` take about log2(n) steps for n elements.
- The gradient of `det` solves a system with the matrix, so it raises an error for a singular matrix.
- Not implemented: eigenvalues of matrices that are not symmetric, complex numbers.

## Functions, methods and operators: calls compared with PyTorch

| name | calls | in place |
|---|---|---|
"""
    middle = """

## Ops: what is kept for each input's gradient, and calls compared

| op | keeps for backward | with PyTorch | with a formula in NumPy |
|---|---|---|---|
"""
    return head + "\n".join(_functions()) + middle + "\n".join(_ops()) + "\n"


def test_the_page_says_what_the_tables_say() -> None:
    if os.environ.get("GRADCORE_WRITE_README") == "1":
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "GRADCORE_WRITE_README=1 pytest tests/host/docs/test_ops_doc.py regenerates it"
