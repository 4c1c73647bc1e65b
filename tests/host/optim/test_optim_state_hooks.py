"""Hooks around an optimizer's state dict, in PyTorch's order and with its arguments."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gradcore


def told(t: Any, kind: str) -> list[Any]:
    """What the hooks were called with, and what was saved and loaded."""
    p = t.ones(2, requires_grad=True)
    o = getattr(t.optim, kind)([p], lr=0.1)
    p.grad = t.ones(2)
    o.step()
    # Hooks that referred to the optimizer would keep it alive.
    found, me = list[Any](), id(o)
    o.register_state_dict_pre_hook(lambda of: found.append(("before saving", id(of) == me)))
    o.register_state_dict_pre_hook(lambda of: found.append("first"), prepend=True)

    def add(of: Any, state: Any) -> None:
        state["extra"] = 1
        found.append(("added", id(of) == me))

    def replace(of: Any, state: Any) -> Any:
        found.append(("replaced", sorted(state)))
        return {**state, "other": 2}

    o.register_state_dict_post_hook(replace)
    handle = o.register_state_dict_post_hook(add, prepend=True)
    saved = o.state_dict()
    found.append(sorted(saved))
    handle.remove()
    found.append(sorted(o.state_dict()))

    def faster(of: Any, state: Any) -> Any:
        found.append(("before loading", id(of) == me, sorted(state)))
        state.pop("extra", None)
        return {**state, "param_groups": [{**g, "lr": 0.5} for g in state["param_groups"]]}

    o.register_load_state_dict_pre_hook(faster)
    with o.register_load_state_dict_post_hook(lambda of: found.append(("loaded", of.param_groups[0]["lr"]))):
        o.load_state_dict(saved)
    found.append((sorted(saved), o.param_groups[0]["lr"]))
    o.load_state_dict(saved)
    o.register_step_post_hook(lambda *_: found.append("stepped"))
    again = copy.deepcopy(o)
    again.step()
    again.state_dict()
    again.load_state_dict(o.state_dict())
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_they_are_called_as_torchs(kind: str, torch: Any) -> None:
    assert told(gradcore, kind) == told(torch, kind)


def test_an_optimizer_of_the_users_has_them_without_calling_init() -> None:
    class Wrapper(gradcore.optim.Optimizer):
        def __init__(self, inner: Any) -> None:
            self.param_groups, self.state = inner.param_groups, inner.state

    o = Wrapper(gradcore.optim.SGD([gradcore.ones(2, requires_grad=True)], lr=0.1))
    o.register_state_dict_post_hook(lambda of, state: {"mine": state})
    assert list(o.state_dict()) == ["mine"]
