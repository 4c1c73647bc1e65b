"""Integers of NumPy's and tensors in the place of Python's numbers, and the numbers that ``finfo`` gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import TraceError
from gradcore.nn import functional
from gradcore.ops import all_ops
from tests.conftest import raises
from tests.rows import ROWS, Row, parts, tensors_of

#: Calls with integers ``n`` of NumPy's, which programs get from shapes and sums of arrays.
OF_NUMPY = [
    "F.conv2d(x, t.ones(4, 4, 3, 3), stride=n, padding=n, dilation=(n, n))", "F.conv1d(x[0], t.ones(4, 6, 3), None, n, n)",
    "F.conv_transpose2d(x, t.ones(4, 4, 3, 3), stride=n, padding=n)", "F.max_pool2d(x, n, n)", "F.avg_pool2d(x, n)",
    "F.avg_pool1d(x[0], n)", "F.max_pool3d(x, n)", "F.lp_pool2d(x, n, n)", "F.lp_pool1d(x[0], 2, n)",
    "F.adaptive_avg_pool2d(x, (n, None))", "F.adaptive_max_pool2d(x, (n, 3))", "F.adaptive_avg_pool1d(x[0], n)",
    "F.interpolate(x, size=n)", "F.interpolate(x, size=(n, n), mode='bilinear')", "F.interpolate(x, scale_factor=n)",
    "F.interpolate(x, scale_factor=np.float32(1.5))", "F.unfold(x, n)", "F.fold(F.unfold(x, 2), (n * 3, n * 4), n)",
    "F.local_response_norm(x, n)", "nn.LayerNorm(n * 4)(x)", "nn.LayerNorm([n * 4])(x)", "nn.ZeroPad2d(n)(x)",
    "nn.Conv2d(4, 4, n, padding=n).weight.shape", "x.chunk(n)", "x.roll(n, n)", "x.roll(n)", "x.repeat_interleave(n)",
    "t.full((2,), n)", "t.full((n,), np.float64(2))",
    "t.normal(np.int64(0), np.float32(1), (n,)).shape", "t.normal(t.zeros(3), np.float32(1)).shape"]
#: Calls with tensors of one element, which are read.
OF_TENSORS = [
    "t.arange(t.tensor(3))", "t.arange(t.tensor([3, 5]).max())", "t.arange(t.tensor(1), t.tensor(6), t.tensor(2))",
    "t.arange(0, t.tensor(2.5))", "t.arange(t.tensor(3), dtype=t.float32)", "t.full((2,), t.tensor(3))",
    "t.full((2,), t.tensor(True))", "t.full((2,), t.tensor(0.5))", "t.full_like(x, t.tensor(3))",
    "x.new_full((2,), t.tensor(3))", "t.zeros(k, 3)", "t.ones((k,))", "t.empty(k, 1).shape", "t.randn(1, k).shape",
    "t.eye(k, 3)", "x.view(k, -1)", "x.reshape((k, 4, -1))", "x[0].expand(k, -1, -1, -1)", "x.repeat(k, 1, 1, 1)",
    "x.new_zeros(t.tensor([2]))", "x.topk(k).values", "x.kthvalue(k, 1).values", "x.narrow(1, k, k)", "x.split(k, 1)",
    "x.chunk(k, 1)", "x.tril(k)", "x.roll(k)", "F.one_hot(t.tensor([0, 1]), k)", "t.linspace(0, 1, k)",
    "t.randint(0, k, (k,)).shape", "t.randperm(k).shape", "t.multinomial(t.ones(3), k).shape", "F.max_pool2d(x, k)",
    "F.adaptive_avg_pool2d(x, (k, 3))", "F.interpolate(x, k)",
    "F.pad(x, (1, 0), value=t.tensor(0.5))",
    "F.cross_entropy(x, t.ones(2, 6, 8, dtype=t.int64), ignore_index=t.tensor(2))", "x.std(correction=k)",
    "t.var(x, 1, correction=t.tensor(0.5))", "F.celu(x, t.tensor(0.5))", "t.addcmul(x, x, x, value=k)",
    "F.layer_norm(x, (8,), eps=t.tensor(1e-3))", "F.layer_norm(x, (8,), eps=k)",
    "F.leaky_relu(x, k)", "F.leaky_relu(x.clone(), t.tensor(True), inplace=True)", "t.lerp(x, x * 3, k)",
    "t.lerp(x.half(), x.half() * 3, k)", "x.clone().lerp_(x * 3, t.tensor(True))"]

#: Numbers among the attributes of ops: of each, a call that gives it one.
ATTRIBUTES: dict[tuple[str, str], tuple[Row, Any]] = {
    (row.op, name): (row, value) for row in reversed(ROWS) for name, default in row.declared.attrs.items()
    for value in [row.attrs.get(name, default)] if type(value) in (int, float)}


@pytest.mark.oracle
@pytest.mark.parametrize("call", OF_NUMPY + OF_TENSORS)
def test_numbers_of_other_kinds(call: str, torch: Any) -> None:
    values = np.linspace(-1, 1, 2 * 4 * 6 * 8, dtype=np.float32).reshape(2, 4, 6, 8)
    found = [eval(call, {"t": t, "nn": t.nn, "F": t.nn.functional, "np": np, "n": np.int64(2), "k": t.tensor(2),
                         "x": t.tensor(values)})
             for t in (gradcore, torch)]
    ours, theirs = [r if isinstance(r, (tuple, list)) else (r,) for r in found]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, gradcore.Tensor):
            assert (str(a.dtype), tuple(a.shape)) == (str(b.dtype).removeprefix("torch."), tuple(b.shape))
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-4)
        else:
            assert a == b


@pytest.mark.parametrize("op", sorted({op for op, _ in ATTRIBUTES}))
def test_attributes_of_ops_are_read_from_tensors(op: str) -> None:
    for (of, name), (row, value) in ATTRIBUTES.items():
        if of != op:
            continue
        kind = row.declared.infer.__annotations__.get(name)
        dtype = gradcore.int64 if type(value) is int else gradcore.float64
        number = gradcore.tensor(value, dtype=dtype)
        found = []
        for given in (value, number):
            gradcore.manual_seed(0)
            found.append(parts(replace(row, attrs={**row.attrs, name: given}).call(tensors_of(row))))
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=name)
        for wrong in (number.reshape(1), number.double() if str(kind).startswith("int") else number.double().requires_grad_()):
            with raises(TypeError, f"{op}(): argument '{name}' must be ", ", not Tensor"):
                replace(row, attrs={**row.attrs, name: wrong}).call(tensors_of(row))


def test_every_attribute_that_is_a_number_is_among_them() -> None:
    numbers = {(op.name, name) for op in all_ops().values() for name in op.attrs
               if str(op.infer.__annotations__.get(name)).startswith(("int", "float"))}
    assert numbers <= ATTRIBUTES.keys()


def test_a_tensor_in_place_of_anything_else_is_refused() -> None:
    x = gradcore.ones(2, 3)
    for call, text in [
            (lambda: x.sum(0, keepdim=gradcore.tensor(True)), "sum(): argument 'keepdim' must be bool, not Tensor"),
            (lambda: x.sort(descending=gradcore.tensor(True)), "argument 'descending' must be bool, not Tensor"),
            (lambda: functional.celu(x, gradcore.tensor(0.5, requires_grad=True)), "must be float, not Tensor")]:
        with raises(TypeError, text):
            call()


@pytest.mark.oracle
@pytest.mark.parametrize("call", [
    "F.elu(x, n)", "F.celu(x, n)", "F.softplus(x, n)", "F.softplus(x, threshold=n)", "F.layer_norm(x, (3,), eps=n)",
    "F.group_norm(x, 1, eps=n)", "F.batch_norm(x, None, None, training=True, eps=n)", "t.linalg.vector_norm(x, n)",
    "F.scaled_dot_product_attention(x, x, x, scale=n)", "F.scaled_dot_product_attention(x, x, x, dropout_p=n)",
    "F.batch_norm(x, x[0], x[0], eps=n)", "F.cross_entropy(x, t.tensor([0, 1]), label_smoothing=n)",
    "F.huber_loss(x, y, delta=n)", "F.smooth_l1_loss(x, y, beta=n)", "F.hinge_embedding_loss(x, y, margin=n)",
    "F.margin_ranking_loss(x, y, y, margin=n)", "F.multi_margin_loss(x, t.tensor([0, 1]), margin=n)",
    "F.cosine_embedding_loss(x, y, x[:, 0], margin=n)", "F.triplet_margin_loss(x, y, x, margin=n)",
    "F.triplet_margin_loss(x, y, x, eps=n)", "F.triplet_margin_loss(x, y, x, p=n)", "F.normalize(x, n)",
    "F.cosine_similarity(x, y, eps=n)", "F.pairwise_distance(x, y, n)", "F.pairwise_distance(x, y, eps=n)",
    "t.cdist(x, y, n)", "F.pdist(x, n)", "t.dist(x, y, n)", "t.norm(x, n)", "x.renorm(n, 0, 1.0)", "x.renorm(2, 0, n)",
    "x.nan_to_num(n)", "x.nan_to_num(posinf=n)", "F.dropout(x, n)", "F.dropout1d(x, n)", "F.alpha_dropout(x, n, True)",
    "F.feature_alpha_dropout(x, n, True)", "F.rrelu(x, n, 1.0, training=True)", "F.rrelu(x, 0.1, n)", "x.logit(n)",
    "F.embedding(t.tensor([0]), x, max_norm=n)", "F.embedding(t.tensor([0]), x, max_norm=1.0, norm_type=n)",
    "F.hardshrink(x, n)", "F.softshrink(x, n)", "F.threshold(x, n, 0.0)", "F.threshold(x, 0.0, n)", "x.histc(4, 0, n)",
    "x.isclose(y, n)", "x.isclose(y, atol=n)", "t.full((2,), n)", "t.full_like(x, n)", "x.new_full((2,), n)",
    "x.uniform_(0, n)", "x.normal_(0, n)", "x.exponential_(n)"])
def test_a_number_whose_gradient_would_be_dropped_is_refused(call: str, torch: Any) -> None:
    for t in (gradcore, torch):
        with pytest.raises(TypeError, match=r"must be (float|Number), not Tensor"):
            eval(call, {"t": t, "F": t.nn.functional, "x": t.ones(2, 3), "y": t.zeros(2, 3),
                        "n": t.tensor(0.5, requires_grad=True)})


@pytest.mark.oracle
@pytest.mark.parametrize("call", [
    "F.normalize(x, eps=n)", "F.local_response_norm(x, 2, alpha=n)", "F.local_response_norm(x, 2, beta=n)",
    "F.local_response_norm(x, 2, k=n)", "F.triplet_margin_with_distance_loss(x, x * 3, x * 2, margin=n)"])
def test_a_number_with_a_gradient(call: str, torch: Any) -> None:
    values = np.linspace(0.01, 0.09, 24, dtype=np.float32).reshape(2, 3, 4)
    grads = []
    for t in (gradcore, torch):
        n = t.tensor(0.5, requires_grad=True)
        eval(call, {"t": t, "F": t.nn.functional, "x": t.tensor(values), "n": n}).sum().backward()
        grads.append(n.grad.item())
    assert grads[0] == pytest.approx(grads[1], rel=1e-5)
    assert grads[1] != 0


@pytest.mark.oracle
def test_an_eps_that_only_clamps_gets_no_gradient(torch: Any) -> None:
    losses = []
    for t in (gradcore, torch):
        x, eps = t.ones(2, 3), t.tensor(0.5, requires_grad=True)
        var = t.full((2, 3), 0.25, requires_grad=True)
        loss = t.nn.functional.gaussian_nll_loss(x, x * 2, var, eps=eps)
        loss.backward()
        assert eps.grad is None
        losses.append((loss.item(), var.grad[0, 0].item()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_an_attribute_is_read_at_each_call() -> None:
    x, correction = gradcore.arange(4.0), gradcore.tensor(0)
    before = x.var(correction=correction).item()
    correction.fill_(1)
    assert x.var(correction=correction).item() == x.var().item() != before


def test_on_meta_an_attribute_has_no_value() -> None:
    x = gradcore.ones(3, device="meta")
    with raises(gradcore.errors.DataDependentShape, "meta"):
        x.std(correction=gradcore.tensor(1, device="meta"))


def test_in_a_trace_the_line_that_reads_an_attribute_is_named() -> None:
    with raises(TraceError, __file__.rpartition("/")[2], "reads a value of a tensor on the host, by std()"):
        gradcore.compile(lambda x, n: x.std(correction=n))(gradcore.ones(3), gradcore.tensor(1))


def test_a_tensor_that_is_no_integer_is_no_size() -> None:
    for size in (gradcore.tensor(2.0), gradcore.tensor(True)):
        with raises(TypeError, "a size must be an int, but got Tensor "):
            gradcore.zeros(3, size)


def test_in_a_trace_the_line_that_reads_a_size_is_named() -> None:
    with raises(RuntimeError, __file__.rpartition("/")[2]):
        gradcore.compile(lambda x, n: x * gradcore.arange(n))(gradcore.ones(3), gradcore.tensor(3))
    with raises(RuntimeError, __file__.rpartition("/")[2]):
        gradcore.compile(lambda x, n: x + gradcore.zeros(n))(gradcore.ones(3), gradcore.tensor(3))


def test_sizes_of_layers_are_pythons() -> None:
    layers = gradcore.nn.Conv2d(2, 2, np.int64(3)), gradcore.nn.LayerNorm(np.int64(3)), gradcore.nn.ZeroPad1d(np.int64(1))
    sizes = [*layers[0].kernel_size, *layers[1].normalized_shape, *layers[2].padding]
    assert sizes == [3, 3, 3, 1, 1] and {type(n) for n in sizes} == {int}


def test_another_number_of_output_sizes_is_named() -> None:
    x = gradcore.ones(1, 1, 4, 4)
    for function in (gradcore.nn.functional.adaptive_avg_pool2d, gradcore.nn.functional.adaptive_max_pool2d):
        with raises(RuntimeError, f"{function.__name__}: output_size must be an int or 2 of them, but got (2, 2, 2)"):
            function(x, (2, 2, 2))
    with raises(RuntimeError, "adaptive_avg_pool3d: output_size must be an int or 3 of them, but got (2, 2)"):
        gradcore.nn.functional.adaptive_avg_pool3d(x[None], (2, 2))


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_are_numbers_of_pythons(name: str, torch: Any) -> None:
    ours, theirs = gradcore.finfo(getattr(gradcore, name)), torch.finfo(getattr(torch, name))
    for part in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert (type(getattr(ours, part)), getattr(ours, part)) == (type(getattr(theirs, part)), getattr(theirs, part))
    assert repr(ours) == repr(theirs)
    # As a number of NumPy's, it would be infinite in float16.
    assert ours.max * 2 == theirs.max * 2


@pytest.mark.oracle
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "bilinear", "bicubic"])
def test_factors_that_are_computed_again(mode: str, torch: Any) -> None:
    values = np.linspace(-1, 1, 2 * 5 * 7, dtype=np.float32).reshape(1, 2, 5, 7) ** 3
    for factor in (1.7, 0.4, (1.3, 2.2)):
        for again in (None, False, True):
            results = [t.nn.Upsample(scale_factor=factor, mode=mode, recompute_scale_factor=again)(t.tensor(values))
                       for t in (gradcore, torch)]
            np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
    with raises(ValueError, "recompute_scale_factor is not meaningful with an explicit size."):
        gradcore.nn.functional.interpolate(gradcore.tensor(values), 3, recompute_scale_factor=True)


def test_bounds_of_range_may_be_tensors() -> None:
    # PyTorch's warns.
    half, two = gradcore.tensor(0.5), gradcore.tensor(2)
    assert gradcore.range(half, half + 3, two).tolist() == [0.5, 2.5]
    with raises(TypeError, "range(): argument 'end' must be Number, not Tensor"):
        gradcore.range(half, gradcore.ones(2))
