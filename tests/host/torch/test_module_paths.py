"""Modules by PyTorch's paths, and base classes of layers that only have a name there."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore._paths import BESIDE, SOURCES

#: Base classes, by the path of their module, beside which there are functions.
BASES = [(path, name) for path, beside in BESIDE.items() for name in " ".join(beside[1::2]).split()
         if isinstance(kind := getattr(importlib.import_module(f"gradcore.{path}"), name), type)
         and issubclass(kind, nn.Module) and name.startswith(("_", "RNN", "Lazy"))]


@pytest.mark.oracle
@pytest.mark.parametrize(("path", "base"), BASES, ids=[name for _, name in BASES])
def test_the_same_layers_are_instances_of_a_base(path: str, base: str, torch: Any) -> None:
    ours, theirs = (getattr(importlib.import_module(f"{t.__name__}.{path}"), base) for t in (gradcore, torch))
    found = {name: (issubclass(kind, ours), issubclass(getattr(torch.nn, name), theirs)) for name, kind in vars(nn).items()
             if isinstance(kind, type) and issubclass(kind, nn.Module) and hasattr(torch.nn, name)}
    assert len(found) > 100 and any(mine for mine, _ in found.values())
    assert {name: both for name, both in found.items() if both[0] != both[1]} == {}


@pytest.mark.oracle
@pytest.mark.parametrize("path", SOURCES)
def test_a_module_has_pytorchs_names_as_far_as_they_are_here(path: str, torch: Any) -> None:
    ours, theirs = (importlib.import_module(f"{t.__name__}.{path}") for t in (gradcore, torch))
    shown = {name for name in vars(ours) if not name.startswith("__")}
    assert shown and all(hasattr(theirs, name) for name in shown)


def test_layers_by_their_paths() -> None:
    from gradcore.nn.modules.batchnorm import _BatchNorm  # type: ignore[import-not-found]
    from gradcore.nn.modules.utils import _pair  # type: ignore[import-not-found]
    from gradcore.utils.data.dataloader import default_collate  # type: ignore[import-not-found]

    from gradcore.utils.data._utils import collate  # type: ignore[import-not-found]
    assert collate.default_collate is default_collate and not hasattr(collate, "nothing")
    model = nn.Sequential(nn.BatchNorm2d(2), nn.InstanceNorm2d(2), nn.GroupNorm(1, 2))
    assert [isinstance(m, _BatchNorm) for m in model] == [True, False, False]
    assert nn.modules.conv.Conv2d is nn.Conv2d and gradcore.optim.adamw.AdamW is gradcore.optim.AdamW
    assert _pair(3) == (3, 3) and _pair([1, 2]) == (1, 2) and _pair("ab") == ("a", "b")
    assert default_collate is gradcore.utils.data.default_collate and gradcore.random.manual_seed is gradcore.manual_seed


def test_a_norm_that_takes_any_input() -> None:
    class Anything(nn.modules.batchnorm._BatchNorm):  # type: ignore[name-defined, misc]
        def _check_input_dim(self, input: Any) -> None:
            pass

    x = gradcore.rand(2, 3, 4, 5, 6)
    assert Anything(3)(x).tolist() == nn.BatchNorm3d(3)(x).tolist()
    with pytest.raises(gradcore.SpecError, match="expected 4D input"):
        nn.BatchNorm2d(3)(x)


def test_a_loss_of_ones_own_on_a_base() -> None:
    class Focal(nn.modules.loss._WeightedLoss):  # type: ignore[name-defined, misc]
        def __init__(self, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> None:
            super().__init__(weight, size_average, reduce, reduction)

    found = Focal(gradcore.ones(2), reduction="sum")
    assert found.reduction == "sum" and [name for name, _ in found.named_buffers()] == ["weight"]


@pytest.mark.oracle
def test_a_prefix_is_taken_off_a_state_dict(torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        inner = t.nn.Sequential(t.nn.Linear(1, 1), t.nn.Linear(1, 1))
        state = OrderedDict(t.nn.Sequential(OrderedDict(module=inner)).state_dict())
        state._metadata = OrderedDict({"": 0, "module": 1, "module.0": 2, "other": 3})  # type: ignore[attr-defined]
        state["other"] = state["module.0.bias"]
        t.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        outcomes.append(([*state], {**state._metadata}))  # type: ignore[attr-defined]
    assert outcomes[0] == outcomes[1]
