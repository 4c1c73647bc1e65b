"""Lines of user code that runs inside gradcore's layers: hooks, replaced ``forward``s, functions that a layer was given."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.engine import sites

HERE = __file__


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(k for k, line in enumerate(lines) if text in line)


def lines(run: Callable[[], Any]) -> dict[str, set[tuple[str, int]]]:
    """By op: the lines that it is said to run for."""
    with gradcore.step() as s:
        run()
    found: dict[str, set[tuple[str, int]]] = {}
    for r in s.recording.records:
        if isinstance(r, gradcore.events.Launch):
            found.setdefault(r.tag.op, set()).add((r.tag.site.file, r.tag.site.line))
    return found


def tripled(module: Any, args: Any, output: Any) -> Any:
    return output * 3


def rooted(module: Any, args: Any) -> Any:
    return (args[0].sqrt(),)


def squashed(x: Any) -> Any:
    return x.tanh()


def hooked() -> tuple[Any, Any, dict[str, int]]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())
    model[0].register_forward_hook(tripled)
    model.register_forward_pre_hook(rooted)
    return model, gradcore.ones(4, 3), {"mul": line_of(tripled, "* 3"), "sqrt": line_of(rooted, "sqrt")}


def replaced() -> tuple[Any, Any, dict[str, int]]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())
    old = model[0].forward
    model[0].forward = lambda x: old(x) * 3
    return model, gradcore.ones(4, 3), {"mul": line_of(replaced, "old(x) * 3"), "linear": line_of(replaced, "old(x) * 3")}


def given() -> tuple[Any, Any, dict[str, int]]:
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=squashed)
    return layer.eval(), gradcore.ones(2, 3, 4), {"tanh": line_of(squashed, "tanh")}


@pytest.mark.parametrize("kind", [hooked, replaced, given])
def test_they_are_the_lines_of_that_code_and_the_layers_that_of_the_call(kind: Any) -> None:
    model, x, expected = kind()

    def run() -> None:
        model(x)

    found = lines(run)
    for op, line in expected.items():
        assert found[op] == {(HERE, line)}
    # The replacement and what it calls refer to each other.
    for m in model.modules():
        m.__dict__.pop("forward", None)
    own = {"sigmoid", "layer_norm", "attention"} & set(found)
    assert own and all(found[op] == {(HERE, line_of(run, "model(x)"))} for op in own)


def test_after_a_hook_in_backward_gradients_are_of_forwards_lines_again() -> None:
    def doubled(g: Any) -> Any:
        return g + g

    def run() -> None:
        y = gradcore.ones(3, requires_grad=True).exp()
        y.register_hook(doubled)
        (y * y.detach()).sum().backward()

    found = lines(run)
    assert found["add"] == {(HERE, line_of(doubled, "g + g"))}
    assert found["mul"] == {(HERE, line_of(run, "y * y")), (HERE, line_of(run, "exp()"))}


def test_pythons_own_files_are_no_lines_of_users() -> None:
    def run() -> None:
        with gradcore.fork_rng():
            gradcore.rand(3)

    assert {file for sites in lines(run).values() for file, _ in sites} == {HERE}


def test_a_replaced_forward_runs_between_the_hooks_in_either_order() -> None:
    for hook_first in (False, True):
        layer, seen = nn.Linear(2, 2), []
        before = layer(gradcore.ones(1, 2))
        if hook_first:
            layer.register_forward_hook(lambda m, args, out, seen=seen: seen.append(out.tolist()))
        old = layer.forward
        layer.forward = lambda x, old=old: old(x) + 100
        if not hook_first:
            layer.register_forward_hook(lambda m, args, out, seen=seen: seen.append(out.tolist()))
        after = layer(gradcore.ones(1, 2))
        assert after.tolist() == (before + 100).tolist() and seen == [after.tolist()]
        # As in PyTorch, forward itself runs no hooks, and without the replacement they run around the class's.
        layer.forward(gradcore.ones(1, 2))
        assert len(seen) == 1
        del layer.forward, old
        assert layer(gradcore.ones(1, 2)).tolist() == before.tolist() and len(seen) == 2


def test_a_compiled_function_notices_that_forward_was_replaced() -> None:
    layer = nn.Linear(2, 2)
    step = gradcore.compile(lambda x: layer(x).sum())
    x = gradcore.ones(1, 2)
    first = [step(x).item() for _ in range(3)]
    old = layer.forward
    layer.forward = lambda x, old=old: old(x) + 100
    assert step(x).item() == step(x).item() == pytest.approx(first[0] + 200)
    assert "trace 2: forward of Linear was replaced" in step.explain()
    del layer.forward, old
    assert step(x).item() == first[0]


def test_a_line_is_found_although_another_thread_clears_the_table_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that begins to record stacks."""
    class Cleared(dict[int, Any]):
        def __setitem__(self, key: int, value: Any) -> None:
            self.clear()

    monkeypatch.setattr(sites, "CODES", Cleared())
    assert sites.here().function == sys._getframe().f_code.co_qualname


def test_a_comprehension_is_a_line_of_its_function() -> None:
    """On every Python: up to 3.11 they are functions of their own."""
    with gradcore.step() as step:
        lists = [[gradcore.ones(3) for _ in range(1)] for _ in range(1)]
        inside = (lambda: {k: gradcore.ones(4) for k in range(1)})()
        space: dict[str, Any] = {}
        exec(compile("import gradcore\nmade = [gradcore.ones(5) for _ in range(1)]", __file__, "exec"), space)
    made = {r.tag.spec.shape: r.tag.site.function for r in step.log if isinstance(r, gradcore.events.Alloc) and r.tag.spec}
    here = "test_a_comprehension_is_a_line_of_its_function"
    assert lists and inside
    assert {n: made[n,] for n in (3, 4, 5)} == {3: here, 4: f"{here}.<locals>.<lambda>", 5: "<module>"}


def in_hook(g: Any) -> Any:
    return g.sinh()


HOOKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "none": lambda x, y, z: None, "of a tensor": lambda x, y, z: y.register_hook(in_hook),
    "before a node": lambda x, y, z: z.grad_fn.register_prehook(lambda gs: (in_hook(gs[0]),)),
    "after a node": lambda x, y, z: z.grad_fn.register_hook(lambda gs, before: (in_hook(gs[0]),)),
    "of a leaf": lambda x, y, z: x.register_hook(in_hook),
    "of a complete gradient": lambda x, y, z: x.register_post_accumulate_grad_hook(lambda x: in_hook(x.grad) and None)}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_gradient_has_forwards_line_also_around_hooks(kind: str) -> None:
    x = gradcore.ones(1, requires_grad=True)

    def run() -> None:
        y = x.exp()
        z = y.reciprocal()
        HOOKS[kind](x, y, z)
        z.backward()

    of = {name: (HERE, line_of(run, name)) for name in ("exp", "reciprocal", "backward")}
    expected = {"exp": {of["exp"]}, "reciprocal": {of["reciprocal"]}, "full": {of["backward"]}, "neg": {of["reciprocal"]},
                "mul": {of["exp"], of["reciprocal"]}, "sinh": {(HERE, line_of(in_hook, "sinh"))}}
    if kind == "none":
        del expected["sinh"]
    assert lines(run) == expected
