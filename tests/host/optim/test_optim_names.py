"""Attributes of a program's optimizers, schedules and loaders: what gradcore keeps in them has names that no program uses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gradcore

#: Names that programs have given to what they keep in their optimizers, and to their methods.
NAMES = "_before _after _update _load _launch _parameters _numbers _operands _compute _free".split()


@pytest.mark.oracle
def test_what_optimizers_have_besides_pytorchs_begins_in_one_way(torch: Any) -> None:
    found = set()
    for name in dir(gradcore.optim):
        kind, theirs = getattr(gradcore.optim, name), getattr(torch.optim, name, torch.optim.Optimizer)
        if isinstance(kind, type) and issubclass(kind, gradcore.optim.Optimizer) and kind is not gradcore.optim.Optimizer:
            own = {*dir(kind), *vars(kind([gradcore.ones(2, 2, requires_grad=True)], lr=0.1))}
            found |= own - {*dir(theirs), *vars(torch.optim.SGD([torch.ones(1)], lr=0.1))}
    # PyTorch's optimizers have _opt_called once they have a schedule.
    assert not [name for name in found if not name.startswith(("_optim_", "__")) and name != "_opt_called"]


def walk(t: Any, base: str, name: str, method: bool) -> list[Any]:
    """What an optimizer with an attribute or a method of this name does."""
    kind = type("Mine", (getattr(t.optim, base),), {name: lambda self, *args: "mine"} if method else {})
    p = t.tensor([1.0, -2.0], requires_grad=True)
    optimizer = kind([p], lr=0.1, weight_decay=0.1)
    if not method:
        setattr(optimizer, name, [])
    for _ in range(2):
        optimizer.zero_grad()
        (p * p).sum().backward()
        optimizer.step()
    optimizer.register_step_post_hook(lambda *args: None).remove()
    copy.deepcopy(optimizer).load_state_dict(optimizer.state_dict())
    return [p.tolist(), getattr(optimizer, name)() if method else getattr(optimizer, name)]


@pytest.mark.oracle
@pytest.mark.parametrize("method", [False, True], ids=["attribute", "method"])
@pytest.mark.parametrize("name", NAMES)
def test_a_programs_own_names_change_nothing(name: str, method: bool, torch: Any) -> None:
    for base in ("SGD", "AdamW"):
        (ours, own), (theirs, wanted) = (walk(t, base, name, method) for t in (gradcore, torch))
        assert own == wanted and ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.oracle
def test_so_does_what_schedules_loaders_samplers_and_data_sets_have(torch: Any) -> None:
    def cycle(t: Any) -> Any:
        return t.optim.lr_scheduler.OneCycleLR(t.optim.SGD([t.ones(1)], lr=0.1, momentum=0.9), 0.1, 10)

    found = {*vars(cycle(gradcore))} - {*vars(cycle(torch))}
    for ours, theirs in ((gradcore.optim.lr_scheduler, torch.optim.lr_scheduler), (gradcore.utils.data, torch.utils.data),
                         (gradcore.optim.swa_utils, torch.optim.swa_utils)):
        for name, kind in vars(ours).items():
            if isinstance(kind, type) and hasattr(theirs, name):
                found |= {*dir(kind)} - {*dir(getattr(theirs, name))}
    # PyTorch's modules have these, too.
    found -= {"_backward_hooks", "_backward_pre_hooks", "_buffers", "_forward_hooks", "_forward_pre_hooks", "_modules",
              "_parameters"}
    prefixes = ("_schedule_", "_loader_", "_sampler_", "_module_", "_compile_", "__")
    assert not [name for name in found if not name.startswith(prefixes)]


@pytest.mark.oracle
@pytest.mark.parametrize("name", "_set _begin _factor _floor _advances".split())
def test_nor_do_they_in_schedules(name: str, torch: Any) -> None:
    def rates(t: Any, base: str, method: bool) -> list[Any]:
        kind = type("Mine", (getattr(t.optim.lr_scheduler, base),), {name: lambda self: "mine"} if method else {})
        optimizer = t.optim.SGD([t.ones(1)], lr=0.1)
        schedule = kind(optimizer, 2)
        if not method:
            setattr(schedule, name, ["mine"])
        found = []
        for _ in range(4):
            optimizer.step()
            schedule.step()
            found += schedule.get_last_lr()
        return [*found, *(getattr(schedule, name)() if method else getattr(schedule, name))]

    for base in ("StepLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts"):
        for method in (False, True):
            ours, theirs = (rates(t, base, method) for t in (gradcore, torch))
            assert ours[4:] == theirs[4:] and ours[:4] == pytest.approx(theirs[:4])


@pytest.mark.parametrize("name", "_batches _collated _samples _iterable _made epochs".split())
def test_nor_do_they_in_loaders(name: str) -> None:
    loader = gradcore.utils.data.DataLoader(range(4), 2, shuffle=True)
    setattr(loader, name, ["mine"])
    assert sorted(x for batch in loader for x in batch.tolist()) == [0, 1, 2, 3] and getattr(loader, name) == ["mine"]
