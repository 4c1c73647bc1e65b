"""Convolution, pooling and batch norm as users call them, compared with PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import SpecError
from gradcore.nn import functional as F
from gradcore.ops.convolution import conv2d
from gradcore.tiling import COLUMNS
from tests.conftest import raises, torch_or_skip

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def compare(function: Callable[..., Any], *shapes: tuple[int, ...], tolerance: float = 1e-4) -> None:
    """``function(library, *tensors)`` has the same result and gradients here and in torch."""
    torch = torch_or_skip()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    ours = [gradcore.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    mine, there = function(gradcore, *ours), function(torch, *theirs)
    assert tuple(mine.shape) == tuple(there.shape)
    np.testing.assert_allclose(mine.detach().numpy(), there.detach().numpy(), tolerance, tolerance)
    weights = rng.standard_normal(tuple(there.shape)).astype(np.float32)
    (mine * gradcore.tensor(weights)).sum().backward()
    (there * torch.tensor(weights)).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), tolerance, 10 * tolerance)


CONVOLUTIONS = list(itertools.product((1, 2, (2, 1)), (0, 1, (2, 0)), (1, 2), (1, 2), ((3, 3), (1, 1), (2, 3))))


@pytest.mark.oracle
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups", "kernel"), CONVOLUTIONS)
def test_conv2d(stride: Any, padding: Any, dilation: int, groups: int, kernel: tuple[int, int]) -> None:
    compare(lambda t, x, w, b: t.nn.functional.conv2d(x, w, b, stride, padding, dilation, groups),
            (3, 4, 9, 8), (6, 4 // groups, *kernel), (6,))


@pytest.mark.oracle
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 2)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding: str, kernel: tuple[int, int]) -> None:
    compare(lambda t, x, w: t.nn.functional.conv2d(x, w, None, 1, padding), (2, 3, 7, 7), (5, 3, *kernel))


@pytest.mark.oracle
@pytest.mark.parametrize(("x", "w"), [
    ((40, 16, 32, 32), (8, 16, 3, 3)), ((2, 64, 64, 64), (8, 64, 3, 3)), ((3, 9, 8), (5, 3, 3, 3)),
    ((1, 512, 3, 700), (2, 512, 3, 3))])
def test_convolution_in_several_pieces(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    compare(lambda t, x, w: t.nn.functional.conv2d(x, w, None, 1, 1), x, w, tolerance=1e-3)


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_of_no_channels_the_bias_is_left(kernel: int, groups: int) -> None:
    # PyTorch returns an empty result.
    x, w = gradcore.ones(2, 0, 5, 5, requires_grad=True), gradcore.ones(4, 0, kernel, kernel, requires_grad=True)
    bias = gradcore.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    y = F.conv2d(x, w, bias, groups=groups)
    y.sum().backward()
    size = 6 - kernel
    assert y.shape == (2, 4, size, size) and y[1, :, 0, -1].tolist() == bias.tolist()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape and bias.grad.tolist() == [2.0 * size * size] * 4


def test_the_workspace_does_not_grow_with_the_batch() -> None:
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    weight = gradcore.zeros(32, 32, 3, 3, device="meta").spec
    rooms = [conv2d.infer(gradcore.zeros(n, 32, 32, 32, device="meta").spec, weight, **how).workspace for n in (1, 64, 4096)]
    assert rooms[0] == rooms[1] == rooms[2] <= COLUMNS * 4


POOLS = list(itertools.product((2, 3, (3, 2)), (None, 1, 2), (0, 1), (False, True)))


@pytest.mark.oracle
@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil"), POOLS)
def test_pooling(kernel: Any, stride: Any, padding: int, ceil: bool) -> None:
    compare(lambda t, x: t.nn.functional.max_pool2d(x, kernel, stride, padding, 1, ceil), (2, 3, 7, 8))
    for count_pad, divisor in ((True, None), (False, None), (True, 3)):
        compare(lambda t, x, c=count_pad, d=divisor: t.nn.functional.avg_pool2d(x, kernel, stride, padding, ceil, c, d),
                (2, 3, 7, 8))
    torch = torch_or_skip()
    values = np.arange(56.0).reshape(1, 1, 7, 8) % 13
    ours, theirs = (t.nn.functional.max_pool2d(t.tensor(values), kernel, stride, padding, 1, ceil, True)[1]
                    for t in (gradcore, torch))
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.oracle
@pytest.mark.parametrize("dilation", [1, 2, (2, 1)])
def test_pooling_by_a_window_as_large_as_a_plane(dilation: Any) -> None:
    # A dilated one goes over the edge.
    compare(lambda t, x: t.nn.functional.max_pool2d(x, (4, 5), None, 0, dilation, True), (2, 3, 4, 5))


def test_a_window_that_steps_over_the_image_has_no_slopes() -> None:
    # PyTorch writes outside of the gradient.
    x = gradcore.zeros(1, 2, 3, 2, requires_grad=True)
    y = F.max_pool2d(x, (3, 2), 1, (0, 1), (1, 3))
    y.sum().backward()
    assert y.flatten().tolist() == [-np.inf, -np.inf] and not x.grad.any()


@pytest.mark.oracle
@pytest.mark.parametrize("size", [1, (2, 3), (None, 4), (None, None), 5, 9])
def test_adaptive_pooling(size: Any) -> None:
    compare(lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, size), (2, 3, 7, 8))


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(8, 64, 30, 31), (3, 2, 45, 200), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("size", [(7, 9), (1, 1), (50, 3), (2, 97)], ids=str)
def test_cells_of_many_sizes_are_averaged(shape: tuple[int, ...], size: tuple[int, int], torch: Any) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values[0, 0, 0, 0], values[0, 0, -1, -1] = np.nan, np.inf
    x, y = gradcore.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    found, expected = F.adaptive_avg_pool2d(x, size), torch.nn.functional.adaptive_avg_pool2d(y, size)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    slopes = np.random.default_rng(1).standard_normal(tuple(found.shape)).astype(np.float32)
    found.backward(gradcore.tensor(slopes))
    expected.backward(torch.tensor(slopes))
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_nan_is_the_largest_and_its_gradient_stays_inside() -> None:
    x = gradcore.tensor(np.array([[[[1.0, np.nan], [3.0, 2.0]]]], np.float32), requires_grad=True)
    for padding in (0, 1):
        y = F.max_pool2d(x, 2, 2, padding)
        assert np.isnan(y.detach().numpy()).any()
        x.grad = None
        y.sum().backward()
        assert x.grad.sum().item() == y.numel()


@pytest.mark.oracle
def test_of_several_nans_the_last_is_the_largest(torch: Any) -> None:
    values = np.array([1, np.nan, 2, 0, np.nan, np.nan, 3, -np.inf, 1, 4] * 8, np.float32)
    for name, shape, size in (("max_pool1d", (2, 2, 20), 3), ("max_pool2d", (2, 2, 4, 5), 2),
                              ("max_pool3d", (2, 2, 2, 2, 5), 2), ("adaptive_max_pool1d", (2, 2, 20), 3),
                              ("adaptive_max_pool2d", (2, 2, 4, 5), 2)):
        found = []
        for t in (gradcore, torch):
            x = t.tensor(values.reshape(shape), requires_grad=True)
            out, index = getattr(t.nn.functional, name)(x, size, return_indices=True)
            out.sum().backward()
            found.append([a.numpy() for a in (out.detach(), index, x.grad)])
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_an_infinite_gradient_goes_to_one_element() -> None:
    x = gradcore.tensor(np.array([[[[1.0, 4.0], [3.0, 2.0]]]], np.float32), requires_grad=True)
    (F.max_pool2d(x, 2) * np.inf).sum().backward()
    assert x.grad.tolist() == [[[[0.0, np.inf], [0.0, 0.0]]]]


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 5, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    running: list[list[Any]] = []

    def run(t: Any, x: Any, w: Any, b: Any) -> Any:
        mean, var = (t.tensor(np.linspace(*ends, 4).astype(np.float32)) for ends in ((-1, 1), (0.5, 2)))
        running.append([mean, var])
        return t.nn.functional.batch_norm(x, mean, var, w, b, training, 0.3)

    compare(run, shape, (4,), (4,))
    for ours, theirs in zip(*running, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    running.clear()


@pytest.mark.oracle
def test_batch_norm_far_from_zero() -> None:
    compare(lambda t, x: t.nn.functional.batch_norm(x * 0.01 + 100, None, None, training=True), (16, 3, 5, 5), tolerance=2e-2)


@pytest.mark.parametrize("shape", [(200_000, 4), (20_000, 4, 3)], ids=str)
def test_batch_norm_of_many_samples(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).uniform(1000, 1001, shape).astype(np.float32)
    wide, dims = x.astype(np.float64), tuple(d for d in range(len(shape)) if d != 1)
    mean, var = gradcore.zeros(4), gradcore.ones(4)
    F.batch_norm(gradcore.tensor(x), mean, var, training=True, momentum=1.0)
    np.testing.assert_allclose(mean.numpy(), wide.mean(dims), rtol=2e-7)
    np.testing.assert_allclose(var.numpy(), wide.var(dims, ddof=1), rtol=2e-6)


LAYERS: dict[str, Callable[[Any], Any]] = {
    "conv": lambda nn: nn.Conv2d(3, 4, 3), "conv all": lambda nn: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, False),
    "conv same": lambda nn: nn.Conv2d(3, 4, 3, padding="same"), "bn2": lambda nn: nn.BatchNorm2d(3),
    "bn1": lambda nn: nn.BatchNorm1d(3, momentum=None), "bn plain": lambda nn: nn.BatchNorm2d(3, 1e-3, 0.2, False, False),
    "max": lambda nn: nn.MaxPool2d(2), "max all": lambda nn: nn.MaxPool2d((3, 2), 2, 1, ceil_mode=True),
    "avg": lambda nn: nn.AvgPool2d(2, padding=1), "adaptive": lambda nn: nn.AdaptiveAvgPool2d((2, None)),
    "flatten": lambda nn: nn.Flatten(), "identity": lambda nn: nn.Identity(3)}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_without_a_momentum_running_statistics_are_means_over_all_batches(device: str) -> None:
    norm = nn.BatchNorm1d(3, momentum=None, device=device)
    run = gradcore.compile(lambda x: norm(x).sum())
    batches = [np.random.default_rng(k).normal(k, k + 1, (6, 3)).astype(np.float32) for k in range(4)]
    for x in batches:
        run(gradcore.tensor(x, device=device))
    assert len(run.programs) == 1, run.explain()
    if device == "cpu":
        np.testing.assert_allclose(norm.running_mean.numpy(), np.mean([x.mean(0) for x in batches], 0), rtol=1e-5)
        np.testing.assert_allclose(norm.running_var.numpy(), np.mean([x.var(0, ddof=1) for x in batches], 0), rtol=1e-5)
    before = norm.running_mean.tolist() if device == "cpu" else None
    with raises(SpecError, "Expected more than 1 value per channel"):
        norm(gradcore.zeros(1, 3, device=device))
    assert before is None or norm.running_mean.tolist() == before


@pytest.mark.oracle
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_torchs(name: str) -> None:
    torch = torch_or_skip()
    torch.manual_seed(0)
    theirs, ours = LAYERS[name](torch.nn), LAYERS[name](nn)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    channels = 4 if name == "conv all" else 3
    shape = (5, channels, 4) if name == "bn1" else (5, channels, 6, 7)
    for step in range(3):
        x = np.random.default_rng(step).standard_normal(shape).astype(np.float32)
        a, b = ours(gradcore.tensor(x)), theirs(torch.tensor(x))
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)
    ours.eval()
    theirs.eval()
    np.testing.assert_allclose(ours(gradcore.tensor(x)).detach().numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4,
                               atol=1e-5)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})


@pytest.mark.parametrize(("call", "texts"), [
    (lambda x: F.conv2d(x, gradcore.ones(4, 2, 3, 3)), ("expected input[2, 3, 8, 8] to have 2 channels, but got 3 channels",)),
    (lambda x: F.conv2d(x, gradcore.ones(4, 3, 9, 9)), ("Kernel size can't be greater than actual input size",)),
    (lambda x: F.conv2d(x, gradcore.ones(4, 3, 3, 3), gradcore.ones(3)), ("expected bias to be 1-dimensional with 4",)),
    (lambda x: F.conv2d(x[0, 0], gradcore.ones(4, 3, 3, 3)), ("Expected 3D (unbatched) or 4D (batched) input to conv2d",)),
    (lambda x: F.conv2d(x, gradcore.ones(4, 3, 3, 3), stride=0), ("stride (0, 0)", "must be positive")),
    (lambda x: F.conv2d(x, gradcore.ones(4, 3, 3, 3), padding=(1, 2, 3)), ("padding must be an int or a pair of ints",)),
    (lambda x: F.conv2d(x, gradcore.ones(4, 3, 3, 3), padding=3 / 2), ("padding must be an int or a pair of ints", "1.5")),
    (lambda x: F.max_pool1d(x[0], 2.0), ("kernel_size must be an int", "2.0")),
    (lambda x: F.adaptive_avg_pool2d(x, 8 / 2), ("output_size must be an int or 2 of them", "4.0")),
    (lambda x: F.conv2d(x, gradcore.ones(4, 3, 3, 3).double()), ("got input float32, weight float64",)),
    (lambda x: F.conv_transpose2d(x.half(), gradcore.ones(3, 4, 3, 3)), ("got input float16, weight float32",)),
    (lambda x: F.conv_transpose2d(x.long(), gradcore.ones(3, 4, 3, 3).long()), ("must be of a floating type, but is int64",)),
    (lambda x: F.max_pool2d(x, 2, padding=2), ("pad should be at most half of effective kernel size",)),
    (lambda x: F.max_pool2d(x, 9), ("Output size is too small",)),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=0), ("divisor must be not zero",)),
    (lambda x: F.batch_norm(x, None, None, gradcore.ones(4), training=True), ("weight should contain 3 elements",)),
    (lambda x: F.batch_norm(x[:1, :, :1, :1], None, None, training=True), ("Expected more than 1 value per channel",)),
    (lambda x: nn.BatchNorm1d(3)(x), ("expected 2D or 3D input (got 4D input)",))], ids=range(18))
def test_bad_input(call: Callable[[Any], Any], texts: tuple[str, ...]) -> None:
    with raises(SpecError, *texts):
        call(gradcore.ones(2, 3, 8, 8))
