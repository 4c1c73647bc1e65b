"""Layers compared with PyTorch's, from its weights: values, every gradient, keys of the state dict, repr."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional as F
from tests.conftest import raises


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def whole(*shape: int, high: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).integers(0, high, shape)


def close(ours: Any, theirs: Any, what: str = "") -> None:
    assert tuple(ours.shape) == tuple(theirs.shape), what
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=2e-5, atol=2e-5, err_msg=what)


def compare(torch: Any, ours: Any, theirs: Any, *inputs: Any, shown: bool = True, **named: Any) -> None:
    """One call of both in training mode, from PyTorch's weights."""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    assert not shown or repr(ours) == repr(theirs)
    results = []
    for library, module in ((gradcore, ours), (torch, theirs)):
        given = [library.tensor(a, requires_grad=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a for a in inputs]
        out = module(*given, **named)
        weights = library.tensor(values(*out.shape, seed=1))
        if out.requires_grad:
            (out * weights).sum().backward()
        results.append((out, [x.grad for x in given if hasattr(x, "grad")]))
    close(results[0][0], results[1][0], "result")
    for k, (a, b) in enumerate(zip(results[0][1], results[1][1], strict=True)):
        if b is not None:
            close(a, b, f"gradient of input {k}")
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        close(p.grad, q.grad, f"gradient of {name}")
    for (name, a), (_, b) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        close(a, b, f"buffer {name}")


X3, X4, X5 = values(2, 6, 9), values(2, 6, 5, 7), values(2, 2, 4, 5, 6)
LAYERS: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("GroupNorm", {"num_groups": 3, "num_channels": 6}, (X4,)),
    ("GroupNorm", {"num_groups": 2, "num_channels": 6, "affine": False, "eps": 1e-2}, (X3,)),
    ("GroupNorm", {"num_groups": 2, "num_channels": 6}, (values(4, 6),)),
    ("InstanceNorm1d", {"num_features": 6}, (X3,)), ("InstanceNorm1d", {"num_features": 6, "affine": True}, (X3[0],)),
    ("InstanceNorm2d", {"num_features": 6, "affine": True, "track_running_stats": True, "momentum": 0.3}, (X4,)),
    ("InstanceNorm3d", {"num_features": 3, "affine": True}, (values(2, 3, 4, 3, 2),)),
    ("BatchNorm3d", {"num_features": 3}, (values(2, 3, 4, 3, 2),)),
    ("RMSNorm", {"normalized_shape": 9}, (X3,)), ("RMSNorm", {"normalized_shape": (6, 9), "eps": 0.1}, (X3,)),
    ("RMSNorm", {"normalized_shape": [9], "elementwise_affine": False}, (X3,)),
    ("Bilinear", {"in1_features": 4, "in2_features": 3, "out_features": 5}, (values(2, 6, 4), values(2, 6, 3, seed=2))),
    ("Bilinear", {"in1_features": 4, "in2_features": 3, "out_features": 5, "bias": False}, (values(6, 4), values(6, 3))),
    ("Conv1d", {"in_channels": 6, "out_channels": 4, "kernel_size": 3}, (X3,)),
    ("Conv1d", {"in_channels": 6, "out_channels": 8, "kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2, "groups": 2,
                "bias": False}, (X3[0],)),
    ("Conv1d", {"in_channels": 6, "out_channels": 2, "kernel_size": 3, "padding": "same"}, (X3,)),
    ("ConvTranspose1d", {"in_channels": 6, "out_channels": 4, "kernel_size": 3, "stride": 2, "output_padding": 1}, (X3,)),
    ("ConvTranspose2d", {"in_channels": 6, "out_channels": 4, "kernel_size": 3}, (X4,)),
    ("ConvTranspose2d", {"in_channels": 6, "out_channels": 4, "kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0),
                         "output_padding": (1, 2), "groups": 2, "dilation": (1, 2), "bias": False}, (X4,)),
    ("ConvTranspose2d", {"in_channels": 6, "out_channels": 4, "kernel_size": 4, "stride": 2, "padding": 1}, (X4[0],)),
    ("MaxPool1d", {"kernel_size": 3}, (X3,)), ("MaxPool1d", {"kernel_size": 2, "stride": 1, "padding": 1}, (X3[0],)),
    ("AvgPool1d", {"kernel_size": 3, "stride": 2, "padding": 1}, (X3,)), ("AdaptiveAvgPool1d", {"output_size": 4}, (X3,)),
    ("Upsample", {"scale_factor": 2}, (X4,)), ("Upsample", {"size": (7, 3)}, (X4,)), ("Upsample", {"scale_factor": 1.7}, (X3,)),
    ("Upsample", {"size": 11}, (X4,)), ("Upsample", {"scale_factor": 2, "mode": "bilinear"}, (X4,)),
    ("Upsample", {"size": (3, 11), "mode": "bilinear", "align_corners": True}, (X4,)),
    ("Upsample", {"scale_factor": 1.6, "mode": "linear", "align_corners": False}, (X3,)),
    ("Upsample", {"scale_factor": 1.7, "mode": "bicubic"}, (X4,)), ("Upsample", {"size": 3, "mode": "area"}, (X4,)),
    ("Upsample", {"size": (3, 11), "mode": "bicubic", "align_corners": True}, (X4,)),
    ("Upsample", {"scale_factor": (2, 0.6, 1), "mode": "trilinear"}, (X5,)), ("Upsample", {"size": 7, "mode": "area"}, (X5,)),
    ("Upsample", {"size": 5, "mode": "trilinear", "align_corners": True}, (X5,)),
    ("Upsample", {"scale_factor": 0.6, "mode": "nearest-exact"}, (X4,)),
    ("PixelShuffle", {"upscale_factor": 2}, (values(2, 12, 3, 5),)),
    ("PixelShuffle", {"upscale_factor": 3}, (values(9, 2, 2),)),
    ("PixelUnshuffle", {"downscale_factor": 2}, (values(2, 3, 4, 6),)),
    ("ZeroPad1d", {"padding": (1, 2)}, (X3,)), ("ZeroPad2d", {"padding": 1}, (X4,)),
    ("ZeroPad2d", {"padding": (1, -2, 0, 3)}, (X4,)), ("ConstantPad1d", {"padding": 2, "value": 3.5}, (X3,)),
    ("ConstantPad2d", {"padding": (0, 1, -1, 2), "value": -1.5}, (X4,)),
    ("ReflectionPad1d", {"padding": (2, 1)}, (X3,)), ("ReflectionPad2d", {"padding": 2}, (X4,)),
    ("ReplicationPad1d", {"padding": 3}, (X3,)), ("ReplicationPad2d", {"padding": (1, 0, 2, 3)}, (X4,)),
    ("CircularPad1d", {"padding": 3}, (X3,)), ("CircularPad2d", {"padding": (1, 0, 2, 3)}, (X4,)),
    ("Conv2d", {"in_channels": 6, "out_channels": 4, "kernel_size": 3, "padding": (2, 1), "padding_mode": "reflect"}, (X4,)),
    ("Conv2d", {"in_channels": 6, "out_channels": 4, "kernel_size": (2, 3), "padding": "same", "padding_mode": "circular",
                "bias": False}, (X4,)),
    ("Conv1d", {"in_channels": 6, "out_channels": 4, "kernel_size": 3, "padding": 2, "padding_mode": "replicate"}, (X3,)),
    ("MaxPool3d", {"kernel_size": 2, "stride": (1, 2, 1), "ceil_mode": True}, (X5,)),
    ("AvgPool3d", {"kernel_size": (2, 3, 2), "padding": 1, "count_include_pad": False}, (X5,)),
    ("AdaptiveAvgPool3d", {"output_size": (3, 2, 4)}, (X5,)), ("AdaptiveMaxPool3d", {"output_size": (3, None, 4)}, (X5[0],)),
    ("LPPool1d", {"norm_type": 2, "kernel_size": 3, "stride": 2}, (np.abs(X3),)),
    ("LPPool1d", {"norm_type": np.inf, "kernel_size": 2}, (X3,)), ("LPPool2d", {"norm_type": -np.inf, "kernel_size": 2}, (X4,)),
    ("LPPool3d", {"norm_type": np.inf, "kernel_size": 2, "stride": 1}, (X5,)),
    ("LPPool2d", {"norm_type": 3, "kernel_size": (2, 3)}, (np.abs(X4),)),
    ("LPPool3d", {"norm_type": 1.5, "kernel_size": 2, "ceil_mode": True}, (np.abs(X5),)),
    ("LocalResponseNorm", {"size": 3, "alpha": 0.1}, (X3,)), ("LocalResponseNorm", {"size": 2, "k": 2.0}, (X4,)),
    ("RReLU", {"lower": 0.25, "upper": 0.25}, (X4,)),
    ("ConvTranspose3d", {"in_channels": 2, "out_channels": 4, "kernel_size": (2, 1, 3), "stride": 2, "padding": (1, 0, 1),
                         "groups": 2}, (X5,)),
    ("ConvTranspose3d", {"in_channels": 2, "out_channels": 3, "kernel_size": 2, "stride": (2, 3, 1),
                         "output_padding": (1, 2, 0), "bias": False}, (X5[0],)),
    # Padding of the output that holds a step.
    ("ConvTranspose1d", {"in_channels": 6, "out_channels": 2, "kernel_size": 3, "output_padding": 2, "dilation": 3}, (X3,)),
    ("ConvTranspose2d", {"in_channels": 6, "out_channels": 2, "kernel_size": 2, "stride": (2, 1), "output_padding": (2, 3),
                         "padding": (1, 2), "dilation": (3, 4), "groups": 2}, (X4,)),
    ("ConvTranspose3d", {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": (2, 1, 1),
                         "output_padding": (2, 1, 0), "padding": 1, "dilation": (4, 2, 1)}, (X5,)),
    # Windows of one element have only one place each.
    ("FractionalMaxPool2d", {"kernel_size": 1, "output_size": X4.shape[2:]}, (X4,)),
    ("ZeroPad3d", {"padding": 1}, (X5,)), ("ConstantPad3d", {"padding": (0, 1, -1, 2, 1, 0), "value": -1.5}, (X5,)),
    ("ReflectionPad3d", {"padding": (2, 1, 1, 0, 3, 1)}, (X5,)), ("ReplicationPad3d", {"padding": 2}, (X5,)),
    ("CircularPad3d", {"padding": (1, 0, 2, 3, 1, 1)}, (X5,)),
    ("UpsamplingNearest2d", {"scale_factor": 2}, (X4,)), ("UpsamplingBilinear2d", {"size": (8, 9)}, (X4,)),
    ("ChannelShuffle", {"groups": 3}, (X4,)), ("Softmax2d", {}, (X4,)), ("Softmax2d", {}, (X4[0],)),
    ("Unfold", {"kernel_size": (2, 3), "padding": 1}, (X4,)),
    ("Fold", {"output_size": (4, 5), "kernel_size": (2, 2), "stride": 1}, (values(2, 12, 12),)),
    ("Unflatten", {"dim": 1, "unflattened_size": (2, 3)}, (X4,)),
    ("EmbeddingBag", {"num_embeddings": 8, "embedding_dim": 3}, (whole(4, 5, high=8),)),
    ("EmbeddingBag", {"num_embeddings": 8, "embedding_dim": 3, "mode": "sum", "padding_idx": 2}, (whole(4, 5, high=8),)),
    ("EmbeddingBag", {"num_embeddings": 8, "embedding_dim": 3, "mode": "max"}, (whole(4, 5, high=8),)),
    ("EmbeddingBag", {"num_embeddings": 8, "embedding_dim": 3, "padding_idx": -1}, (whole(9, high=8), np.array([0, 2, 2, 7]))),
    ("EmbeddingBag", {"num_embeddings": 8, "embedding_dim": 3, "mode": "sum", "include_last_offset": True},
     (whole(9, high=8), np.array([0, 4, 9]))),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "options", "inputs"), LAYERS, ids=lambda v: str(v) if isinstance(v, (str, dict)) else "")
