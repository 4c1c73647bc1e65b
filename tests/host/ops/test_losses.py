"""Losses, similarities and distances compared with PyTorch's: values, gradients, modules, residuals, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.events import Keep, typed
from gradcore.nn import functional as F
from tests.conftest import raises

R = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return R.normal(size=shape).astype(np.float32)


def share(*shape: int) -> np.ndarray[Any, Any]:
    return R.uniform(0.05, 0.95, size=shape).astype(np.float32)


SIGNS = np.where(R.normal(size=(4, 5)) > 0, 1, -1).astype(np.float32)
X, Y, P, Q = normal(4, 5), normal(4, 5), share(4, 5), share(4, 5)
W = share(5)
CLASSES = np.array([0, 4, 2, 2])
ZERO = np.zeros((4, 5), np.float32)

#: Name of the function, arrays that require a gradient, other arguments by name.
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("l1_loss", (X, Y), {}),
    ("smooth_l1_loss", (X, Y), {}), ("smooth_l1_loss", (X, Y), {"beta": 0.3}), ("smooth_l1_loss", (X, Y), {"beta": 0.0}),
    ("huber_loss", (X, Y), {}), ("huber_loss", (X, Y), {"delta": 0.4}),
    ("binary_cross_entropy", (P, Q), {}), ("binary_cross_entropy", (P,), {"target": (SIGNS + 1) / 2, "weight": W}),
    ("binary_cross_entropy_with_logits", (X, Q), {}),
    ("binary_cross_entropy_with_logits", (X * 40,), {"target": (SIGNS + 1) / 2, "weight": W}),
    ("binary_cross_entropy_with_logits", (X,), {"target": Q, "pos_weight": W * 4}),
    ("kl_div", (np.log(P), Q), {}), ("kl_div", (np.log(P),), {"target": Q * (SIGNS > 0)}),
    ("kl_div", (np.log(P), np.log(Q)), {"log_target": True}),
    ("soft_margin_loss", (X * 30,), {"target": SIGNS}),
    ("hinge_embedding_loss", (X,), {"target": SIGNS}), ("hinge_embedding_loss", (X,), {"target": SIGNS, "margin": 0.3}),
    ("margin_ranking_loss", (X, Y), {"target": SIGNS, "margin": 0.2}),
    ("multi_margin_loss", (X,), {"target": CLASSES}),
    ("multi_margin_loss", (X,), {"target": CLASSES, "p": 2, "margin": 0.7, "weight": W}),
    ("multi_margin_loss", (X[0],), {"target": CLASSES[1]}),
    ("multilabel_soft_margin_loss", (X, Q), {}), ("multilabel_soft_margin_loss", (X,), {"target": Q, "weight": W}),
    ("multilabel_margin_loss", (X,), {"target": np.array([[3, 1, -1, 0, 2], [4, 4, 0, -1, 1], [-1] * 5, [0, 1, 2, 3, 4]])}),
    ("triplet_margin_with_distance_loss", (X, Y, P), {"swap": True, "margin": 2.0}),
    ("cosine_embedding_loss", (X, Y), {"target": SIGNS[:, 0]}),
    ("cosine_embedding_loss", (X, Y), {"target": SIGNS[:, 0], "margin": 0.1}),
    ("cosine_embedding_loss", (X[0], Y[0]), {"target": SIGNS[0, 0]}),
    ("triplet_margin_loss", (X, Y, normal(4, 5)), {}),
    ("triplet_margin_loss", (X, Y, normal(4, 5)), {"margin": 2.5, "p": 3, "swap": True}),
    ("gaussian_nll_loss", (X, Y, P), {}), ("gaussian_nll_loss", (X, Y, share(4)), {"full": True}),
    ("gaussian_nll_loss", (X, Y, share(4, 1) - 0.04), {"eps": 0.5}),
    ("gaussian_nll_loss", (X, Y, share(1, X.shape[1])), {}),
    ("gaussian_nll_loss", (X, Y, P), {"eps": np.array([0.5], np.float32)}),
    ("gaussian_nll_loss", (X, Y), {"var": 0.3}),
    ("poisson_nll_loss", (X,), {"target": P * 5}), ("poisson_nll_loss", (X, P * 5), {"full": True}),
    ("poisson_nll_loss", (P,), {"target": Q, "log_input": False}),
]


def both(torch: Any, name: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> list[list[np.ndarray[Any, Any]]]:
    """The result and the gradients in both libraries."""
    found = []
    for library in (gradcore, torch):
        leaves = [library.tensor(a, requires_grad=True) for a in arrays]
        named = {k: library.tensor(v) if isinstance(v, (np.ndarray, np.generic)) else v for k, v in options.items()}
        out = getattr(library.nn.functional, name)(*leaves, **named)
        (out * out).sum().backward()
        found.append([out.detach().numpy(), *(x.grad.numpy() for x in leaves)])
    return found


def close(found: list[list[np.ndarray[Any, Any]]]) -> None:
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=3e-6 * max(1.0, float(np.abs(theirs).max()) / 10))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{','.join(c[2])}")
def test_losses_are_pytorchs(torch: Any, case: Any, reduction: str) -> None:
    name, arrays, options = case
    close(both(torch, name, arrays, {**options, "reduction": reduction}))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(("name", "arrays", "options"), [
    ("kl_div", (np.log(P),), {"target": Q, "reduction": "batchmean"}),
    ("cosine_similarity", (X, Y), {}), ("cosine_similarity", (X, Y[:1]), {"dim": 0}),
    ("cosine_similarity", (X * (SIGNS[:, :1] > 0), Y), {"eps": 1e-2}),
    ("normalize", (X,), {}), ("normalize", (X * (SIGNS[:, :1] > 0),), {"eps": 0.1}), ("normalize", (X,), {"p": 3, "dim": 0}),
    ("normalize", (X,), {"p": 1.0}),
    ("pairwise_distance", (X, Y), {}), ("pairwise_distance", (X, Y), {"p": 1.0, "keepdim": True}),
    ("pairwise_distance", (X[0], Y), {"p": 3.0})],
    ids=lambda v: str(v) if not isinstance(v, tuple) else "")
def test_similarities_are_pytorchs(torch: Any, name: str, arrays: Any, options: dict[str, Any]) -> None:
    close(both(torch, name, arrays, options))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_modules_are_their_functions(torch: Any) -> None:
    w, t = W, SIGNS
    for name, options, arrays in (
            ("L1Loss", {}, (X, Y)), ("SmoothL1Loss", {"beta": 0.3}, (X, Y)), ("HuberLoss", {"delta": 0.3}, (X, Y)),
            ("BCELoss", {"weight": w}, (P, Q)), ("BCEWithLogitsLoss", {"pos_weight": w, "weight": w}, (X, Q)),
            ("KLDivLoss", {"log_target": True, "reduction": "batchmean"}, (np.log(P), np.log(Q))),
            ("SoftMarginLoss", {}, (X, t)),
            ("HingeEmbeddingLoss", {"margin": 0.4}, (X, t)), ("MarginRankingLoss", {"margin": 0.4}, (X, Y, t)),
            ("MultiMarginLoss", {"p": 2, "margin": 0.4, "weight": w}, (X, CLASSES)),
            ("MultiLabelSoftMarginLoss", {"weight": w}, (X, Q)),
            ("MultiLabelMarginLoss", {"reduction": "sum"}, (X, np.repeat(CLASSES[:, None], 5, 1))),
            ("TripletMarginWithDistanceLoss", {"margin": 0.4, "swap": True}, (X, Y, P)),
            ("CosineEmbeddingLoss", {"margin": 0.4}, (X, Y, t[:, 0])),
            ("TripletMarginLoss", {"margin": 0.4, "p": 1.0, "swap": True, "reduction": "sum"}, (X, Y, P)),
            ("GaussianNLLLoss", {"full": True, "eps": 0.1}, (X, Y, P)), ("PoissonNLLLoss", {"full": True}, (X, P)),
            ("CosineSimilarity", {"dim": 0, "eps": 0.1}, (X, Y)), ("PairwiseDistance", {"p": 1.0, "keepdim": True}, (X, Y))):
        results = []
        for library in (gradcore, torch):
            given = {k: library.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
            module = getattr(library.nn, name)(**given)
            results.append(module(*[library.tensor(a) for a in arrays]).numpy())
            results.append(list(module.state_dict()))
        np.testing.assert_allclose(results[0], results[2], rtol=2e-5, atol=3e-6, err_msg=name)
        assert results[1] == results[3]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(("name", "arrays", "numbers"), [
    ("l1_loss", (X, Y), 1), ("huber_loss", (X, Y), 1), ("smooth_l1_loss", (X, Y), 1),
    ("binary_cross_entropy", (P, Q), 2), ("binary_cross_entropy_with_logits", (X, Q), 2), ("soft_margin_loss", (X, SIGNS), 2),
    ("kl_div", (np.log(P), Q), 1)], ids=lambda v: v if isinstance(v, str) else "")
def test_no_more_is_kept_than_a_kernel_of_its_own_would(name: str, arrays: Any, numbers: int) -> None:
    """Bytes kept for backward, in tensors of the input's size; a dedicated kernel would keep input and target."""
    x, t = gradcore.tensor(arrays[0], requires_grad=True), gradcore.tensor(arrays[1])
    ledger = gradcore.device("cpu").ledger
    log = ledger.begin_log()
    loss = getattr(F, name)(x, t)
    kept = {r.serial for r in map(typed, log) if isinstance(r, Keep) and r.node}
    ledger.end_log()
    assert len(kept) <= numbers
    del loss


