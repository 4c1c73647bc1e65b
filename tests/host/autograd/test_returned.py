"""What hooks and a function's own backward return: None, and tensors with a graph, as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from tests.conftest import raises, torch_or_skip


def leaf(t: Any) -> Any:
    return t.tensor([1.0, 2.0], requires_grad=True)


def scripts() -> dict[str, Any]:
    """Each takes a library, and returns what is told of."""

    def a_hook_of_a_node_stops_one(t: Any) -> Any:
        x, w = leaf(t), leaf(t)
        y = x * w
        y.grad_fn.register_hook(lambda inputs, outputs: (None, inputs[1]))
        y.sum().backward()
        return x.grad, w.grad

    def a_pre_hook_stops_all(t: Any) -> Any:
        x, w, shown = leaf(t), leaf(t), []
        y = x * w
        y.grad_fn.register_prehook(lambda outputs: (None,))
        y.grad_fn.register_hook(lambda inputs, outputs: shown.append([*inputs, *outputs]))
        (y + x).sum().backward()
        return x.grad, w.grad, shown

    def a_pre_hook_before_a_function(t: Any) -> Any:
        class Twice(t.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g + 1

        x = leaf(t)
        y = Twice.apply(x)
        y.grad_fn.register_prehook(lambda outputs: (None,))
        y.sum().backward()
        return x.grad

    def a_function_that_returns_what_is_no_tensor(t: Any) -> Any:
        class Scaled(t.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any, by: Any, name: str) -> Any:
                ctx.by = by
                return x * by, by, name

            @staticmethod
            def backward(ctx: Any, g: Any, *others: Any) -> Any:
                return g * ctx.by, None, None

        x = leaf(t)
        y, by, name = Scaled.apply(x, 3000.0, "a name")
        y.sum().backward()
        return x.grad, by, name

    def hooks_of_the_node_of_a_leaf(t: Any) -> Any:
        """By which optimizers of old step inside backward."""
        x, seen = leaf(t), []
        node = x.expand_as(x).grad_fn.next_functions[0][0]
        handles = [node.register_prehook(lambda outputs: seen.append(plain(["before", x.grad, *outputs])) or (outputs[0] * 2,)),
                   node.register_hook(lambda inputs, outputs: seen.append(plain(["after", *inputs, *outputs, x.grad])))]
        x.register_post_accumulate_grad_hook(lambda p: seen.append(["accumulated"]))
        for _ in range(2):
            (x * x + x).sum().backward()
        t.autograd.grad((x * x).sum(), x)
        for handle in handles:
            handle.remove()
        node.register_prehook(lambda outputs: (None,))
        (x * 3).sum().backward()
        return x.grad, seen

    def a_hook_returns_a_leaf(t: Any) -> Any:
        x = leaf(t)
        x.register_hook(lambda g: leaf(t))
        for _ in range(2):
            (x * 3).sum().backward()
        return x.grad, x.grad.requires_grad

    def a_backward_sets_the_grad_mode(t: Any) -> Any:
        class Product(t.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                ctx.save_for_backward(x, y)
                return x * y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                t.set_grad_enabled(True)
                x, y = ctx.saved_tensors
                return g * y, g * x

        x, w = leaf(t), leaf(t)
        Product.apply(x * 3, w).sum().backward()
        return x.grad, w.grad, x.grad.requires_grad, w.grad.requires_grad, t.is_grad_enabled()

    def a_hook_of_a_module_returns_a_list(t: Any) -> Any:
        x, layer = leaf(t), t.nn.ReLU()
        layer.register_full_backward_hook(lambda module, inputs, outputs: [inputs[0] * 5])
        layer.register_full_backward_pre_hook(lambda module, outputs: [outputs[0] * 3])
        layer(x).sum().backward()
        return x.grad

    return {name: f for name, f in locals().items() if callable(f)}


def plain(found: Any) -> Any:
    if isinstance(found, (list, tuple)):
        return list(map(plain, found))
    return found.tolist() if hasattr(found, "tolist") else found


@pytest.mark.oracle
@pytest.mark.parametrize("name", scripts())
def test_it_counts_as_in_pytorch(name: str) -> None:
    torch = torch_or_skip()
    assert plain(scripts()[name](gradcore)) == plain(scripts()[name](torch))


def test_nothing_takes_the_place_of_a_gradient_that_is_none() -> None:
    x = leaf(gradcore)
    y = x * x
    y.grad_fn.register_hook(lambda inputs, outputs: (None,) * len(inputs))
    y.grad_fn.register_hook(lambda inputs, outputs: (gradcore.ones(7),) * len(inputs))
    with raises(RuntimeError, "a hook of MulBackward0 can't replace a None gradient with a non-None value"):
        y.sum().backward()
    assert x.grad is None


def test_a_hook_on_a_part_that_has_no_gradient_is_not_called() -> None:
    """PyTorch calls it with None, which few hooks expect."""
    x, seen = gradcore.ones(2, 3, requires_grad=True), list[str]()
    first, second = (x * 2).unbind(0)
    for part, name in ((first, "first"), (second, "second")):
        part.register_hook(lambda g, name=name: seen.append(name))
    first.sum().backward()
    assert seen == ["first"] and x.grad.tolist() == [[2.0] * 3, [0.0] * 3]


def test_gradgradcheck_takes_the_given_cotangents() -> None:
    x = gradcore.ones(2, dtype=gradcore.float64, requires_grad=True)
    with raises(ValueError, "gradcheck needs float64: inputs[1] is float32"):
        gradcore.autograd.gradgradcheck(lambda x: x ** 3, x, gradcore.ones(2, requires_grad=True))


def test_what_a_stopped_node_kept_is_released() -> None:
    x = leaf(gradcore)
    y = x * x
    y.grad_fn.register_prehook(lambda outputs: (None,))
    y.sum().backward()
    assert x.grad is None
    with raises(RuntimeError, "Trying to backward through the graph a second time"):
        y.sum().backward()


@pytest.mark.oracle
@pytest.mark.parametrize("where", ["register_hook", "register_prehook"])
@pytest.mark.parametrize("of_leaf", [False, True])
def test_another_number_of_gradients_raises_as_in_pytorch(where: str, of_leaf: bool) -> None:
    for t in (gradcore, torch_or_skip()):
        x = leaf(t)
        y = x * x
        node = y.grad_fn.next_functions[0][0] if of_leaf else y.grad_fn
        getattr(node, where)(lambda *grads, t=t: (t.ones(2),) * 3)
        with raises(RuntimeError, "gradients, but returned 3" if t is gradcore and where == "register_hook" else ""):
            y.sum().backward()
