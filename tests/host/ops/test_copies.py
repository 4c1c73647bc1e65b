"""Copies on the CPU: of other layouts, and between float32 and float16."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.host import halves
from gradcore.events import Alloc, Launch


def bits(x: Any) -> Any:
    return np.where(np.isnan(x), 0, x.view(f"i{x.itemsize}"))


def test_every_half_and_the_floats_around_each_are_converted_as_numpy_does() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = halves.astype(np.float32)
    assert (bits(gradcore.tensor(halves).float().numpy()) == bits(exact)).all()
    # Itself, half way to its neighbors, and what is next to these.
    floats = np.concatenate([(exact.view(np.int32) + d).view(np.float32) for d in (
        0, 1, -1, 0xFFF, 0x1000, 0x1001, -0xFFF, -0x1000, -0x1001)])
    with np.errstate(all="ignore"):
        expected = floats.astype(np.float16)
    found = gradcore.tensor(floats).half().numpy()
    assert (np.signbit(found) == np.signbit(floats)).all()
    assert (np.isnan(found) == np.isnan(floats)).all() and (bits(found) == bits(expected)).all()


@pytest.mark.parametrize("scale", [1, 1e-6, 1e6], ids=["normal", "subnormal", "overflowing"])
def test_numbers_of_all_sizes_are_converted_by_their_bits(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy takes a hundred times as long to round to a float16 that is subnormal or infinite."""
    pieces = []
    over = halves.over
    monkeypatch.setattr(halves, "over", lambda function, arrays, *rest, **options: (
        pieces.append(function.__name__), over(function, arrays, *rest, **options)))
    x, half = gradcore.randn(1 << 16) * scale, gradcore.zeros(1 << 16, dtype=gradcore.float16)
    x.half().float()
    half.copy_(x)
    assert pieces == ["_narrow", "_widen", "_narrow"]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("spacing", [1, 2])
def test_relu_of_every_number_of_16_bits_is_that_of_float32(name: str, spacing: int) -> None:
    """It is computed on their bits, of which those of a NaN with a sign are like no other negative number's."""
    dtype = getattr(gradcore, name)
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        missing = np.isnan(every)
    for given in (every, every[~missing]):
        x = gradcore.tensor(np.tile(given, 2))[::spacing].requires_grad_()
        wide = x.detach().float().requires_grad_()
        for y in (x, wide):
            y.relu().backward(gradcore.full(y.shape, float("inf"), dtype=y.dtype))
        assert gradcore.isclose(x.relu().float(), wide.relu(), rtol=0, atol=0, equal_nan=True).all()
        assert gradcore.isclose(x.detach().clone().relu_().float(), wide.relu(), rtol=0, atol=0, equal_nan=True).all()
        assert (x.grad.float() == wide.grad).all()


@pytest.mark.parametrize("dims", [(2, 1, 0), (0, 2, 1), (1, 2, 0), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("shape", [(7, 90, 70), (1, 300, 40), (33, 1, 300), (40, 40, 40)])
@pytest.mark.parametrize("how", ["whole", "spaced", "expanded"])
def test_copies_of_any_layout_are_equal(shape: tuple[int, ...], dims: tuple[int, ...], how: str) -> None:
    x = gradcore.rand(*shape)
    x = {"whole": x, "spaced": x[:, ::2], "expanded": x[:1].expand(*shape)}[how].permute(*dims)
    found = x.contiguous()
    assert found.is_contiguous() and (found.numpy() == x.numpy()).all()
    for dim in range(3):
        assert (x.flip(dim).numpy() == np.flip(x.numpy(), dim)).all()


@pytest.mark.parametrize("name", ["half", "bfloat16"])
@pytest.mark.parametrize("function", [
    lambda x: x.float(), lambda x: x * x, lambda x: x @ x.T, lambda x: x.relu().float(), lambda x: x.T + x.float(),
    lambda x: x.T.mul_(3).add_(x), lambda x: x[:, ::2].add_(x[:, 1::2].float()), lambda x: gradcore.zeros(64, 64).T.copy_(x)])
def test_a_replay_converts_the_values_of_its_own_call(name: str, function: Any) -> None:
    def narrow(x: gradcore.Tensor) -> Any:
        return function(getattr(x, name)()).float()

    compiled = gradcore.compile(narrow)
    for seed in range(4):
        x = gradcore.tensor(np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32))
        x[0, seed], x[1, seed] = float("nan"), float("inf")
        np.testing.assert_array_equal(compiled(x).numpy(), narrow(x).numpy())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_large_arrays_of_16_bits_are_computed_in_pieces_unless_they_overlap(name: str, tracing: None) -> None:
    dtype = getattr(gradcore, name)
    x, y = (gradcore.randn(100_001).to(dtype) for _ in range(2))
    for function in (lambda x, y: x + y, lambda x, y: x * 3, lambda x, y: gradcore.maximum(x, y), lambda x, y: -x):
        expected = function(x.float(), y.float()).to(dtype)
        assert (function(x, y) == expected).all()
    assert ((x > y) == (x.float() > y.float())).all()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    x + y
    assert tracemalloc.get_traced_memory()[1] - before < 500_000, "copies in float32 would take 1.2 MB"
    expected = (x[1:].float() + x[:-1].float()).to(dtype)
    x[1:].add_(x[:-1])
    assert (x[1:] == expected).all()


@pytest.mark.parametrize("wanted", ["all", "x", "weight"])
def test_a_cotangent_of_another_layout_is_copied_once_for_all_that_read_it(wanted: str, torch: Any) -> None:
    """As that of a convolution whose channels come last in what follows."""
    found = {}
    rng = np.random.default_rng(0)
    given = {"x": rng.random((2, 4, 9, 8)), "weight": rng.random((6, 4, 3, 3)), "bias": rng.random(6)}
    for library in gradcore, torch:
        args = {name: library.tensor(a, requires_grad=wanted in ("all", name)) for name, a in given.items()}
        made = library.conv2d(args["x"], args["weight"], args["bias"])
        y = made.permute(0, 2, 3, 1).sin()
        del made
        with gradcore.step(device="cpu") as s:
            y.sum().backward()
        found[library] = [a.grad.numpy() for a in args.values() if a.requires_grad]
        if library is gradcore:
            ran = [r.invocation.op for r in s.recording.records if isinstance(r, Launch)]
            copies = [r for r in s.recording.records if isinstance(r, Alloc) and r.tag.op == "clone"]
    assert ran.count("clone") == 1 and len(copies) == 1
    np.testing.assert_allclose(np.concatenate([a.ravel() for a in found[gradcore]]),
                               np.concatenate([a.ravel() for a in found[torch]]), rtol=1e-12, atol=1e-12)
