"""Views: which bytes they share, the effect of writes, and how long the bytes live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import ModifiedInPlace, SpecError
from tests.conftest import raises

VIEWS: dict[str, Any] = {
    "slice": lambda x: x[1:], "select": lambda x: x[:, 1], "transpose": lambda x: x.t(), "view": lambda x: x.view(4, 3),
    "reshape": lambda x: x.reshape(2, 6), "flatten": lambda x: x.flatten(), "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1), "permute": lambda x: x.permute(1, 0), "narrow": lambda x: x.narrow(1, 1, 2),
    "expand": lambda x: x.unsqueeze(0).expand(2, 3, 4), "split": lambda x: x.split([1, 2])[1],
    "chunk": lambda x: x.chunk(2)[0], "unbind": lambda x: x.unbind(1)[2], "movedim": lambda x: x.movedim(0, 1),
    "detach": lambda x: x.detach(), "strided": lambda x: x[::2, ::3], "of a view": lambda x: x[1:][:, 1:].t(),
    "unflatten": lambda x: x.unflatten(1, (2, 2)), "mT": lambda x: x.mT, "ellipsis": lambda x: x[...]}


def numbers() -> np.ndarray[Any, Any]:
    return np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_takes_no_bytes(name: str) -> None:
    x = gradcore.tensor(numbers())
    allocated = gradcore.memory_allocated()
    view = VIEWS[name](x)
    assert gradcore.memory_allocated() == allocated and view.storage is x.storage
    assert x.data_ptr() <= view.data_ptr() < x.data_ptr() + x.nbytes


@pytest.mark.oracle
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_lies_as_torchs(name: str, torch: Any) -> None:
    ours, theirs = VIEWS[name](gradcore.tensor(numbers())), VIEWS[name](torch.from_numpy(numbers()))
    assert tuple(ours.shape) == tuple(theirs.shape)
    wide = [d for d, n in enumerate(theirs.shape) if n > 1]
    assert [ours.stride(d) for d in wide] == [theirs.stride(d) for d in wide]
    assert ours.storage_offset() == theirs.storage_offset() and ours.is_contiguous() == theirs.is_contiguous()
    np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_shows_on_both_sides(name: str) -> None:
    x = gradcore.tensor(numbers())
    view = VIEWS[name](x)
    x += 100
    np.testing.assert_array_equal(view.numpy(), VIEWS[name](gradcore.tensor(numbers() + 100)).numpy())
    assert view._version == x._version == 1
    if name != "expand":
        view.zero_()
        assert not view.numpy().any() and x._version == 2


def test_an_expanded_tensor_is_not_written_to() -> None:
    view = gradcore.ones(3, 1).expand(3, 4)
    for write in (lambda: view.add_(1), view.zero_, lambda: view.copy_(gradcore.ones(4))):
        with raises(SpecError, "more than one element of the written-to tensor refers to a single memory location"):
            write()
    assert view.tolist() == [[1.0] * 4] * 3


def test_bytes_stay_as_long_as_a_view_does() -> None:
    ledger = gradcore.device("cpu").ledger
    x = gradcore.tensor(numbers())
    serial = x.storage.serial
    view = x[1:, 2]
    del x
    noise = [gradcore.full((3, 4), -1.0) for _ in range(5)]
    assert serial in ledger.live and view.tolist() == [6.0, 10.0]
    del view, noise
    assert serial not in ledger.live


def test_an_array_keeps_the_bytes_and_shares_them() -> None:
    ledger = gradcore.device("cpu").ledger
    x = gradcore.tensor(numbers())
    serial = x.storage.serial
    array = x.t().numpy()
    x += 1
    del x
    noise = [gradcore.full((3, 4), -1.0) for _ in range(5)]
    assert serial in ledger.live
    np.testing.assert_array_equal(array, numbers().T + 1)
    part = array[1:]
    del array
    assert serial in ledger.live and part[0, 0] == 2.0
    del part, noise
    assert serial not in ledger.live


def test_what_a_node_keeps_is_not_reused() -> None:
    x = gradcore.tensor(numbers(), requires_grad=True)
    y = (x * 2)[1:]
    z = (y * y).sum()
    del y
    noise = [gradcore.full((3, 4), 9.0) for _ in range(10)]
    z.backward()
    expected = 8 * numbers()
    expected[0] = 0
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    del noise


def test_a_write_through_a_view_is_noticed() -> None:
    x = gradcore.tensor(numbers(), requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    with gradcore.no_grad():
        y[0].zero_()
    with raises(ModifiedInPlace, "modified by an inplace operation", "fill_"):
        z.backward()


def test_detached_bytes_are_the_same_bytes() -> None:
    x = gradcore.tensor(numbers(), requires_grad=True)
    y = (x * x).sum()
    x.detach().add_(1)
    with raises(ModifiedInPlace, "add_"):
        y.backward()


def test_reshape_copies_only_where_it_must() -> None:
    x = gradcore.tensor(numbers())
    assert x.reshape(12).storage is x.storage and x.reshape(3, 4) is x
    assert x.t().reshape(12).storage is not x.storage
    assert x.t().reshape(12).tolist() == numbers().T.reshape(12).tolist()
    with raises(SpecError, "view size is not compatible with input tensor's size and stride", "Use .reshape(...) instead"):
        x.t().view(12)
    assert x.contiguous() is x and x.t().contiguous().storage is not x.storage


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_a_copy_is_on_its_own() -> None:
    x = gradcore.tensor(numbers())
    for copy in (x.clone(), x.t().contiguous(), gradcore.tensor(x), gradcore.from_numpy(numbers()), x + 0):
        copy.zero_()
    assert x.tolist() == numbers().tolist() and x._version == 0


def test_a_view_of_nothing_still_has_a_shape() -> None:
    x = gradcore.zeros(0, 3)
    assert tuple(x.t().shape) == (3, 0) and x.t().tolist() == [[], [], []]
    assert tuple(x[:, 1:].shape) == (0, 2) and tuple(x.reshape(0).shape) == (0,)
    assert x.sum().item() == 0.0 and tuple(x.unsqueeze(0).expand(2, 0, 3).shape) == (2, 0, 3)


@pytest.mark.oracle
def test_a_view_without_a_graph_requires_no_gradient_where_pytorchs_is_a_leaf(torch: Any) -> None:
    """As docs/pytorch.md says."""
    for library, requires in ((gradcore, False), (torch, True)):
        for base in (library.ones(4).requires_grad_(), library.ones(4).requires_grad_() * 2):
            with library.no_grad():
                views = [base.view(2, 2), base[1:], base.unsqueeze(0).expand(2, 4), *base.split(2)]
                assert not (base * 2).requires_grad
            assert [(v.requires_grad, v.is_leaf, v.grad_fn) for v in views] == [(requires, True, None)] * len(views)


@pytest.mark.parametrize("name", ["unsqueeze", "squeeze", "none"])
def test_the_gradient_of_what_leaves_nothing_out_takes_no_bytes(name: str) -> None:
    x, weight = gradcore.tensor(numbers()).requires_grad_(), gradcore.arange(12.0).view(3, 4)
    with gradcore.step() as step:
        (VIEWS.get(name, lambda x: x[:, None, :])(x * 1) * (weight[:, None] if name == "none" else weight)).sum().backward()
    ops = [r.invocation.op for r in step.log if isinstance(r, gradcore.events.Launch)]
    # Those of the products with the number and with the weight, and the cotangent of the sum.
    assert "slice_grad" not in ops and ops[ops.index("sum") + 1:] == ["full", "mul", "mul"]
    assert x.grad.tolist() == weight.tolist() and weight.requires_grad is False


@pytest.mark.parametrize("parts", [iter, lambda x: x.tensor_split([*range(1, 50)])], ids=["iteration", "tensor_split"])
def test_gradients_of_parts_are_joined_once(parts: Any) -> None:
    x = gradcore.ones(50, 64, requires_grad=True)
    with gradcore.step() as step:
        sum((k + 1) * row.sum() for k, row in enumerate(parts(x))).backward()
    ops = [r.invocation.op for r in step.log if isinstance(r, gradcore.events.Launch)]
    assert ops.count("cat") == 1 and x.grad[:, 3].tolist() == [*range(1, 51)]
    # The gradient of each of 50 rows was as large as x.
    made = sum(r.requested for r in step.log if isinstance(r, gradcore.events.Alloc))
    assert made < 8 * x.nbytes


def test_parts_without_a_gradient_are_one_block_of_zeros() -> None:
    x = gradcore.ones(1000, 4, requires_grad=True)
    rows = list(x)
    with gradcore.step() as step:
        (rows[3] * rows[700]).sum().backward()
    ops = [r.invocation.op for r in step.log if isinstance(r, gradcore.events.Launch)]
    # Before, between and after; and the cotangent of the sum.
    assert ops.count("full") <= 4 and x.grad.sum(1).nonzero().flatten().tolist() == [3, 700]


def test_of_the_parts_one_may_be_missing_and_another_written_to() -> None:
    x = gradcore.ones(4, 64, requires_grad=True)
    first, middle, last = y = x[:3] * 1
    middle.mul_(5)
    del middle
    y.sum().backward(retain_graph=True)
    (first * last).sum().backward()
    assert x.grad[:4, 0].tolist() == [2, 5, 2, 0]
