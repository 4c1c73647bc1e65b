"""Windows for spectra, and tensors over buffers, compared with PyTorch's: what is made of no tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import SpecError
from tests.conftest import raises

WINDOWS = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")


@pytest.mark.oracle
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_torchs(name: str, torch: Any) -> None:
    for length in (0, 1, 2, 5, 8):
        for periodic in (True, False):
            ours, theirs = (getattr(t, name)(length, periodic, dtype=t.float64).numpy() for t in (gradcore, torch))
            np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)
    for dtype in ("float32", "float16", "bfloat16"):
        ours, theirs = (getattr(t, name)(6, dtype=getattr(t, dtype)) for t in (gradcore, torch))
        # PyTorch computes them in 16 bits.
        close = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
        np.testing.assert_allclose(ours.double().numpy(), theirs.double().numpy(), 0, close)
    made = getattr(gradcore, name)(3, requires_grad=True, device="meta")
    assert made.requires_grad and made.dtype == gradcore.float32 and made.device.type == "meta"
    np.testing.assert_allclose(gradcore.kaiser_window(6, False, 3.0).numpy(), torch.kaiser_window(6, False, 3.0).numpy(), 1e-5)
    np.testing.assert_allclose(gradcore.hamming_window(4, True, 0.5, 0.5).numpy(), torch.hann_window(4).numpy(), 1e-5, 1e-7)


@pytest.mark.filterwarnings("error")
def test_a_window_that_overflows_is_nan_without_a_warning() -> None:
    assert gradcore.kaiser_window(5, False, 1000.0).isnan()[1:4].all()


def test_windows_refuse_lengths_and_dtypes() -> None:
    with raises(SpecError, "non-negative window_length, got window_length=-1"):
        gradcore.hann_window(-1)
    with raises(SpecError, "kaiser_window expects floating point dtypes, got: int64"):
        gradcore.kaiser_window(4, dtype=gradcore.int64)
    with raises(TypeError, "'window_length' must be int, not float"):
        gradcore.bartlett_window(2.5)  # type: ignore[arg-type]
    assert gradcore.hann_window(gradcore.tensor(4)).shape == gradcore.hann_window(np.int64(4)).shape == (4,)


@pytest.mark.parametrize(("call", "text"), [
    (lambda x: gradcore.histogram(x, 0), "bins must be > 0, or edges, but got 0"),
    (lambda x: gradcore.histogram(x, 2, range=(3.0, 1.0)), "min should not exceed max, but got min 3.0 max 1.0"),
    (lambda x: gradcore.histogram(x / 0, 2), "is not finite"),
    (lambda x: gradcore.histogram(x, 2, range=(1.0,)), "range must be a pair of numbers"),
    (lambda x: gradcore.histogram(x, 2, weight=x[:1]), "a weight for each element of [2], but got float32[1]"),
    (lambda x: gradcore.histogram(x, x[None]), "expected two edges or more as a vector, but got float32[1, 2]"),
    (lambda x: gradcore.histogram(x, x.double()), "expected bins of the input's float32"),
    (lambda x: gradcore.histogram(x, x, range=(0.0, 1.0)), "has no effect where bins are edges"),
    (lambda x: gradcore.histogram(x.long(), 2), "expected a tensor of float32 or float64, but got int64[2]"),
    (lambda x: x.put_(gradcore.tensor([1]), x), "source.numel() = 2, index.numel() = 1"),
    (lambda x: x.put_(gradcore.tensor([1]), gradcore.tensor([1])), "put_: input, source must have the same dtype"),
    (lambda x: gradcore.linalg.tensorinv(x, 0), "a strictly positive integer for 'ind', but got 0"),
    (lambda x: gradcore.linalg.tensorinv(gradcore.ones(2, 3), 1), "but got 3 != 2"),
    (lambda x: gradcore.linalg.tensorsolve(gradcore.ones(2, 3), x), "but got 3 != 2 for other of shape [2]"),
    (lambda x: gradcore.linalg.vander(x, N=0), "N must be greater than 1")])
def test_what_does_not_fit_is_refused(call: Any, text: str) -> None:
    with raises(SpecError, text):
        call(gradcore.ones(2))


def test_a_tensor_over_a_buffer_shares_it() -> None:
    buffer = bytearray(8)
    x = gradcore.frombuffer(buffer, dtype=gradcore.float32)
    buffer[3] = 64
    assert x.tolist() == [2.0, 0.0]
    assert gradcore.frombuffer(buffer, dtype=gradcore.uint8, count=2, offset=3).tolist() == [64, 0]
    assert gradcore.frombuffer(bytes(buffer), dtype=gradcore.float32, requires_grad=True).requires_grad
    for given, options, text in ((b"", {}, "buffer length (0) and count (-1) must not be 0"),
                                 (buffer, {"dtype": gradcore.int16, "offset": 1}, "must be a multiple of element size (2)"),
                                 (buffer, {"dtype": gradcore.int32, "count": 3}, "requested buffer length (3 * 4 bytes)"),
                                 (buffer, {"offset": 8}, "offset (8 bytes) must be")):
        with raises(ValueError, text):
            gradcore.frombuffer(given, **{"dtype": gradcore.uint8, **options})
