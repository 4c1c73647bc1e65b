"""What programs keep in the context of a custom function: what gradcore keeps there has names that no program uses."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore


@pytest.mark.oracle
def test_what_functions_have_besides_pytorchs_begins_in_one_way(torch: Any) -> None:
    def names(t: Any) -> set[str]:
        found: set[str] = set()

        class Same(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                found.update(dir(ctx))
                return x.clone()

        Same.apply(t.ones(1))
        return found | {*dir(Same)}

    assert not [name for name in names(gradcore) - names(torch) if not name.startswith(("_function_", "__"))]


@pytest.mark.parametrize("name", "_values _node _to_save _dirty _plain".split())
def test_a_programs_own_names_change_nothing(name: str) -> None:
    class Square(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            setattr(ctx, name, ["mine"])
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            assert getattr(ctx, name) == ["mine"]
            return 2 * g * ctx.saved_tensors[0]

    x = gradcore.ones(2, requires_grad=True)
    Square.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
