"""Reading and writing by index, against NumPy; gradients against a sum over a mask."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.autograd import gradcheck
from gradcore.errors import DataDependentShape, DimError, SpecError
from tests.conftest import raises

SHAPE = (4, 3, 5)


def numbers() -> np.ndarray[Any, Any]:
    return np.arange(60, dtype=np.float32).reshape(SHAPE)


BASIC = [
    np.s_[0], np.s_[-1], np.s_[1:3], np.s_[::2], np.s_[1::2, ...], np.s_[..., 0], np.s_[:, 1], np.s_[:, -1, 1:4:2],
    np.s_[None], np.s_[:, None, 1], np.s_[..., None], np.s_[2, 1, 4], np.s_[...], np.s_[:], np.s_[5:], np.s_[3:1],
    np.s_[-3:-1, ..., ::3], np.s_[:, :, :, None], np.s_[np.int64(2)], np.s_[1, ..., None, 2], (), np.s_[-100:100]]
MIXED = [
    np.s_[[0, 2]], np.s_[[-1, 0, -1]], np.s_[:, [0, 2]], np.s_[..., [4, 0]], np.s_[[0, 2], 1],
    np.s_[[0, 1], [1, 2]], np.s_[:, [0, 1], [1, 2]], np.s_[[0, 1], :, [1, 2]], np.s_[[0, 1, 3], [0], [1, 2, 4]],
    np.s_[np.array([[0, 1], [2, 3]])], np.s_[:, np.array([[0, 1], [2, -1]])], np.s_[[[0], [1]], [0, 1, 2]],
    np.s_[1:3, [0, 2]], np.s_[::2, [0, 2], None], np.s_[np.array(2)], np.s_[[]], np.s_[1:, np.array([], int)],
    np.s_[[3, 0], ..., [-1, -5]]]


def as_ours(index: Any) -> Any:
    """The index with tensors for lists and arrays."""
    if isinstance(index, tuple):
        return tuple(as_ours(i) for i in index)
    if isinstance(index, list):
        return gradcore.tensor(np.array(index, np.int64))
    return gradcore.tensor(index) if isinstance(index, np.ndarray) else index


def numpys(index: Any) -> Any:
    return tuple(np.array(i, np.int64) if isinstance(i, list) else i for i in index) if isinstance(index, tuple) else \
        np.array(index, np.int64) if isinstance(index, list) else index


@pytest.mark.parametrize("index", BASIC + MIXED, ids=str)
def test_reading_is_numpys(index: Any) -> None:
    x = gradcore.tensor(numbers())
    expected = numbers()[numpys(index)]
    for key in (index, as_ours(index)):
        found = x[key]
        assert tuple(found.shape) == expected.shape
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("index", BASIC, ids=str)
def test_basic_indices_are_views(index: Any) -> None:
    x = gradcore.tensor(numbers())
    allocated = gradcore.memory_allocated()
    part = x[index]
    assert gradcore.memory_allocated() == allocated and part.storage is x.storage and part._base is x


@pytest.mark.parametrize("index", BASIC + MIXED, ids=str)
def test_the_gradient_counts_how_often_an_element_was_read(index: Any) -> None:
    x = gradcore.tensor(numbers(), requires_grad=True)
    y = x[as_ours(index)]
    weights = np.arange(1, y.numel() + 1, dtype=np.float32).reshape(tuple(y.shape))
    (y * gradcore.tensor(weights)).sum().backward()
    expected = np.zeros(SHAPE, np.float32)
    np.add.at(expected, numpys(index), weights)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def _distinct(index: Any) -> bool:
    where = np.arange(60).reshape(SHAPE)[numpys(index)].reshape(-1)
    return len(set(where.tolist())) == where.size


@pytest.mark.parametrize("index", [i for i in BASIC + MIXED if _distinct(i)], ids=str)
def test_writing_is_numpys(index: Any) -> None:
    shape = numbers()[numpys(index)].shape
    values = -np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float32).reshape(shape)
    for value, given in ((7.0, 7.0), (values, gradcore.tensor(values)), (values, values)):
        x, expected = gradcore.tensor(numbers()), numbers()
        expected[numpys(index)] = value
        x[as_ours(index)] = given
        np.testing.assert_array_equal(x.numpy(), expected)
        assert x._version > 0


@pytest.mark.parametrize("index", [np.s_[:, 1], np.s_[[0, 2]], np.s_[:, [2, 0]], np.s_[[0, 1], [1, 2]]], ids=str)
def test_written_values_broadcast(index: Any) -> None:
    x, expected = gradcore.tensor(numbers()), numbers()
    row = np.array([1, 2, 3, 4, 5], np.float32)
    expected[numpys(index)] = row
    x[as_ours(index)] = gradcore.tensor(row)
    np.testing.assert_array_equal(x.numpy(), expected)


def test_written_values_are_cast() -> None:
    x = gradcore.tensor([1, 2, 3])
    x[0] = 7.9
    x[gradcore.tensor([1])] = gradcore.tensor([8.9])
    assert x.tolist() == [7, 8, 3] and x.dtype == np.int64


@pytest.mark.parametrize("seed", range(60))
def test_random_indices_are_numpys(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
    array = np.random.default_rng(seed).normal(size=shape)
    order = rng.sample(range(len(shape)), len(shape))
    index: list[Any] = []
    arrays = 0
    for n in [shape[d] for d in order]:
        kind = rng.choice(["int", "slice", "slice", "array", "new", "stop"])
        if kind == "int":
            index.append(rng.randrange(-n, n))
        elif kind == "slice":
            index.append(slice(rng.choice([None, rng.randint(-n, n)]), rng.choice([None, rng.randint(-n, n)]),
                               rng.choice([None, 1, 2, 3])))
        elif kind == "array" and arrays < 2:
            # NumPy counts an integer beside an array among the arrays; PyTorch and we take it first.
            index = [slice(None) if isinstance(i, int) else i for i in index]
            index.append(np.array([rng.randrange(-n, n) for _ in range(2)]))
            arrays += 1
        elif kind == "new":
            index += [None, slice(None)]
        elif kind == "stop":
            break
    if arrays:
        index = [slice(None) if isinstance(i, int) else i for i in index]
    key = tuple(index)
    base = gradcore.tensor(array, requires_grad=True)
    expected = array.transpose(order)[key]
    np.testing.assert_array_equal(base.detach().permute(*order)[as_ours(key)].numpy(), expected)
    assert gradcheck(lambda x: x.permute(*order)[as_ours(key)], [base])


@pytest.mark.oracle
def test_a_written_part_gets_its_gradient(torch: Any) -> None:
    for key in (np.s_[[0, 2]], np.s_[:, [2, 0]]):
        ours, values = (gradcore.tensor(v, requires_grad=True) for v in (numbers(), numbers()[numpys(key)] * 0.5))
        y = ours * 2
        y[as_ours(key)] = values
        (y * y).sum().backward()
        theirs, given = (torch.tensor(v, requires_grad=True) for v in (numbers(), numbers()[numpys(key)] * 0.5))
        z = theirs * 2
        z[tuple(torch.as_tensor(i) if isinstance(i, list) else i for i in key) if isinstance(key, tuple) else key] = given
        (z * z).sum().backward()
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-6)
        np.testing.assert_allclose(values.grad.numpy(), given.grad.numpy(), rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("key", [np.s_[1, :, [0, 3]], np.s_[0, [0, 1], :], np.s_[[1, 2], 0, [1, 3]], np.s_[:, 2, [0, 1]]],
                         ids=str)
def test_an_integer_beside_a_tensor_is_taken_first(key: Any, torch: Any) -> None:
    """As in PyTorch; NumPy counts it among the arrays, which moves dimensions."""
    theirs = torch.from_numpy(numbers())[key]
    np.testing.assert_array_equal(gradcore.tensor(numbers())[key].numpy(), theirs.numpy())


def test_what_is_in_a_tensor(torch: Any) -> None:
    for t in (gradcore, torch):
        x = t.arange(6).reshape(2, 3)
        assert [value in x for value in (3, 9, 2.5, True, np.float32(4), t.tensor([7, 8, 2]))] == [
            True, False, False, True, True, True]
        for other in ("3", None):
            with pytest.raises(RuntimeError, match="__contains__ only supports Tensor or scalar, but you passed in a"):
                _ = other in x


def test_iteration_and_length() -> None:
    x = gradcore.tensor(numbers())
    assert len(x) == 4 and [r.tolist() for r in x] == numbers().tolist()
    for broken in (len, iter):
        with raises(TypeError, "0-d tensor"):
            broken(gradcore.tensor(1.0))


@pytest.mark.parametrize(("index", "kind", "texts"), [
    (4, DimError, ["index 4 is out of bounds for dimension 0 with size 4"]),
    (np.s_[:, -4], DimError, ["index -4 is out of bounds for dimension 1 with size 3"]),
    (np.s_[0, 0, 0, 0], DimError, ["too many indices for tensor of dimension 3", "4"]),
    (np.s_[..., 0, ...], DimError, ["single ellipsis"]),
    (np.s_[::-1], (SpecError, ValueError), ["step must be greater than zero"]),
    (np.s_[[0, 4]], IndexError, ["index 4 is out of bounds for dimension with size 4"]),
    (np.s_[:, [0, -4]], IndexError, ["-4", "size 3"]), (np.s_[[0, 1], [0, 3]], IndexError, ["3", "size 3"]),
    ([0.5], TypeError, ["0.5"]), ("a", TypeError, ["'a'"]), (1.0, DimError, ["1.0"]),
    (np.s_[[0, 1], :, [0, 1, 2]], IndexError, ["shape mismatch", "broadcast together with shapes [2], [3]"]),
    ([True, False, True], DimError, ["mask [3] at index 0", "[4, 3, 5]"]),
    (np.s_[:, np.ones((3, 4), bool)], DimError, ["mask [3, 4] at index 1", "[4, 3, 5]"])], ids=str)
def test_indices_that_cannot_be(index: Any, kind: Any, texts: list[str]) -> None:
    x = gradcore.tensor(numbers())
    with raises(kind, *texts):
        x[index]
    with raises(kind, *texts):
        x[index] = 1.0
    assert x._version == 0 and x.tolist() == numbers().tolist()


@pytest.mark.parametrize("index", [np.s_[[0, 4]], np.s_[:, [0, -4]], np.s_[[0, 1], [0, 3]], np.s_[np.array([4])]], ids=str)
def test_positions_that_the_host_has_are_looked_at_without_values_too(index: Any) -> None:
    x = gradcore.tensor(numbers(), device="meta")
    with raises(IndexError, "is out of bounds for dimension with size"):
        x[index]
    with raises(IndexError, "is out of bounds for dimension with size"):
        x[index] = 0


def test_tensors_that_are_no_index() -> None:
    x = gradcore.tensor(numbers())
    with raises(DimError, "must be integers", "float32"):
        x[gradcore.tensor([0.0])]
    with raises(DimError, "mask [2]", "[4, 3, 5]"):
        x[gradcore.tensor([True, False])]
    with raises(SpecError, "shape mismatch", "[2, 3, 5]", "[4]"):
        x[[0, 1]] = gradcore.ones(4)
    with raises(SpecError, "[4]", "[3, 5]", "cannot be broadcast"):
        x[0] = gradcore.ones(4)


def test_a_mask_on_meta_can_be_written_through_but_not_read() -> None:
    x, mask = gradcore.zeros(4, 3, device="meta"), gradcore.ones(4, dtype=np.bool_, device="meta")
    x[mask] = 1.0
    x[mask] = gradcore.ones((), device="meta")
    x[mask.all()] = 1.0
    assert x._version == 3
    total = x.sum()
    total[total > 1] = 1.0
    with raises(DataDependentShape, "which meta tensors do not have"):
        x[mask] = gradcore.ones(3, device="meta")


@pytest.mark.parametrize(("op", "call"), [
    ("a boolean index", lambda x, m: x[m]), ("masked_select", lambda x, m: x.masked_select(m.reshape(4, 1))),
    ("nonzero", lambda x, m: m.nonzero()), ("unique", lambda x, m: x.unique()),
    ("unique_consecutive", lambda x, m: x.unique_consecutive()), ("bincount", lambda x, m: m.int().bincount()),
    ("repeat_interleave", lambda x, m: x.repeat_interleave(m.int(), 0)),
    ("one_hot", lambda x, m: gradcore.nn.functional.one_hot(m.int()))])
def test_a_shape_that_depends_on_values_names_the_op_and_the_line_on_meta(op: str, call: Any) -> None:
    x, mask = gradcore.zeros(4, 3, device="meta"), gradcore.ones(4, dtype=np.bool_, device="meta")
    with raises(DataDependentShape, f"{op}: the shape of the result depends on values, which meta tensors do not have",
                f"test_indexing.py:{call.__code__.co_firstlineno}"):
        call(x, mask)


MASKED = [np.s_[np.arange(4) > 1], np.s_[:, np.arange(3) > 5], np.s_[1:, np.arange(15).reshape(3, 5) % 2 == 0],
          np.s_[np.arange(4) % 2 == 0, ..., 1], np.s_[np.arange(12).reshape(4, 3) % 5 == 0, 2:],
          np.s_[None, np.arange(4) > 1, [0, 2]], np.s_[np.arange(60).reshape(SHAPE) % 7 == 0]]


@pytest.mark.parametrize("index", MASKED, ids=range(len(MASKED)))
def test_masks_are_numpys(index: Any) -> None:
    x, expected = gradcore.tensor(numbers()), numbers()
    for key in (index, as_ours(index)):
        np.testing.assert_array_equal(x[key].numpy(), expected[index])
    x[index] = gradcore.tensor(expected[index] * 2)
    expected[index] *= 2
    np.testing.assert_array_equal(x.numpy(), expected)
    x[as_ours(index)] = -1.0
    expected[index] = -1
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize(("reduce", "sign"), [("amax", 1.0), ("amin", -1.0)])
def test_the_largest_share_the_gradient_with_an_equal_element_only_if_it_takes_part(reduce: str, sign: float) -> None:
    for include_self, share in ((True, 1 / 3), (False, 1 / 2)):
        x = gradcore.zeros(1, requires_grad=True)
        src = gradcore.tensor([0.0, -sign, 0.0], requires_grad=True)
        x.scatter_reduce(0, gradcore.zeros(3, dtype=np.int64), src, reduce, include_self=include_self).sum().backward()
        np.testing.assert_allclose(src.grad.numpy(), [share, 0, share], rtol=1e-6)
        np.testing.assert_allclose(x.grad.numpy(), [share * include_self], rtol=1e-6)


def test_equal_extremes_are_not_added_up_to_share_the_gradient() -> None:
    """Scores that are masked are the least number, of which two add up to minus infinity."""
    least = float(np.finfo(np.float32).min)
    src = gradcore.tensor([least, least], requires_grad=True)
    found = gradcore.full((1,), least).scatter_reduce(0, gradcore.zeros(2, dtype=np.int64), src, "amax")
    found.sum().backward()
    assert found.item() == least
    np.testing.assert_allclose(src.grad.numpy(), [1 / 3, 1 / 3], rtol=1e-6)


def test_the_last_of_repeated_positions_wins_and_sums_add_up() -> None:
    x = gradcore.zeros(3)
    x[gradcore.tensor([1, 1, 1])] = gradcore.tensor([1.0, 2.0, 3.0])
    assert x.tolist() == [0.0, 3.0, 0.0]
    y = gradcore.ones(3, requires_grad=True)
    y[gradcore.tensor([1, 1, -2])].sum().backward()
    assert y.grad.tolist() == [0.0, 3.0, 0.0]


@pytest.mark.parametrize("places", [
    [0, 0, *range(56), 55], [*range(54, 0, -1)] * 2, [3, 2, 1, *range(60), 58], [*range(-60, 0)],
    [*range(40, 2100), *range(30)], [0, 0], []], ids=["replicate", "backwards", "reflect", "negative", "long", "few", "none"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_runs_of_positions_are_numpys(dim: int, places: list[int]) -> None:
    shape = [9, 8, 7]
    shape[dim] = 2100
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    index = np.array(places, np.int64)
    x = gradcore.tensor(values, requires_grad=True)
    y = x.index_select(dim, gradcore.tensor(index % 2100))
    np.testing.assert_array_equal(y.detach().numpy(), values.take(index, dim))
    weights = np.arange(1, y.numel() + 1, dtype=np.float32).reshape(tuple(y.shape))
    (y * gradcore.tensor(weights)).sum().backward()
    expected = np.zeros(shape, np.float32)
    np.add.at(expected, (slice(None),) * dim + (index,), weights)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


#: With a 0-d tensor, which stands for an integer, beside others.
ZERO_D: dict[str, Any] = {
    "apart": lambda t: (t.tensor(1), slice(None), t.tensor([0, 2])), "behind": lambda t: (t.tensor([0, 2]), ..., t.tensor(-1)),
    "new": lambda t: (t.tensor(1), None, t.tensor([1, 2])), "new first": lambda t: (None, t.tensor(-1), ..., t.tensor([1, 2])),
    "two": lambda t: (t.tensor(1), slice(None), t.tensor(2)), "array": lambda t: (np.array(1), slice(None), t.tensor([2, 0])),
    "between": lambda t: (t.tensor([0, 1]), t.tensor(1), t.tensor([1, 2])),
    "next to": lambda t: (t.tensor(3), t.tensor([0, 2])),
    "matrix": lambda t: (slice(1, None), t.tensor(0), t.tensor([[0, 1], [2, -1]]))}


@pytest.mark.oracle
@pytest.mark.parametrize("name", ZERO_D)
def test_a_0d_tensor_has_no_say_in_where_dimensions_go(name: str, torch: Any) -> None:
    ours, theirs = (t.tensor(numbers()).requires_grad_() for t in (gradcore, torch))
    read = [x[ZERO_D[name](t)] for t, x in ((gradcore, ours), (torch, theirs))]
    np.testing.assert_array_equal(read[0].detach().numpy(), read[1].detach().numpy())
    weights = np.arange(read[1].numel(), dtype=np.float32).reshape(tuple(read[1].shape))
    for t, x, y in ((gradcore, ours, read[0]), (torch, theirs, read[1])):
        (y * t.tensor(weights)).sum().backward()
        with t.no_grad():
            x[ZERO_D[name](t)] = t.tensor(-weights)
    np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())
    np.testing.assert_array_equal(ours.detach().numpy(), theirs.detach().numpy())
    index = tuple(i.to("meta") if isinstance(i, gradcore.Tensor) else i for i in ZERO_D[name](gradcore))
    assert gradcore.tensor(numbers(), device="meta")[index].shape == read[0].shape
