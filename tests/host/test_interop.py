"""Tensors and NumPy, tensors and PyTorch by DLPack: shared memory, its life, and what is refused."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import gradcore
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
    assert ours[0, 0].item() == 0


def test_what_is_refused_says_what_to_do() -> None:
    x, w = gradcore.ones(2), gradcore.ones(2, requires_grad=True)
    for call, kind, text in (
            (lambda: w.numpy(), RuntimeError, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()"),
            (lambda: np.asarray(w), RuntimeError, "Can't call numpy() on Tensor that requires grad"),
            (lambda: np.from_dlpack(w), BufferError, "Can't export tensors that require gradient, use tensor.detach()"),
            (lambda: np.from_dlpack(gradcore.ones(2, device="meta")), BufferError, "a tensor on meta is not exported"),
            (lambda: gradcore.ones(2, device="meta").__dlpack__(), BufferError, "use Tensor.cpu()"),
            (lambda: gradcore.from_dlpack(3), TypeError, "expects an object with __dlpack__, but got int"),
            (lambda: gradcore.from_dlpack(np.ones(2), copy=False), ValueError, "memory of another library is copied"),
            (lambda: np.asarray(x, np.float64, copy=False), ValueError, "")):
        with raises(kind, text):
            call()
    np.testing.assert_array_equal(w.numpy(force=True), [1, 1])
    assert np.asarray(x, np.float64).dtype == np.float64 and np.array(x).ctypes.data != x.data_ptr()


def test_numbers_of_numpy_leave_operators_to_the_tensor() -> None:
    w = gradcore.ones(2, requires_grad=True)
    y = np.float64(3) * w + np.float32(1) - np.int64(2)
    assert isinstance(y, gradcore.Tensor)
    y.sum().backward()
    assert w.grad.tolist() == [3, 3] and y.dtype == gradcore.float32
    with raises(TypeError, "make a tensor of it with gradcore.tensor(...)"):
        np.ones(2) * w