def test_layers_are_pytorchs(torch: Any, name: str, options: dict[str, Any], inputs: tuple[Any, ...]) -> None:
    # How a repr shows a bias or a size differs between versions of PyTorch.
    shown = name not in ("GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "EmbeddingBag", "ConstantPad2d")
    compare(torch, getattr(nn, name)(**options), getattr(torch.nn, name)(**options), *inputs, shown=shown)


@pytest.mark.oracle
def test_what_depends_on_the_mode_or_on_more_arguments(torch: Any) -> None:
    norms = [library.nn.InstanceNorm2d(6, track_running_stats=True) for library in (gradcore, torch)]
    for library, norm in zip((gradcore, torch), norms, strict=True):
        norm(library.tensor(X4))
        norm.eval()
    close(norms[0](gradcore.tensor(X4)), norms[1](torch.tensor(X4)))
    compare(torch, nn.ConvTranspose2d(6, 4, 3, stride=2), torch.nn.ConvTranspose2d(6, 4, 3, stride=2), X4, output_size=(12, 15))
    indices, weights = whole(4, 5, high=8), values(4, 5)
    compare(torch, nn.EmbeddingBag(8, 3, mode="sum"), torch.nn.EmbeddingBag(8, 3, mode="sum"), indices, None, weights,
            shown=False)
    for ours, theirs in zip(F.max_pool1d(gradcore.tensor(X3), 2, return_indices=True),
                            torch.nn.functional.max_pool1d(torch.tensor(X3), 2, return_indices=True), strict=True):
        close(ours, theirs)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["CELU", "ELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
                                  "LogSigmoid", "Mish", "PReLU", "ReLU6", "SELU", "SiLU", "Softmin", "Softplus", "Softshrink",
                                  "Softsign", "Tanhshrink", "Threshold"])
