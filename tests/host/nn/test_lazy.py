"""Lazy layers: what they are before their first call, and that they are ordinary layers after it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn.parameter import UninitializedParameter, is_lazy
from tests.conftest import raises

#: By name: the arguments of a lazy layer, and the shape of an input.
LAYERS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "Linear": ((3,), {}, (2, 5)), "Linear without bias": ((3, False), {}, (2, 4, 5)), "Conv1d": ((4, 3), {}, (2, 6, 8)),
    "Conv2d": ((4, 3, 2, 1), {"groups": 2, "padding_mode": "reflect"}, (2, 6, 8, 8)), "Conv3d": ((2, 2), {}, (3, 4, 4, 4)),
    "Conv2d of one sample": ((4,), {"kernel_size": 3, "bias": False}, (6, 8, 8)),
    "ConvTranspose1d": ((4, 3), {}, (2, 6, 8)), "ConvTranspose2d": ((4, 3), {"groups": 2, "stride": 2}, (2, 6, 8, 8)),
    "ConvTranspose3d": ((2, 2), {}, (2, 3, 4, 4, 4)), "BatchNorm1d": ((), {}, (3, 5)),
    "BatchNorm2d": ((1e-3, 0.2), {}, (2, 5, 3, 3)),
    "BatchNorm3d": ((), {"affine": False}, (2, 5, 3, 3, 3)), "InstanceNorm1d": ((), {"affine": True}, (2, 5, 4)),
    "InstanceNorm2d": ((), {"track_running_stats": True}, (2, 5, 3, 3)), "InstanceNorm3d": ((), {}, (2, 5, 3, 3, 3))}


def layer(library: Any, name: str) -> Any:
    args, named, _ = LAYERS[name]
    return getattr(library.nn, f"Lazy{name.split()[0]}")(*args, **named)


@pytest.mark.oracle
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_becomes_pytorchs(name: str, torch: Any) -> None:
    shape = LAYERS[name][2]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    ours, theirs = layer(gradcore, name), layer(torch, name)
    assert repr(ours) == repr(theirs) and [*dict(ours.named_parameters())] == [*dict(theirs.named_parameters())]
    kind = getattr(nn, name.split()[0])
    assert isinstance(ours, kind) and type(ours) is not kind and ours.has_uninitialized_params()
    theirs(torch.tensor(x))
    ours(gradcore.tensor(x))
    assert type(ours) is kind and repr(ours) == repr(theirs)
    shapes = [{k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (ours, theirs)]
    assert shapes[0] == shapes[1]
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    np.testing.assert_allclose(ours(gradcore.tensor(x)).detach().numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4,
                               atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_layer_that_would_have_been_made(name: str) -> None:
    args, named, shape = LAYERS[name]
    x = gradcore.ones(*shape)
    made = layer(gradcore, name)
    gradcore.manual_seed(3)
    made(x)
    size = getattr(made, next(a for a in ("in_features", "in_channels", "num_features") if hasattr(made, a)))
    gradcore.manual_seed(3)
    if "InstanceNorm" in name:
        named = {"affine": True, "track_running_stats": True, **named}
    plain = getattr(nn, name.split()[0])(size, *args, **named)
    plain(x)
    assert {k: v.tolist() for k, v in made.state_dict().items()} == {k: v.tolist() for k, v in plain.state_dict().items()}
    assert made.__dict__.keys() == plain.__dict__.keys()


def test_parameters_stay_the_same_objects() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    before = list(net.parameters())
    optimizer = gradcore.optim.SGD(before, lr=0.1, momentum=0.9)
    assert all(is_lazy(p) and isinstance(p, nn.Parameter) and p.requires_grad and p.is_leaf and p.grad is None for p in before)
    optimizer.zero_grad()
    optimizer.step()
    net(gradcore.ones(2, 3)).sum().backward()
    bias = net[2].bias.tolist()
    optimizer.step()
    assert all(p is q and type(p) is nn.Parameter and p.grad is not None for p, q in zip(before, net.parameters(), strict=True))
    assert len(optimizer.state) == 4 and net[2].bias.tolist() != bias


def test_bytes_come_with_the_first_call_and_have_an_owner() -> None:
    live = gradcore.memory_requested()
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    assert gradcore.memory_requested() == live
    with gradcore.step() as s:
        net(gradcore.ones(1, 3, 4, 4)).sum().backward()
    by_layer = s.report.by_layer
    assert {"0", "1", "3"} <= by_layer.keys()
    assert s.report.by_role["parameter"] == 6 * 512


def test_where_and_of_which_dtype() -> None:
    made = nn.LazyBatchNorm1d(dtype=gradcore.float32).to(gradcore.float64)
    made(gradcore.ones(2, 3, dtype=gradcore.float64))
    assert {b.dtype for b in made.buffers()} == {np.dtype("f8"), np.dtype("i8")} and made.weight.dtype == gradcore.float64
    meta = nn.LazyLinear(2).to("meta")
    assert meta(gradcore.ones(1, 3, device="meta")).shape == (1, 2) and meta.weight.device.type == "meta"


def test_a_state_dict_says_the_size() -> None:
    for lazy, plain in ((nn.LazyLinear(3), nn.Linear(5, 3)), (nn.LazyConv2d(4, 3, groups=2), nn.Conv2d(6, 4, 3, groups=2)),
                        (nn.LazyConvTranspose2d(4, 3), nn.ConvTranspose2d(6, 4, 3)), (nn.LazyBatchNorm2d(), nn.BatchNorm2d(7)),
                        (nn.LazyBatchNorm2d(affine=False), nn.BatchNorm2d(7, affine=False))):
        assert not any(lazy.load_state_dict(plain.state_dict()))
        assert type(lazy) is type(plain) and repr(lazy) == repr(plain)
        assert {k: v.tolist() for k, v in lazy.state_dict().items()} == {k: v.tolist() for k, v in plain.state_dict().items()}
    listed = nn.LazyLinear(1)
    listed.load_state_dict({"weight": [[1.0, 2.0]], "bias": [3.0]})
    assert listed(gradcore.ones(2)).tolist() == [6.0]


@pytest.mark.oracle
@pytest.mark.parametrize("given", [[], ["bias"], ["other"], ["running_var", "num_batches_tracked"]])
@pytest.mark.parametrize(("kind", "args"), [("LazyLinear", (3,)), ("LazyConv2d", (4, 3)), ("LazyConvTranspose1d", (4, 3)),
                                            ("LazyBatchNorm1d", ()), ("LazyBatchNorm1d", (1e-5, 0.1, False))])
def test_a_state_dict_that_does_not_say_the_size_is_refused_in_pytorchs_words(kind: str, args: Any, given: list[str],
                                                                              torch: Any) -> None:
    said = []
    for library in (gradcore, torch):
        layer = getattr(library.nn, kind)(*args)
        with pytest.raises(RuntimeError) as error:
            layer.load_state_dict({name: library.zeros(()) for name in given})
        said.append(str(error.value))
        assert layer.has_uninitialized_params() or kind == "LazyBatchNorm1d"
        del error
    assert said[0] == said[1]


def test_an_input_that_does_not_fit_leaves_it_lazy() -> None:
    conv, norm = nn.LazyConv2d(4, 3, groups=2), nn.LazyBatchNorm2d()
    for call, kind, text in ((lambda: conv(gradcore.ones(1, 3, 5, 5)), ValueError, "divisible by groups, but got 3, 4 and 2"),
                             (lambda: conv(gradcore.ones(3, 3)), RuntimeError, "Expected 3D (unbatched) or 4D (batched) input"),
                             (lambda: norm(gradcore.ones(3, 3)), gradcore.SpecError, "expected 4D input (got 2D input)")):
        with raises(kind, text):
            call()
    assert conv.has_uninitialized_params() and norm.has_uninitialized_params()
    assert conv(gradcore.ones(1, 2, 5, 5)).shape == (1, 4, 3, 3) and norm(gradcore.ones(1, 2, 5, 5)).shape == (1, 2, 5, 5)


def test_a_parameter_that_is_used_too_early_says_so() -> None:
    weight = nn.LazyLinear(2).weight
    for use in (lambda: weight + 1, lambda: weight.numel(), lambda: nn.init.zeros_(weight), lambda: weight.detach()):
        with raises(ValueError, "Attempted to use an uninitialized parameter"):
            use()
    with raises(RuntimeError, "Can't access the shape of an uninitialized parameter"):
        weight.shape  # noqa: B018
    assert repr(weight) == "<UninitializedParameter>"


def test_a_parameter_by_hand() -> None:
    p = UninitializedParameter(dtype=gradcore.float64)
    p.materialize((2, 3))
    assert type(p) is nn.Parameter and p.shape == (2, 3) and p.dtype == gradcore.float64 and p.requires_grad
    frozen = UninitializedParameter(requires_grad=False)
    frozen.materialize(4)
    assert frozen.shape == (4,) and not frozen.requires_grad


def test_what_is_frozen_before_stays_frozen() -> None:
    made = nn.LazyLinear(2).requires_grad_(False)
    made.bias.requires_grad = True
    made(gradcore.ones(1, 3))
    assert not made.weight.requires_grad and made.bias.requires_grad


def test_copies_are_lazy_too() -> None:
    first = nn.Sequential(nn.LazyLinear(2))
    second = copy.deepcopy(first)
    first(gradcore.ones(1, 3))
    second(gradcore.ones(1, 7))
    assert first[0].in_features == 3 and second[0].in_features == 7


def test_a_compiled_network_becomes_one_too() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    f, x = gradcore.compile(net), gradcore.ones(2, 3)
    with gradcore.no_grad():
        found = [f(x).tolist() for _ in range(4)]
        assert found == [net(x).tolist()] * 4
    assert type(net[0]) is nn.Linear and len(f.programs) == 1, f.explain()


def test_a_compiled_step_makes_them_ordinary() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
    weights, spare = [*net.parameters()], nn.LazyLinear(2)
    optimizer = gradcore.optim.SGD([*weights, *spare.parameters()], lr=0.1)
    use_spare = False

    def step(x: gradcore.Tensor) -> gradcore.Tensor:
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean() + sum(w.square().sum() for w in weights)
        if use_spare:
            loss = loss + spare(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled, x = gradcore.compile(step), gradcore.arange(6.0).reshape(2, 3)
    losses = [compiled(x).item() for _ in range(3)]
    start = {name: w.clone() for name, w in net.state_dict().items()}
    replayed = [compiled(x).item() for _ in range(3)]
    assert len(compiled.programs) == 1 and losses[0] > losses[-1] > replayed[0], compiled.explain()
    net.load_state_dict(start)
    assert [step(x).item() for _ in range(3)] == replayed
    use_spare = True
    assert compiled(x).item() > replayed[-1] and type(spare) is nn.Linear


def test_a_program_of_a_module_whose_parameter_is_uninitialized_ends_with_that() -> None:
    module = nn.Module()
    module.weight = UninitializedParameter()
    weights = [module.weight]
    compiled = gradcore.compile(lambda x: x * 2 if is_lazy(module.weight) or is_lazy(weights[0]) else x * module.weight)
    x = gradcore.ones(3)
    assert [compiled(x).tolist() for _ in range(2)] == [[2.0] * 3] * 2 and len(compiled.programs) == 1
    module.weight.materialize((3,))
    with gradcore.no_grad():
        module.weight.fill_(5.0)
    assert compiled(x).tolist() == [5.0] * 3 and "has been initialized" in compiled.traces[-1]
