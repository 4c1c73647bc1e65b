"""Every op over the table of sample calls: values, gradients, second gradients, and meta's log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.autograd import gradcheck, gradgradcheck
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import make_meta
from gradcore.ops import all_ops
from tests.logs import normalized
from tests.rows import ROWS, Row, parts, tensors_of


def rows(*, wanted: bool | None = None, torch: bool = False, numpy: bool = False) -> Any:
    chosen = [r for r in ROWS if (wanted is None or bool(r.wanted()) == wanted)
              and (r.torch is not None or not torch) and (r.numpy is not None or not numpy)]
    return pytest.mark.parametrize("row", chosen, ids=str)


def array(x: Any) -> Any:
    return np.asarray(x.detach())


def test_every_op_has_rows() -> None:
    assert {r.op for r in ROWS} == set(all_ops())
    names = [str(r) for r in ROWS]
    assert len(names) == len(set(names))


def test_every_op_has_a_reference() -> None:
    assert [str(r) for r in ROWS if r.torch is None and r.numpy is None] == []


@pytest.mark.oracle
@rows(torch=True)
def test_values_are_torchs(row: Row, torch: Any) -> None:
    ours = parts(row.call(tensors_of(row)))
    theirs = parts(row.expected(torch, [torch.from_numpy(v) for v in row.values()]))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert array(a).dtype == b.detach().numpy().dtype
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(array(a), b.detach().numpy(), row.tolerance, row.tolerance)


@rows(numpy=True)
def test_values_are_the_formulas(row: Row) -> None:
    ours = parts(row.call(tensors_of(row)))
    theirs = row.formula(row.values())
    if row.op == "empty":
        assert tuple(ours[0].shape) == theirs
        return
    for a, b in zip(ours, parts(theirs), strict=True):
        assert array(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(array(a), b, row.tolerance, row.tolerance)


def cotangents(outputs: list[Any]) -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-1, 1, tuple(y.shape)).astype(np.dtype(str(y.dtype).removeprefix("torch."))) for y in outputs]


@pytest.mark.oracle
@rows(torch=True, wanted=True)
def test_gradients_are_torchs(row: Row, torch: Any) -> None:
    inputs = tensors_of(row, grads=True)
    outputs = [y for y in parts(row.call(inputs)) if y.requires_grad]
    seeds = cotangents(outputs)
    gradcore.autograd.backward(outputs, [gradcore.tensor(s) for s in seeds])

    theirs = [torch.from_numpy(v).requires_grad_(k in row.wanted()) for k, v in enumerate(row.values())]
    expected = [y for y in parts(row.expected(torch, theirs)) if y.requires_grad]
    if not expected:
        # torch has no graph (ceil of it is a constant); ours is zero then.
        assert all(not array(inputs[k].grad).any() for k in row.wanted() if inputs[k].grad is not None)
        return
    torch.autograd.backward(expected, [torch.from_numpy(s) for s in seeds])
    for k in row.wanted():
        ours, there = inputs[k].grad, theirs[k].grad
        if there is None:
            assert ours is None or not array(ours).any()
        else:
            assert ours is not None and array(ours).dtype == there.numpy().dtype
            np.testing.assert_allclose(array(ours), there.numpy(), row.tolerance, row.tolerance)


def doubles(row: Row) -> list[Any]:
    return tensors_of(row, dtype=np.float64, grads=True)


def low_precision(row: Row) -> bool:
    """Does a cast lose what finite differences need?"""
    return row.op == "cast" and row.attrs["dtype"] != np.float64


CHECKED = [r for r in ROWS if r.wanted() and r.smooth and not low_precision(r)]
#: For larger operands, derivatives along random directions are compared instead of each entry of the Jacobian.
FEW = 12


def large(row: Row) -> bool:
    return sum(v.size for v in row.values()) > FEW


def differentiable(row: Row) -> Any:
    return lambda *xs: [y for y in parts(row.call(list(xs))) if y.requires_grad]


@pytest.mark.parametrize("row", CHECKED, ids=str)
def test_gradients_are_finite_differences(row: Row) -> None:
    assert gradcheck(differentiable(row), doubles(row), fast_mode=large(row))


@pytest.mark.parametrize("row", CHECKED, ids=str)
def test_second_gradients_are_finite_differences(row: Row) -> None:
    assert gradgradcheck(differentiable(row), doubles(row), atol=1e-4, fast_mode=large(row))


#: Why an op with a gradient has no sample whose second gradient is compared with finite differences.
UNCHECKED = {
    "cholesky": "reads one triangle of a symmetric matrix: compared as the function of a product of a matrix with itself",
    "eigh": "reads one triangle of a symmetric matrix: compared as the function of a matrix and its transpose",
    **dict.fromkeys(("ctc_loss", "ctc_loss_grad"), "the gradient has none of its own; it is compared with PyTorch's"),
    **dict.fromkeys(("standard_gamma", "standard_gamma_slope", "gammainc", "gammaincc"),
                    "the derivative by a concentration has none of its own"),
    "write_part": "a view that the engine makes of what was written; in-place writes to views are compared with PyTorch",
    **dict.fromkeys(("bitwise_and_", "bitwise_left_shift_", "bitwise_not_", "bitwise_or_", "bitwise_right_shift_",
                     "bitwise_xor_"), "integers")}


def test_every_gradient_can_be_differentiated() -> None:
    """A new op with a gradient is included in the check of second gradients, or listed here with a reason."""
    checked = {r.op for r in CHECKED if all(v.size for v in r.values())}
    assert {name for name, op in all_ops().items() if op.differentiable} - checked == set(UNCHECKED)


def record(row: Row, device: Any) -> tuple[list[Any], Any]:
    """The log of one forward and backward run on a separate device, and the specs of the results."""
    log = device.ledger.begin_log()
    inputs = tensors_of(row, device, grads=True)
    attrs = {} if inputs else {"device": device}
    outputs = parts(row.call(inputs) if inputs else row.declared(*row.args, **row.attrs, **attrs))
    specs = [y.spec for y in outputs]
    roots = [y for y in outputs if y.requires_grad]
    if roots:
        seeds = [gradcore.ones(tuple(y.shape), dtype=y.dtype, device=device) for y in roots]
        gradcore.autograd.backward(roots, seeds)
        specs += [inputs[k].grad.spec for k in row.wanted() if inputs[k].grad is not None]
    del inputs, outputs, roots
    device.ledger.end_log()
    return normalized(log), specs


@rows()
def test_meta_writes_the_same_log(row: Row) -> None:
    logs = [record(row, device) for device in (make_host(), make_meta())]
    assert logs[0][1] == logs[1][1]
    for ours, theirs in zip(logs[0][0], logs[1][0], strict=True):
        assert ours == theirs
