"""Specs: interning, views' strides against NumPy's, broadcasting and promotion."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest

from gradcore.dtypes import promote
from gradcore.errors import DimError, SpecError
from gradcore.spec import (
    TensorSpec,
    broadcast_shapes,
    expand_strides,
    is_overlapping,
    normalize_dim,
    normalize_dims,
    resolve_shape,
    view_strides,
)
from gradcore.units import format_bytes, format_loss, format_seconds, parse_bytes
from tests.conftest import raises, torch_or_skip

F32 = np.dtype(np.float32)


def spec_of(array: np.ndarray[Any, Any]) -> TensorSpec:
    size = array.itemsize
    return TensorSpec.strided(array.shape, array.dtype, tuple(s // size for s in array.strides), 0)


def test_equal_specs_are_one_object() -> None:
    a = TensorSpec.of((2, 3), np.float32)
    assert a is TensorSpec.of([2, 3], "float32") is TensorSpec.strided((2, 3), F32, (3, 1), 0)
    assert a is TensorSpec.strided((np.int64(2), 3), F32, (np.int64(3), 1), np.int64(0))
    assert a is not TensorSpec.of((3, 2), F32) and a is not TensorSpec.of((2, 3), np.float64)
    assert pickle.loads(pickle.dumps(a)) is a
    assert all(type(n) is int for n in (*a.shape, *a.strides, a.offset, a.numel, a.nbytes))


@pytest.mark.parametrize(("shape", "strides", "offset", "contiguous", "end"), [
    ((2, 3), (3, 1), 0, True, 24), ((2, 3), (1, 2), 0, False, 24), ((), (), 5, True, 24), ((0, 3), (3, 1), 2, True, 0),
    ((1, 3), (99, 1), 0, True, 12), ((2, 3), (0, 1), 0, False, 12), ((2,), (4,), 3, False, 32)])
def test_figures(shape: Any, strides: Any, offset: int, contiguous: bool, end: int) -> None:
    spec = TensorSpec.strided(shape, F32, strides, offset)
    assert (spec.contiguous, spec.span[1]) == (contiguous, end)
    assert spec.numel == np.prod(shape, dtype=int) and spec.nbytes == spec.numel * 4


def test_the_span_of_strides_that_go_backwards() -> None:
    assert TensorSpec.strided((3, 2), F32, (-2, 1), 5).span == (4, 28)


def test_what_it_looks_like() -> None:
    assert repr(TensorSpec.of((2, 3), F32)) == "float32[2, 3]"
    assert repr(TensorSpec.strided((2,), F32, (3,), 1)) == "float32[2] strides (3,) offset 1"


@pytest.mark.parametrize("seed", range(40))
def test_views_are_numpys(seed: int) -> None:
    """If strides are found, they address the same elements; if not, NumPy has to copy too."""
    rng = random.Random(seed)
    shape = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 4))]
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = array.transpose(rng.sample(range(array.ndim), array.ndim))
    if rng.random() < 0.5:
        array = array[tuple(slice(None, None, rng.choice([1, 2])) for _ in array.shape)]
    sizes = [1, 2, 3, 4, 6, 8, 12]
    targets = [t for n in range(5) for t in itertools.product(sizes, repeat=n) if np.prod(t, dtype=int) == array.size]
    for target in rng.sample(targets, min(len(targets), 30)):
        found = view_strides(spec_of(array), target)
        try:
            theirs = np.reshape(array, target, copy=False)
        except ValueError:
            assert found is None
            continue
        assert found is not None
        ours = np.lib.stride_tricks.as_strided(array, target, [s * 4 for s in found])
        assert (ours == theirs).all()


@pytest.mark.parametrize(("shape", "numel", "result"), [
    ((2, 3), 6, (2, 3)), ((-1,), 6, (6,)), ((2, -1), 6, (2, 3)), ((), 1, ()), ((0, 3), 0, (0, 3)), ((-1, 3), 0, (0, 3))])
def test_shapes_are_resolved(shape: Any, numel: int, result: Any) -> None:
    assert resolve_shape(shape, numel) == result


@pytest.mark.parametrize(("shape", "numel", "text"), [
    ((4,), 6, "shape '[4]' is invalid for input of size 6"), ((-1, 4), 6, "shape '[-1, 4]' is invalid for input of size 6"),
    ((-1, -1), 6, "only one dimension can be inferred"), ((-2, 3), 6, "invalid shape dimension"),
    ((-1, 0), 0, "shape '[-1, 0]' is invalid for input of size 0")])
def test_shapes_that_cannot_be(shape: Any, numel: int, text: str) -> None:
    with raises(SpecError, text):
        resolve_shape(shape, numel)


SHAPES = [(), (1,), (3,), (0,), (2, 1), (2, 3), (1, 3), (4, 1, 3), (4, 2, 1), (0, 3)]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SHAPES, SHAPES)))
def test_broadcasting_is_numpys(a: Any, b: Any) -> None:
    try:
        theirs = np.broadcast_shapes(a, b)
    except ValueError:
        with raises(SpecError, "must match the size of tensor b", str(list(a)), str(list(b))):
            broadcast_shapes(a, b)
        return
    assert broadcast_shapes(a, b) == theirs
    strides = expand_strides(TensorSpec.of(a, F32), theirs)
    assert strides == tuple(s // 4 for s in np.broadcast_to(np.zeros(a, F32), theirs).strides) or 0 in theirs or 1 in a


def test_dimensions_count_from_both_ends() -> None:
    assert [normalize_dim(d, 3) for d in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    assert normalize_dim(0, 0) == normalize_dim(-1, 0) == 0
    assert normalize_dims(None, 3) == normalize_dims((), 3) == (0, 1, 2)
    assert normalize_dims((-1, 0), 3) == (0, 2) and normalize_dims(-1, 3) == (2,)
    assert normalize_dims(-1, 0) == normalize_dims(0, 0) == ()
    for dim, ndim, text in ((3, 3, "[-3, 2], but got 3"), (-4, 3, "[-3, 2], but got -4"), (1, 0, "[-1, 0], but got 1")):
        with raises(DimError, "Dimension out of range (expected to be in range of " + text):
            normalize_dims(dim, ndim)
    with raises(SpecError, "appears multiple times"):
        normalize_dims((0, -3), 3)
    for wrong in (True, 1.0, "0", None):
        with raises(TypeError, "a dimension must be an int", repr(wrong)):
            normalize_dim(wrong, 2)  # type: ignore[arg-type]
    assert issubclass(DimError, IndexError)


@pytest.mark.oracle
def test_promotion_is_torchs() -> None:
    torch = torch_or_skip()
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
    operands: list[tuple[Any, Any]] = [(bool, True), (int, 1), (float, 1.0)]
    operands += [(TensorSpec.of(shape, n), torch.ones(shape, dtype=getattr(torch, n))) for n in names for shape in ((), (2,))]
    for (ours, x), (others, y) in itertools.product(operands, operands):
        if isinstance(ours, type) and isinstance(others, type):
            continue
        assert promote((ours, others)) == np.dtype(str(torch.result_type(x, y)).removeprefix("torch.")), (ours, others)


@pytest.mark.parametrize(("text", "nbytes"), [
    ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), (4096, 4096), ("0", 0), ("2k", 2048), (" 3 kib ", 3072), ("7B", 7),
    ("1_000 B", 1000), ("24 MB", 24_000_000), ("0.07 GB", 70_000_000)])
def test_sizes_are_read(text: Any, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "5 XB", True, None, -1, "1.2.3", "1__0 B", "_1", "1,000", 0.5,
                                  4096.0])
def test_sizes_that_cannot_be_read(text: Any) -> None:
    with raises(ValueError, str(text)):
        parse_bytes(text)


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (10 << 20, "10.0 MiB"), (5 << 40, "5.00 TiB"),
    (5000 << 40, "5000.0 TiB"), (-2048, "-2.00 KiB"),
    ((1 << 20) - 1, "1.00 MiB"), ((1 << 30) - 512, "1.00 GiB"), (10_239, "10.0 KiB"), (-20_480, "-20.0 KiB")])
def test_sizes_are_written(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (0.00039, "0.39 ms"), (0.99999, "999.99 ms"), (0.999996, "1.00 s"), (1.5, "1.50 s"), (1234.5, "1,234.50 s")])
def test_times_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("loss", "text"), [
    (2.28681, "2.2868"), (0.0, "0.0000"), (-0.001, "-0.0010"), (0.00012345, "1.234e-04"), (99_999.0, "99999.0000"),
    (1.1923e24, "1.192e+24"), (float("nan"), "nan")])
def test_losses_are_written(loss: float, text: str) -> None:
    assert format_loss(loss) == text


def test_a_layout_in_which_two_elements_share_an_address_overlaps() -> None:
    for shape, strides in itertools.product(itertools.product((1, 2, 3), repeat=2), itertools.product(range(-3, 7), repeat=2)):
        addresses = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(shape)]
        assert is_overlapping(shape, strides) or len({*addresses}) == len(addresses), (shape, strides)
    # Rows, columns, and every other element of a (4, 6) one, backwards too.
    for strides in ((6, 1), (1, 6), (12, 2), (-6, 1), (2, -12)):
        assert not is_overlapping((2, 3) if abs(strides[0]) > abs(strides[1]) else (3, 2), strides)
