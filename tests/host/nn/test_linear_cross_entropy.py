"""``linear_cross_entropy``: as PyTorch's, with the scores of all classes at once and of some; memory, precision, errors."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import LinearCrossEntropyOptions as Options
from gradcore.nn import functional as F
from gradcore.utils.flop_counter import FlopCounterMode
from tests.conftest import raises
from tests.host.nn.test_layers import values

#: Samples, features, classes: more classes than samples, one sample, fewer classes than features, two classes, no feature.
SIZES = [(7, 5, 23), (1, 3, 4), (6, 4, 3), (5, 8, 2), (3, 0, 5)]
PARTS = [Options(), Options(batch_chunk_size=2), Options(chunking_method=None), Options(chunking_method="aspect_ratio:3")]


def classes(count: int, most: int) -> Any:
    return np.random.default_rng(count).integers(0, most, count)


def found(library: Any, arrays: list[Any], target: Any, options: Any, second: bool = False, **named: Any) -> list[Any]:
    """The loss, the gradients of the sum of its square, and those of the sum of their squares."""
    leaves = [None if a is None else library.tensor(a, requires_grad=True) for a in arrays]
    if named.get("weight") is not None:
        named["weight"] = library.tensor(named["weight"])
    x, weight, bias = leaves
    named = {**named, "linear_bias": bias, "options": options}
    loss = library.nn.functional.linear_cross_entropy(x, weight, library.tensor(target), **named)
    leaves = [v for v in leaves if v is not None]
    slopes = library.autograd.grad((loss * loss).sum(), leaves, create_graph=second)
    parts = [loss, *slopes]
    if second:
        parts += library.autograd.grad(sum((g * g).sum() for g in slopes), leaves)
    return [p.detach().numpy() for p in parts]


def agree(ours: list[Any], theirs: list[Any], within: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        # Relative to the largest number; NaN where the mean is of no sample.
        largest = np.abs(b).max(initial=1.0, where=~np.isnan(b))
        np.testing.assert_allclose(a, b, rtol=0, atol=within * largest)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients(sizes: tuple[int, int, int], reduction: str, torch: Any) -> None:
    samples, features, count = sizes
    for options, with_bias, weighed, ignored, second in product([None, *PARTS], *[(False, True)] * 4):
        arrays = [values(samples, features), values(count, features, seed=1), values(count, seed=2) if with_bias else None]
        arrays = [None if a is None else a.astype(np.float64) for a in arrays]
        target = classes(samples, count)
        if ignored:
            target[0] = -100
        named = {"reduction": reduction, "weight": np.linspace(0.5, 1, count) if weighed else None,
                 "ignore_index": None if ignored else 1}
        theirs = found(torch, arrays, target, None, second, **named)
        agree(found(gradcore, arrays, target, options, second, **named), theirs, 1e-9)


@pytest.mark.parametrize("options", [None, Options()], ids=["at once", "in parts"])
def test_every_form_of_pytorch(options: Options | None, torch: Any) -> None:
    """A single sample, several dimensions of classes, probabilities, smoothing: where parts are not for it, with a warning."""
    theirs = None if options is None else torch.nn.LinearCrossEntropyOptions()
    x, weight, bias = values(4, 6), values(5, 6, seed=1), values(5, seed=2)
    several = [x, values(5, 2, 3, 6, seed=1), values(5, 2, 3, seed=2)]
    cases: list[tuple[list[Any], Any, dict[str, Any], bool]] = [
        ([x[0], weight, bias], np.array(3), {}, True), ([x[0], weight, bias], np.array(3), {"reduction": "none"}, True),
        ([x, weight, bias], classes(4, 5), {"label_smoothing": 0.2}, False),
        ([x, weight, bias], np.abs(values(4, 5, seed=4)), {}, False),
        (several, classes(24, 5).reshape(4, 2, 3), {"reduction": "none"}, False),
        (several, np.abs(values(4, 5, 2, 3, seed=4)), {}, False)]
    for arrays, target, named, in_parts in cases:
        if options is None or in_parts:
            ours = found(gradcore, arrays, target, options, **named)
        else:
            with pytest.warns(UserWarning, match="^linear_cross_entropy computes all scores at once: options are for"):
                ours = found(gradcore, arrays, target, options, **named)
        with pytest.warns(UserWarning) if theirs and not in_parts else contextlib.nullcontext():
            reference = found(torch, arrays, target, theirs, **named)
        agree(ours, reference, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_as_precise_as_with_all_scores(dtype: str) -> None:
    """The scores and all sums are in float32; the result has the input's dtype."""
    exact = [values(64, 32).astype(np.float64), 0.3 * values(500, 32, seed=1).astype(np.float64), None]
    target = classes(64, 500)
    errors = []
    for options in (None, Options()):
        x, weight = (gradcore.tensor(a, dtype=getattr(gradcore, dtype), requires_grad=True) for a in exact[:2])
        rounded = [v.detach().double().numpy() for v in (x, weight)]
        loss = F.linear_cross_entropy(x, weight, gradcore.tensor(target), options=options)
        loss.backward()
        true = found_gradients(rounded, target)
        assert loss.dtype == x.grad.dtype == weight.grad.dtype == x.dtype
        errors.append([float(np.abs(v.detach().double().numpy() - t).max() / np.abs(t).max())
                       for v, t in zip((loss, x.grad, weight.grad), true, strict=True)])
    at_once, in_parts = errors
    assert all(b <= 1.5 * a for a, b in zip(at_once, in_parts, strict=True)), errors