def test_zeros_have_gradients() -> None:
    zero = gradcore.tensor(ZERO, requires_grad=True)
    F.normalize(zero).sum().backward()
    F.cosine_similarity(zero, gradcore.tensor(X)).sum().backward()
    assert np.isfinite(zero.grad.numpy()).all()


def test_errors_have_pytorchs_words() -> None:
    x, t = gradcore.tensor(X), gradcore.tensor(Y[:2])
    for call, kind, text in (
            (lambda: F.l1_loss(x, x, reduction="most"), ValueError, "most is not a valid value for reduction"),
            (lambda: F.huber_loss(x, x, delta=0), ValueError, "does not support non-positive values for delta: 0"),
            (lambda: F.smooth_l1_loss(x, x, beta=-1), ValueError, "does not support negative values for beta: -1"),
            (lambda: F.binary_cross_entropy(x, t), ValueError, "Using a target size ([2, 5]) that is different to the input"),
            (lambda: F.binary_cross_entropy_with_logits(x, t), ValueError, "Using a target size ([2, 5])"),
            (lambda: F.margin_ranking_loss(x, x, x[0]), RuntimeError, "same dimension but got sizes: input1: [4, 5]"),
            (lambda: F.multi_margin_loss(x, x), RuntimeError, "inconsistent target size, expected [4] but got [4, 5]"),
            (lambda: F.multilabel_margin_loss(x, x[:2]), RuntimeError, "inconsistent target size: [2, 5] for input of size"),
            (lambda: F.multi_margin_loss(x, x, p=3), ValueError, "only p == 1 and p == 2 supported, but got 3"),
            (lambda: F.cosine_embedding_loss(x, x, x), RuntimeError, "2D target tensor expects 3D input tensors"),
            (lambda: F.triplet_margin_loss(x, x, x, margin=0), ValueError, "margin must be greater than 0, got 0"),
            (lambda: F.gaussian_nll_loss(x, x, x[:, :2]), ValueError, "var is of incorrect size: [4, 2]"),
            (lambda: F.gaussian_nll_loss(x, x, x[:1, :1]), ValueError, "var is of incorrect size: [1, 1]"),
            (lambda: F.gaussian_nll_loss(x, x, x[0, 0]), ValueError, "var is of incorrect size: []"),
            (lambda: F.gaussian_nll_loss(x, x, -1.0), ValueError, "var has negative entry/entries")):
        with raises(kind, text):
            call()
    for loss in (F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss):
        with pytest.warns(UserWarning, match="Using a target size"):
            loss(x, t[:1])


