"""The names in the program that hold live bytes: variables, containers, objects, frames of tracebacks, cycles, graphs."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore._holders import holders_of
from gradcore.devices.meta import make_meta
from gradcore.memory import stack
from gradcore.memory.stack import unnamed
from tests.host.memory.holding import CPU, fresh, holder

FOUND: dict[str, Any] = {}


def of_operand(x: Any) -> str:
    serial = x.storage.serial
    del x
    return holder(serial)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A new one, for what was made before a test the collector does not see: it is frozen.
    monkeypatch.setattr(sys.modules[__name__], "FOUND", {})
    yield
    FOUND.clear()


class Slotted:
    __slots__ = ("value",)


class Owner:
    def __init__(self, value: Any) -> None:
        self.value = value


class Hidden(Owner):
    """What asks it for anything is told nothing."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def by_default(x: Any) -> Any:
    def call(a: Any = x) -> None:
        pass

    del x
    return call


def by_keyword(x: Any) -> Any:
    def call(*, a: Any = x) -> None:
        pass

    del x
    return call


def slotted(x: Any) -> Any:
    made = Slotted()
    made.value = x
    return made


@pytest.mark.parametrize(("wrap", "path"), [
    (lambda x: x, ""), (lambda x: [None, x], "[1]"), (lambda x: (x,), "[0]"), (lambda x: deque([1, 2, x]), "[2]"),
    (lambda x: {"a": [x]}, "['a'][0]"), (lambda x: {3: x}, "[3]"), (lambda x: {(1, 2): x}, "[...]"),
    (lambda x: {x: 1}, ".keys()[0]"),
    (lambda x: Owner([x]), ".value[0]"), (lambda x: Hidden(x), ".value"), (slotted, ".value"), (lambda x: {x}, ""),
    (lambda x: x[:10], ""), (lambda x: ValueError(1, x), ".args[1]"), (lambda x: [x].append, ".__self__[0]"),
    (by_default, ".__defaults__[0]"),
    (by_keyword, ".__kwdefaults__['a']")],
    ids=lambda x: x if isinstance(x, str) else None)
def test_a_global_leads_to_it(wrap: Callable[[Any], Any], path: str) -> None:
    x = fresh()
    serial = x.storage.serial
    FOUND["here"] = wrap(x)
    del x
    assert holder(serial) == f"FOUND['here']{path} in {__name__}"


def test_an_attribute_of_a_class() -> None:
    made = FOUND["class"] = type("Made", (), {"store": [fresh()]})
    serial = made.store[0].storage.serial  # type: ignore[attr-defined]
    del made
    assert holder(serial) == f"FOUND['class'].store[0] in {__name__}"
    # A class is part of a cycle.
    FOUND["class"].store.clear()


def test_parts_of_a_network_have_the_names_of_its_layers() -> None:
    net = FOUND["net"] = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3)))
    net(gradcore.ones(2, 3)).sum().backward()
    serials = [x.storage.serial for x in (net[1][0].weight, net[1][0].running_mean, net[0].weight.grad)]
    # A gradient stays where it was when its layer is frozen.
    net[0].requires_grad_(False)
    del net
    names = holders_of(CPU.ledger, serials)
    assert [names[s] for s in serials] == [
        f"FOUND['net'].{part} in {__name__}" for part in ("1.0.weight", "1.0.running_mean", "0.weight.grad")]


def test_parameters_have_the_names_of_their_layers_rather_than_of_an_optimizer_of_theirs() -> None:
    optimizer = FOUND["optimizer"] = gradcore.optim.Adam((net := nn.Sequential(nn.Sequential(nn.Linear(3, 3)))).parameters())
    net(gradcore.ones(2, 3)).sum().backward()
    optimizer.step()
    weight = net[0][0].weight
    FOUND["net"] = net
    serials = [x.storage.serial for x in (weight, weight.grad, optimizer.state[weight]["exp_avg"])]
    del net, weight, optimizer
    here = f"in {__name__}"
    names = holders_of(CPU.ledger, serials)
    state = f"FOUND['optimizer'].state[...]['exp_avg'] {here}"
    assert [names[s] for s in serials] == [f"FOUND['net'].0.0.weight {here}", f"FOUND['net'].0.0.weight.grad {here}", state]
    # What nothing else holds has the optimizer's name.
    FOUND["net"] = None
    names = holders_of(CPU.ledger, serials)
    assert names[serials[0]] == f"FOUND['optimizer'].state.keys()[0] {here}" and names[serials[2]] == state