def found_gradients(arrays: list[Any], target: Any) -> list[Any]:
    x, weight = (gradcore.tensor(a, requires_grad=True) for a in arrays)
    loss = F.cross_entropy(x @ weight.T, gradcore.tensor(target))
    return [v.detach().numpy() for v in (loss, *gradcore.autograd.grad(loss, (x, weight)))]


def test_autocast() -> None:
    """Products are in 16 bits, also in backward, which is outside of the region; the loss is in float32, as cross_entropy's."""
    arrays, target = [values(20, 8), values(50, 8, seed=1)], gradcore.tensor(classes(20, 50))
    results = []
    for options in (None, Options()):
        x, weight = (gradcore.tensor(a, requires_grad=True) for a in arrays)
        with gradcore.autocast("cpu", dtype=gradcore.bfloat16):
            loss = F.linear_cross_entropy(x, weight, target, options=options)
        assert loss.dtype == gradcore.float32
        loss.backward()
        assert x.grad.dtype == weight.grad.dtype == gradcore.float32
        results.append([v.detach().numpy() for v in (loss, x.grad, weight.grad)])
    assert np.array_equal(results[0][0], results[1][0]) or abs(results[0][0] - results[1][0]) < 1e-5
    agree(results[1], results[0], 1e-2)


def a_step(device: str, options: Options | None, sizes: tuple[int, int, int]) -> Any:
    samples, features, count = sizes
    with gradcore.device(device):
        x, weight = gradcore.ones(samples, features, requires_grad=True), gradcore.ones(count, features, requires_grad=True)
        target = gradcore.zeros(samples, dtype=gradcore.int64)
    with gradcore.step(device=device) as step:
        F.linear_cross_entropy(x, weight, target, options=options).backward()
    return step


