"""Parametrizations, and further layers, compared with PyTorch's."""

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
@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_is_torchs(dim: int | None, torch: Any) -> None:
    found = []
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    for library in (gradcore, torch):
        layer = library.nn.Linear(3, 2, bias=False)
        layer.load_state_dict({"weight": library.tensor(weight)})
        assert library.nn.utils.parametrizations.weight_norm(layer, dim=dim) is layer
        optimizer = library.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (layer(library.tensor(x)) ** 2).sum().backward()
            optimizer.step()
        state = {k: plain(v) for k, v in layer.state_dict().items()}
        library.nn.utils.parametrize.remove_parametrizations(layer, "weight")
        found.append((list(state), [*state.values(), plain(layer.weight)], repr(layer)))
    assert found[0][0] == found[1][0] and found[0][2] == found[1][2]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


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


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm` is deprecated")
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("kind", "args", "shape"), [("Linear", (3, 2), (6, 3)), ("Conv2d", (3, 4, 2), (2, 3, 4, 4)),
                                                     ("ConvTranspose2d", (3, 4, 2), (2, 3, 3, 3))])
def test_spectral_norm_is_torchs(kind: str, args: Any, shape: Any, legacy: bool, torch: Any) -> None:
    layers = []
    for library in (gradcore, torch):
        utils = library.nn.utils if legacy else library.nn.utils.parametrizations
        layer = getattr(library.nn, kind)(*args)
        assert utils.spectral_norm(layer, n_power_iterations=2) is layer
        layers.append(layer)
    ours, theirs = layers
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for library, layer in ((gradcore, ours), (torch, theirs)):
        optimizer = library.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            # Two calls, whose vectors differ, before one backward.
            (layer(library.tensor(x)).square().mean() - layer(library.tensor(2 * x)).mean()).backward()
            optimizer.step()
        layer.eval()
        layer(library.tensor(x))
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(plain(a), plain(b), rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(plain(ours.weight), plain(theirs.weight), rtol=1e-4, atol=1e-5)
    if legacy:
        with raises(RuntimeError, "Cannot register two spectral_norm hooks on the same parameter weight"):
            nn.utils.spectral_norm(ours)
        nn.utils.remove_spectral_norm(ours)
        with raises(ValueError, "spectral_norm of 'weight' not found in"):
            nn.utils.remove_spectral_norm(ours)
    else:
        parametrize.remove_parametrizations(ours, "weight")
    np.testing.assert_allclose(plain(ours.weight), plain(theirs.weight), rtol=1e-4, atol=1e-5)
    assert "weight" in dict(ours.named_parameters())


def test_the_largest_singular_value_is_one() -> None:
    gradcore.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(7, 5))
    assert abs(np.linalg.svd(plain(layer.weight))[1][0] - 1) < 1e-2
    vector = nn.Module()
    vector.w = nn.Parameter(gradcore.tensor([3.0, 4.0]))
    np.testing.assert_allclose(plain(parametrizations.spectral_norm(vector, "w").w), [0.6, 0.8], rtol=1e-6)
    with raises(ValueError, "Expected n_power_iterations to be positive"):
        parametrizations.spectral_norm(nn.Linear(2, 2), n_power_iterations=0)
    with raises(IndexError, "expected to be in range of [-2, 1] but got 2"):
        parametrizations.spectral_norm(nn.Linear(2, 2), dim=2)
    with raises(ValueError, "has no parameter or buffer with name 'w'"):
        parametrizations.spectral_norm(nn.Linear(2, 2), "w")


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
        with of.cached():
            assert layer.weight is layer.weight
        assert layer.weight is not layer.weight
        of.remove_parametrizations(layer, "weight")
        assert layer.weight is original
        found.append((list(state), [*state.values(), *values, plain(layer.weight)], len(parts), repr(layer)))
    assert (found[0][0], found[0][2:]) == (found[1][0], found[1][2:])
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


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
    with raises(ValueError, "'Linear' does not have a parameter with name 'scale'"):
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
@pytest.mark.parametrize("map_", ["matrix_exp", "cayley", "householder", None])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
def test_orthogonal_is_torchs(map_: str | None, shape: tuple[int, int], torch: Any) -> None:
    rng, found, state = np.random.default_rng(0), [], None
    x, weight = rng.normal(size=(5, shape[1])).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    for library in (torch, gradcore):
        layer = library.nn.Linear(*shape[::-1], bias=False)
        layer.load_state_dict({"weight": library.tensor(weight)})
        assert library.nn.utils.parametrizations.orthogonal(layer, orthogonal_map=map_) is layer
        values = [plain(layer.weight)]
        # PyTorch completes a base that is not square by random columns.
        state = {name: np.array(plain(v)) for name, v in layer.state_dict().items()} if state is None else state
        layer.load_state_dict({name: library.tensor(v) for name, v in state.items()})
        optimizer = library.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (layer(library.tensor(x)) ** 3).sum().backward()
            optimizer.step()
            values.append(plain(layer.weight))
        layer.weight = library.tensor(weight * 2)
        values.append(plain(layer.weight))
        found.append((values, repr(layer), list(layer.state_dict())))
    for theirs, ours in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
        small = ours if shape[0] <= shape[1] else ours.T
        np.testing.assert_allclose(small @ small.T, np.eye(min(shape)), atol=2e-5)
    assert found[0][1:] == found[1][1:] and not np.allclose(found[1][0][1], found[1][0][0], atol=1e-3)


def test_what_orthogonal_does_not_take() -> None:
    layer = nn.Linear(2, 2)
    with raises(ValueError, "has no parameter or buffer with name 'wight'"):
        parametrizations.orthogonal(layer, "wight")
    with raises(ValueError, "Expected a matrix or batch of matrices. Got a tensor of 1 dimensions."):
        parametrizations.orthogonal(layer, "bias")
    with raises(ValueError, 'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: qr'):
        parametrizations.orthogonal(layer, orthogonal_map="qr")
    with raises(NotImplementedError, "use_trivialization=False"):
        parametrizations.orthogonal(layer, use_trivialization=False)
    assert not parametrize.is_parametrized(layer)


@pytest.mark.parametrize("map_", ["matrix_exp", "cayley", "householder"])
def test_autocast_narrows_only_the_product_with_the_base(map_: str) -> None:
    layer = parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map=map_)
    with gradcore.no_grad():
        # The product of this base is exact, so the weight is the map's matrix, rounded once.
        layer.parametrizations.weight[0].base.copy_(gradcore.eye(4))
        layer.parametrizations.weight.original.add_((gradcore.arange(16.0).reshape(4, 4) * 0.3).tril(-1))
    whole = layer.weight
    power = gradcore.matrix_exp(whole)
    with gradcore.autocast("cpu", dtype=gradcore.bfloat16):
        assert (layer.weight == whole.bfloat16()).all()
        assert (gradcore.matrix_exp(whole) == power).all()
