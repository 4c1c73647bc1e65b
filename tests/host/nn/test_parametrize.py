"""Parametrizations of one's own, and further layers, compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn.utils import parametrizations, parametrize
from tests.conftest import raises


def plain(x: Any) -> Any:
    return np.asarray(x.detach())


@pytest.mark.oracle
@pytest.mark.parametrize("inverse", [None, lambda x: x * 2, lambda x: (x * 2).t()], ids=["none", "same", "another layout"])
def test_an_optimizer_made_before_goes_on_with_the_parameter(torch: Any, inverse: Any) -> None:
    found = []
    for library in (gradcore, torch):
        class Half(library.nn.Module):  # type: ignore[name-defined, misc]
            def forward(self, x: Any) -> Any:
                return x / 2

        if inverse is not None:
            Half.right_inverse = lambda self, x: inverse(x)
        layer = library.nn.Linear(3, 3)
        layer.load_state_dict({"weight": library.arange(9.0).reshape(3, 3), "bias": library.zeros(3)})
        weight = layer.weight
        optimizer = library.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        for k in range(4):
            if k == 1:
                library.nn.utils.parametrize.register_parametrization(layer, "weight", Half())
            if k == 3:
                library.nn.utils.parametrize.remove_parametrizations(layer, "weight")
            optimizer.zero_grad()
            (layer(library.ones(2, 3)) ** 2).mean().backward()
            optimizer.step()
        assert layer.weight is weight
        found.append(plain(weight))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


class Symmetric(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.triu() + x.triu(1).mT


class Wider(nn.Module):
    def forward(self, x: Any) -> Any:
        return gradcore.cat([x, x])


def test_a_parametrization_of_ones_own() -> None:
    layer = nn.Linear(3, 3, bias=False)
    other = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    assert parametrize.is_parametrized(layer) and parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias") and not parametrize.is_parametrized(other)
    np.testing.assert_array_equal(plain(layer.weight), plain(layer.weight).T)
    assert list(layer.state_dict()) == ["parametrizations.weight.original"]
    assert isinstance(layer, nn.Linear) and "weight" not in dict(layer.named_parameters())
    layer(gradcore.ones(1, 3)).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
    value = plain(layer.weight)
    copy = nn.Linear(3, 3, bias=False)
    parametrize.register_parametrization(copy, "weight", Symmetric())
    copy.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(plain(copy.weight), value)
    original = plain(copy.parametrizations.weight.original)
    parametrize.remove_parametrizations(copy, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(plain(copy.weight), original)
    parametrize.remove_parametrizations(layer, "weight")
    np.testing.assert_array_equal(plain(layer.weight), value)
    assert type(layer) is nn.Linear and isinstance(layer.weight, nn.Parameter)


@pytest.mark.oracle
def test_parametrizations_one_after_the_other_are_torchs(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        class Doubled(library.nn.Module):
            def forward(self, x: Any) -> Any:
                return 2 * x

            def right_inverse(self, x: Any) -> Any:
                return x / 2

        class Shifted(Doubled):
            def forward(self, x: Any) -> Any:
                return x + x.t()

        of = library.nn.utils.parametrize
        layer = library.nn.Linear(2, 2, bias=False)
        layer.load_state_dict({"weight": library.tensor([[1.0, 2.0], [3.0, 5.0]])})
        for part in (Doubled(), Shifted()):
            assert of.register_parametrization(layer, "weight", part) is layer
        parts = layer.parametrizations.weight
        state = {k: plain(v).copy() for k, v in layer.state_dict().items()}
        values = [plain(layer.weight), plain(parts[0](library.ones(2, 2))), plain(layer(library.ones(1, 2)))]
        layer.weight = library.tensor([[4.0, 0.0], [0.0, 4.0]])
        layer.weight.square().sum().backward()
        values += [plain(layer.weight), plain(parts.original).copy(), plain(parts.original.grad)]
        original = parts.original
        for _ in range(2):
            with of.cached():
                weight = layer.weight
                with of.cached():
                    assert layer.weight is weight
                assert layer.weight is weight
            assert layer.weight is not weight and (layer.weight == weight).all()
            layer.weight = 2 * layer.weight
        of.remove_parametrizations(layer, "weight")
        assert layer.weight is original
        found.append((list(state), [*state.values(), *values, plain(layer.weight)], len(parts), repr(layer)))
    assert (found[0][0], found[0][2:]) == (found[1][0], found[1][2:])
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


def products(library: Any, several: bool) -> Any:
    """A module that makes a matrix of one vector, or of two matrices."""
    class Outer(library.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, *parts: Any) -> Any:
            return parts[0] @ parts[1] if several else library.outer(parts[0], parts[0])

        def right_inverse(self, x: Any) -> Any:
            return (x[:, :1].clone(), x[:1].clone()) if several else x.diagonal().sqrt()

    return Outer()


def halves(library: Any) -> Any:
    class Half(library.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x / 2

        def right_inverse(self, x: Any) -> Any:
            return x * 2

    return Half()


@pytest.mark.oracle
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_originals_of_other_shapes_are_torchs(several: bool, more: bool, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        of, layer = library.nn.utils.parametrize, library.nn.Linear(3, 3)
        layer.load_state_dict({"weight": library.arange(9.0).reshape(3, 3), "bias": library.zeros(3)})
        of.register_parametrization(layer, "weight", products(library, several))
        of.register_parametrization(layer, "bias", halves(library))
        if more:
            of.register_parametrization(layer, "weight", halves(library))
        with library.no_grad():
            layer.weight = library.arange(9.0).reshape(3, 3) + 1
        layer(library.ones(2, 3)).square().sum().backward()
        state = [(name, plain(x).copy(), plain(x.grad)) for name, x in layer.named_parameters()]
        of.remove_parametrizations(layer, "weight")
        found.append([*state, *((name, plain(x)) for name, x in (*layer.named_parameters(), ("weight", layer.weight)))])
    for ours, theirs in zip(*found, strict=True):
        assert ours[0] == theirs[0]
        np.testing.assert_allclose(ours[1:], theirs[1:], rtol=1e-6)


@pytest.mark.parametrize("leave", [False, True])
def test_a_parametrized_original_is_removed_with_what_it_made(leave: bool) -> None:
    layer = nn.Linear(2, 2, bias=False)
    value = layer.weight.tolist()
    parametrize.register_parametrization(layer, "weight", halves(gradcore))
    parametrize.register_parametrization(layer.parametrizations.weight, "original", halves(gradcore))
    assert layer.weight.tolist() == value and len(layer.parametrizations.weight) == 1
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=leave)
    assert type(layer.weight) is nn.Parameter and (layer.weight / (1 if leave else 2)).tolist() == value


def test_what_cached_computes_goes_with_its_layer_and_is_no_other_ones() -> None:
    live = set()
    with parametrize.cached():
        for _ in range(20):
            # The next layer lies where this one was.
            layer = nn.Linear(1, 1)
            parametrize.register_parametrization(layer, "weight", Symmetric())
            weight = layer.weight
            assert layer.weight is weight
            np.testing.assert_array_equal(plain(weight), plain(layer.parametrizations.weight()))
            del layer, weight
            live.add(gradcore.memory_allocated("cpu"))
    assert len(live) == 1


def test_a_value_that_no_original_makes_is_refused() -> None:
    layer = parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    with raises(RuntimeError, "parametrization Symmetric does not implement right_inverse."):
        layer.weight = gradcore.ones(3, 3)


def test_what_cannot_be_parametrized_is_refused() -> None:
    layer = nn.Linear(3, 3)
    with raises(ValueError, "'Linear' does not have a parameter or a buffer with name 'scale'"):
        parametrizations.weight_norm(layer, "scale")
    with raises(ValueError, "may not change the shape", "[3, 3]", "[6, 3]"):
        parametrize.register_parametrization(layer, "weight", Wider())
    with raises(ValueError, "Linear does not have a parametrization on weight"):
        parametrize.remove_parametrizations(layer, "weight")
    parametrizations.weight_norm(layer)
    with raises(ValueError, "may not change the shape", "[3, 3]", "[6, 3]"):
        parametrize.register_parametrization(layer, "weight", Wider())
    with raises(ValueError, "the parametrization has several original tensors"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


# -- layers ------------------------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "args", "options", "shape"), [
    ("Conv3d", (4, 6, 3), {"padding": 1, "groups": 2}, (2, 4, 4, 5, 3)),
    ("Conv3d", (2, 3, (2, 1, 3)), {"stride": (2, 1, 1), "bias": False, "dilation": (1, 2, 1)}, (1, 2, 4, 5, 6)),
    ("Conv3d", (2, 3, 3), {"padding": "same", "padding_mode": "zeros"}, (1, 2, 4, 5, 6)),
    ("AdaptiveMaxPool2d", ((3, 2),), {}, (2, 3, 7, 5)), ("AdaptiveMaxPool2d", (2,), {"return_indices": True}, (3, 5, 5)),
    ("AdaptiveMaxPool1d", (3,), {"return_indices": True}, (2, 3, 8)),
], ids=str)
def test_layers_are_torchs(name: str, args: Any, options: dict[str, Any], shape: tuple[int, ...], torch: Any) -> None:
    ours, theirs = (getattr(library.nn, name)(*args, **options) for library in (gradcore, torch))
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict({k: torch.tensor(plain(v)) for k, v in ours.state_dict().items()})
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = [module(library.tensor(x)) for library, module in ((gradcore, ours), (torch, theirs))]
    for a, b in zip(*[f if isinstance(f, tuple) else (f,) for f in found], strict=True):
        np.testing.assert_allclose(plain(a), plain(b), rtol=2e-5, atol=2e-6)


def test_volumes_that_do_not_fit_are_refused() -> None:
    f = nn.functional
    x, w = gradcore.zeros(1, 4, 3, 5, 5), gradcore.zeros(2, 4, 3, 3, 3)
    for call, kind, text in (
            (lambda: f.conv3d(x[0, 0], w), RuntimeError, "Expected 4D (unbatched) or 5D (batched) input to conv3d"),
            (lambda: f.conv3d(x, w[0]), RuntimeError, "expected weight [O, C / groups, kD, kH, kW], but got [4, 3, 3, 3]"),
            (lambda: f.conv3d(x, w, groups=2), RuntimeError, "to have 8 channels, but got 4 channels instead"),
            (lambda: f.conv3d(x, w, dilation=2), RuntimeError, "Kernel size can't be greater than actual input size"),
            (lambda: f.conv3d(x, w, padding="same", stride=2), RuntimeError, "not supported for strided convolutions"),
            (lambda: f.conv3d(x, w, padding="most"), ValueError, "Invalid padding string 'most'"),
            (lambda: f.conv3d(x, w, stride=(1, 2)), RuntimeError, "stride must be an int or three ints"),
            (lambda: nn.Conv3d(4, 2, (3, 3)), RuntimeError, "kernel_size must be an int or three ints"),
            (lambda: f.adaptive_max_pool2d(x, 2), RuntimeError, "Expected 3D or 4D tensor"),
            (lambda: f.adaptive_max_pool1d(x, 2), RuntimeError, "Expected 2D or 3D tensor")):
        with raises(kind, text):
            call()


def test_an_unsafe_parametrization_may_change_the_shape() -> None:
    class Columns(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, :2]

    net = nn.Linear(3, 4)
    with raises(ValueError, "it was [4, 3] and would be [4, 2]"):
        parametrize.register_parametrization(net, "weight", Columns())
    parametrize.register_parametrization(net, "weight", Columns(), unsafe=True)
    assert net(gradcore.ones(5, 2)).shape == (5, 4)
    parametrize.register_parametrization(net, "weight", nn.Identity())
    parametrize.remove_parametrizations(net, "weight")
    assert net.weight.shape == (4, 2)


@pytest.mark.oracle
def test_a_parametrization_gives_a_tensor_of_the_same_dtype(torch: Any) -> None:
    for library in (gradcore, torch):
        class Other(library.nn.Module):  # type: ignore[name-defined, misc]
            def __init__(self, make: Any) -> None:
                super().__init__()
                self.make = make

            def forward(self, x: Any) -> Any:
                return self.make(x)

        part = library.nn.utils.parametrize
        for make, words in ((lambda x: x.double(), "may not change the dtype"),
                            (lambda x: [x], "must return a tensor. Got list")):
            net = library.nn.Linear(3, 4)
            with pytest.raises(ValueError, match=words):
                part.register_parametrization(net, "weight", Other(make))
            assert part.type_before_parametrizations(net) is type(net) is library.nn.Linear
        part.register_parametrization(net, "weight", Other(lambda x: x.double()), unsafe=True)
        assert net.weight.dtype == library.float64
        assert part.type_before_parametrizations(net) is library.nn.Linear and type(net) is not library.nn.Linear


def of_a_buffer(library: Any) -> list[Any]:
    class Twice(library.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2

        def right_inverse(self, x: Any) -> Any:
            return x / 2

    class Product(library.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return x * y

        def right_inverse(self, x: Any) -> Any:
            return x, library.ones(1)

    tools = library.nn.utils.parametrize
    norm = library.nn.BatchNorm1d(2)
    tools.register_parametrization(norm, "running_mean", Twice())
    tools.register_parametrization(norm, "running_var", Product())
    norm.running_mean = library.ones(2)
    found = [list(norm.state_dict()), [n for n, _ in norm.named_parameters()], norm.running_mean.tolist(),
             norm.parametrizations.running_mean.original.tolist(), norm.running_var.tolist()]
    # An original may be parametrized itself.
    tools.register_parametrization(norm.parametrizations.running_mean, "original", Twice())
    for name in ("running_mean", "running_var"):
        tools.remove_parametrizations(norm, name)
    return [*found, sorted(norm.state_dict()), sorted(n for n, _ in norm.named_buffers()), norm.running_mean.tolist(),
            norm.running_var.requires_grad]


def test_a_buffer_can_be_parametrized() -> None:
    assert of_a_buffer(gradcore)[1:5] == [["weight", "bias"], [1, 1], [0.5, 0.5], [1, 1]]


@pytest.mark.oracle
def test_a_buffer_is_parametrized_as_pytorchs(torch: Any) -> None:
    assert of_a_buffer(gradcore) == of_a_buffer(torch)