def test_activations_are_pytorchs(torch: Any, name: str) -> None:
    options: dict[str, Any] = {"GLU": {"dim": 1}, "Softmin": {"dim": 1}, "Threshold": {"threshold": 0.3, "value": -2.0},
                               "PReLU": {"num_parameters": 6}, "CELU": {"alpha": 0.7}, "ELU": {"alpha": 1.3},
                               "Softplus": {"beta": 2.0, "threshold": 3.0}, "LeakyReLU": {"negative_slope": 0.2},
                               "Hardtanh": {"min_val": -0.5, "max_val": 0.8}}.get(name, {})
    compare(torch, getattr(nn, name)(**options), getattr(torch.nn, name)(**options), X4 * 2)


def test_dropout_of_channels_and_alpha_dropout() -> None:
    gradcore.manual_seed(1)
    for layer, shape in ((nn.Dropout1d(0.4), (50, 40, 3)), (nn.Dropout2d(0.4), (50, 40, 2, 3)),
                         (nn.Dropout3d(0.4), (50, 40, 1, 2, 2))):
        x = gradcore.ones(*shape, requires_grad=True)
        y = layer(x)
        flat = y.detach().numpy().reshape(50, 40, -1)
        # A whole channel is kept or zeroed.
        assert (flat == flat[:, :, :1]).all()
        np.testing.assert_allclose(np.unique(flat), [0, 1 / 0.6], rtol=1e-6)
        assert abs((flat[:, :, 0] == 0).mean() - 0.4) < 0.05
        y.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
        assert layer.eval()(x) is x
    x = gradcore.randn(400, 500, requires_grad=True)
    layer = nn.AlphaDropout(0.3)
    assert not isinstance(layer, nn.Dropout), "code that looks for dropout layers would find it"
    y = layer(x)
    assert abs(y.mean().item()) < 0.02 and abs(y.std().item() - 1) < 0.02
    y.sum().backward()
    off = x.grad.numpy() == 0
    assert abs(off.mean() - 0.3) < 0.01
    assert len(np.unique(y.detach().numpy()[off])) == 1
    assert layer.eval()(x) is x and repr(layer) == "AlphaDropout(p=0.3, inplace=False)"
    assert (F.alpha_dropout(x, 1.0, True) == 0).all()


