"""Hooks of modules: PyTorch's order and arguments, replacements, removal, copies, and no cycles."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises
from tests.meta.test_interrupts import at_every_moment


def scenario(library: Any) -> list[Any]:
    """The arguments of hooks on a small network, as text and shapes, and the final gradients."""
    n = library.nn
    seen: list[Any] = []

    class Two(n.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = n.Linear(3, 4), n.Linear(4, 2)

        def forward(self, x: Any, scale: float = 1.0) -> Any:
            h = self.a(x) * scale
            return self.b(h), h

    net = Two()
    for k, p in enumerate(net.parameters()):
        p.data.copy_(library.tensor(np.linspace(-1, 1 + k, p.numel(), dtype=np.float32).reshape(tuple(p.shape))))

    def note(name: str) -> Any:
        def hook(module: Any, *what: Any) -> None:
            seen.append((name, type(module).__name__, [[None if t is None else tuple(t.shape) for t in part]
                                                       for part in what if isinstance(part, tuple)]))

        return hook

    net.register_forward_pre_hook(note("second"))
    net.register_forward_pre_hook(note("first"), prepend=True)
    net.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": kwargs["scale"] * 2}), with_kwargs=True)
    net.register_forward_hook(lambda m, args, kwargs, out: seen.append(("kwargs", kwargs)), with_kwargs=True)
    net.a.register_forward_hook(lambda m, args, out: out + 1)
    net.register_full_backward_hook(note("whole"))
    net.a.register_full_backward_hook(note("inner"))
    net.b.register_full_backward_pre_hook(lambda m, g: (g[0] * 3,))
    net.b.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
    x = library.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), requires_grad=True)
    out, h = net(x, scale=0.5)
    (out.sum() + (h * h).sum()).backward()
    return [seen, x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.oracle
def test_hooks_are_pytorchs(torch: Any) -> None:
    (ours, *grads), (theirs, *others) = scenario(gradcore), scenario(torch)
    assert ours == theirs
    for g, other in zip(grads, others, strict=True):
        np.testing.assert_allclose(g.numpy(), other.numpy(), rtol=1e-6)


def test_an_input_without_a_gradient_is_shown_as_none() -> None:
    m = nn.Linear(3, 2)
    seen = []
    handle = m.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].shape)))
    m(gradcore.ones(4, 3)).sum().backward()
    assert seen == [((None,), (4, 2))]
    handle.remove()
    m(gradcore.ones(4, 3)).sum().backward()
    assert len(seen) == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_hooks_of_its_own_and_a_module_with_hooks_goes_by_reference_count(copied: Any) -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    seen: list[Any] = []
    with m.register_forward_hook(lambda module, args, out: seen.append(module)):
        c = copied(m)
        c(gradcore.ones(1, 2))
        assert seen == [c]
    m(gradcore.ones(1, 2))
    c(gradcore.ones(1, 2))
    assert seen == [c, c]
    seen.clear()
    gone = weakref.ref(m)
    del m
    assert gone() is None


@pytest.mark.parametrize("reached", [False, True])
def test_backward_lets_go_of_gradients_that_hooks_have_seen(reached: bool) -> None:
    live = gradcore.memory_requested()
    model = nn.Linear(4, 3)
    model.register_full_backward_hook(lambda module, inputs, outputs: None)
    x = gradcore.ones(5, 4, requires_grad=True)
    loss = (model(x) ** 2).sum()
    before, wanted = gradcore.memory_requested(), [*model.parameters(), *([x] if reached else [])]
    found = gradcore.autograd.grad(loss, wanted, retain_graph=True)
    assert gradcore.memory_requested() == before + sum(g.nbytes for g in found)
    # A gradient with a graph of its own would make a cycle.
    found = gradcore.autograd.grad(loss, wanted, create_graph=True)
    del model, x, loss, found, wanted
    assert gradcore.memory_requested() == live


def test_hooks_on_the_forward_pass_add_nothing_to_the_graph() -> None:
    m = nn.Linear(2, 2)
    m.register_forward_hook(lambda module, args, out: None)
    assert [node.op for node in gradcore.graph(m(gradcore.ones(1, 2))).nodes] == ["linear"]


def test_bad_hooks_are_told() -> None:
    m = nn.Linear(2, 2)
    handle = m.register_forward_pre_hook(lambda m, args, kwargs: 3, with_kwargs=True)
    with raises(RuntimeError, "must return None or a tuple of (new_args, new_kwargs), but got 3"):
        m(gradcore.ones(1, 2))
    handle.remove()
    m.register_full_backward_hook(lambda m, gi, go: (None, None))
    with raises(RuntimeError, "invalid number of grad_input, got 2, but expected 1"):
        m(gradcore.ones(1, 2)).sum().backward()


def test_parameters_and_buffers_by_path() -> None:
    m = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert m.get_parameter("0.weight") is m[0].weight and m.get_buffer("1.running_var") is m[1].running_var
    with raises(AttributeError, "`running_var` is not an nn.Parameter"):
        m.get_parameter("1.running_var")
    with raises(AttributeError, "BatchNorm1d has no attribute `none`"):
        m.get_buffer("1.none")


def test_a_backward_hook_on_a_module_that_returns_a_named_tuple() -> None:
    class Pair(NamedTuple):
        a: Any
        b: Any

    class Both(nn.Module):
        def forward(self, x: Any) -> Any:
            return Pair(x * 2, x * 3)

    m, seen = Both(), []
    m.register_full_backward_hook(lambda m, gi, go: seen.append([g.tolist() for g in go]))
    x = gradcore.ones(1, requires_grad=True)
    out = m(x)
    assert type(out) is Pair
    (out.a + out.b).sum().backward()
    assert x.grad.tolist() == [5.0] and seen == [[[1.0], [1.0]]]
    del Both, m, out


@pytest.mark.oracle
def test_each_output_has_a_place_among_the_gradients(torch: Any) -> None:
    def run(library: Any) -> list[Any]:
        class Three(library.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                return library.ones(2), x * 2, 7, x * 3

        m, seen = Three(), []
        m.register_full_backward_pre_hook(lambda m, go: (*go[:3], go[3] * 5))
        m.register_full_backward_hook(lambda m, gi, go: seen.append([g if g is None else g.tolist() for g in (*gi, *go)]))
        x = library.ones(2, requires_grad=True)
        out = m(x)
        (out[0] * out[3]).sum().backward()
        return [*seen, x.grad.tolist()]

    assert run(gradcore) == run(torch) == [[[15.0] * 2, None, None, None, [5.0] * 2], [15.0] * 2]


def test_a_backward_hook_is_not_called_where_no_output_is_watched() -> None:
    class Named(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"out": x * 2}

    m, seen = Named(), []
    m.register_full_backward_hook(lambda *what: seen.append(what))
    x = gradcore.ones(2, requires_grad=True)
    m(x)["out"].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0] and not seen


@pytest.mark.parametrize("register", [
    lambda net, optimizer: net.register_forward_hook(print, prepend=True),
    lambda net, optimizer: optimizer.register_state_dict_post_hook(print, prepend=True),
], ids=["module", "optimizer"])
def test_an_interrupt_while_one_is_put_first_loses_no_other(register: Any) -> None:
    found: list[int] = []
    net = nn.Linear(2, 2)
    optimizer = gradcore.optim.SGD(net.parameters(), lr=0.1)
    hooks = [lambda *given, k=k: found.append(k) for k in range(3)]
    for hook in hooks:
        net.register_forward_hook(hook)
        optimizer.register_state_dict_post_hook(hook)
    handles: list[Any] = []
    for _ in at_every_moment(lambda: handles.append(register(net, optimizer)), "/gradcore/"):
        found.clear()
        with contextlib.redirect_stdout(None):
            net(gradcore.ones(1, 2))
            optimizer.state_dict()
        assert sorted(found) == [0, 0, 1, 1, 2, 2]


def errors_seen(library: Any) -> list[Any]:
    """What hooks with ``always_call`` are called with, in calls of which some raise, and the warnings about them."""
    n, seen = library.nn, []

    class Fails(n.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, fail: bool = False) -> Any:
            if fail:
                raise ValueError("no")
            return x * 2

    def note(name: str, wrong: bool = False) -> Any:
        def hook(module: Any, args: Any, output: Any) -> Any:
            seen.append((name, None if output is None else output.tolist()))
            if wrong:
                raise RuntimeError("wrong, too")
            return None if output is None else output + 1

        return hook

    net = Fails()
    net.register_forward_hook(note("first"))
    handle = net.register_forward_hook(note("wrong", True), always_call=True)
    net.register_forward_hook(lambda m, args, kwargs, out: seen.append(kwargs), with_kwargs=True, always_call=True)
    net.register_forward_hook(note("front"), always_call=True, prepend=True)
    for k in range(2):
        for fail in (False, True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    seen.append(net(library.ones(1), fail=fail).tolist())
                except (RuntimeError, ValueError) as error:
                    seen.append(str(error))
            seen.append((k, len(caught)))
        handle.remove()
    return seen


@pytest.mark.oracle
def test_hooks_that_are_always_called_are_pytorchs(torch: Any) -> None:
    found = errors_seen(gradcore)
    assert found == errors_seen(torch) and ("front", None) in found and (0, 1) in found


def calls_of_all_modules(library: Any) -> list[Any]:
    module, n, seen = library.nn.modules.module, library.nn, []

    def note(name: str, returned: Any = None) -> Any:
        def hook(m: Any, *what: Any) -> Any:
            seen.append((name, type(m).__name__, len(what)))
            return returned

        return hook

    net = n.Sequential(n.Linear(2, 2), n.Sequential(n.ReLU()))
    net[0].register_forward_hook(note("own"))
    handles = [module.register_module_forward_pre_hook(note("before")), module.register_module_forward_hook(note("after")),
               module.register_module_forward_hook(note("with keywords"), with_kwargs=True, always_call=True),
               module.register_module_full_backward_pre_hook(note("gradients before")),
               module.register_module_full_backward_hook(note("gradients"))]
    try:
        net(library.ones(1, 2, requires_grad=True)).sum().backward()
        with contextlib.suppress(RuntimeError):
            net(library.ones(1, 3))
    finally:
        for handle in handles:
            handle.remove()
    seen.append("removed")
    net(library.ones(1, 2)).sum().backward()
    return seen


@pytest.mark.oracle
def test_hooks_of_all_modules_are_pytorchs(torch: Any) -> None:
    found = calls_of_all_modules(gradcore)
    wanted = calls_of_all_modules(torch)
    # After an error PyTorch calls those of all modules without the keywords, whatever they take.
    split = [len(seen) - 1 - seen[::-1].index("removed") for seen in (found, wanted)]
    assert [x[:2] for x in found[:split[0]]] == [x[:2] for x in wanted[:split[1]]]
    assert found[split[0]:] == wanted[split[1]:] == ["removed", ("own", "Linear", 2)]
    assert {(name, count) for name, _, count in found[:split[0]]} == {
        ("before", 1), ("after", 2), ("with keywords", 3), ("own", 2), ("gradients before", 1), ("gradients", 2)}


def test_a_hook_of_all_modules_is_noticed_by_a_compiled_function() -> None:
    net, x = nn.Linear(2, 2), gradcore.ones(1, 2)
    step = gradcore.compile(lambda x: net(x))
    plain = [step(x).tolist() for _ in range(2)][-1]
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out + 1)
    try:
        assert step(x).tolist() == step(x).tolist() == (gradcore.tensor(plain) + 1).tolist()
    finally:
        handle.remove()
    assert step(x).tolist() == plain
