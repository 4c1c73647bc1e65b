"""``autograd.graph``: edges, hooks on several gradients, versions; and what tells the modes of a thread. As in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore.engine import backward
from gradcore.errors import ModifiedInPlace
from tests.conftest import raises

graph = gradcore.autograd.graph


def plain(gradients: Any) -> Any:
    return [None if g is None else g.tolist() for g in gradients]


def every_backward(t: Any) -> list[Any]:
    found: list[Any] = []
    b = t.ones(2, requires_grad=True)
    d, e = b * 1, b * 2
    handle = t.autograd.graph.register_multi_grad_hook((b, d, e), lambda gs: found.append(plain(gs)))
    d.sum().backward(retain_graph=True)
    (d + e).sum().backward(retain_graph=True)
    t.autograd.grad((d + e).sum(), d, retain_graph=True)
    (d + e).sum().backward(inputs=(b,), retain_graph=True)
    handle.remove()
    (d + e).sum().backward()
    return [*found, b.grad.tolist()]


def any_gradient(t: Any) -> list[Any]:
    found: list[Any] = []
    b, unrelated = t.ones(2, requires_grad=True), t.ones(2)
    d, e = b * 1, b * 2
    with t.autograd.graph.register_multi_grad_hook((b, d, unrelated), lambda g: found.append(g.tolist()), mode="any"):
        for _ in range(2):
            (d * 3 + e).sum().backward(retain_graph=True)
        t.autograd.grad(e.sum(), b, retain_graph=True)
    (d * 3 + e).sum().backward()
    return found


def one_output_of_several(t: Any) -> list[Any]:
    found: list[Any] = []
    b = t.arange(4.0).requires_grad_()
    low, high = (b * 2).split(2)
    t.autograd.graph.register_multi_grad_hook([low, high, b], lambda gs: found.append(plain(gs)))
    (low * high).sum().backward()
    return found


def hooks_of_one_result_of_several(t: Any) -> list[Any]:
    found: list[Any] = []

    class Both(t.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            return a * 2 + b * 3

    x = t.ones(2, requires_grad=True)
    a, b = Both.apply(x)
    a.grad_fn.register_prehook(lambda gs: found.append(plain(gs)))
    a.register_hook(lambda g: found.append(g.tolist()))
    b.register_hook(lambda g: g * 10)
    (a + b * 5).sum().backward()
    return [*found, x.grad.tolist()]


def a_backward_in_the_hook(t: Any) -> list[Any]:
    found: list[Any] = []
    b = t.ones(2, requires_grad=True)

    def again(gs: Any) -> None:
        found.append(plain(gs))
        if len(found) < 3:
            with t.enable_grad():
                (b * len(found)).sum().backward()

    # The hook refers to the tensor that it hangs on.
    with t.autograd.graph.register_multi_grad_hook([b], again):
        b.sum().backward()
    return found


def edges(t: Any) -> list[Any]:
    g = t.autograd.graph
    a = t.arange(3.0).requires_grad_()
    c = a * a
    loss = (c * 2).sum()
    of_a, of_c = g.get_gradient_edge(a), g.get_gradient_edge(c)
    found = [x.tolist() for x in t.autograd.grad(loss, [of_a, of_c, c], retain_graph=True)]
    loss.backward(inputs=of_a, retain_graph=True)
    loss.backward(inputs=[of_c], retain_graph=True)
    t.autograd.backward(of_c, t.ones(3), retain_graph=True)
    found += [a.grad.tolist(), of_c.output_nr, of_c.node is c.grad_fn, isinstance(of_a, g.GradientEdge)]
    other = g.get_gradient_edge(t.ones(2, requires_grad=True))
    return [*found, t.autograd.grad(loss, other, allow_unused=True)]


def versions(t: Any) -> list[Any]:
    x, y = t.ones(2), t.ones(2)
    t.autograd.graph.increment_version(x)
    t.autograd.graph.increment_version([x, y, x[0]])
    return [x._version, y._version]


def hooks_disabled(t: Any) -> list[Any]:
    found: list[str] = []

    def enter(context: Any) -> None:
        try:
            with context:
                found.append("entered")
        except RuntimeError as error:
            found.append(str(error))

    g = t.autograd.graph
    enter(g.disable_saved_tensors_hooks("entered itself"))
    with g.disable_saved_tensors_hooks("outer"):
        with g.disable_saved_tensors_hooks("inner"):
            enter(g.save_on_cpu())
        enter(g.save_on_cpu())
    enter(g.save_on_cpu())
    with pytest.raises(KeyError), g.disable_saved_tensors_hooks("failed"):
        raise KeyError
    enter(g.save_on_cpu())
    with g.save_on_cpu():
        enter(g.disable_saved_tensors_hooks("inside"))
    return found


def modes(t: Any) -> list[Any]:
    found = []

    def tell() -> None:
        found.append((t.is_inference_mode_enabled(), t.is_grad_enabled(), t.is_anomaly_enabled(),
                      t.is_anomaly_check_nan_enabled()))

    tell()
    with t.inference_mode():
        tell()
        with t.enable_grad():
            found.append(t.is_inference_mode_enabled())
        with t.inference_mode(False):
            tell()
        tell()
    with t.no_grad():
        tell()
    t.inference_mode()(tell)()
    with t.autograd.detect_anomaly(check_nan=False):
        tell()
        with t.autograd.detect_anomaly():
            tell()
        tell()
    t.autograd.set_detect_anomaly(False, check_nan=False)
    tell()
    with t.autograd.set_detect_anomaly(True):
        tell()
    tell()
    t.autograd.set_detect_anomaly(False)
    tell()
    return found


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("use", [every_backward, any_gradient, one_output_of_several, hooks_of_one_result_of_several,
                                 a_backward_in_the_hook, edges, versions, hooks_disabled, modes], ids=lambda f: f.__name__)
def test_they_do_as_torchs(use: Callable[[Any], Any], torch: Any) -> None:
    assert use(gradcore) == use(torch)


def test_errors_have_pytorchs_words() -> None:
    a, constant = gradcore.ones(2, requires_grad=True), gradcore.ones(2)
    edge = graph.get_gradient_edge(a)
    for error, call, text in (
            (ValueError, lambda: graph.register_multi_grad_hook([a], print, mode="x"),
             "Expects mode to be one of ('all', 'any') but got x"),
            (AssertionError, lambda: graph.register_multi_grad_hook([a, constant], print),
             "Expected gradient function to be set"),
            (RuntimeError, lambda: graph.get_gradient_edge(constant), "It is not possible to get the gradient edge"),
            (RuntimeError, lambda: graph.increment_version(3), "increment_version expect a Iterable[Tensor] as input"),
            (RuntimeError, lambda: gradcore.autograd.grad((constant.requires_grad_() * 2).sum(), edge),
             "The differentiated Tensor at index 0 appears to not have been used in the graph."),
            (RuntimeError, lambda: gradcore.autograd.grad((constant * 2).sum(), edge, materialize_grads=True),
             "materialize_grads cannot be used when the given input is a GradientEdge"),
            (RuntimeError, lambda: gradcore.autograd.backward(edge), "grad can be implicitly created only for scalar outputs")):
        with raises(error, text):
            call()


def test_a_counted_write_outdates_what_backward_needs() -> None:
    x = gradcore.ones(2, requires_grad=True)
    h = x * 2
    y = (h * h).sum()
    graph.increment_version(h)
    with raises(ModifiedInPlace, "by increment_version"):
        y.backward()


def test_many_hooks_walk_the_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Any] = []
    walk = backward.executed
    monkeypatch.setattr(backward, "executed", lambda *given: walks.append(given) or walk(*given))
    leaves = [gradcore.ones(2, requires_grad=True) for _ in range(5)]
    found: list[Any] = []
    handles = [graph.register_multi_grad_hook([x], lambda gs: found.append(plain(gs))) for x in leaves]
    for count in (1, 2):
        gradcore.stack([x * k for k, x in enumerate(leaves)]).sum().backward()
        assert len(walks) == count and sorted(found) == sorted([[float(k)] * 2] for k in range(5) for _ in range(count))
    for handle in handles:
        handle.remove()


def test_a_pass_that_fails_leaves_nothing_for_the_next() -> None:
    found: list[Any] = []
    a = gradcore.ones(2, requires_grad=True)
    c, d = a * 2, a * 3

    def fails(gradient: Any) -> None:
        raise KeyError("no")

    # The newer node, that of d, runs first.
    with c.register_hook(fails):
        graph.register_multi_grad_hook((c, d), lambda gs: found.append(plain(gs)))
        with raises(KeyError, "no"):
            (c + d).sum().backward(retain_graph=True)
    (c + d).sum().backward()
    assert found == [[[1, 1], [1, 1]]]


@pytest.mark.oracle
def test_hooks_that_are_no_functions_are_refused_as_in_pytorch(torch: Any) -> None:
    """Not by the next op that keeps something, in a region that is never left."""
    for library in (gradcore, torch):
        for hooks in ((3, lambda x: x), (lambda x: x, None)):
            with pytest.raises(TypeError), library.autograd.graph.saved_tensors_hooks(*hooks):
                raise AssertionError("entered")
