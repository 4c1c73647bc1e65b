"""Layers that stand for others, compared with PyTorch's: fused and converted norms, several devices, older names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional as F
from gradcore.nn import utils
from tests.conftest import raises
from tests.host.nn.test_layers import close

R = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return R.normal(size=shape).astype(np.float32)


def pair(torch: Any, make: Any) -> list[Any]:
    """The same layers of both libraries, with PyTorch's state."""
    ours, theirs = made = [make(library.nn) for library in (gradcore, torch)]
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    for value in theirs.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.1)
    ours.load_state_dict(theirs.state_dict())
    return made


@pytest.mark.oracle
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "affine"), [*((kind, affine) for kind in ("Conv1d", "Conv2d", "ConvTranspose2d")
                                                for affine in (True, False)), ("Linear", True)])
def test_a_layer_takes_over_the_norm_behind_it(torch: Any, kind: str, affine: bool, bias: bool) -> None:
    sizes = () if kind == "Linear" else (2,)
    dims = max(int(kind[-2]) if sizes else 0, 1)
    layers = pair(torch, lambda n: getattr(n, kind)(3, 4, *sizes, bias=bias).eval())
    norms = pair(torch, lambda n: getattr(n, f"BatchNorm{dims}d")(4, affine=affine).eval())
    x = normal(2, 3, *[5] * (dims if sizes else 0))
    fused = []
    for library, layer, norm in zip((utils, torch.nn.utils), layers, norms, strict=True):
        fused.append(library.fuse_conv_bn_eval(layer, norm, "Transpose" in kind) if sizes
                     else library.fuse_linear_bn_eval(layer, norm))
        assert type(fused[-1]) is type(layer) and fused[-1].weight is not layer.weight
    assert [p.requires_grad for p in fused[0].parameters()] == [p.requires_grad for p in fused[1].parameters()]
    close(fused[0].weight, fused[1].weight)
    close(fused[0].bias, fused[1].bias)
    given = gradcore.tensor(x)
    close(fused[0](given), norms[0](layers[0](given)))


def test_what_is_not_fused() -> None:
    linear, norm = nn.Linear(3, 4).eval(), nn.BatchNorm1d(4).eval()
    for call, text in ((lambda: utils.fuse_linear_bn_eval(linear.train(), norm), "Fusion only for eval!"),
                       (lambda: utils.fuse_linear_bn_eval(linear.eval(), nn.BatchNorm1d(3).eval()), "out_features=4"),
                       (lambda: utils.fuse_conv_bn_eval(nn.Conv1d(1, 4, 1).eval(), nn.BatchNorm1d(
                           4, track_running_stats=False).eval()), "must not be None")):
        with raises(AssertionError, text):
            call()


@pytest.mark.oracle
def test_batch_norms_become_synchronized_ones(torch: Any) -> None:
    def make(n: Any) -> Any:
        inner = n.Sequential(n.BatchNorm2d(2), n.ReLU(), n.BatchNorm2d(2, affine=False, momentum=None))
        return n.SyncBatchNorm.convert_sync_batchnorm(n.Sequential(n.Conv2d(1, 2, 1), inner))

    ours, theirs = pair(torch, make)
    assert isinstance(ours[1][0], nn.SyncBatchNorm) and isinstance(ours[1][0], nn.modules.batchnorm._BatchNorm)
    x = normal(4, 1, 3, 3)
    close(ours(gradcore.tensor(x)), theirs(torch.tensor(x)))
    close(ours[1][2].running_var, theirs[1][2].running_var)
    before = nn.BatchNorm1d(3).eval()
    after = nn.SyncBatchNorm.convert_sync_batchnorm(before)
    assert after.weight is before.weight and after.running_mean is before.running_mean and not after.training
    with raises(ValueError, "expected at least 2D input (got 1D input)"):
        after(gradcore.ones(3))


@pytest.mark.oracle
def test_a_module_for_several_devices_passes_calls_on(torch: Any) -> None:
    ours, theirs = pair(torch, lambda n: n.DataParallel(n.Linear(3, 2)))
    assert isinstance(ours.module, nn.Linear) and ours.device_ids == [0] * gradcore.cuda.is_available()
    assert theirs.device_ids == [0] * torch.cuda.is_available()
    x = normal(4, 3)
    close(ours(input=gradcore.tensor(x)).cpu(), theirs(input=torch.tensor(x)).cpu())


@pytest.mark.oracle
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("channels", [1, 3, 9])
def test_normalization_over_channels_is_torch_sevens(torch: Any, size: int, channels: int) -> None:
    image, slope = normal(2, channels, 2, 3), normal(2, channels, 2, 3)
    layers = pair(torch, lambda n: n.CrossMapLRN2d(size, 0.3, 0.7, 2))
    results = []
    for library, layer in zip((gradcore, torch), layers, strict=True):
        x = library.tensor(image, requires_grad=True)
        y = layer(x)
        # PyTorch's backward raises for a window of one.
        if size > 1:
            y.backward(library.tensor(slope))
        results.append((y, x.grad if size > 1 else x))
    for a, b in zip(*results, strict=True):
        close(a, b)
    with raises(ValueError, "Expected input to be 4D, got 2D instead"):
        layers[0](gradcore.ones(2, 3))


def test_alpha_dropout_of_channels() -> None:
    x = gradcore.randn(400, 50, 4, requires_grad=True)
    layer = nn.FeatureAlphaDropout(0.3)
    y = layer(x)
    assert abs(y.mean().item()) < 0.03 and abs(y.std().item() - 1) < 0.03
    off = (y == y[:, :, :1]).all(2)
    assert abs(off.float().mean().item() - 0.3) < 0.02
    y.sum().backward()
    assert ((x.grad == 0).all(2) == off).all()
    assert layer.eval()(x) is x and repr(layer) == "FeatureAlphaDropout(p=0.3, inplace=False)"
    assert (F.feature_alpha_dropout(x, 1.0, True) == 0).all()
    z = gradcore.ones(50, 20)
    assert F.feature_alpha_dropout(z, 0.5, True, inplace=True) is z and not (z == 1).any()
    with raises(RuntimeError, "Feature dropout requires at least 2 dimensions in the input"):
        F.feature_alpha_dropout(gradcore.ones(3), 0.5, True)
    with raises(ValueError, "between 0 and 1, but got 2"):
        nn.FeatureAlphaDropout(2)


def test_an_older_name_warns() -> None:
    with pytest.warns(FutureWarning, match="Please use `NLLLoss` instead"):
        loss = nn.NLLLoss2d(None, None, 3)
    assert isinstance(loss, nn.NLLLoss) and loss.ignore_index == 3
    scores, classes = gradcore.randn(2, 4, 3, 3), gradcore.ones(2, 3, 3, dtype=gradcore.int64)
    assert loss(scores, classes).item() == F.nll_loss(scores, classes).item()
