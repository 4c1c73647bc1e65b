"""``nn.utils.prune``: masks, values and gradients of pruned parameters, compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn.utils import prune
from tests.conftest import raises

#: What is pruned, one call after the other.
CALLS: dict[str, list[Callable[[Any, Any, Any], Any]]] = {
    "number": [lambda p, m, t: p.l1_unstructured(m, "weight", 7)],
    "as many as there are": [lambda p, m, t: p.l1_unstructured(m, "bias", 4)],
    "share": [lambda p, m, t: p.l1_unstructured(m, name="weight", amount=0.37)],
    "none": [lambda p, m, t: p.l1_unstructured(m, "weight", 0), lambda p, m, t: p.identity(m, "bias")],
    "scores": [lambda p, m, t: p.l1_unstructured(m, "weight", 5, importance_scores=t.tensor(SCORES))],
    "slices": [lambda p, m, t: p.ln_structured(m, "weight", 2, n=2, dim=0)],
    "largest": [lambda p, m, t: p.ln_structured(m, "weight", 0.5, float("inf"), -1)],
    "mask": [lambda p, m, t: p.custom_from_mask(m, "bias", t.tensor([1, 0, 1, 0]))],
    "all": [lambda p, m, t: p.random_unstructured(m, "weight", 1.0)],
    "in turn": [lambda p, m, t: p.l1_unstructured(m, "weight", 5), lambda p, m, t: p.l1_unstructured(m, "weight", 0.5),
                lambda p, m, t: p.custom_from_mask(m, "weight", t.tensor(SCORES > 0.1))],
    "slices of what is left": [lambda p, m, t: p.ln_structured(m, "weight", 1, 1, 0), lambda p, m, t: p.identity(m, "weight"),
                               lambda p, m, t: p.ln_structured(m, "weight", 1, 1, 0),
                               lambda p, m, t: p.ln_structured(m, "weight", 2, 2, 1)],
    "several": [lambda p, m, t: p.global_unstructured([(m, "weight"), (m, "bias")], p.L1Unstructured, amount=0.4)],
    "several in turn": [lambda p, m, t: p.l1_unstructured(m, "bias", 1),
                        lambda p, m, t: p.global_unstructured([(m, "weight"), (m, "bias")], p.L1Unstructured,
                                                              {(m, "weight"): t.tensor(SCORES)}, amount=9)],
}
SCORES = np.random.default_rng(1).random((4, 5)).astype(np.float32)
X = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32)


def layers(torch: Any) -> list[tuple[Any, Any]]:
    theirs, ours = torch.nn.Linear(5, 4), nn.Linear(5, 4)
    ours.load_state_dict(theirs.state_dict())
    return [(gradcore, ours), (torch, theirs)]


@pytest.mark.oracle
@pytest.mark.parametrize("calls", CALLS.values(), ids=list(CALLS))
def test_pruned_layers_are_pytorchs(torch: Any, calls: list[Any]) -> None:
    from torch.nn.utils import prune as theirs

    found, returned = [], []
    for (library, layer), part in zip(layers(torch), (prune, theirs), strict=True):
        returned.append([call(part, layer, library) is layer for call in calls])
        optimizer = library.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            layer(library.tensor(X)).square().sum().backward()
            optimizer.step()
        state = {name: x.numpy().copy() for name, x in layer.state_dict().items()}
        assert part.is_pruned(library.nn.Sequential(layer))
        for name in ("weight", "bias"):
            if f"{name}_mask" in state:
                original = getattr(layer, f"{name}_orig")
                assert part.remove(layer, name) is layer and getattr(layer, name) is original
        assert not part.is_pruned(layer)
        found.append((state, {name: x.numpy() for name, x in layer.state_dict().items()}))
    assert returned[0] == returned[1]
    for ours, other in zip(*found, strict=True):
        assert list(ours) == list(other)
        for name, x in other.items():
            np.testing.assert_allclose(ours[name], x, rtol=2e-6, atol=1e-6, err_msg=name)


def test_a_pruned_state_is_loaded() -> None:
    first, other = (prune.l1_unstructured(nn.Linear(5, 4), "weight", 9) for _ in range(2))
    other.load_state_dict(first.state_dict())
    x = gradcore.tensor(X)
    assert other(x).tolist() == first(x).tolist() and [*dict(other.named_buffers())] == ["weight_mask"]


def test_random_ones_prune_as_many_as_they_are_told() -> None:
    layer = prune.random_unstructured(nn.Linear(5, 4), "weight", 6)
    assert layer.weight_mask.sum().item() == 14
    prune.random_unstructured(layer, "weight", 0.5)
    assert layer.weight_mask.sum().item() == 7 and [type(m).__name__ for m in prune._method_of(layer, "weight")[1]] == [
        "RandomUnstructured", "RandomUnstructured"]
    layer = prune.random_structured(nn.Linear(5, 4), "weight", 2, dim=1)
    assert layer.weight_mask.sum(0).tolist().count(0) == 2 and layer.weight_mask.sum().item() == 12
    assert prune.random_structured(nn.Linear(5, 4, device="meta"), "weight", 2, dim=1).weight_mask.device.type == "meta"


class Every(prune.BasePruningMethod):
    """Prunes every n-th element of those that are left."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, n: int) -> None:
        self.n = n

    def compute_mask(self, t: Any, default_mask: Any) -> Any:
        mask = default_mask.clone()
        mask.view(-1)[::self.n] = 0
        return mask


