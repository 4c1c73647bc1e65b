"""Tensors and NumPy, tensors and PyTorch by DLPack: shared memory, its lifetime, and errors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds
from gradcore.report import load_report
from gradcore.report.memory_viz import to_snapshot
from gradcore.report.recording import Recording
from tests.conftest import raises

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_an_exported_tensor_is_shared_and_lives_as_long_as_the_array() -> None:
    ledger = gradcore.device("cpu").ledger
    before = set(ledger.live)
    x = gradcore.tensor(VALUES)
    for export in (np.from_dlpack, np.asarray, lambda t: t.numpy()):
        array = export(x)
        assert array.ctypes.data == x.data_ptr()
        array = array if array.flags.writeable else None
        if array is not None:
            array[1, 2] = 50
            assert x[1, 2].item() == 50
    view = np.from_dlpack(x.T[1:])
    assert view.strides == (4, 16) and view.ctypes.data == x.data_ptr() + 4
    del x, array
    gradcore.ones(3, 4)
    np.testing.assert_array_equal(view[0], [1, 5, 9])
    assert len(set(ledger.live) - before) == 1
    del view
    assert set(ledger.live) == before


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_copy_has_the_machines_byte_order(dtype: str) -> None:
    swapped = np.array([1, 2], np.dtype(dtype).newbyteorder())
    for made in (gradcore.tensor(swapped), gradcore.as_tensor(swapped)):
        assert made.dtype == np.dtype(dtype) and made.dtype.isnative and made.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64", "uint8", "bool"])
def test_every_dtype_and_shape(dtype: str) -> None:
    for shape in ((), (0, 3), (2, 3)):
        array = np.ones(shape, dtype)
        back = np.from_dlpack(gradcore.tensor(array))
        assert back.dtype == array.dtype and back.shape == shape
        ours = gradcore.from_dlpack(array)
        assert ours.dtype == array.dtype and ours.shape == shape


@pytest.mark.oracle
def test_pytorch_both_ways(torch: Any) -> None:
    ledger = gradcore.device("cpu").ledger
    before = set(ledger.live)
    x = gradcore.tensor(VALUES)
    theirs = torch.from_dlpack(x)
    theirs[0, 0] = 7
    assert x[0, 0].item() == 7 and theirs.data_ptr() == x.data_ptr()
    del x
    assert theirs.sum().item() == VALUES.sum() + 7 and len(set(ledger.live) - before) == 1
    del theirs
    gc.collect()
    assert set(ledger.live) == before
    source = torch.tensor(VALUES).T
    ours = gradcore.from_dlpack(source)
    np.testing.assert_array_equal(ours.numpy(), VALUES.T)
    source[0, 0] = 9
    assert ours[0, 0].item() == 9 and ours.data_ptr() == source.data_ptr()
    ours.mul_(2)
    assert source[0, 0].item() == 18 and source[3, 2].item() == 22


@pytest.mark.oracle
def test_pytorchs_bfloat16_both_ways(torch: Any) -> None:
    x = gradcore.tensor(VALUES).bfloat16()
    for part in (x, x.T[1:]):
        theirs = torch.from_dlpack(part)
        assert theirs.dtype == torch.bfloat16 and theirs.data_ptr() == part.data_ptr()
        np.testing.assert_array_equal(theirs.float().numpy(), part.float().numpy())
        theirs += 1
        np.testing.assert_array_equal(theirs.float().numpy(), part.float().numpy())
    source = torch.tensor(VALUES, dtype=torch.bfloat16).T
    for given in (source, source.__dlpack__(), torch.utils.dlpack.to_dlpack(source)):
        ours = gradcore.from_dlpack(given)
        assert ours.dtype == gradcore.bfloat16 and ours.data_ptr() == source.data_ptr() and ours.stride() == source.stride()
        ours += 1
        np.testing.assert_array_equal(ours.float().numpy(), source.float().numpy())
    assert gradcore.from_dlpack(gradcore.tensor(VALUES).bfloat16()).dtype == gradcore.bfloat16
    copied = gradcore.tensor([source, source])
    assert copied.dtype == gradcore.bfloat16 and copied[1].tolist() == source.tolist()
    assert gradcore.tensor(source, dtype=gradcore.float32).tolist() == source.tolist()


def test_a_capsule_is_used_once() -> None:
    x = gradcore.tensor(VALUES)
    for version in (None, (1, 0)):
        capsule = x.__dlpack__(max_version=version)
        y = gradcore.from_dlpack(capsule)
        assert y.data_ptr() == x.data_ptr()
        np.testing.assert_array_equal(y.numpy(), VALUES)
        with raises(ValueError, "a capsule can be consumed only once", "used_dltensor"):
            gradcore.from_dlpack(capsule)


def test_what_gives_capsules_alone_is_taken() -> None:
    class Giver:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__()

    array = np.arange(3.0)
    x = gradcore.from_dlpack(Giver(array))
    x[0] = 7
    assert array[0] == 7


def test_what_is_refused_says_what_to_do() -> None:
    x, w = gradcore.ones(2), gradcore.ones(2, requires_grad=True)
    for call, kind, text in (
            (lambda: w.numpy(), RuntimeError, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()"),
            (lambda: np.asarray(w), RuntimeError, "Can't call numpy() on Tensor that requires grad"),
            (lambda: np.from_dlpack(w), BufferError, "Can't export tensors that require gradient, use tensor.detach()"),
            (lambda: np.from_dlpack(gradcore.ones(2, device="meta")), BufferError, "DLPack exports tensors on the CPU or a"),
            (lambda: gradcore.ones(2, device="meta").__dlpack__(), BufferError, "which has no memory"),
            (lambda: gradcore.from_dlpack(3), TypeError, "expects an object with __dlpack__ or its capsule, but got int"),
            (lambda: gradcore.from_dlpack(np.ones(0), copy=False), ValueError, "arrays for another device, must be copied"),
            (lambda: gradcore.from_dlpack(np.ones(2), copy=False, device="meta"), ValueError, "another device, must be copied"),
            (lambda: gradcore.from_numpy(np.ones(4)[::-1]), ValueError, "stride in the given numpy array is negative"),
            (lambda: gradcore.from_numpy(np.ones(4, np.complex64)), TypeError, "can't convert np.ndarray of type complex64"),
            (lambda: np.asarray(x, np.float64, copy=False), ValueError, "")):
        with raises(kind, text):
            call()
    np.testing.assert_array_equal(w.numpy(force=True), [1, 1])
    assert np.asarray(x, np.float64).dtype == np.float64 and np.array(x).ctypes.data != x.data_ptr()


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("array", [np.float32([[2], [3]]), np.arange(1, 4), np.array(2.0), np.ones(3, bool),
                                   np.float16([1, 2, 3])], ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_an_array_on_the_right_of_an_operator_is_taken(array: Any, torch: Any) -> None:
    for call in (lambda x: x + array, lambda x: x - array, lambda x: x * array, lambda x: x / array, lambda x: x // array,
                 lambda x: x % array, lambda x: x ** array, lambda x: x == array, lambda x: array / x):
        ours, theirs = (call(t.tensor([1.5, 2.0, -3.0])) for t in (gradcore, torch))
        # PyTorch rounds twice when it divides by the tensor.
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-7)
        assert ours.dtype == theirs.numpy().dtype
    ours, theirs = (t.ones(2, 3) @ np.arange(6.0).reshape(3, 2) for t in (gradcore, torch))
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    for refused in (lambda t, x: array * x, lambda t, x: x < array, lambda t, x: t.add(x, array),
                    lambda t, x: x * array.astype(object)):
        for t in (gradcore, torch):
            with pytest.raises(TypeError):
                refused(t, t.ones(3))


def test_an_array_beside_a_tensor_is_a_constant() -> None:
    x = gradcore.ones(2, requires_grad=True)
    (x * np.float32([2, 3])).sum().backward()
    assert x.grad.tolist() == [2, 3] and (gradcore.ones(2, device="meta") * np.ones(2)).dtype == np.float64


def test_numbers_of_numpy_leave_operators_to_the_tensor() -> None:
    w = gradcore.ones(2, requires_grad=True)
    y = np.float64(3) * w + np.float32(1) - np.int64(2)
    assert isinstance(y, gradcore.Tensor)
    y.sum().backward()
    assert w.grad.tolist() == [3, 3] and y.dtype == gradcore.float32
    with raises(TypeError, "convert it with gradcore.tensor(...)"):
        np.ones(2) * w


# -- memory of others --------------------------------------------------------------------------------------------------


class Watched(np.ndarray):
    """An array that supports weak references."""


def watched(*shape: int, dtype: str = "float32") -> Watched:
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    return np.copy(array).view(Watched)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8", "bool", gradcore.bfloat16])
def test_from_numpy_shares_the_arrays_memory(dtype: Any) -> None:
    array = np.zeros((3, 4), dtype)
    for part in (array, array.T, array[1:, ::2], array[2, 1]):
        part = np.asarray(part) if isinstance(part, np.ndarray) else array[2:, 1]
        x = gradcore.from_numpy(part)
        assert x.data_ptr() == part.ctypes.data and x.shape == part.shape and x.dtype == part.dtype
        assert x.stride() == tuple(s // part.itemsize for s in part.strides)
        x.fill_(1)
        assert part.astype(np.float64).min() == 1
        part[...] = 0
        assert not x.float().numpy().any()


def test_the_array_lives_as_long_as_what_shows_it() -> None:
    ledger = gradcore.device("cpu").ledger
    array = watched(3, 4)
    life = weakref.ref(array)
    x = gradcore.from_numpy(array)
    del array
    view, shown = x.t()[1:], x.numpy()
    del x
    assert life() is not None and view[0, 0].item() == 1 and shown[2, 3] == 11
    del view
    assert ledger.live and life() is not None
    del shown
    assert ledger.live is not None and life() is None


@pytest.mark.oracle
def test_as_tensor_shares_what_pytorchs_does(torch: Any) -> None:
    def shares(library: Any, **options: Any) -> list[bool]:
        found = []
        for source in (np.ones((2, 3), np.float32), np.ones((2, 3)).T, np.ones(4, np.int64)[::2], np.array(3.0),
                       torch.ones(2, 3), torch.ones(2, 3).T, torch.ones(4, dtype=torch.bfloat16)):
            x = library.as_tensor(source, **options)
            x.fill_(5)
            found.append(float(source.flatten()[0]) == 5)
        return found

    assert shares(gradcore) == shares(torch) == [True] * 7
    narrowed = [True, False, False, False, True, True, False]
    assert shares(gradcore, dtype=gradcore.float32) == shares(torch, dtype=torch.float32) == narrowed
    for plain in ([1.0, 2.0], np.float32(3), np.ones(0, np.float32), np.ones(3)[::-1]):
        assert gradcore.as_tensor(plain).tolist() == np.asarray(plain).tolist()
    assert gradcore.as_tensor(np.ones(3, np.float32), device="meta").device == "meta"
    fixed = np.ones(3)
    fixed.flags.writeable = False
    gradcore.as_tensor(fixed).fill_(0)
    assert fixed.all()


def test_what_cannot_be_shared_is_copied() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    copies = [gradcore.from_numpy(array), gradcore.from_dlpack(np.ones(3), copy=True)]
    assert all(x.storage.nbytes for x in copies) and copies[0].data_ptr() != array.ctypes.data
    assert gradcore.from_numpy(np.ones((0, 3))).shape == (0, 3)
    assert gradcore.from_dlpack(np.ones(3), device="meta").device == "meta"


def test_the_account_has_none_of_its_bytes_and_the_report_says_so() -> None:
    ledger = gradcore.device("cpu").ledger
    before = ledger.requested, ledger.allocated, ledger.reserved
    x = gradcore.from_numpy(np.ones((64, 64), np.float32))
    w = gradcore.nn.Parameter(gradcore.from_numpy(np.full((64, 2), 0.5, np.float32)))
    assert (ledger.requested, ledger.allocated, ledger.reserved) == before
    with gradcore.step() as s:
        y = gradcore.from_numpy(np.ones((64, 2), np.float32))
        ((x @ w - y) ** 2).sum().backward()
    report = s.report
    assert report.outside_bytes == 4 * (64 * 64 + 64 * 2 + 64 * 2)
    assert f"Memory of other libraries that tensors share: {report.outside_bytes:,} bytes" in str(report)
    assert report.peak.allocated < 4 * 64 * 64 and "borrow" not in {op for op, n in report.by_op.items() if n}
    assert "borrow" not in str(report)
    holders = folds.live_at(s.recording.records, len(s.recording.records) - 1)
    assert {h.serial for h in holders} == set(ledger.live) and sum(h.requested for h in holders) == ledger.requested
    assert load_report(report.to_dict()) == report
    assert Recording.from_dict(s.recording.to_dict()).report == report
    assert to_snapshot(s.recording)["segments"] is not None
    np.testing.assert_array_equal(w.grad.numpy(), np.full((64, 2), 2 * 31 * 64))


def test_tensors_over_one_array_are_accounted_once() -> None:
    array = np.ones((8, 8), np.float32)
    with gradcore.step() as s:
        x, y, turned = gradcore.from_numpy(array), gradcore.as_tensor(array), gradcore.from_dlpack(array.T)
        part = gradcore.from_numpy(array[:2])
        live = x + y
    assert s.report.outside_bytes == array.nbytes + part.numel() * 4
    y.zero_()
    assert x.sum().item() == turned.sum().item() == 0 and live.sum().item() == 128
    w = x.clone().requires_grad_()
    z = (w * x).sum()
    y.add_(1)
    with raises(RuntimeError, "modified by an inplace operation"):
        z.backward()
    del x, y, turned, part, z
    with gradcore.step() as s:
        total = gradcore.from_numpy(array).sum()
    assert s.report.outside_bytes == array.nbytes and total.item() == 64


def test_training_on_borrowed_batches_reads_what_they_hold() -> None:
    """Freed blocks are reused: a tensor over an array must never be one of them."""
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(16, 8)).astype(np.float32), rng.integers(0, 3, 16)) for _ in range(6)]
    losses = []
    for make in (gradcore.tensor, gradcore.from_numpy):
        gradcore.manual_seed(0)
        model = gradcore.nn.Sequential(gradcore.nn.Linear(8, 16), gradcore.nn.ReLU(), gradcore.nn.Linear(16, 3))
        optimizer = gradcore.optim.Adam(model.parameters(), lr=0.01)
        for x, y in batches:
            optimizer.zero_grad()
            loss = gradcore.nn.functional.cross_entropy(model(make(x)), make(y))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:6] == losses[6:]
