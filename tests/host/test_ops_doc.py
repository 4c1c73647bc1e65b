"""docs/ops.md is what the op table and the tables of sample calls say; GRADCORE_WRITE_README=1 writes it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from gradcore.ops import all_ops
from tests.forms import all_forms
from tests.rows import ROWS

PAGE = Path(__file__).parent.parent.parent / "docs" / "ops.md"


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

Written by tests/host/test_ops_doc.py (with GRADCORE_WRITE_README=1) from the op table and the sample calls that the tests make.

{len(ops)} ops, {sum(bool(o.differentiable) for o in ops.values())} of them differentiable. {len(calls)} sample calls of ops \
are compared with PyTorch in
float32, values and gradients, over contiguous, transposed, sliced, expanded, empty, 0-d and size-1 operands; in float64 their
first and second gradients are compared with finite differences. {len(forms)} calls of functions, methods and operators, as
users write them, are compared with PyTorch in float32 and float64, values and gradients.

## What is slow, or not there

- `nonzero`, `masked_select`, `unique`, `unique_consecutive`, `where(condition)` and boolean indices read values on the host,
  since the shape of what they give depends on them: the meta device refuses them. `x[mask] = number` reads nothing.
- On the GPU a sort takes about log2(n)^2 / 2 launches, and a system of equations or a determinant one block a matrix. Writes
  at positions read all k positions for each element that may be written: no atomics, so that sums are the same in every run.
- On the CPU the recurrence behind the gradients of `prod` and `cumprod` is a loop over the dimension in Python.
- Attention's second derivative stores the scores, and that of a recurrent layer takes 12 (RNN) to 88 (LSTM) launches a step.
- `cumsum_`, `cumprod_`, `tril_` and `triu_` make their result before they write it over the tensor.
- `searchsorted`, `bucketize`, `isin`, `cummax`, `cummin` and `logcumsumexp` take about log2(n) steps over n elements.
- The gradient of `det` solves with the matrix, so that one without an inverse is an error there.
- Singular values, eigenvalues, QR, norms made of them, `scatter_reduce(reduce="prod")`, `out=` and complex numbers are not
  there.

## Functions, methods and operators: calls compared with PyTorch

| name | calls | in place |
|---|---|---|
"""
    middle = """

## Ops: what stays alive for each input's gradient, and calls compared

| op | keeps for backward | with PyTorch | with a formula in NumPy |
|---|---|---|---|
"""
    return head + "\n".join(_functions()) + middle + "\n".join(_ops()) + "\n"


def test_the_page_says_what_the_tables_say() -> None:
    if os.environ.get("GRADCORE_WRITE_README") == "1":
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "GRADCORE_WRITE_README=1 pytest tests/host/test_ops_doc.py writes it anew"
