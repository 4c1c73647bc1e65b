"""Layers and losses compared with PyTorch's: values, gradients, and state dicts in both directions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional as F
from tests.host.nn.test_layers import values

pytestmark = pytest.mark.oracle


def close(ours: Any, theirs: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


def stack(library: Any) -> Any:
    n = library.nn
    return n.Sequential(n.Linear(6, 8), n.GELU(), n.LayerNorm(8), n.Sequential(n.Linear(8, 8, bias=False), n.Tanh()),
                        n.Flatten(), n.LayerNorm(8, elementwise_affine=False), n.ReLU(), n.Linear(8, 4),
                        n.LogSoftmax(1))


def test_state_dicts_go_both_ways(torch: Any) -> None:
    ours, theirs = stack(gradcore_as_torch()), stack(torch)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    # Older versions of PyTorch do not show a LayerNorm's bias.
    assert re.sub("(affine=True|affine=False), bias=\\w+", r"\1", repr(ours)) == \
        re.sub("(affine=True|affine=False), bias=\\w+", r"\1", repr(theirs))
    ours.load_state_dict(theirs.state_dict())
    x = values(5, 6)
    a, b = ours(gradcore.tensor(x)), theirs(torch.tensor(x))
    close(a, b)
    (a * a).sum().backward()
    (b * b).sum().backward()
    for (name, p), (other, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other
        close(p.grad, q.grad, 1e-5)
    fresh = stack(torch)
    fresh.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    close(ours(gradcore.tensor(x)), fresh(torch.tensor(x)))


def gradcore_as_torch() -> Any:
    class Library:
        pass

    library = Library()
    library.nn = nn  # type: ignore[attr-defined]
    return library


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)])
def test_linear_and_layer_norm(torch: Any, shape: tuple[int, ...]) -> None:
    for ours, theirs in ((nn.Linear(7, 4), torch.nn.Linear(7, 4)), (nn.LayerNorm(7), torch.nn.LayerNorm(7)),
                         (nn.LayerNorm(shape), torch.nn.LayerNorm(shape)),
                         (nn.LayerNorm(7, bias=False), torch.nn.LayerNorm(7, bias=False))):
        ours.load_state_dict(theirs.state_dict())
        x = gradcore.tensor(values(*shape), requires_grad=True)
        y = torch.tensor(values(*shape), requires_grad=True)
        a, b = ours(x), theirs(y)
        close(a, b)
        weights = values(*a.shape, seed=1)
        (a * gradcore.tensor(weights)).sum().backward()
        (b * torch.tensor(weights)).sum().backward()
        close(x.grad, y.grad, 1e-5)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            close(p.grad, q.grad, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 2), (4,)])
def test_cross_entropy(torch: Any, shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: str) -> None:
    target = np.random.default_rng(1).integers(0, 4, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
    if target.ndim:
        target.flat[1] = -100
    weight = np.array([0.5, 1, 2, 3], np.float32) if weighted else None
    results = []
    for library, functional in ((gradcore, F), (torch, torch.nn.functional)):
        x = library.tensor(values(*shape), requires_grad=True)
        w = None if weight is None else library.tensor(weight)
        loss = functional.cross_entropy(x, library.tensor(target), weight=w, reduction=reduction,
                                        label_smoothing=smoothing)
        (loss * loss).sum().backward()
        results.append((loss, x.grad))
    close(results[0][0], results[1][0])
    close(results[0][1], results[1][1], 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_losses(torch: Any, weighted: bool, reduction: str) -> None:
    target = np.random.default_rng(1).integers(0, 4, (3, 5))
    weight = np.array([0.5, 1, 2, 3], np.float32)
    results = []
    for library, functional in ((gradcore, F), (torch, torch.nn.functional)):
        x = library.tensor(values(3, 4, 5), requires_grad=True)
        w = library.tensor(weight) if weighted else None
        soft = functional.softmax(library.tensor(values(3, 4, 5, seed=2)), 1)
        losses = [functional.nll_loss(x, library.tensor(target), weight=w, reduction=reduction, ignore_index=2),
                  functional.mse_loss(x, soft, reduction=reduction),
                  functional.cross_entropy(x, soft, weight=w, reduction=reduction, label_smoothing=0.1)]
        for loss in losses:
            (loss * loss).sum().backward()
        results.append((losses, x.grad))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        close(a, b)
    close(results[0][1], results[1][1], 1e-5)


def test_modules_of_losses(torch: Any) -> None:
    x, t = values(6, 4), np.array([0, 1, 2, 3, 1, 0])
    w = np.array([0.5, 1, 2, 3], np.float32)
    ours = nn.CrossEntropyLoss(gradcore.tensor(w), ignore_index=2, label_smoothing=0.1)
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(w), ignore_index=2, label_smoothing=0.1)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    close(ours(gradcore.tensor(x), gradcore.tensor(t)), theirs(torch.tensor(x), torch.tensor(t)))
    close(nn.MSELoss(reduction="sum")(gradcore.tensor(x), gradcore.zeros(6, 4)), torch.nn.MSELoss(reduction="sum")(
        torch.tensor(x), torch.zeros(6, 4)))
    log_p = np.log(np.full((6, 4), 0.25, np.float32))
    close(nn.NLLLoss()(gradcore.tensor(log_p), gradcore.tensor(t)),
          torch.nn.NLLLoss()(torch.tensor(log_p), torch.tensor(t)))


def test_activations(torch: Any) -> None:
    x = values(4, 9)
    for ours, theirs in ((nn.GELU("tanh"), torch.nn.GELU("tanh")), (nn.Sigmoid(), torch.nn.Sigmoid()),
                         (nn.Softmax(0), torch.nn.Softmax(0)), (nn.LogSoftmax(-1), torch.nn.LogSoftmax(-1)),
                         (nn.ReLU(), torch.nn.ReLU()), (nn.Identity(3), torch.nn.Identity(3))):
        close(ours(gradcore.tensor(x)), theirs(torch.tensor(x)))


def test_containers_are_added_and_multiplied(torch: Any) -> None:
    shown = []
    for library in (gradcore_as_torch(), torch):
        n = library.nn
        first, second = n.Sequential(n.ReLU(), n.Tanh()), n.Sequential(n.Sigmoid())
        more = n.Sequential(n.ReLU(), n.Tanh())
        more *= 2
        shown.append([*map(repr, (first + second, first * 2, 2 * first, more, n.ModuleList(first) + [n.GELU()]))])
        assert (first * 2)[2] is first[0]
        for call, error in ((lambda: first + n.ModuleList(), ValueError), (lambda: first * 0, ValueError),  # noqa: B023
                            (lambda: first * 1.5, TypeError)):  # noqa: B023
            with pytest.raises(error, match=r"add operator|Non-positive|unsupported operand"):
                call()
    assert shown[0] == shown[1]


def test_a_module_is_put_at_a_path(torch: Any) -> None:
    shown = []
    for library in (gradcore_as_torch(), torch):
        n = library.nn
        model = n.Sequential(n.Linear(2, 2), n.Sequential(n.ReLU()))
        model.note = 3
        model.set_submodule("1.0", n.Tanh())
        model.set_submodule("1.new", n.GELU())
        texts = [repr(model), list(model.state_dict())]
        for args, error in ((("1.2.x", n.Tanh()), AttributeError), (("1.2", n.Tanh(), True), AttributeError),
                            (("note", n.Tanh()), AttributeError), (("", n.Tanh()), ValueError), (("1.0", 3), ValueError)):
            with pytest.raises(error) as caught:
                model.set_submodule(*args)
            texts.append(str(caught.value))
        shown.append(texts)
    assert shown[0] == shown[1]


def test_extra_state_is_in_a_state_dict(torch: Any) -> None:
    found = []
    for library in (gradcore_as_torch(), torch):
        n = library.nn

        class Counting(n.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.seen = n.Linear(1, 1), 3  # noqa: B023

            def get_extra_state(self) -> Any:
                return {"seen": self.seen}

            def set_extra_state(self, state: Any) -> None:
                self.seen = state["seen"]

        model = n.Sequential(Counting(), n.ReLU())
        state = model.state_dict()
        texts = [list(state), state["0._extra_state"], str(model.load_state_dict({**state, "0._extra_state": {"seen": 7}})),
                 model[0].seen]
        del state["0._extra_state"]
        texts.append(model.load_state_dict(state, strict=False).missing_keys)
        with pytest.raises(RuntimeError) as caught:
            model.load_state_dict({**state, "_extra_state": 1})
        found.append([*texts, str(caught.value).split()])
    assert found[0] == found[1]