def test_memory_is_that_of_the_gradients_and_of_one_part() -> None:
    """For a vocabulary: a quarter of the bytes, for a third more operations; and the same on the CPU as on meta."""
    sizes = samples, features, count = 8192, 768, 50304
    with FlopCounterMode(display=False) as counter:
        at_once = a_step("meta", None, sizes)
    operations = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        step = a_step("meta", Options(), sizes)
    assert operations == 3 * 2 * samples * features * count and counter.get_total_flops() == operations * 4 // 3
    gradients, part = 4 * (samples + count) * features, 4 * samples * (count // 32)
    # The input's gradient is added up, and what is added to it.
    assert step.report.peak.allocated <= 2 * gradients + part + 2 * 4 * samples * features + 2**20
    assert step.report.peak.allocated * 4 < at_once.report.peak.allocated
    small = 40, 16, 700
    ours, predicted = (a_step(device, Options(), small) for device in ("cpu", "meta"))
    assert ours.report.peak.allocated == predicted.report.peak.allocated
    assert ours.report.pool.allocations == predicted.report.pool.allocations


@pytest.mark.parametrize(("options", "at_once"), [
    (Options(), [11, 50]), (Options(chunking_method=None), [330, 330]), (Options(batch_chunk_size=3), [99, 99]),
    (Options(chunking_method="aspect_ratio"), [33, 66])], ids=["auto", "whole", "samples", "ratio"])
def test_how_many_classes_are_computed_at_a_time(options: Options, at_once: list[int]) -> None:
    """Of 330, for 10 samples of 4 and of 50 features."""
    assert [options.classes_at_once(10, features, 330) for features in (4, 50)] == at_once


def test_one_part_of_scores_is_live_at_a_time_in_16_bits_too() -> None:
    """In float32, cast from what the product has made."""
    samples, features, count = 8192, 64, 50304
    with gradcore.device("meta"):
        x, weight = (gradcore.ones(n, features, dtype=gradcore.bfloat16) for n in (samples, count))
        target = gradcore.zeros(samples, dtype=gradcore.int64)
    with gradcore.step(device="meta") as step:
        F.linear_cross_entropy(x, weight, target, options=Options())
    assert step.report.peak.allocated <= x.nbytes + weight.nbytes + 1.6 * 4 * samples * (count // 32)


def test_backward_again_compiled_and_with_hooks() -> None:
    layer = nn.LinearCrossEntropyLoss(8, 60, bias=True, options=Options(batch_chunk_size=2))
    x, target = gradcore.tensor(values(10, 8), requires_grad=True), gradcore.tensor(classes(10, 60))
    loss = layer(x, target)
    loss.backward(retain_graph=True)
    once = [p.grad.numpy().copy() for p in (x, *layer.parameters())]
    loss.backward()
    for p, g in zip((x, *layer.parameters()), once, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), 2 * g)

    @gradcore.compile
    def step() -> Any:
        loss = layer(x, target)
        loss.backward()
        return loss

    with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), gradcore.tensor):
        packed = layer(x, target)
    for run in (packed.backward, step, step, step):
        for p in (x, *layer.parameters()):
            p.grad = None
        run()
        for p, g in zip((x, *layer.parameters()), once, strict=True):
            np.testing.assert_array_equal(p.grad.numpy(), g)
    assert len(step.programs) == 1 and len(step.traces) == 1