@pytest.mark.oracle
def test_lists_and_dicts_of_parameters(torch: Any) -> None:
    def build(library: Any) -> Any:
        class Net(library.nn.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.some = library.nn.ParameterList([library.ones(2), library.nn.Parameter(library.zeros(3))])
                self.named = library.nn.ParameterDict({"b": library.ones(1), "a": library.nn.Parameter(library.ones(4))})
                self.some.append(library.ones(5))

        return Net()

    ours, theirs = build(gradcore), build(torch)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours).replace("gradcore.", "torch.") == repr(theirs)
    for net in (ours, theirs):
        assert len(net.some) == 3 and net.some[-1].shape == (5,) and [p.shape[0] for p in net.some[1:]] == [3, 5]
        assert sorted(net.named.keys()) == ["a", "b"] and "a" in net.named and net.named["b"].shape == (1,)
        assert len(net.named) == 2 and net.named.get("c") is None
        net.some[0] = net.some[1]
        assert net.some[0] is net.some[1] and net.named.pop("b").shape == (1,) and list(net.named) == ["a"]
    with raises(IndexError, "index 3 is out of range"):
        ours.some[3]


def test_modules_are_taken_out_of_lists_and_dicts() -> None:
    a, b, c = nn.ReLU(), nn.Tanh(), nn.Sigmoid()
    some = nn.ModuleList([a])
    some += [b, c]
    assert some.pop(1) is b and list(some) == [a, c] and list(some._modules) == ["0", "1"] and some.pop(-1) is c
    named = nn.ModuleDict({"a": a, "b": b})
    assert named.pop("a") is a and list(named) == ["b"]
    with raises(KeyError, "a"):
        named.pop("a")
    named.clear()
    assert len(named) == 0 and not list(named.children())