def test_a_local_variable_of_a_function_that_runs_and_no_reference_is_left() -> None:
    def inner() -> tuple[str, Any]:
        there = [fresh()]
        return holder(there[0].storage.serial), weakref.ref(there[0])

    kept = fresh()
    found, gone = inner()
    assert found == "there[0] in test_a_local_variable_of_a_function_that_runs_and_no_reference_is_left.<locals>.inner()"
    assert holder(kept.storage.serial).startswith("kept in test_a_local_variable")
    alive = weakref.ref(kept)
    # Its name in this frame must not outlive the variable.
    del kept
    assert gone() is None and alive() is None


def test_what_locals_handed_out_stays_as_it_is() -> None:
    kept = fresh()
    handed = locals()
    assert holder(kept.storage.serial) == "kept in test_what_locals_handed_out_stays_as_it_is()"
    assert handed["kept"] is kept
    # It refers to itself.
    handed.clear()


def test_a_generator_and_a_closure() -> None:
    def numbers() -> Iterator[int]:
        inside = fresh()
        yield inside.storage.serial

    def counter() -> Callable[[], Any]:
        cell = fresh()
        return lambda: cell

    running = numbers()
    serial = next(running)
    assert holder(serial) == "inside in the generator test_a_generator_and_a_closure.<locals>.numbers()"
    FOUND["call"] = counter()
    assert holder(FOUND["call"]().storage.serial) == f"cell in the closure of FOUND['call'] in {__name__}"


def test_the_frame_of_a_traceback() -> None:
    serials = []

    def fails() -> None:
        batch = fresh()
        serials.append(batch.storage.serial)
        raise ValueError

    with pytest.raises(ValueError) as caught:
        fails()
    assert holder(serials[0]) == (
        "batch in test_the_frame_of_a_traceback.<locals>.fails(), whose frame the traceback of caught._excinfo[2] in "
        "test_the_frame_of_a_traceback() holds")
    del caught
    gc.collect()
    try:
        fails()
    except ValueError:
        # Nothing in the program leads to what is being handled.
        assert holder(serials[1]) == (
            "batch in test_the_frame_of_a_traceback.<locals>.fails(), whose frame a traceback holds")
    try:
        fails()
    except ValueError as error:
        FOUND["first"] = error
    FOUND["second"] = KeyError()
    FOUND["second"].__context__ = FOUND.pop("first")
    assert holder(serials[2]) == (
        "batch in test_the_frame_of_a_traceback.<locals>.fails(), whose frame the traceback of "
        f"FOUND['second'].__context__ in {__name__} holds")


def test_a_reference_cycle_and_what_only_c_holds() -> None:
    gc.collect()
    gc.disable()
    try:
        x = fresh()
        serial = x.storage.serial
        owner = Owner(x)
        owner.me = owner  # type: ignore[attr-defined]
        alive = weakref.ref(x)
        del x, owner
        assert holder(serial) == "a reference cycle of Owner, which only gc.collect() frees"
        assert alive() is not None
        gc.collect()
        assert alive() is None and holder(serial) == ""
        # What only a call that runs holds is no cycle.
        assert list(map(of_operand, iter([fresh()]))) == [""]
    finally:
        gc.enable()


def test_the_search_itself_frees_no_cycle() -> None:
    was, before = gc.isenabled(), gc.get_threshold()
    gc.collect()
    try:
        gc.set_threshold(150)
        gc.enable()
        x = fresh()
        serial = x.storage.serial
        owner = Owner(x)
        owner.me = owner  # type: ignore[attr-defined]
        del x, owner
        assert holder(serial) == "a reference cycle of Owner, which only gc.collect() frees"
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        if not was:
            gc.disable()


def test_the_graph_of_a_tensor_keeps_it_and_the_nearest_is_named() -> None:
    w = gradcore.ones(100, requires_grad=True)
    y = w.exp()
    kept = y.storage.serial
    FOUND["loss"] = y.sum()
    FOUND["more"] = FOUND["loss"] * 2 + 1
    del y
    assert holder(kept) == f"the graph of FOUND['loss'] in {__name__} and the graph of FOUND['more'] in {__name__}"
    FOUND["loss"].backward()
    assert holder(kept) == ""


