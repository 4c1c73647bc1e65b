"""Second and third derivatives of layers whose gradient is one kernel, compared with PyTorch's; allocations and owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.autograd import grad, gradgradcheck
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import make_meta
from gradcore.events import Alloc, Drop, Keep, typed
from gradcore.nn import functional as F
from tests.logs import normalized
from tests.rows import ROWS, Row, parts


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def flat(x: Any) -> list[Any]:
    return [t for part in x for t in flat(part)] if isinstance(x, (tuple, list)) else [x]


def outputs_of(made: Any) -> list[Any]:
    """The tensors in a layer's result that a loss can use; a packed sequence's data."""
    return [made[0].data, *flat(made[1])] if hasattr(made[0], "batch_sizes") else flat(made)


def penalized(library: Any, function: Callable[..., Any], arrays: tuple[Any, ...], parameters: list[Any],
              order: int = 3) -> list[Any]:
    """Gradients of a loss, of a penalty on these, and of a penalty on those, for inputs and parameters."""
    leaves = [library.tensor(a, requires_grad=True) for a in arrays]
    wanted = [*leaves, *parameters]
    loss = sum((y * y * library.tensor(values(*y.shape, seed=9))).sum() for y in outputs_of(function(*leaves)))
    first = library.autograd.grad(loss, wanted, create_graph=True)
    penalty = sum((g * g).sum() for g in first[:len(leaves)]) + sum((g * p).sum() for g, p in zip(
        first[len(leaves):], parameters, strict=True))
    second = library.autograd.grad(penalty, wanted, create_graph=True, allow_unused=True)
    if order == 2:
        return [*first, *second]
    third = library.autograd.grad(sum((g * g).sum() for g in second if g is not None and g.requires_grad), wanted,
                                  allow_unused=True)
    return [*first, *second, *third]


def compare(torch: Any, call: Callable[..., Any], arrays: tuple[Any, ...], build: Callable[[Any], Any] | None = None,
            order: int = 3) -> None:
    """The same call of both libraries: ``call(library, module, *leaves)``, the module built by ``build(library.nn)``."""
    modules = [None, None]
    if build is not None:
        modules = [build(library.nn).to(library.float64) for library in (gradcore, torch)]
        modules[0].load_state_dict(modules[1].state_dict())
    found = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for library, module in zip((gradcore, torch), modules, strict=True):
            parameters = [] if module is None else list(module.parameters())
            found.append(penalized(library, lambda *xs: call(library, module, *xs), arrays, parameters, order))  # noqa: B023
    same(*found)


def same(found: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        if ours is None or theirs is None:
            assert all(g is None or not np.asarray(g.detach()).any() for g in (ours, theirs))
        else:
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-7, 1e-8)


IMAGES = values(4, 6, 3, 2)
NORMS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "batch": (lambda n: n.BatchNorm2d(6), (IMAGES,)),
    "batch, not affine": (lambda n: n.BatchNorm2d(6, affine=False), (IMAGES,)),
    "batch, in evaluation": (lambda n: n.BatchNorm2d(6).eval(), (IMAGES,)),
    "batch, in evaluation, not affine": (lambda n: n.BatchNorm2d(6, affine=False).eval(), (IMAGES,)),
    "batch, nothing running": (lambda n: n.BatchNorm1d(6, track_running_stats=False), (values(5, 6),)),
    "layer": (lambda n: n.LayerNorm((3, 2)), (IMAGES,)),
    "layer, not affine": (lambda n: n.LayerNorm(2, elementwise_affine=False), (IMAGES,)),
    "layer, no bias": (lambda n: n.LayerNorm(2, bias=False), (IMAGES,)),
    "group": (lambda n: n.GroupNorm(3, 6), (IMAGES,)),
    "instance": (lambda n: n.InstanceNorm2d(6, affine=True), (IMAGES,)),
    "rms": (lambda n: n.RMSNorm(2), (IMAGES,)),
    "in a network": (lambda n: n.Sequential(n.Conv2d(6, 4, 2), n.BatchNorm2d(4), n.Tanh(), n.Flatten(), n.LayerNorm(8),
                                            n.Linear(8, 3)), (IMAGES,)),
    "encoder": (lambda n: n.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True), (values(2, 5, 8),)),
    "decoder": (lambda n: n.TransformerDecoderLayer(8, 2, 12, 0.0, "gelu", norm_first=True, batch_first=True),
                (values(2, 5, 8), values(2, 3, 8, seed=1))),
}


@pytest.mark.oracle
@pytest.mark.parametrize(("build", "arrays"), NORMS.values(), ids=NORMS)
def test_norms_and_transformers_are_torchs(build: Callable[[Any], Any], arrays: tuple[Any, ...], torch: Any) -> None:
    # PyTorch's third derivatives of these treat mean and variance as constants.
    compare(torch, lambda library, module, *xs: module(*xs), arrays, build, order=2)


@pytest.mark.oracle
@pytest.mark.parametrize("dims", [(0, 2, 3), (2, 3)], ids=["batch", "layer"])
def test_third_derivatives_of_norms_are_those_of_the_formula(dims: tuple[int, ...], torch: Any) -> None:
    def formula(x: Any, weight: Any) -> Any:
        apart = x - x.mean(dims, keepdim=True)
        return apart / ((apart * apart).mean(dims, keepdim=True) + 1e-5).sqrt() * weight[..., None, None]

    def ours(x: Any, weight: Any) -> Any:
        if dims[0] == 0:
            return F.batch_norm(x, None, None, weight, None, True)
        return F.layer_norm(x, (3, 2)) * weight[..., None, None]

    arrays = (IMAGES, values(6, seed=1))
    same(penalized(gradcore, ours, arrays, []), penalized(torch, formula, arrays, []))


MASK = np.array([[True, False, True, True], [True, True, True, True], [False, True, True, False]])
ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {}, "causal": {"is_causal": True}, "boolean mask": {"attn_mask": MASK}, "scaled": {"scale": 0.3},
    "added mask": {"attn_mask": values(2, 1, 3, 4, seed=7)}, "a row masked wholly": {"attn_mask": MASK & MASK[:, :1]}}


@pytest.mark.oracle
@pytest.mark.parametrize("named", ATTENTION.values(), ids=ATTENTION)
def test_attention_is_torchs(named: dict[str, Any], torch: Any) -> None:
    def call(library: Any, module: Any, *xs: Any) -> Any:
        given = {k: library.tensor(v) if isinstance(v, np.ndarray) else v for k, v in named.items()}
        return library.nn.functional.scaled_dot_product_attention(*xs, **given)

    compare(torch, call, (values(2, 2, 3, 4), values(2, 2, 4, 4, seed=1), values(2, 2, 4, 3, seed=2)))


@pytest.mark.oracle
def test_attention_with_a_mask_that_is_learnt_is_torchs(torch: Any) -> None:
    compare(torch, lambda library, module, q, k, v, mask: library.nn.functional.scaled_dot_product_attention(q, k, v, mask),
            (values(1, 2, 3, 4), values(1, 2, 4, 4, seed=1), values(1, 2, 4, 3, seed=2), values(3, 4, seed=3)))


def test_dropped_weights_are_drawn_again_for_every_derivative() -> None:
    def call(*xs: Any) -> Any:
        gradcore.manual_seed(3)
        return F.scaled_dot_product_attention(*xs, dropout_p=0.4, is_causal=True)

    inputs = [gradcore.tensor(values(1, 2, 5, 3, seed=k), requires_grad=True) for k in range(3)]
    assert gradgradcheck(call, inputs, fast_mode=True)


RECURRENT = {"RNN": {}, "RNN relu": {"nonlinearity": "relu"}, "LSTM": {}, "GRU": {}}
FORMS = [{}, {"num_layers": 2, "bias": False}, {"num_layers": 2, "bidirectional": True, "batch_first": True}]


@pytest.mark.oracle
@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_are_torchs(kind: str, options: dict[str, Any], torch: Any) -> None:
    name, more = kind.split()[0], RECURRENT[kind]
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    states = tuple(values(count, 2, 3, seed=k) for k in range(1, 3 if name == "LSTM" else 2))
    compare(torch, lambda library, module, x, *hx: module(x, hx if len(hx) > 1 else hx[0]),
            (values(2, 4, 2) if options.get("batch_first") else values(4, 2, 2), *states),
            lambda n: getattr(n, name)(2, 3, **more, **options))


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_along_packed_sequences_are_torchs(kind: str, torch: Any) -> None:
    def call(library: Any, module: Any, x: Any) -> Any:
        return module(library.nn.utils.rnn.pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False))

    compare(torch, call, (values(4, 3, 2),), lambda n: getattr(n, kind)(2, 3, bidirectional=True))


ALONE = [next(r for r in ROWS if r.op == name) for name in (
    "attention", "attention_grad", "batch_norm", "batch_norm_grad", "group_norm", "group_norm_grad", "layer_norm",
    "layer_norm_apply", "layer_norm_grad", "rms_norm", "rms_norm_grad", "rnn", "rnn_grad", "lstm", "lstm_grad", "gru",
    "gru_grad")]


@pytest.mark.parametrize("row", ALONE, ids=str)
def test_each_operand_may_be_the_only_one_that_wants_a_gradient(row: Row) -> None:
    for wanted in row.wanted():
        inputs = [gradcore.tensor(v, requires_grad=k == wanted) for k, v in enumerate(row.values(np.float64))]
        assert gradgradcheck(lambda *xs: [y for y in parts(row.call(list(xs))) if y.requires_grad], inputs, fast_mode=True)


# -- what is allocated, and for whom -----------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "batch_norm": (lambda d: nn.BatchNorm2d(6, device=d), (4, 6, 3, 2)),
    "layer_norm": (lambda d: nn.LayerNorm(8, device=d), (4, 8)),
    "group_norm": (lambda d: nn.GroupNorm(2, 6, device=d), (4, 6, 3)),
    "rms_norm": (lambda d: nn.RMSNorm(8, device=d), (4, 8)),
    "attention": (lambda d: nn.TransformerEncoderLayer(8, 2, 12, 0.2, device=d), (5, 3, 8)),
    "lstm": (lambda d: nn.LSTM(4, 5, 2, bidirectional=True, device=d), (6, 3, 4)),
    "gru": (lambda d: nn.GRU(4, 5, device=d), (6, 3, 4)),
    "rnn": (lambda d: nn.RNN(4, 5, device=d), (6, 3, 4))}


def penalty_step(build: Callable[[Any], Any], shape: tuple[int, ...], device: Any) -> list[Any]:
    """The log of one step with a gradient penalty, and of its release."""
    layer = build(device)
    gradcore.manual_seed(0)
    x = gradcore.ones(*shape, device=device, requires_grad=True)
    log = device.ledger.begin_log()
    made = layer(x)
    loss = (made[0] if isinstance(made, tuple) else made).square().sum()
    slope, = grad(loss, x, create_graph=True)
    (slope.square().sum() + loss).backward()
    del made, loss, slope
    device.ledger.end_log()
    assert all(p.grad is not None for p in layer.parameters())
    return log


@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS)
def test_meta_writes_the_same_log(build: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    logs = [normalized(penalty_step(build, shape, device)) for device in (make_host(), make_meta())]
    assert len(logs[0]) == len(logs[1])
    for ours, theirs in zip(*logs, strict=True):
        assert ours == theirs


@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS)
def test_what_the_second_pass_makes_has_an_owner_and_goes(build: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    """It is attributed to backward and a line of this file; what it keeps meanwhile is released at its end."""
    records = [typed(r) for r in penalty_step(build, shape, make_meta())]
    made = [r.tag for r in records if isinstance(r, Alloc)]
    assert {t.site.file for t in made} == {__file__}
    assert {t.role for t in made if t.phase == "backward"} == {"temporary", "workspace"}
    kept = [(r.serial, r.node) for r in records if isinstance(r, Keep)]
    gone = [(r.serial, r.node) for r in records if isinstance(r, Drop)]
    assert sorted(kept) == sorted(gone)


def test_the_second_pass_is_put_down_to_the_layer_that_it_is_of() -> None:
    records = [typed(r) for r in penalty_step(lambda d: nn.Sequential(nn.LSTM(4, 5, device=d)), (6, 3, 4), make_meta())]
    products = [r.tag for r in records if isinstance(r, Alloc) and r.tag.op == "matmul"]
    assert products and {(t.layer, t.phase) for t in products} == {("0", "backward")}


def test_the_first_pass_keeps_no_more_than_its_gradient_ops_name() -> None:
    """With create_graph, a norm's gradient is still one kernel; its equivalent ops run when it is differentiated."""
    x = gradcore.ones(4, 8, device="meta", requires_grad=True)
    log = gradcore.device("meta").ledger.begin_log()
    slope, = grad(F.layer_norm(x, (8,)).sum(), x, create_graph=True)
    names = [r.name for r in map(typed, log) if isinstance(r, Keep)]
    gradcore.device("meta").ledger.end_log()
    assert names == ["x", "mean", "rstd", "dy", "x", "mean", "rstd"]
    del slope


