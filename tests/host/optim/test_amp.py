"""Mixed precision: the dtype of each op, and its effects on memory and training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.amp import GradScaler, autocast
from gradcore.engine import autocast as regions
from gradcore.engine.autocast import HIGHER, LOWER
from gradcore.nn import functional as F
from gradcore.ops import all_ops
from gradcore.ops.op import Op
from gradcore.utils.checkpoint import checkpoint
from tests.conftest import raises

bfloat16, float16, float32 = gradcore.bfloat16, gradcore.float16, gradcore.float32


def mlp(device: str = "cpu") -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)


def cnn() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))


def test_the_lists_name_ops() -> None:
    assert set(all_ops()) >= LOWER | HIGHER
    assert not LOWER & HIGHER


#: Calls on x [4, 8] in float32 or bfloat16, and their result dtypes inside a region, by PyTorch's lists for CUDA.
CALLS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "matmul": (lambda x: x @ x.T, bfloat16), "mm": (lambda x: gradcore.mm(x, x.T), bfloat16),
    "bmm": (lambda x: gradcore.bmm(x.reshape(2, 2, 8), x.reshape(2, 8, 2)), bfloat16),
    "einsum": (lambda x: gradcore.einsum("ij,kj->ik", x, x), bfloat16),
    "linear": (lambda x: F.linear(x, gradcore.ones(3, 8), gradcore.ones(3)), bfloat16),
    "conv1d": (lambda x: F.conv1d(x.reshape(1, 4, 8), gradcore.ones(2, 4, 3)), bfloat16),
    "conv2d": (lambda x: F.conv2d(x.reshape(1, 1, 4, 8), gradcore.ones(2, 1, 3, 3), gradcore.ones(2)), bfloat16),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x.reshape(1, 1, 4, 8), gradcore.ones(1, 2, 3, 3), gradcore.ones(2)),
                         bfloat16),
    "attention": (lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 1, 4, 8)] * 3), bfloat16),
    "lstm": (lambda x: nn.LSTM(8, 3)(x.reshape(4, 1, 8))[0], bfloat16),
    "softmax": (lambda x: gradcore.softmax(x, 1), float32), "log_softmax": (lambda x: F.log_softmax(x, 1), float32),
    "sum": (lambda x: x.sum(), float32), "mean": (lambda x: x.mean(), float32), "norm": (lambda x: x.norm(), float32),
    "cumsum": (lambda x: x.cumsum(0), float32), "pow": (lambda x: x ** 2, float32), "exp": (lambda x: x.exp(), float32),
    "log": (lambda x: gradcore.log(x * x + 1), float32), "layer_norm": (lambda x: F.layer_norm(x, (8,)), float32),
    "group_norm": (lambda x: F.group_norm(x, 2), float32),
    "mse_loss": (lambda x: F.mse_loss(x, gradcore.zeros(4, 8)), float32),
    "cross_entropy": (lambda x: F.cross_entropy(x, gradcore.tensor([0, 1, 2, 3])), float32),
    "cosine_similarity": (lambda x: F.cosine_similarity(x[:, None], x, 2), float32),
    "interpolate": (lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"), float32),
    "relu": (gradcore.relu, None), "add": (lambda x: x + 1, None), "mul": (lambda x: x * x, None), "gelu": (F.gelu, None),
    "batch_norm": (lambda x: F.batch_norm(x, gradcore.zeros(8), gradcore.ones(8), gradcore.ones(8), gradcore.zeros(8), True),
                   None),
    "cat": (lambda x: gradcore.cat([x, x]), None), "amax": (lambda x: x.amax(1), None),
}


@pytest.mark.parametrize("given", [float32, bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_an_op_runs_in_the_precision_of_its_list(name: str, given: Any) -> None:
    call, expected = CALLS[name]
    x = gradcore.randn(4, 8).to(given)
    with autocast("cpu"):
        assert call(x).dtype == (given if expected is None else expected)


def test_distances_are_not_the_difference_of_rounded_products() -> None:
    x = gradcore.randn(30, 8) + 100
    with autocast("cpu"):
        assert (gradcore.cdist(x, x) - gradcore.cdist(x.double(), x.double())).abs().max() < 1


def test_what_is_cast_and_what_is_not() -> None:
    x, wide, whole = gradcore.ones(2, 2), gradcore.ones(2, 2, dtype=gradcore.float64), gradcore.ones(2, 2, dtype=gradcore.int64)
    with gradcore.autocast("cpu", dtype=float16):
        assert (x @ x).dtype == float16
        assert (wide @ wide).dtype == gradcore.float64 and (whole @ whole).dtype == gradcore.int64
        assert (wide.exp()).dtype == gradcore.float64 and whole.sum().dtype == gradcore.int64
        with autocast("cpu", enabled=False):
            assert (x @ x).dtype == float32 and not gradcore.is_autocast_enabled()
        with autocast("cpu", dtype=bfloat16):
            assert (x @ x).dtype == bfloat16 and gradcore.get_autocast_dtype("cpu") == bfloat16
        with autocast("meta", dtype=bfloat16):
            assert (x @ x).dtype == float16
            assert (x.to("meta") @ x.to("meta")).dtype == bfloat16
        assert not gradcore.is_autocast_enabled("cuda") and {*map(gradcore.get_autocast_dtype, ("cpu", "cuda"))} == {float16}
    assert (x @ x).dtype == float32

    @autocast("cpu")
    def decorated() -> Any:
        return (x @ x).dtype

    assert decorated() == bfloat16 and decorated.__name__ == "decorated"


def test_outside_of_a_region_ops_are_called_as_ever() -> None:
    listed = [op for name, op in all_ops().items() if name in LOWER | HIGHER]
    assert {type(op) for op in listed} == {Op}
    x = gradcore.ones(2, 2)
    seen: list[Any] = []
    with autocast("cpu"):
        assert all(type(op) is not Op for op in listed)
        other = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        other.start()
        other.join()
    assert seen == [float32], "a region is its thread's"
    with pytest.raises(ZeroDivisionError), autocast("cpu"):
        _ = 1 / 0
    assert {type(op) for op in listed} == {Op} and not gradcore.is_autocast_enabled()


def test_arguments_are_checked() -> None:
    with raises(RuntimeError, "unsupported autocast device_type 'tpu'", "cpu, cuda, meta"):
        autocast("tpu")
    with raises(ValueError, "Expected `device_type` of type `str`"):
        autocast(gradcore.device("cpu"))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="float32 is not supported. Disabling"), autocast("cpu", dtype=float32):
        assert not gradcore.is_autocast_enabled()


# -- gradients, casts of weights, what runs again ----------------------------------------------------------------------


def test_a_weight_is_cast_once_a_region() -> None:
    layer, x = nn.Linear(8, 8, bias=False), gradcore.ones(2, 8, dtype=bfloat16)

    def allocations(caching: bool) -> int:
        with gradcore.step() as s, autocast("cpu", cache_enabled=caching):
            for _ in range(3):
                layer(x)
        return int(s.report.pool.allocations)

    assert (allocations(True), allocations(False)) == (3 + 1, 3 + 3)
    with autocast("cpu"):
        first = layer(x)
        with gradcore.no_grad():
            layer.weight.mul_(2)
            assert (layer(x).float() - 2 * first.float()).abs().max().item() < 0.05, "a weight that changed is cast again"
            assert not layer(x).requires_grad
        assert layer(x).requires_grad


def test_a_weight_that_is_given_other_memory_is_cast_again() -> None:
    w, x = gradcore.ones(2, 2, requires_grad=True), gradcore.ones(1, 2)
    with autocast("cpu"):
        first = x @ w
        w.data = w.data * 3
        assert [(x @ w).tolist(), first.tolist()] == [[[6, 6]], [[2, 2]]]


def test_leaves_get_gradients_of_their_own_dtype_whether_backward_runs_inside_or_not() -> None:
    found = []
    for inside in (True, False):
        gradcore.manual_seed(0)
        model, x = mlp(), gradcore.randn(16, 64)
        with autocast("cpu"):
            loss = F.cross_entropy(model(x), gradcore.zeros(16, dtype=gradcore.int64))
            assert loss.dtype == float32
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        assert all(p.grad.dtype == float32 for p in model.parameters())
        found.append([p.grad.numpy() for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_runs_again_in_the_same_precision(reentrant: bool) -> None:
    gradients = []
    for recompute in (False, True):
        gradcore.manual_seed(0)
        model, x = mlp(), gradcore.randn(16, 64, requires_grad=True)
        with autocast("cpu"):
            made = checkpoint(model, x, use_reentrant=reentrant) if recompute else model(x)
            assert made.dtype == bfloat16
            loss = made.sum()
        loss.backward()
        gradients.append([p.grad.numpy() for p in (x, *model.parameters())])
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.oracle
def test_values_are_near_torchs(torch: Any) -> None:
    model = mlp()
    theirs = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
                                 torch.nn.Linear(128, 4))
    theirs.load_state_dict({k: torch.from_numpy(v.detach().numpy().copy()) for k, v in model.state_dict().items()})
    x = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    results = []
    for library, net, given in ((gradcore, model, gradcore.tensor(x)), (torch, theirs, torch.from_numpy(x))):
        with library.autocast("cpu", dtype=library.bfloat16):
            out = net(given)
            loss = library.nn.functional.cross_entropy(out, library.zeros(16, dtype=library.int64))
        loss.backward()
        assert out.dtype == library.bfloat16
        results.append([np.asarray(t.detach().float()) for t in (out, loss, *[p.grad for p in net.parameters()])])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.03, atol=0.03 * np.abs(b).max())


# -- memory ------------------------------------------------------------------------------------------------------------


def stepped(device: str, dtype: Any, batch: int = 256, region: str = "") -> Any:
    model = mlp(device)
    x = gradcore.zeros(batch, 64, device=device)
    y = gradcore.zeros(batch, dtype=gradcore.int64, device=device)
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with gradcore.step(batch_size=batch, device=device) as s:
            optimizer.zero_grad()
            with autocast(region or device, dtype=dtype or bfloat16, enabled=dtype is not None):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            del loss
            optimizer.step()
    return s.report


def test_residuals_take_half_the_bytes() -> None:
    plain, mixed = stepped("cpu", None, 2048), stepped("cpu", bfloat16, 2048)
    assert mixed.residual_bytes < 0.55 * plain.residual_bytes
    assert mixed.peak.allocated < 0.75 * plain.peak.allocated
    assert mixed.by_role["residual"] < 0.55 * plain.by_role["residual"]
    assert mixed.residual_bytes - mixed.residual_bytes_returned == 2048 * 8, "all but the labels, which are the caller's"


def blocks(library: Any) -> Any:
    layers = [(library.nn.Conv2d(i, 16, 3, padding=1), library.nn.BatchNorm2d(16), library.nn.ReLU()) for i in (3, 16, 16)]
    return library.nn.Sequential(*[layer for block in layers for layer in block])


def test_batch_norm_keeps_half_the_bytes_beside_its_float32_numbers() -> None:
    model, x = blocks(gradcore), gradcore.zeros(64, 3, 16, 16)
    kept = []
    for mixed in (False, True):
        with gradcore.step() as s:
            with autocast("cpu", enabled=mixed):
                out = model(x)
            out.sum().backward()
            del out
        kept.append(s.report.residual_bytes)
    assert kept[1] < 0.55 * kept[0]
    norm = model[1]
    assert all(t.dtype == float32 for t in (norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var))


@pytest.mark.oracle
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_batch_norm_in_a_region_is_torchs(torch: Any, dtype: str, training: bool) -> None:
    model, theirs, found = blocks(gradcore), blocks(torch), []
    theirs.load_state_dict({k: torch.from_numpy(np.array(v.detach().numpy())) for k, v in model.state_dict().items()})
    x = np.random.default_rng(0).normal(2, 3, size=(8, 3, 6, 6)).astype(np.float32)
    for library, net, given in ((gradcore, model, gradcore.tensor(x)), (torch, theirs, torch.from_numpy(x))):
        net.train(training)
        with library.autocast("cpu", dtype=getattr(library, dtype)):
            out = net(given)
        assert out.dtype == getattr(library, dtype)
        (out.float() ** 2).sum().backward()
        found.append({"out": out.detach().float(), **{k: v.float() for k, v in net.state_dict().items()},
                      **{f"{k} grad": p.grad for k, p in net.named_parameters()}})
    for name, ours in found[0].items():
        # The gradient of a bias before a norm that takes the mean away is nothing but rounding.
        if not (training and name.endswith(("0.bias grad", "3.bias grad", "6.bias grad"))):
            expected = np.asarray(found[1][name])
            np.testing.assert_allclose(np.asarray(ours), expected, rtol=0.03, atol=0.03 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("region", ["meta", "cpu", "cuda"])
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=["bfloat16", "float16"])
def test_the_account_is_the_same_without_numbers(dtype: Any, region: str) -> None:
    """A model with ``autocast("cuda")`` is measured on meta as it will run on CUDA."""
    ours, meta = stepped("cpu", dtype), stepped("meta", dtype, region=region)
    assert (ours.peak.requested, ours.peak.allocated) == (meta.peak.requested, meta.peak.allocated)
    assert ours.by_role == meta.by_role and ours.by_layer == meta.by_layer
    assert ours.residual_bytes == meta.residual_bytes and ours.records == meta.records


# -- training ----------------------------------------------------------------------------------------------------------


def trained(make: Callable[[], Any], shape: tuple[int, ...], dtype: Any, scaler: GradScaler) -> float:
    gradcore.manual_seed(0)
    model = make()
    rng = np.random.default_rng(0)
    x = gradcore.tensor(rng.normal(size=(64, *shape)).astype(np.float32))
    y = (x.reshape(64, 4, -1).sum(2)).argmax(1)
    optimizer = gradcore.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        with autocast("cpu", dtype=dtype or bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return float(loss.item())


@pytest.mark.parametrize(("make", "shape"), [(mlp, (64,)), (cnn, (1, 8, 8))], ids=["mlp", "cnn"])
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=["bfloat16", "float16"])
def test_training_ends_where_float32_does(make: Callable[[], Any], shape: tuple[int, ...], dtype: Any) -> None:
    expected = trained(make, shape, None, GradScaler(enabled=False))
    found = trained(make, shape, dtype, GradScaler("cpu", enabled=dtype == float16))
    assert found == pytest.approx(expected, abs=0.05)
    assert expected < 1.0


def test_casts_go_with_their_weights_within_a_region() -> None:
    x, live = gradcore.ones(2, 3), set()
    with autocast("cpu", dtype=float16):
        for _ in range(5):
            layer = nn.Linear(3, 3)
            assert layer(x).dtype == float16
            layer(x).sum().backward()
            with gradcore.no_grad():
                layer(x)
            del layer
            live.add(gradcore.memory_allocated("cpu"))
    assert live == {gradcore.memory_allocated("cpu")}


def test_threads_that_end_in_a_region_are_forgotten() -> None:
    def enter() -> None:
        autocast("cpu").__enter__()

    for _ in range(20):
        # Together, since a thread's state lies where that of one before it was.
        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not regions._open
    with autocast("cpu"):
        pass
    assert type(all_ops()["matmul"]) is Op
