"""What two calls of a compiled function may differ in, although it looks alike: order, types, classes, defaults, attributes
that are asked for and absent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, ones
from gradcore.nn.hooks import Hooked

Wrap = Callable[[Any], Any]


def keyword_arguments_in_another_order(wrap: Wrap) -> Any:
    f = wrap(lambda **named: gradcore.stack(list(named.values())))
    return [f(a=ones(1), b=ones(1) * 2).tolist(), f(b=ones(1) * 2, a=ones(1)).tolist()]


def the_very_tensor_that_it_refers_to(wrap: Wrap) -> Any:
    w, other = ones(1), ones(1) * 3
    f = wrap(lambda x: x * 2 if x is w else x + 5)
    return [f(x).item() for x in (other, other, w, w, other)]


def one_of_several_that_it_refers_to(wrap: Wrap) -> Any:
    known, other = [ones(1), ones(1)], ones(1) * 3
    f = wrap(lambda x: x * 2 if any(x is k for k in known) else x + 5)
    return [f(x).item() for x in (other, other, known[1], known[0], other)]


def an_argument_over_a_parameters_memory(wrap: Wrap) -> Any:
    w = ones(1).requires_grad_()
    f = wrap(lambda x, w: (x + w * 2).detach())
    return [f(x, w).item() for x in (w.detach(), w.detach(), ones(1) * 3, ones(1) * 3, w.detach())]


def a_tensor_in_a_set(wrap: Wrap) -> Any:
    t, other = ones(1), ones(1) * 3
    f = wrap(lambda x, some: x + sum(t * 2 for t in some))
    found = [f(x, {t}).item() for x in (t, t, other, other, t)]
    t.data = ones(1) * 5
    return [*found, f(other, {t}).item(), f(other, frozenset({t})).item()]


def a_tensor_as_a_key(wrap: Wrap) -> Any:
    t = ones(1)
    f = wrap(lambda factors: sum(t * 2 for _, t in factors))
    found = [f({("t", t): 1.0}).item() for _ in range(3)]
    t.data = ones(1) * 5
    return [*found, f({("t", t): 1.0}).item()]


def a_set_in_another_order(wrap: Wrap) -> Any:
    f = wrap(lambda x, some: gradcore.stack([x * k for k in some]))
    # They have the same hash in a small table, where the first to come is the first to go.
    sets = [{0, 8}, {8, 0}]
    assert sets[0] == sets[1] and [*sets[0]] != [*sets[1]]
    return [f(ones(1), kind(some)).tolist() for kind in (set, frozenset) for some in (*sets, *sets)]


def an_array_in_another_order(wrap: Wrap) -> Any:
    f = wrap(lambda x, a: x * (a.strides[0] + float(a.sum())))
    a = np.arange(6.0).reshape(2, 3)
    return [f(ones(1), a).item() for a in (a, a.copy(), np.asfortranarray(a), a, np.asfortranarray(a))]


def an_array_that_it_refers_to_in_another_order(wrap: Wrap) -> Any:
    a = np.arange(6.0).reshape(2, 3)
    f = wrap(lambda x: x * (a.strides[0] + float(a.sum())))
    found = [f(ones(1)).item() for _ in range(2)]
    a = np.asfortranarray(a)
    return [*found, f(ones(1)).item()]


def values_that_are_equal(wrap: Wrap) -> Any:
    f = wrap(lambda x, r: x * r.stop)
    g = wrap(lambda x, some: x / sum(some, start=-0.0))
    h = wrap(lambda x, some: x * sum(k for k, in some))
    whole = ones(1, dtype=gradcore.int64)
    stops = wrap(lambda x, some: x * sum(r.stop for r in some))
    ranges = range(0, 3, 2), range(0, 4, 2)
    return [*(f(ones(1), r).item() for r in ranges),
            *(stops(ones(1), {r}).item() for r in ranges), *(stops(ones(1), {r: 0}).item() for r in ranges),
            *(g(ones(1), {zero}).item() for zero in (0.0, -0.0)),
            *(str(h(whole, some).dtype) for some in ({(1,): 2}, {(1.0,): 2}))]


def children_in_another_order(wrap: Wrap) -> Any:
    m = nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.Softplus()))
    f = wrap(m)
    found = [f(-ones(1)).item(), f(-ones(1)).item()]
    a = m.a
    del m.a
    m.add_module("a", a)
    return [*found, f(-ones(1)).item()]


def parameters_in_another_order(wrap: Wrap) -> Any:
    m = nn.Linear(2, 2)
    m.weight.data, m.bias.data = ones(2, 2), ones(2) * 2
    f = wrap(lambda: gradcore.stack([p.detach().sum() for p in m.parameters()]))
    found = [f().tolist(), f().tolist()]
    weight = m.weight
    del m.weight
    m.weight = weight
    return [*found, f().tolist()]


def a_module_of_another_class(wrap: Wrap) -> Any:
    m = nn.Sequential(nn.ReLU())
    f = wrap(m)
    found = [f(-ones(1)).item(), f(-ones(1)).item()]
    m[0].__class__ = nn.Tanh
    return [*found, f(-ones(1)).item()]


def a_class_as_an_argument(wrap: Wrap) -> Any:
    class Settings:
        scale = 1.0

    f = wrap(lambda x, settings: x * settings.scale)
    found = [f(ones(1), Settings).item(), f(ones(1), Settings).item()]
    Settings.scale = 3.0
    return [*found, f(ones(1), Settings).item()]


def a_class_that_counts(wrap: Wrap) -> Any:
    class Counter:
        calls: dict[str, int] = {}

        @classmethod
        def note(cls, name: str) -> None:
            cls.calls[name] = cls.calls.get(name, 0) + 1

    f = wrap(lambda x: (Counter.note("a"), x * 2)[1])
    for _ in range(3):
        f(ones(1))
    return Counter.calls


def a_default_that_grows(wrap: Wrap) -> Any:
    def inner(x: Any, seen: list[int] = []) -> Any:  # noqa: B006 - that is the case
        seen.append(1)
        return x * len(seen)

    f = wrap(lambda x: inner(x))
    return [f(ones(1)).item() for _ in range(3)]


def a_keyword_default_that_changes(wrap: Wrap) -> Any:
    def inner(x: Any, *, seen: dict[str, int] = {"k": 0}) -> Any:  # noqa: B006 - that is the case
        return x * seen["k"]

    f = wrap(lambda x: inner(x))
    found = [f(ones(1)).item(), f(ones(1)).item()]
    inner.__kwdefaults__["seen"]["k"] = 5
    return [*found, f(ones(1)).item()]


def absent(of: Callable[[], Any], ask: Callable[[Any], float]) -> Callable[[Wrap], Any]:
    def run(wrap: Wrap) -> Any:
        owner = of()
        f = wrap(lambda x: x * ask(owner))
        found = [f(ones(1)).item(), f(ones(1)).item()]
        owner.scale = 3.0
        return [*found, f(ones(1)).item()]

    return run


def asked(owner: Any) -> float:
    return getattr(owner, "scale", 1.0)


def caught(owner: Any) -> float:
    try:
        return owner.scale
    except AttributeError:
        return 1.0


def made_class() -> Any:
    return type("Settings", (), {"__module__": "users"})


def a_global_that_is_not_there(wrap: Wrap) -> Any:
    f = wrap(lambda x: x * (3.0 if "SCALE_OF_TEST" in globals() else 1.0))
    found = [f(ones(1)).item(), f(ones(1)).item()]
    globals()["SCALE_OF_TEST"] = 1
    try:
        return [*found, f(ones(1)).item()]
    finally:
        del globals()["SCALE_OF_TEST"]


def keys_that_are_equal(wrap: Wrap) -> Any:
    x = gradcore.tensor([2])
    f = wrap(lambda d: next(k * x for k, x in d.items()))
    return [str(f({key: x}).dtype) for key in (1, 1.0, True, 1)]


def kinds_of_dicts(wrap: Wrap) -> Any:
    f = wrap(lambda d: d["a"] * (2 if type(d) is dict else 1))
    return [f({"a": ones(1)}).item(), f(OrderedDict(a=ones(1))).item()]


class Described(dict[str, Any]):
    scale: float


def dicts_with_attributes(wrap: Wrap) -> Any:
    a, b = Described(a=ones(1)), Described(a=ones(1))
    a.scale, b.scale = 1.0, 5.0
    f = wrap(lambda d: d["a"] * d.scale)
    return [f(a).item(), f(b).item(), f(a).item()]


def zeros_of_numpy(wrap: Wrap) -> Any:
    f = wrap(lambda x, by: x / by)
    return [f(ones(1), np.float64(by)).item() for by in (0.0, -0.0, 0.0)]


def setattr_by_name(wrap: Wrap) -> Any:
    m = nn.ReLU()
    f = wrap(lambda x: (setattr(m, "rows", x.shape[0]), x * 2)[1])
    f(ones(2))
    f(ones(2))
    m.rows = 0
    f(ones(2))
    return m.rows


def a_deleted_attribute_of_a_module(wrap: Wrap) -> Any:
    m = wrap(nn.ReLU())
    m.scale = 3
    del m.scale
    return hasattr(m, "scale")


def methods_that_return_the_module(wrap: Wrap) -> Any:
    m = wrap(nn.Linear(2, 2))
    return [result is m for result in (m.eval(), m.to("cpu"), m.float(), m.requires_grad_(False), m.apply(lambda c: None))]


@pytest.mark.parametrize("program", [
    keyword_arguments_in_another_order, the_very_tensor_that_it_refers_to, one_of_several_that_it_refers_to,
    an_argument_over_a_parameters_memory, a_tensor_in_a_set, a_tensor_as_a_key, a_set_in_another_order,
    an_array_in_another_order, an_array_that_it_refers_to_in_another_order, values_that_are_equal,
    children_in_another_order, parameters_in_another_order, a_module_of_another_class,
    a_class_as_an_argument, a_class_that_counts, a_default_that_grows, a_keyword_default_that_changes,
    a_global_that_is_not_there, keys_that_are_equal, kinds_of_dicts, dicts_with_attributes, zeros_of_numpy, setattr_by_name,
    a_deleted_attribute_of_a_module, methods_that_return_the_module,
    *(pytest.param(absent(of, ask), id=f"{of.__name__} {how}")
      for of in (nn.ReLU, made_class, lambda: ModuleType("settings_of_users"))
      for how, ask in (("getattr", asked), ("except", caught)))])
def test_it_is_as_in_eager_mode(program: Callable[[Wrap], Any]) -> None:
    assert program(gradcore.compile) == program(lambda f: f)


def test_reasons_name_the_class_and_the_order() -> None:
    m = nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.Softplus()))
    f = gradcore.compile(m)
    f(ones(1))
    m[1].__class__ = nn.Tanh
    f(ones(1))
    assert "a Softplus has become a Tanh" in f.traces[1]
    a = m.a
    del m.a
    m.add_module("a", a)
    f(ones(1))
    assert "has them in another order" in f.traces[2]


def test_what_is_kept_must_be_an_output() -> None:
    graph = gradcore.trace(lambda x: x * 2, (ones(2),))
    later, other = gradcore.trace(lambda x: x + 1, graph.outputs), gradcore.trace(lambda x: x - 1, (ones(2),))
    for wrong, got in ((0, "int"), (other.outputs, "<output 0 of <graph of <lambda>, part 1 of 1>"),
                       (later.outputs, "<output 0 of <graph of <lambda>, part 2 of 2>")):
        with pytest.raises(TypeError, match=rf"keep expects outputs of .*, such as graph\.outputs, but got {got}"):
            graph.execute(ones(2), keep=[wrong])


def test_gradients_are_those_of_a_graph() -> None:
    with pytest.raises(TypeError, match=r"gradients expected a graph, as gradcore\.trace returns it, but got Tensor"):
        gradcore.gradients(ones(2).sum(), wrt=[])


def test_the_librarys_own_code_asks_for_no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Guards cost time at every call, and Module.__call__ catches AttributeError. So does what looks for hooks of all modules,
    # in a process that has ever had one, as another test may have left it.
    monkeypatch.setattr(Hooked, "_module_hooks", None)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    f = gradcore.compile(lambda x: model(x))
    f(ones(1, 2))
    (entry,) = f._cached()
    assert not [guard.name for guard in entry.guards if getattr(guard, "name", "").startswith("whether")]


def test_the_reason_names_an_argument_that_the_function_refers_to() -> None:
    w = ones(1)
    f = gradcore.compile(lambda x: x * w)
    f(ones(1))
    f(w)
    assert f.traces[1].startswith("an argument is a tensor that the function also refers to")