def test_a_graph_that_keeps_something_twice() -> None:
    y = gradcore.ones(100, requires_grad=True).exp()
    kept = y.storage.serial
    FOUND["loss"] = (y * y).sum()
    FOUND["more"] = FOUND["loss"] * FOUND["loss"]
    del y
    assert holder(kept) == f"the graph of FOUND['loss'] in {__name__} and the graph of FOUND['more'] in {__name__}"


def test_hooks_of_a_leaf_are_not_its_graph() -> None:
    w = gradcore.ones(100, requires_grad=True)
    x = fresh()
    serial = x.storage.serial
    w.register_hook(x.mul)
    del x
    assert holder(serial) == "the hooks of w in test_hooks_of_a_leaf_are_not_its_graph()"


def test_the_device_itself_holds_the_state_of_its_generator() -> None:
    device = make_meta()
    FOUND["x"] = gradcore.randn(3, device=device)
    (serial,) = (b.serial for b in device.ledger.live.values() if b.tag.op == "generator")
    assert holders_of(device.ledger, [serial]) == {serial: "device.generator._state in gradcore"}


def test_growth_and_the_summary_name_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradcore._step, "_ends", {})
    model = nn.Linear(50, 5000)
    FOUND["history"] = []
    FOUND["seen"] = {"out": []}
    for _ in range(5):
        with gradcore.step(device="cpu") as step:
            out = model(gradcore.ones(2, 50))
            FOUND["seen"]["out"].append(out.detach())
            FOUND["history"].append(out.tanh().sum())
    del out
    growth = step.report.growth
    assert growth is not None
    assert [(g.op, g.held_by, g.holder) for g in growth.grown[:2]] == [
        ("linear", "you", f"FOUND['seen']['out'][0] in {__name__}"),
        ("tanh", "graph", f"the graph of FOUND['history'][0] in {__name__}")]
    assert f"\n{'':25}held by FOUND['seen']['out'][0] in {__name__}\n" in str(step.report)
    lines = gradcore.memory_summary().splitlines()
    (at,) = (i for i, line in enumerate(lines) if " residual of tanh in layer (root), " in line)
    assert lines[at + 1] == f"{'':25}held by the graph of FOUND['history'][0] in {__name__}"


def test_the_search_holds_nothing_and_changes_nothing() -> None:
    x = [fresh()]
    serial, before = x[0].storage.serial, sys.getrefcount(x[0])
    assert holder(serial) == "x[0] in test_the_search_holds_nothing_and_changes_nothing()"
    after = sys.getrefcount(x[0])
    assert after == before
    assert holder(-1) == ""


def test_an_error_names_holders_unless_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gradcore.empty_cache()
    FOUND["batches"] = [gradcore.ones(1 << 20)]
    gradcore.set_memory_limit(gradcore.memory_reserved())
    try:
        with pytest.raises(gradcore.OutOfMemory) as error:
            gradcore.ones(1 << 24)
        name = f"\n{'':25}held by FOUND['batches'][0] in {__name__}"
        assert name in str(error.value)
        with unnamed(), pytest.raises(gradcore.OutOfMemory) as quiet:
            gradcore.ones(1 << 24)
        assert name not in str(quiet.value) and "4,194,304 bytes  output of full" in str(quiet.value)
        # A search that fails leaves the error as it is.
        monkeypatch.setattr(stack, "_namer", lambda ledger, serials: 1 / 0)
        with pytest.raises(gradcore.OutOfMemory) as plain:
            gradcore.ones(1 << 24)
        assert str(plain.value).splitlines()[1:] == str(quiet.value).splitlines()[1:]
    finally:
        gradcore.set_memory_limit(None)
    del error, quiet, plain


class Square(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x = x.clone()
        FOUND["serial"] = ctx.x.storage.serial
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2 * ctx.x


def test_what_a_function_left_on_its_ctx_is_held_by_the_graph() -> None:
    FOUND["net"] = Owner(Square.apply(gradcore.ones(100, requires_grad=True)))
    assert holder(FOUND["serial"]) == f"the graph of FOUND['net'].value in {__name__}"