def test_what_is_not_needed_is_not_computed() -> None:
    x, weight, target = gradcore.ones(3, 4), gradcore.ones(6, 4, requires_grad=True), gradcore.zeros(3, dtype=gradcore.int64)
    with FlopCounterMode(display=False) as counter:
        F.linear_cross_entropy(x, weight, target, options=Options()).backward()
    assert counter.get_flop_counts()["Global"] == {"linear": 2 * 2 * 3 * 4 * 6, "matmul": 2 * 3 * 4 * 6}
    weight.requires_grad_(False)
    assert F.linear_cross_entropy(x, weight, target, options=Options()).grad_fn is None
    empty = F.linear_cross_entropy(x[:0], weight, target[:0], options=Options(), reduction="none")
    assert tuple(empty.shape) == (0,)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_chooses_the_same_precision_as_with_all_scores(device: str, dtype: str) -> None:
    given = gradcore.tensor(values(3, 4), dtype=dtype), gradcore.tensor(values(9, 4, seed=1), dtype=dtype)
    with gradcore.autocast(device, dtype=gradcore.float16):
        at_once, parts = (F.linear_cross_entropy(*given, gradcore.tensor([1, 8, 3]), options=o) for o in (None, Options()))
    assert at_once.dtype == parts.dtype
    np.testing.assert_allclose(at_once.numpy(), parts.numpy(), rtol=1e-12 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_narrow_class_indices(dtype: str) -> None:
    """More classes at a time than the target's type has numbers."""
    x, weight, target = gradcore.tensor(values(3, 2)), gradcore.tensor(values(9000, 2, seed=1)), gradcore.tensor([1, 120, 3])
    parts = F.linear_cross_entropy(x, weight, target.to(getattr(gradcore, dtype)), options=Options())
    np.testing.assert_array_equal(parts.numpy(), F.linear_cross_entropy(x, weight, target, options=Options()).numpy())


def test_errors() -> None:
    x, weight, target = gradcore.ones(3, 4), gradcore.ones(6, 4), gradcore.tensor([0, 7, 1])
    for bad in (target, target - 8):
        with raises(IndexError, "out of bounds for dimension with size 6"):
            F.linear_cross_entropy(x, weight, bad, options=Options())
    for given, of_weight in [(x[None], weight), (x, weight[0]), (x, weight[:, :2]), (x[0], weight[None])]:
        with raises(gradcore.SpecError, f"but got {list(given.shape)} and {list(of_weight.shape)}"):
            F.linear_cross_entropy(given, of_weight, target)
    with raises(gradcore.SpecError, "expected linear_bias shape (6,), got (5,)"):
        F.linear_cross_entropy(x, weight, target, linear_bias=gradcore.ones(5))
    for options in (None, Options()):
        for given, bias, said in [(x.double(), None, "input, weight"), (x, gradcore.ones(6).double(), "input, weight, bias")]:
            with raises(gradcore.SpecError, f"linear: {said} must have the same dtype"):
                F.linear_cross_entropy(given, weight, target * 0, linear_bias=bias, options=options)
    with raises(gradcore.SpecError, "linear_cross_entropy: weight tensor should be defined either for all 6 classes"):
        F.linear_cross_entropy(x, weight, target, weight=gradcore.ones(7), options=Options())
    with raises(RuntimeError, "linear_cross_entropy is not differentiable with respect to the argument weight"):
        F.linear_cross_entropy(x, weight, target, weight=gradcore.ones(6, requires_grad=True), options=Options())
    with raises(gradcore.SpecError, "ignore_index cannot be specified when target contains probabilities"):
        F.linear_cross_entropy(x, weight, gradcore.ones(3, 6), ignore_index=0)
    for options, said in [({"acc_policy": "none"}, "invalid acc_policy: 'none'"),
                          ({"batch_chunk_size": 0}, "batch_chunk_size must be positive int or None, got 0"),
                          ({"chunking_method": "aspect_ratio:"}, "invalid chunking_method"),
                          ({"chunking_method": "aspect_ratio:0"}, "invalid chunking_method")]:
        with raises(ValueError, said):
            Options(**options)
    with raises(ValueError, "give different chunk sizes (3 vs 2); pass only one."):
        F.linear_cross_entropy(x, weight, target, options=Options(batch_chunk_size=3, chunking_method="aspect_ratio"))
    with raises(gradcore.SpecError, "expected weight shape to be (6,), got (5,)"):
        nn.LinearCrossEntropyLoss(4, 6, weight=gradcore.ones(5))
    with raises(gradcore.SpecError, "expected label_smoothing to be in range [0, 1], got 2"):
        nn.LinearCrossEntropyLoss(4, 6, label_smoothing=2)


def test_the_module_is_pytorchs(torch: Any) -> None:
    for named in ({}, {"bias": True, "out_features": (2, 3)}, {"weight": "given", "reduction": "sum"}):
        made = {library.__name__: library.nn.LinearCrossEntropyLoss(4, 6, **{**named, **(
            {"weight": library.ones(6) * 2} if "weight" in named else {})}) for library in (gradcore, torch)}
        ours, theirs = made["gradcore"], made["torch"]
        assert repr(ours) == repr(theirs) and {*ours.state_dict()} == {*theirs.state_dict()}
        ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
        x, target = values(5, 4), classes(5 * 6 if "out_features" in named else 5, 6)
        target = target.reshape(5, 2, 3) if "out_features" in named else target
        np.testing.assert_allclose(ours(gradcore.tensor(x), gradcore.tensor(target)).detach().numpy(),
                                   theirs(torch.tensor(x), torch.tensor(target)).detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6, 3e37])
def test_scores_that_are_all_large_lose_no_more_digits_than_at_once(offset: float) -> None:
    arrays, target = [values(9, 8), values(70, 8, seed=1), np.full(70, offset, np.float32)], classes(9, 70)
    at_once, in_parts = (found(gradcore, arrays, target, options) for options in (None, Options(batch_chunk_size=1)))
    for a, b in zip(at_once, in_parts, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-6 * np.abs(a).max())


@pytest.mark.parametrize("masked", [slice(0, 40), slice(3, 69), slice(0, 70)], ids=str)
def test_classes_that_are_masked(masked: slice) -> None:
    """Whole parts of them are -inf; if all are, the loss is NaN."""
    mask = np.zeros(70, np.float32)
    mask[masked] = -np.inf
    target = np.full(4, 69)
    for x in (values(4, 8), np.where(np.arange(32).reshape(4, 8) == 0, np.float32(np.inf), values(4, 8))):
        results = []
        for options in (None, Options(batch_chunk_size=1)):
            leaf, weight = (gradcore.tensor(a, requires_grad=True) for a in (x, np.abs(values(70, 8, seed=1))))
            bias = gradcore.tensor(mask)
            loss = F.linear_cross_entropy(leaf, weight, gradcore.tensor(target), linear_bias=bias, options=options)
            loss.backward()
            results.append([loss.detach().numpy(), leaf.grad.numpy(), weight.grad.numpy()])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