def test_errors_say_what_was_expected() -> None:
    x = gradcore.ones(2, 6, 5, 7)
    for call, kind, text in (
            (lambda: F.group_norm(x, 4), RuntimeError, "number of channels in input to be divisible by num_groups"),
            (lambda: nn.GroupNorm(4, 6), ValueError, "num_channels (6) must be divisible by num_groups (4)"),
            (lambda: F.instance_norm(x[..., :1, :1]), ValueError, "Expected more than 1 spatial element when training"),
            (lambda: nn.InstanceNorm2d(6)(x[0, 0]), RuntimeError, "expected 3D or 4D input (got 2D input)"),
            (lambda: F.rms_norm(x, (5,)), RuntimeError, "Given normalized_shape=[5], expected input with shape [*, 5]"),
            (lambda: F.dropout2d(x[0, 0]), RuntimeError, "dropout2d: Expected 3D or 4D input, but received a 2D input"),
            (lambda: F.alpha_dropout(x, 2), ValueError, "between 0 and 1, but got 2"),
            (lambda: F.interpolate(x), ValueError, "only one of size or scale_factor"),
            (lambda: F.interpolate(x, 3, mode="cubic"), NotImplementedError, "interpolate(mode='cubic')"),
            (lambda: F.interpolate(x, (3,)), RuntimeError, "expected 2 sizes for an input of [2, 6, 5, 7], but got [3]"),
            (lambda: F.interpolate(x, scale_factor=[2, 2, 2]), RuntimeError, "expected 2 factors for an input of [2, 6, 5, 7]"),
            (lambda: F.interpolate(x[:, :, :0], 3), RuntimeError, "greater than 0, but got input [0, 7] and output [3, 3]"),
            (lambda: F.pixel_shuffle(x, 2), RuntimeError, "input.size(-3)=6 is not divisible by 4"),
            (lambda: F.pixel_unshuffle(x, 5), RuntimeError, "input.size(-1)=7 are not divisible by 5"),
            (lambda: F.conv_transpose2d(x, gradcore.ones(5, 2, 3, 3)), RuntimeError, "expected input[2, 6, 5, 7] to have"),
            (lambda: F.conv_transpose2d(x, gradcore.ones(6, 2, 3, 3), output_padding=1), RuntimeError, "must be smaller than"),
            (lambda: nn.ConvTranspose2d(6, 2, 3)(x, output_size=(20, 20)), ValueError, "valid sizes range from [7, 9] to"),
            (lambda: nn.ConvTranspose2d(6, 2, 3)(x, output_size=(2, 7, 9)), ValueError, "must have 2 or 4 elements (got 3)"),
            (lambda: F.conv1d(x, gradcore.ones(2, 6, 3)), RuntimeError, "Expected 2D (unbatched) or 3D (batched) input"),
            (lambda: nn.Conv1d(6, 2, (3, 3)), RuntimeError, "kernel_size must be one int, but got (3, 3)"),
            (lambda: nn.Conv1d(6, 2, 3, padding_mode="none"), ValueError, "padding_mode must be one of zeros, reflect"),
            (lambda: nn.ConvTranspose1d(6, 2, 3, padding_mode="reflect"), ValueError, 'Only "zeros" padding mode is supported'),
            (lambda: F.channel_shuffle(x, 4), RuntimeError, "must be divisible by groups. Got [2, 6, 5, 7] and 4 groups"),
            (lambda: nn.Conv1d(5, 2, 3, groups=2), ValueError, "divisible by groups, but got 5, 2 and 2"),
            (lambda: F.bilinear(x, x, gradcore.ones(2, 3, 4)), RuntimeError, "do not fit a weight of [2, 3, 4]"),
            (lambda: F.embedding_bag(gradcore.arange(4), gradcore.ones(4, 2)), ValueError, "1D with no offsets"),
            (lambda: F.embedding_bag(gradcore.arange(4), gradcore.ones(4, 2), gradcore.tensor([1])), ValueError, "offsets[0]"),
            (lambda: F.embedding_bag(gradcore.arange(4), gradcore.ones(4, 2), mode="most"), ValueError, "but got 'most'")):
        with raises(kind, text):
            call()


