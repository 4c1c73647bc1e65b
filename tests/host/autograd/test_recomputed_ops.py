"""Every op that says how its output is recomputed, over its sample calls: gradients have the bits of those of kept outputs."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore.nn import functional
from gradcore.ops import all_ops
from tests.rows import ROWS, Row, parts, tensors_of

#: But for a conversion to integers, which have no gradient.
AGAIN = [row for row in ROWS if row.declared.again is not None and row.wanted() and str(row) != "cast-to int"]


def outputs(row: Row) -> tuple[list[Any], list[Any]]:
    """What requires grad, and what the op makes of tensors that are recomputed; a product, of one and a constant."""
    gradcore.manual_seed(0)
    leaves = tensors_of(row, grads=True)
    for x in leaves[1:] if row.declared.flops is not None else ():
        x.requires_grad_(False)
    found = parts(row.call([functional.silu(x) if x.requires_grad else x for x in leaves]))
    return [x for x in leaves if x.requires_grad], [y for y in found if y.requires_grad]


@pytest.mark.parametrize("row", AGAIN, ids=str)
def test_gradients_have_the_bits_of_those_of_kept_outputs(row: Row) -> None:
    found = []
    for again in (True, False):
        with gradcore.recompute(again):
            leaves, made = outputs(row)
            loss = sum((y * y).sum() for y in made)
        slopes = gradcore.autograd.grad(loss, leaves, create_graph=True)
        second = gradcore.autograd.grad(sum((g * g).sum() for g in slopes), leaves, allow_unused=True)
        found.append([None if g is None else g.detach().numpy().tobytes() for g in (*slopes, *second)])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", sorted(name for name, op in all_ops().items() if op.again is not None))
def test_its_output_is_recomputed_somewhere(name: str) -> None:
    assert any(y.grad_fn.recipe is not None for row in AGAIN if row.op == name for y in outputs(row)[1])