def test_a_node_that_is_watched_shows_what_it_returns() -> None:
    """Hooks and anomaly mode handle the gradients of a derived rule like those of any other."""
    x = gradcore.tensor(values(3, 4), requires_grad=True)
    slope, = grad(F.layer_norm(x, (4,)).square().sum(), x, create_graph=True)
    node, seen = slope.grad_fn, []
    assert node.name() == "LayerNormGradBackward0"
    node.register_hook(lambda inputs, outputs: seen.append(([g is None for g in inputs], [g is None for g in outputs])))
    plain, = grad(slope.square().sum(), x, retain_graph=True)
    with gradcore.autograd.detect_anomaly():
        watched, = grad(slope.square().sum(), x)
    np.testing.assert_array_equal(plain.numpy(), watched.numpy())
    assert seen == [([False, False, True, False, False], [False, True, True])] * 2
    node = None


@pytest.mark.parametrize("given", [[1000.0, -1000.0, 3.0], [1.0, -np.inf, 2.0], [-np.inf, 1.0, 2.0]])
def test_the_second_gradient_of_sums_of_exponentials_far_apart_is_finite(given: list[float]) -> None:
    """It is that of logsumexp of each first part; PyTorch's logaddexp gives NaN here."""
    weights = gradcore.tensor([1.0, -2.0, 0.5], dtype=gradcore.float64)
    found = []
    for sums in (lambda x: gradcore.logcumsumexp(x, 0),
                 lambda x: gradcore.stack([x[:k].logsumexp(0) if k > 1 else x[0] for k in (1, 2, 3)])):
        x = gradcore.tensor(given, dtype=gradcore.float64, requires_grad=True)
        slope, = grad((sums(x) * weights).sum(), x, create_graph=True)
        found.append(grad((slope * weights).sum(), x)[0].numpy())
    np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-12)
    assert np.isfinite(found[0]).all()