@pytest.mark.parametrize("size", [0.01, 30.0])
def test_a_cosine_loss_of_halves_is_that_of_single_precision(size: float) -> None:
    """The product of the squared lengths is not a number of float16, nor is the slope of its root."""
    rows = np.random.default_rng(0).normal(size=(2, 3, 64)) * size

    def found(dtype: Any) -> list[Any]:
        x, y = (gradcore.tensor(r, dtype=gradcore.float16).to(dtype).detach().requires_grad_() for r in rows)
        loss = F.cosine_embedding_loss(x, y, gradcore.tensor([1, -1, 1]))
        loss.backward()
        return [v.detach().double().numpy() for v in (loss, x.grad, y.grad)]

    for half, single in zip(found(gradcore.float16), found(gradcore.float32), strict=True):
        np.testing.assert_allclose(half, single, rtol=2**-9, atol=2**-9 * np.abs(single).max())


@pytest.mark.parametrize("weighted", [False, True])
def test_operands_converted_for_a_squared_error_are_released_with_the_difference(weighted: bool) -> None:
    x, y = gradcore.ones(100, 100), gradcore.zeros(100, 100, dtype=gradcore.float64)
    weight = gradcore.ones(100, 100) if weighted else None
    with gradcore.step() as step:
        F.mse_loss(x, y, reduction="none", weight=weight)
    # One result in float64 and another that is read for it.
    assert step.report.peak.requested < x.nbytes * (1 + weighted) + 3 * y.nbytes + 1000


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("count", [64, 300])
def test_labels_of_few_bits_are_those_of_64(dtype: str, count: int) -> None:
    """Where the kernel looks is a number that they cannot hold."""
    x = gradcore.tensor(np.random.default_rng(1).standard_normal((count, 5)).astype(np.float32), requires_grad=True)
    labels, found = np.arange(count) % 5, []
    for given in (labels, labels.astype(dtype)):
        loss = F.cross_entropy(x, gradcore.tensor(given))
        found.append((loss.item(), gradcore.autograd.grad(loss, x)[0].tolist()))
    assert found[0] == found[1]


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("weight", [None, (0.5, 1.5, 2.0), (0.5, 1.5, 0.0)])
@pytest.mark.parametrize("scores", [(1.0, -math.inf, 2.0), (1.0, 2.0, -math.inf), (1.0, -math.inf, -math.inf),
                                    (1000.0, 1002.0, 1001.0), (-2000.0, -2003.0, -2001.0)])
def test_a_smoothed_loss_of_infinite_and_of_large_scores_is_torchs(scores: Any, weight: Any, dtype: str, torch: Any) -> None:
    """A mean of -inf was taken from a score of -inf; means of 1,000 in 16 bits were multiples of 1/2."""
    found: dict[Any, tuple[Any, Any]] = {}
    for t in (gradcore, torch):
        kind = getattr(t, dtype)
        x = t.tensor([scores, (0.0, 1.0, 2.0)]).to(kind).requires_grad_()
        w = None if weight is None else t.tensor(weight).to(kind)
        loss = t.nn.functional.cross_entropy(x, t.tensor([1, 0]), w, reduction="none", label_smoothing=0.1)
        loss.sum().backward()
        found[t] = loss.detach().double().numpy(), x.grad.double().numpy()
    close = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for ours, theirs in zip(found[gradcore], found[torch], strict=True):
        np.testing.assert_allclose(ours, theirs, close, close)
