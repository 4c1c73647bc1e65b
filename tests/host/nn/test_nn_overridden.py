"""Modules that override how they change modes, devices and state, and code that writes into a module's dicts: as in PyTorch.

Each case runs with either library, and what it returns must be equal.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises
from tests.meta.test_interrupts import at_every_moment


def layers_that_stay_in_one_mode(t: Any) -> Any:
    class Frozen(t.nn.BatchNorm1d):  # type: ignore[misc, name-defined]
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    class Merged(t.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.modes: list[bool] = []
            self.inner = Frozen(2)

        def train(self, mode: bool = True) -> Any:
            self.modes.append(mode)
            return super().train(mode)

    net = t.nn.Sequential(Frozen(2), t.nn.Sequential(Merged()), t.nn.Dropout(0.5))
    net.eval().train()
    net[0](t.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return [m.training for m in net.modules()], net[1][0].modes, net[0].running_mean.tolist()


def conversions(t: Any) -> Any:
    class Table(t.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = t.nn.Parameter(t.ones(2))
            self.table = t.zeros(2)

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            super()._apply(fn)
            self.table = fn(self.table)
            return self

    net = t.nn.Sequential(t.nn.Linear(2, 2), Table()).double()
    return [str(x.dtype).removeprefix("torch.") for x in (net[1].table, net[1].weight, net[0].weight)]


def conversions_around_narrower_methods(t: Any) -> Any:
    class Head(t.nn.Linear):  # type: ignore[misc, name-defined]
        asked: tuple[Any, ...] = ()

        def parameters(self) -> Any:
            return iter([self.bias])

        def named_parameters(self) -> Any:
            return iter([("bias", self.bias)])

        def to(self, device: str) -> Any:
            self.asked += (device,)
            return super().to(device)

    head = Head(2, 2)
    net = t.nn.Sequential(head, t.nn.BatchNorm1d(2)).to(dtype=t.float64)
    found = [str(x.dtype).removeprefix("torch.") for x in (head.weight, head.bias, net[1].running_mean)]
    head.half().float().double().cpu().to("cpu")
    head(t.ones(1, 2, dtype=t.float64)).sum().backward()
    return found, head.asked, head.weight.grad.tolist()


class Renaming:
    """A mixin, for either library, of a layer whose weight had another name in version 1."""

    _version = 2
    old: list[Any]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any) -> None:
        self.old = [local_metadata.get("version")]
        if prefix + "w" in state_dict:
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "w")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)  # type: ignore[misc]


def keys_that_were_renamed(t: Any) -> Any:
    class Layer(Renaming, t.nn.Linear):  # type: ignore[misc, name-defined]
        pass

    net = t.nn.Sequential(Layer(1, 1, bias=False), t.nn.Linear(1, 1))
    given = {"0.w": t.tensor([[3.0]]), "1.weight": t.tensor([[4.0]]), "1.bias": t.tensor([5.0])}
    found = net.load_state_dict(given)
    seen = [found.missing_keys, found.unexpected_keys, list(given), net[0].old, [p.tolist() for p in net.parameters()]]
    net.load_state_dict(net.state_dict())
    return [*seen, net[0].old]


def keys_of_ones_own(t: Any) -> Any:
    class Counted(t.nn.Linear):  # type: ignore[misc, name-defined]
        count = 0

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "count"] = t.ones(1)

        def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
            self.count = state_dict.pop(prefix + "count").item()
            super()._load_from_state_dict(state_dict, prefix, *others)

    class Headless(t.nn.Sequential):  # type: ignore[misc, name-defined]
        def state_dict(self, *args: Any, **options: Any) -> Any:
            found = super().state_dict(*args, **options)
            for key in [k for k in found if "bias" in k]:
                del found[key]
            return found

    net = t.nn.Sequential(Headless(Counted(1, 1), t.nn.Linear(1, 1)))
    state = net.state_dict()
    missing = net.load_state_dict(state, strict=False)
    added = {"before": 1}
    net[0][1].state_dict(destination=added, prefix="x.")
    return list(state), missing.missing_keys, missing.unexpected_keys, net[0][0].count, list(added), type(state).__name__


def a_module_on_its_own(t: Any) -> Any:
    layer, errors = t.nn.Linear(1, 1), ([], [], [])  # type: ignore[var-annotated]
    layer._load_from_state_dict({"a.weight": t.tensor([[2.0]]), "a.more": t.ones(1), "a.more.x": t.ones(1)}, "a.", {}, True,
                                *errors)
    return errors, layer.weight.tolist()


def hooks_on_state_dicts(t: Any) -> Any:
    seen: list[Any] = []
    net = t.nn.Sequential(t.nn.Linear(1, 1, bias=False), t.nn.Sequential(t.nn.Linear(1, 1)))
    inner = net[1][0]
    handles = [inner.register_state_dict_pre_hook(lambda m, prefix, keep: seen.append(("saving", prefix, keep))),
               net[1].register_state_dict_post_hook(lambda m, state, prefix, data: state.pop(prefix + "0.bias") and None),
               inner._register_state_dict_hook(lambda m, state, prefix, data: seen.append((sorted(state), prefix, data)))]
    state = net.state_dict()
    state["1.0.w"] = state.pop("1.0.weight") * 0 + 5

    def rename(m: Any, state: Any, prefix: str, data: Any, strict: bool, missing: Any, unexpected: Any, errors: Any) -> None:
        seen.append((type(m).__name__, sorted(state), prefix, data.get("version"), strict))
        state[prefix + "weight"] = state.pop(prefix + "w")

    def forgive(m: Any, keys: Any) -> None:
        seen.append((type(m).__name__, list(keys.missing_keys), inner.weight.tolist()))
        keys.missing_keys.clear()

    handles += [inner.register_load_state_dict_pre_hook(rename), inner.register_load_state_dict_post_hook(forgive),
                inner._register_load_state_dict_pre_hook(lambda state, prefix, *others: seen.append(prefix))]
    found = net.load_state_dict(state)
    again = copy.deepcopy(net)
    for handle in handles:
        handle.remove()
    return [*seen, list(state), found.missing_keys, list(net.state_dict()), list(again.state_dict())]


def writes_into_the_dicts(t: Any) -> Any:
    class Net(t.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.act, self.fc = t.nn.ReLU(), t.nn.Linear(1, 1, bias=False)
            self.register_buffer("scale", t.ones(1))

        def forward(self, x: Any) -> Any:
            return self.fc(self.act(x)) * self.scale

    net = Net()
    net._modules["act"] = t.nn.Identity()
    net.fc._parameters["weight"] = t.nn.Parameter(t.full((1, 1), 7.0))
    net._buffers["scale"] = t.full((1,), 2.0)
    seen = [net(t.tensor([[-1.0]])).tolist(), repr(net), "act" in net._modules, len(net._modules)]
    del net._modules["act"]
    seen += [hasattr(net, "act"), net._modules.pop("fc") is not None, hasattr(net, "fc"), list(net._modules)]
    net._modules.update(last=t.nn.Linear(1, 1), first=None)
    seen += [list(net.state_dict()), net._modules.get("none"), dict(net._modules)["first"]]
    seen += [list(reversed(net._modules)), net._modules.popitem(), hasattr(net, "first"), list(net._modules)]
    row = t.nn.Sequential(t.nn.ReLU(), t.nn.Tanh())
    row._modules["1"] = t.nn.Sigmoid()
    row._modules["0"] = row._modules.pop("0")
    again = [copy.deepcopy(row), pickle.loads(pickle.dumps(row))]
    again[0]._modules["1"] = t.nn.Tanh()
    return [*seen, row(t.zeros(1)).tolist(), again[0](t.zeros(1)).tolist(), again[1](t.zeros(1)).tolist(), repr(row)]


def convolutions_with_another_weight(t: Any) -> Any:
    class Standardized(t.nn.Conv2d):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)

    made = []
    for padding in ("zeros", "circular"):
        layer = Standardized(1, 1, 3, padding=1, padding_mode=padding)
        layer.load_state_dict({"weight": t.arange(9.0).reshape(1, 1, 3, 3), "bias": t.ones(1)})
        made.append(layer(t.arange(16.0).reshape(1, 1, 4, 4)).tolist())
    return [*made, t.nn.Conv1d(1, 1, 1).transposed, t.nn.ConvTranspose1d(1, 1, 1).transposed]


def weights_of_recurrent_layers(t: Any) -> Any:
    layer = t.nn.LSTM(2, 3, 2, bidirectional=True)
    for names in layer._all_weights:
        for name in filter(lambda n: "bias" in n, names):
            getattr(layer, name).data[3:6].fill_(1.0)
    return [[tuple(w.shape) for w in ws] for ws in layer.all_weights], layer.all_weights[3][2][3:6].tolist(), layer._all_weights


def lists_and_dicts_of_parameters(t: Any) -> Any:
    row, table = t.nn.ParameterList([t.ones(1)]), t.nn.ParameterDict({"a": t.ones(1)})
    row += [t.zeros(2)]
    other = table.copy()
    seen = [table.setdefault("a", t.zeros(1)).tolist(), table.setdefault("b", t.zeros(1)).requires_grad, table.setdefault("c")]
    seen += [table.popitem(), table.popitem()[0], list(table), list(other), other["a"] is table["a"]]
    table.clear()
    return [*seen, len(row), len(table), [n for n, _ in row.named_parameters()]]


def calls_around_calls(t: Any) -> Any:
    class Added(t.nn.Module):  # type: ignore[misc, name-defined]
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args) + 1

        def forward(self, x: Any) -> Any:
            return x

    seen, former = [], t.nn.Module.__call__

    def counted(self: Any, *args: Any) -> Any:
        seen.append(type(self).__name__)
        return former(self, *args)

    found = [Added()(t.zeros(1)).item(), t.nn.Sequential(Added(), Added())(t.zeros(1)).item()]
    t.nn.Module.__call__ = counted
    try:
        t.nn.Sequential(t.nn.ReLU())(t.zeros(1))
    finally:
        t.nn.Module.__call__ = former
    return found, seen


def norms_that_start_otherwise(t: Any) -> Any:
    class Half:
        def reset_parameters(self) -> None:
            super().reset_parameters()  # type: ignore[misc]
            t.nn.init.constant_(self.weight, 0.5)  # type: ignore[attr-defined]

    sizes = {"BatchNorm2d": (2,), "GroupNorm": (1, 2), "LayerNorm": (2,), "RMSNorm": (2,)}
    made = [type("Mine", (Half, getattr(t.nn, name)), {})(*given) for name, given in sizes.items()]
    return [(k, v.tolist()) for norm in (*made, t.nn.BatchNorm1d(2)) for k, v in norm.state_dict().items()]


CASES = [calls_around_calls, norms_that_start_otherwise, convolutions_with_another_weight, weights_of_recurrent_layers,
         lists_and_dicts_of_parameters, layers_that_stay_in_one_mode, conversions, conversions_around_narrower_methods,
         keys_that_were_renamed, keys_of_ones_own, a_module_on_its_own, hooks_on_state_dicts, writes_into_the_dicts]


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_is_pytorchs(case: Callable[[Any], Any], torch: Any) -> None:
    assert case(gradcore) == case(torch)


def test_a_hook_after_a_state_dict_returns_nothing() -> None:
    layer = nn.Linear(1, 1)
    layer.register_state_dict_post_hook(lambda *args: 1)
    with raises(RuntimeError, "state_dict post-hook must return None"):
        layer.state_dict()


def test_nothing_is_loaded_if_a_module_finds_an_error() -> None:
    class Strict(nn.Linear):
        def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str],
                                  unexpected: list[str], errors: list[str]) -> None:
            super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
            errors.append("never fits")

    net = nn.Sequential(nn.Linear(1, 1), Strict(1, 1))
    before = [p.tolist() for p in net.parameters()]
    with raises(RuntimeError, "Error(s) in loading state_dict for Sequential:\n\tnever fits"):
        net.load_state_dict({k: gradcore.zeros(*v.shape) for k, v in net.state_dict().items()})
    assert [p.tolist() for p in net.parameters()] == before


def test_members_before_init_and_as_a_whole() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self._modules["a"] = nn.ReLU()

    with raises(AttributeError, "'Early' object has no attribute '_modules': its __init__ must begin with super().__init__()"):
        Early()
    net = nn.Sequential(nn.ReLU())
    net._modules = {"0": nn.Tanh(), "1": nn.Sigmoid()}
    assert repr(net) == "Sequential(\n  (0): Tanh()\n  (1): Sigmoid()\n)" and net._modules.copy() == dict(net.named_children())
    net._modules.move_to_end("1", last=False)
    assert list(net._modules) == ["1", "0"] and repr(net._modules) == "{'1': Sigmoid(), '0': Tanh()}"
    with raises(KeyError, "'2'"):
        del net._modules["2"]
    with raises(KeyError, "'2'"):
        net._modules.move_to_end("2")
    with raises(KeyError, "there is no member"):
        net._buffers.popitem()


def test_an_interrupt_loses_no_member_that_moves() -> None:
    net = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid())
    for last, order in ((False, ["2", "0", "1"]), (True, ["0", "1", "2"])):
        for _ in at_every_moment(lambda last=last: net._modules.move_to_end("2", last), "/gradcore/"):
            assert sorted(net._modules) == ["0", "1", "2"]
        assert list(net._modules) == order


def test_an_interrupt_loses_no_member_where_all_are_replaced() -> None:
    net = nn.Sequential(nn.ReLU(), nn.Tanh())
    old, new = dict(net._modules), {"0": nn.Sigmoid(), "2": nn.Linear(1, 1)}
    for _ in at_every_moment(lambda: setattr(net, "_modules", new), "/gradcore/"):
        assert dict(net._modules) in (old, new)
        assert all(getattr(net, name) is child for name, child in net._modules.items())
        net._modules = old
    net._modules = new
    assert not hasattr(net, "1") and [*net._modules] == ["0", "2"]
    assert gradcore.graph(net(gradcore.ones(1, 1))).nodes[-1].layer == "2"


def test_a_member_of_another_kind_gives_way_where_all_are_replaced() -> None:
    net = nn.Module()
    net.register_buffer("a", gradcore.ones(1), persistent=False)
    net.b = nn.Parameter(gradcore.ones(2))
    net._buffers = {"b": gradcore.zeros(3), "a": gradcore.zeros(1)}
    assert not list(net.parameters()) and net.b.tolist() == [0.0] * 3 and list(net.state_dict()) == ["b"]
