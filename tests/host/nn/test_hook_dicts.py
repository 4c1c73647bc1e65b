"""The dicts of a module's hooks, by which scripts for PyTorch list hooks and drop all of them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any
from weakref import ref

import pytest

import gradcore


def scenario(library: Any) -> list[Any]:
    seen: list[str] = []
    layer = library.nn.Linear(1, 1)

    def run() -> list[str]:
        seen.clear()
        layer(library.ones(1, 1, requires_grad=True)).sum().backward()
        return list(seen)

    def before(module: Any, args: Any, kwargs: Any) -> None:
        seen.append("before")

    def after(module: Any, args: Any, output: Any) -> None:
        seen.append("after")

    found: list[Any] = [len(layer._forward_hooks), run()]
    first = layer.register_forward_pre_hook(before, with_kwargs=True)
    second = layer.register_forward_hook(after)
    layer.register_full_backward_pre_hook(lambda *_: seen.append("gradients before"))
    layer.register_full_backward_hook(lambda *_: seen.append("gradients"))
    kinds = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    found += [run(), [len(kind) for kind in kinds], layer._forward_pre_hooks[first.id] is before,
              list(layer._forward_hooks.values()) == [after], second.id in layer._forward_hooks]
    kept = OrderedDict(layer._forward_pre_hooks)
    layer._forward_pre_hooks = kept
    layer._forward_hooks = OrderedDict()
    layer._backward_hooks.clear()
    found.append(run())
    second.remove()
    layer._forward_hooks[100] = after
    for key in list(layer._forward_pre_hooks):
        del layer._forward_pre_hooks[key]
    layer._backward_pre_hooks.popitem()
    return [*found, run(), bool(layer._forward_pre_hooks)]


def test_hooks_can_be_listed_and_dropped() -> None:
    none, both = [0, []], ["before", "after", "gradients before", "gradients"]
    assert scenario(gradcore) == [*none, both, [1] * 4, True, True, True, ["before", "gradients before"], ["after"], False]


def set_aside(library: Any) -> list[Any]:
    """What comes back of hooks that are set aside, by the dict itself or by copies of it, and what handles then remove."""
    seen: list[str] = []
    layer = library.nn.Linear(1, 1)

    def run() -> list[str]:
        seen.clear()
        layer(library.ones(1, 1))
        return list(seen)

    def named(name: str) -> Any:
        return lambda module, args, kwargs, output: seen.append(name)

    first, second = (layer.register_forward_hook(named(name), with_kwargs=True) for name in ("first", "second"))
    hooks = layer._forward_hooks
    layer._forward_hooks = OrderedDict()
    layer._forward_hooks[-1] = lambda *_: seen.append("meanwhile")
    found: list[Any] = [run(), len(hooks)]
    layer._forward_hooks = hooks
    found.append(run())
    hooks.move_to_end(second.id, last=False)
    found.append(run())
    first.remove()
    found.append(run())
    copies = [hooks.copy(), copy.copy(hooks), copy.deepcopy(hooks)]
    hooks.clear()
    found += [run(), [list(kept) == [second.id] for kept in copies], [type(kept).__name__ for kept in copies]]
    hooks.update(copies[0])
    found.append(run())
    layer._forward_hooks = OrderedDict()
    layer._forward_hooks = copies[0]
    found.append(run())
    layer._forward_hooks[second.id] = named("wrapped")
    other = copy.deepcopy(layer)
    layer._forward_hooks.popitem()
    with pytest.raises(KeyError):
        layer._forward_hooks.popitem()
    found += [run(), len(other._forward_hooks), len(layer._forward_hooks)]
    return found


def test_hooks_that_are_set_aside_come_back() -> None:
    second = ["second"]
    assert set_aside(gradcore) == [["meanwhile"], 2, ["first", "second"], ["second", "first"], second, [], [True] * 3,
                                   ["OrderedDict"] * 3, second, second, [], 1, 0]


def test_a_dict_that_is_kept_keeps_no_module() -> None:
    layer = gradcore.nn.Linear(1, 1)
    layer.register_forward_hook(print)
    kept, gone = [layer._forward_hooks, gradcore.nn.Linear(1, 1)._forward_hooks], ref(layer)
    del layer
    assert gone() is None and [list(hooks.values()) for hooks in kept] == [[print], []]
    for hooks in kept:
        hooks[-1] = repr
        hooks.popitem(last=False)
        assert len(hooks) == (hooks is kept[0])


def assigned(library: Any) -> list[Any]:
    """What two modules do that are given the same dict."""
    first, second = library.nn.Linear(1, 1), library.nn.Linear(1, 1)
    hooks: OrderedDict[int, Any] = OrderedDict()
    first._forward_hooks = second._forward_hooks = hooks
    handle = first.register_forward_hook(lambda module, args, output: output * 0 + 7)
    found = [first._forward_hooks is hooks, second(library.ones(1, 1)).tolist(), len(hooks)]
    handle.remove()
    return [*found, len(hooks)]


def test_a_dict_that_is_assigned_is_the_modules() -> None:
    assert assigned(gradcore) == [True, [[7.0]], 1, 0]


@pytest.mark.oracle
def test_a_dict_that_is_assigned_is_the_modules_in_pytorch(torch: Any) -> None:
    assert assigned(torch) == [True, [[7.0]], 1, 0]


@pytest.mark.oracle
def test_hooks_are_set_aside_as_pytorchs(torch: Any) -> None:
    assert set_aside(gradcore) == set_aside(torch)


@pytest.mark.oracle
def test_hooks_are_listed_and_dropped_as_pytorchs(torch: Any) -> None:
    assert scenario(gradcore) == scenario(torch)


def test_a_handle_that_a_module_keeps_is_copied_with_its_hooks() -> None:
    layer: Any = gradcore.nn.Linear(2, 2)
    calls: list[int] = []

    def noted(module: Any, _: Any) -> None:
        calls.append(id(module))

    layer.handles = [layer.register_forward_pre_hook(noted), layer.register_load_state_dict_post_hook(noted)]
    copied = copy.deepcopy(layer)
    for handle in copied.handles:
        handle.remove()
    for module in (copied, layer, copy.deepcopy(layer)):
        module(gradcore.ones(1, 2))
        module.load_state_dict(module.state_dict())
    assert len(calls) == 4 and id(copied) not in calls
    shallow = copy.copy(layer)
    shallow._forward_pre_hooks.clear()
    assert len(layer._forward_pre_hooks) == 1 and "_module_of" not in shallow.__dict__
