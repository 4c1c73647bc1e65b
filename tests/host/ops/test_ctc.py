"""Connectionist temporal classification compared with PyTorch's: random samples, infinite losses, errors, what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import NoSecondDerivative, SpecError
from gradcore.nn import functional as F
from tests.conftest import raises
from tests.logs import normalized


def sample(seed: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Options of the loss; scores, targets, the lengths of inputs and targets, as lists, and a cotangent."""
    rng = np.random.default_rng(seed)
    steps, samples, classes, most = (int(rng.integers(low, high)) for low, high in ((1, 14), (1, 6), (2, 8), (0, 7)))
    blank = int(rng.integers(classes))
    targets = rng.integers(0, classes - 1, (samples, most))
    targets += targets >= blank
    counts = rng.integers(0, most + 1, samples).tolist()
    if seed % 2:
        targets = np.concatenate([row[:n] for row, n in zip(targets, counts, strict=True)])
    options = {"blank": blank, "reduction": ("none", "mean", "sum")[seed % 3], "zero_infinity": seed % 4 < 2}
    lengths = rng.integers(0, steps + 1, samples).tolist(), counts
    return options, (rng.normal(size=(steps, samples, classes)) * 2, targets, *lengths, rng.normal(size=samples))


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(60))
def test_random_samples_are_pytorchs(torch: Any, seed: int) -> None:
    options, (scores, targets, steps, counts, slope) = sample(seed)
    results = []
    for library in (gradcore, torch):
        x = library.tensor(scores, requires_grad=True)
        lengths = [tuple(n) if seed % 5 < 2 else library.tensor(n) for n in (steps, counts)]
        loss = library.nn.CTCLoss(**options)(F.log_softmax(x, 2) if library is gradcore else x.log_softmax(2),
                                             library.tensor(targets), *lengths)
        loss.backward(library.tensor(slope) if options["reduction"] == "none" else None)
        results.append((loss.detach().numpy(), x.grad.numpy()))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def given(device: str = "cpu") -> tuple[Any, ...]:
    x = gradcore.zeros(5, 2, 4, device=device, requires_grad=True)
    return F.log_softmax(x, 2), *[gradcore.tensor(n, device=device) for n in ([[1, 2, 2], [3, 0, 0]], [5, 4], [3, 1])]


def test_a_value_by_hand() -> None:
    # Of 4^5 sequences those that read 1 2 2: 1 2 _ 2 with one element doubled or one more blank, seven ways.
    loss = F.ctc_loss(*given(), reduction="none")
    np.testing.assert_allclose(loss[0].item(), -np.log(7 / 4**5), rtol=1e-5)


#: What is changed, and PyTorch's words.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"log_probs": np.zeros(4, np.float32)}, "Expected 3-dimensional tensor, but got "),
    ({"log_probs": np.zeros((0, 2, 4), np.float32)}, "log_probs tensor must not be empty"),
    ({"blank": 4}, "blank must be in label range"), ({"blank": -1}, "blank must be in label range"),
    ({"input_lengths": np.array([5.0, 4.0])}, "input_lengths must be integral"),
    ({"input_lengths": np.array([5, 4, 3])}, "input_lengths must be of size batch_size"),
    ({"target_lengths": np.array([3])}, "target_lengths must be of size batch_size"),
    ({"input_lengths": np.array([6, 4])}, "Expected input_lengths to have value at most 5, but got value 6"),
    ({"input_lengths": np.array([5, -4])}, "Expected input_lengths to have value at least 0, but got value -4"),
    ({"input_lengths": (5, 6), "target_lengths": (3, 1)}, "Expected input_lengths to have value at most 5, but got value 6"),
    ({"target_lengths": np.array([-1, 1])}, "Expected target_lengths to have value at least 0, but got value -1"),
    ({"target_lengths": np.array([4, 1])}, "Expected tensor to have size at least 4 at dimension 1, but got size 3"),
    ({"targets": np.array([1, 2, 3])}, "Expected tensor to have size 4 at dimension 0, but got size 3"),
    ({"targets": np.array([[1, 2, 3]])}, "Expected tensor to have size 2 at dimension 0, but got size 1"),
    ({"targets": np.ones((1, 2, 3), np.int64)}, "Expected 1 to 2 dimensions, but got 3-dimensional tensor for argument #2"),
    ({"reduction": "median"}, "is not a valid value for reduction")]