def test_a_buffer_is_listed_where_it_is_assigned(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        layer = library.nn.Module()
        layer.kept, layer.passing = library.nn.Buffer(library.ones(2)), library.nn.Buffer(library.zeros(3), persistent=False)
        first = [(name, b.tolist()) for name, b in layer.named_buffers()], list(layer.state_dict())
        layer.kept, layer.passing = library.nn.Buffer(layer.kept + 1, persistent=False), library.nn.Buffer(library.ones(1))
        layer = copy.deepcopy(layer)
        found.append((first, [(name, b.tolist()) for name, b in layer.named_buffers()], list(layer.state_dict()),
                      (layer.kept * 2).tolist(), list(layer.parameters()), layer.kept.requires_grad,
                      tuple(library.nn.Buffer().shape)))
    assert found[0] == found[1]

    class Early(nn.Module):
        def __init__(self) -> None:
            self.buffer = nn.Buffer(gradcore.ones(1))

    with raises(AttributeError, "cannot assign buffer before Module.__init__() call"):
        Early()


def test_slopes_are_drawn_in_training_alone() -> None:
    layer, x = nn.RReLU(0.1, 0.3), gradcore.full((4000,), -2.0, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    slopes = x.grad.numpy()
    np.testing.assert_allclose(y.detach().numpy(), -2 * slopes, rtol=1e-6)
    assert 0.1 <= slopes.min() < 0.11 and 0.29 < slopes.max() <= 0.3 and abs(slopes.mean() - 0.2) < 0.01
    assert layer(gradcore.ones(3)).tolist() == [1, 1, 1]
    np.testing.assert_allclose(layer.eval()(gradcore.tensor([-2.0, 5.0])).numpy(), [-0.4, 5], rtol=1e-6)


def test_a_transposed_convolution_of_volumes_has_the_size_asked_for(torch: Any) -> None:
    sizes = []
    for library in (gradcore, torch):
        layer = library.nn.ConvTranspose3d(1, 1, 3, stride=2, padding=1)
        sizes.append([tuple(layer(library.zeros(1, 1, 2, 3, 4), output_size=n).shape) for n in ((3, 5, 7), (4, 6, 8))])
    assert sizes[0] == sizes[1]
    with raises(ValueError, "valid sizes range from [3, 5, 7] to [4, 6, 8]"):
        nn.ConvTranspose3d(1, 1, 3, stride=2, padding=1)(gradcore.zeros(1, 1, 2, 3, 4), output_size=(3, 5, 9))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_a_padding_mode_that_is_set_later_counts(mode: str) -> None:
    x = gradcore.tensor(values(2, 3, 5, 6))
    for before in ("zeros", "circular", "reflect"):
        layer = nn.Conv2d(3, 2, 3, padding=(2, 1), padding_mode=before)
        compiled = gradcore.compile(layer.forward)
        compiled(x)
        wanted = nn.Conv2d(3, 2, 3, padding=(2, 1), padding_mode=mode)
        wanted.load_state_dict(layer.state_dict())
        layer.padding_mode = mode
        for found in (layer(x), compiled(x)):
            assert gradcore.equal(found, wanted(x))