def test_a_method_of_ones_own() -> None:
    layer = nn.Linear(4, 1)
    assert type(Every.apply(layer, "weight", 2)) is Every
    whole = Every.apply(layer, "weight", 2)
    assert layer.weight_mask.tolist() == [[0, 0, 0, 1]] and len(whole) == 2 and whole[1].n == 2
    assert Every(3).prune(gradcore.ones(4)).tolist() == [0, 1, 1, 0]
    for kind, error, text in (("structured", AttributeError, "need to have the attribute `dim`"),
                              ("every", ValueError, "Unrecognized PRUNING_TYPE every")):
        with raises(error, text):
            type("Other", (Every,), {"PRUNING_TYPE": kind}).apply(layer, "weight", 2)
    assert len(prune._method_of(layer, "weight")[1]) == 2


def test_what_cannot_be_pruned_stays_as_it_is() -> None:
    layer, method = nn.Linear(5, 4), prune.L1Unstructured
    for call, kind, text in (
            (lambda: method.apply(layer, "weight", "a"), TypeError, "Invalid type for amount: a. Must be int or float."),
            (lambda: method.apply(layer, "weight", 1.5), ValueError, "amount=1.5 should either be a float in the range [0, 1]"),
            (lambda: method.apply(layer, "weight", -1), ValueError, "amount=-1 should either be"),
            (lambda: method.apply(layer, "weight", 21), ValueError, "amount=21 should be smaller than the number of"),
            (lambda: prune.ln_structured(layer, "bias", 1, 2, 0), ValueError, "can only be applied to multidimensional"),
            (lambda: prune.ln_structured(layer, "weight", 1, 2, 2), IndexError, "Invalid index 2 for tensor of size"),
            (lambda: prune.custom_from_mask(layer, "weight", gradcore.ones(2)), AssertionError, "[2] for a parameter of [4"),
            (lambda: prune.l1_unstructured(layer, "weight", 1, gradcore.ones(2)), AssertionError, "should have the same shape"),
            (lambda: prune.global_unstructured([(layer, "weight")], prune.LnStructured, amount=1, n=2), TypeError,
             'Only "unstructured" PRUNING_TYPE supported'),
            (lambda: prune.global_unstructured(1, method), TypeError, "parameters is not an Iterable"),
            (lambda: prune.global_unstructured([], method, []), TypeError, "importance_scores must be of type dict"),
            (lambda: prune.PruningContainer().add_pruning_method(1), TypeError, "is not a BasePruningMethod subclass"),
            (lambda: prune.remove(layer, "weight"), ValueError, "has to be pruned before pruning can be removed")):
        with raises(kind, text):
            call()
    assert list(layer.state_dict()) == ["weight", "bias"] and not prune.is_pruned(layer)
    layer(gradcore.tensor(X))