def test_a_gradient_that_does_not_depend_on_what_it_should_is_found() -> None:
    """gradgradcheck requires a gradient without a graph to be constant."""
    class Cube(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x ** 3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, = ctx.saved_tensors
            return (g * x * x * 3).detach()

    x = gradcore.tensor(values(3), requires_grad=True)
    for fast in (False, True):
        assert not gradgradcheck(Cube.apply, [x], raise_exception=False, fast_mode=fast)
        assert gradgradcheck(lambda x: x ** 3, [x], fast_mode=fast)


@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS)
def test_a_replayed_penalty_is_the_eager_one(build: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    found = []
    for compiled in (False, True):
        gradcore.manual_seed(1)
        layer = build("cpu")
        optimizer = gradcore.optim.SGD(layer.parameters(), lr=1e-3)

        def step(x: Any, layer: Any = layer, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            made = layer(x)
            loss = (made[0] if isinstance(made, tuple) else made).square().sum()
            slopes = grad(loss, list(layer.parameters()), create_graph=True)
            loss = loss + sum(g.square().sum() for g in slopes)
            loss.backward()
            optimizer.step()
            return loss

        run = gradcore.compile(step) if compiled else step
        found.append([run(gradcore.tensor(values(*shape, seed=k).astype(np.float32))).item() for k in range(4)])
        if compiled:
            assert "cannot be replayed" not in run.explain() and "program of" in run.explain()
    assert found[0] == found[1]


def test_an_output_without_a_gradient_has_none_in_a_second_derivative() -> None:
    class Signed(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            size = x.abs()
            ctx.mark_non_differentiable(size)
            ctx.save_for_backward(size)
            return x * size, size

        @staticmethod
        def backward(ctx: Any, g: Any, of_size: Any) -> Any:
            size, = ctx.saved_tensors
            assert not size.requires_grad and of_size.tolist() == [0.0, 0.0]
            return g * size * 2

    x = gradcore.tensor([1.0, -3.0], requires_grad=True)
    slope, = gradcore.autograd.grad(Signed.apply(x)[0].sum(), x, create_graph=True)
    assert slope.tolist() == [2.0, 6.0] and not slope.requires_grad