@pytest.mark.oracle
@pytest.mark.parametrize(("change", "text"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_errors_are_pytorchs(torch: Any, change: dict[str, Any], text: str) -> None:
    usual = {"log_probs": np.zeros((5, 2, 4), np.float32), "targets": np.array([[1, 2, 2], [3, 0, 0]]),
             "input_lengths": np.array([5, 4]), "target_lengths": np.array([3, 1])}
    for library in (gradcore, torch):
        options = {n: library.tensor(a) if isinstance(a, np.ndarray) else a for n, a in (usual | change).items()}
        with raises((RuntimeError, ValueError), text):
            library.nn.functional.ctc_loss(**options)
        del options


def test_what_pytorch_does_not_check() -> None:
    x, targets, ins, outs = given()
    with raises(IndexError, "Target 4 is out of bounds: expected labels from 0 to 3"):
        F.ctc_loss(x, targets * 2, ins, outs)
    with raises(TypeError, "expected input_lengths to be a tensor or a tuple of ints, but got 5"):
        F.ctc_loss(x, targets, 5, outs)
    with raises(SpecError, "expected log_probs of float32 or float64, but got float16"):
        F.ctc_loss(x.half(), targets, ins, outs)


def test_the_gradient_is_not_differentiated_again() -> None:
    x, *rest = given()
    slope, = gradcore.autograd.grad(F.ctc_loss(x, *rest), x, create_graph=True)
    assert slope.requires_grad
    with raises(NoSecondDerivative, "the gradient of ctc_loss cannot be differentiated"):
        slope.sum().backward()


def test_probabilities_of_zero_have_no_slope() -> None:
    x = gradcore.tensor([[[0.5, 0.5, 0.0]]] * 3).log().requires_grad_()
    F.ctc_loss(x, gradcore.tensor([1]), (3,), (1,)).backward()
    assert x.grad.isfinite().all() and (x.grad[:, :, 2] == 0).all()


def test_meta_writes_the_log_that_numpy_writes() -> None:
    logs = []
    for device in ("cpu", "meta"):
        gradcore.empty_cache(device)
        with gradcore.step(device=device) as s:
            x, targets, ins, outs = given(device)
            for target, lengths in ((targets, (ins, outs)), (targets.reshape(-1)[:4].contiguous(), ((5, 4), (3, 1)))):
                F.ctc_loss(x, target, *lengths, zero_infinity=True).backward(retain_graph=True)
            del x, targets, ins, outs, target, lengths
        logs.append(normalized(s.raw_log))
    assert logs[0] == logs[1]


def test_labels_in_a_row_take_no_more_memory_than_padded_ones() -> None:
    x, targets, ins, outs = given()
    kept = []
    for target in (targets, gradcore.tensor([1, 2, 2, 3])):
        loss = F.ctc_loss(x, target, ins, outs, reduction="none")
        kept.append(max(r.nbytes for node in gradcore.graph(loss) for r in node.residuals if r.name == "alpha"))
        del loss
    # Seven columns a sample, or seven and three.
    assert kept == [4 * 5 * 14, 4 * 5 * 10]


def test_in_a_region_of_16_bits_it_is_computed_in_single_precision() -> None:
    x, *rest = given()
    with gradcore.autocast("cpu", dtype=gradcore.float16):
        loss = nn.CTCLoss()(x.half(), *rest)
    assert loss.dtype == gradcore.float32
    loss.backward()


def test_a_recognizer_learns() -> None:
    gradcore.manual_seed(0)
    rng = np.random.default_rng(0)
    heard = gradcore.tensor(rng.normal(size=(12, 4, 6)).astype(np.float32))
    layer = nn.Linear(6, 5)
    optimizer = gradcore.optim.Adam(layer.parameters(), lr=0.05)
    targets = gradcore.tensor(rng.integers(1, 5, (4, 3)))

    @gradcore.compile
    def step(x: Any, y: Any, ins: Any, outs: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.CTCLoss()(F.log_softmax(layer(x), 2), y, ins, outs)
        loss.backward()
        optimizer.step()
        return loss

    lengths = gradcore.tensor([12, 10, 12, 11]), gradcore.tensor([3, 2, 3, 1])
    losses = [step(heard, targets, *lengths).item() for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]
