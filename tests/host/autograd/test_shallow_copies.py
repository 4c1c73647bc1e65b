"""``copy.copy`` of tensors: another tensor over the same bytes, with what PyTorch's copy has of the first."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gradcore

#: The tensors that are copied, by what they are.
MADE: dict[str, Any] = {
    "plain": lambda t: t.ones(3),
    "integers": lambda t: t.tensor([1, 2]),
    "a leaf": lambda t: t.ones(3, requires_grad=True),
    "a leaf with a gradient": lambda t: trained(t.ones(3, requires_grad=True)),
    "a result": lambda t: t.ones(3, requires_grad=True) * 2,
    "a view of a result": lambda t: (t.ones(3, requires_grad=True) * 2)[1:],
    "a view of a leaf": lambda t: t.ones(3, requires_grad=True)[1:],
    "a view with gaps": lambda t: t.ones(3, 4)[1:, ::2],
    "detached": lambda t: (t.ones(3, requires_grad=True) * 2).detach(),
    "a parameter": lambda t: trained(t.nn.Parameter(t.ones(3))),
    "a frozen parameter": lambda t: t.nn.Parameter(t.ones(3), requires_grad=False),
    "a buffer": lambda t: t.nn.Buffer(t.ones(3), persistent=False)}


def trained(x: Any) -> Any:
    (x * x).sum().backward()
    return x


def shown(t: Any, made: Any) -> Any:
    """What a copy is, and has of the tensor."""
    found = copy.copy(made)
    with t.no_grad():
        found += 1
    return (found is made, *(isinstance(found, kind) for kind in (t.nn.Parameter, t.nn.Buffer)),
            getattr(found, "persistent", None), found.requires_grad, found.is_leaf, found.grad, found._base,
            found.data_ptr() == made.data_ptr(),
            tuple(found.stride()), found.storage_offset(), found.tolist(), made.tolist())


@pytest.mark.oracle
@pytest.mark.parametrize("name", MADE)
def test_a_copy_is_what_pytorchs_is(name: str, torch: Any) -> None:
    assert shown(gradcore, MADE[name](gradcore)) == shown(torch, MADE[name](torch))


def test_a_copy_is_over_the_same_bytes_and_trains_by_itself() -> None:
    first = gradcore.nn.Parameter(gradcore.ones(3))
    first.mark = "decays"  # type: ignore[attr-defined]
    live = gradcore.memory_requested()
    second = copy.copy(first)
    assert gradcore.memory_requested() == live and second.mark == "decays"
    second.mark = "does not"
    (second * 2).sum().backward()
    assert second.grad.tolist() == [2, 2, 2] and first.grad is None and first.mark == "decays"  # type: ignore[attr-defined]
    lazy = gradcore.nn.UninitializedParameter(requires_grad=False)
    copied = copy.copy(lazy)
    copied.materialize((2,))
    assert gradcore.nn.parameter.is_lazy(lazy) and copied.shape == (2,) and not copied.requires_grad


def test_a_copy_in_a_traced_function() -> None:
    double = gradcore.compile(lambda x: copy.copy(x) * 2)
    for k in (1, 2, 3):
        assert double(gradcore.ones(2) * k).tolist() == [2 * k, 2 * k]
