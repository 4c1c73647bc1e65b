"""Weight normalization, spectral normalization and orthogonal weights, compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn.utils import parametrizations, parametrize
from tests.conftest import raises
from tests.host.nn.test_parametrize import plain


@pytest.mark.oracle
@pytest.mark.parametrize("dim", [0, 1, -1, None])
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
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dim", [0, -1, None])
def test_norms_of_a_vector_are_torchs(dim: int | None, legacy: bool, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        layer = library.nn.Linear(2, 3)
        layer.load_state_dict({"weight": library.ones(3, 2), "bias": library.tensor([1.0, -2.0, 3.0])})
        (library.nn.utils if legacy else library.nn.utils.parametrizations).weight_norm(layer, "bias", dim=dim)
        layer(library.ones(1, 2)).square().sum().backward()
        found.append([(name, plain(x), plain(x.grad)) for name, x in layer.named_parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert ours[0] == theirs[0] and ours[1].shape == theirs[1].shape
        np.testing.assert_allclose(ours[1:], theirs[1:], rtol=1e-5, atol=1e-5)


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
    parametrize.remove_parametrizations(vector, "w")
    np.testing.assert_allclose(plain(parametrizations.spectral_norm(vector, "w", eps=2.0).w), [0.3, 0.4], rtol=1e-6)
    with raises(ValueError, "Expected n_power_iterations to be positive"):
        parametrizations.spectral_norm(nn.Linear(2, 2), n_power_iterations=0)
    with raises(IndexError, "expected to be in range of [-2, 1] but got 2"):
        parametrizations.spectral_norm(nn.Linear(2, 2), dim=2)
    with raises(ValueError, "has no parameter or buffer with name 'w'"):
        parametrizations.spectral_norm(nn.Linear(2, 2), "w")


@pytest.mark.oracle
@pytest.mark.parametrize("map_", ["matrix_exp", "cayley", "householder", None])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (3, 4, 2), (5, 2, 4)])
def test_orthogonal_is_torchs(map_: str | None, shape: tuple[int, ...], torch: Any) -> None:
    rng, found, state = np.random.default_rng(0), [], None
    x, weight = rng.normal(size=(5, shape[-1])).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    for library in (torch, gradcore):
        layer = library.nn.Module()
        layer.weight = library.nn.Parameter(library.tensor(weight))
        assert library.nn.utils.parametrizations.orthogonal(layer, orthogonal_map=map_) is layer
        values = [plain(layer.weight)]
        # PyTorch completes a base that is not square by random columns.
        state = {name: np.array(plain(v)) for name, v in layer.state_dict().items()} if state is None else state
        layer.load_state_dict({name: library.tensor(v) for name, v in state.items()})
        optimizer = library.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            ((library.tensor(x) @ layer.weight.mT) ** 3).sum().backward()
            optimizer.step()
            values.append(plain(layer.weight))
        layer.weight = library.tensor(weight * 2)
        values.append(plain(layer.weight))
        found.append((values, repr(layer), list(layer.state_dict())))
    for theirs, ours in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
        small = ours if shape[-2] <= shape[-1] else ours.swapaxes(-2, -1)
        one = np.eye(min(shape[-2:]))
        np.testing.assert_allclose(small @ small.swapaxes(-2, -1), np.broadcast_to(one, (*shape[:-2], *one.shape)), atol=2e-5)
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
