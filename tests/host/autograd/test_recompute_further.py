"""What cheap ops make of recomputed tensors, and of what another node keeps, is recomputed, too: a product, dropout, a
conversion, a copy, a view."""

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional
from tests.logs import normalized


def mlp(x, first, gate, norm, last):
    return last(functional.silu(first(x)) * gate(x))


def dropped(x, first, gate, norm, last):
    return last(functional.dropout(functional.gelu(first(x)), 0.3))


def dropped_by_rows(x, first, gate, norm, last):
    """Softmax keeps what it returns, of which dropout makes what the last layer reads."""
    return last(functional.dropout(first(x).softmax(1), 0.3))


def masked(x, first, gate, norm, last):
    return last(functional.gelu(first(x)) * (x[:, :1] > 0))


def in_16_bits(x, first, gate, norm, last):
    with gradcore.autocast("cpu"):
        return last(norm(first(x))).float()


def windows(x, first, gate, norm, last):
    return last(norm(first(x)).view(2, 4, 16).transpose(0, 1).contiguous().view(8, 16))


def by_hand(x, first, gate, norm, last):
    h = first(x)
    h = h * (h.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    return last(h * norm.weight)


def gates(x, first, gate, norm, last):
    z = first(x).sigmoid()
    return last((1 - z) * gate(x))


def one_row(x, first, gate, norm, last):
    return last(norm(first(x))[0])


def halves(x, first, gate, norm, last):
    """As in CSP networks: a part goes on, and all are put together."""
    one, two = functional.gelu(first(x)).chunk(2, 1)
    return last(gradcore.cat([one * 2, two, (two @ gate.weight[:8, :8]) * one], 1)[:, :16])


def by_columns(x, first, gate, norm, last):
    return last(gradcore.stack([c * c for c in norm(first(x)).unbind(1)], 1))


def enlarged(x, first, gate, norm, last):
    """As in a U-Net: the copies of an upsampling are apart by views."""
    return last(functional.interpolate(functional.relu(norm(first(x))).view(8, 1, 4, 4), scale_factor=2).view(32, 16))


def interpolated(x, first, gate, norm, last):
    """In each dimension a product with a constant, of which views are made."""
    h = functional.relu(norm(first(x))).view(8, 1, 4, 4)
    return last(functional.interpolate(h, scale_factor=2, mode="bilinear").view(32, 16))


#: With the bytes that need not be kept.
RUNS = {mlp: 2 * 512, dropped: 512, dropped_by_rows: 512, masked: 512, in_16_bits: 256, windows: 512, one_row: 512,
        by_hand: 2 * 512, gates: 2 * 512, halves: 512 + 768, by_columns: 2 * 512, enlarged: 512 + 2048,
        interpolated: 512 + 2048}


def made_layers():
    gradcore.manual_seed(0)
    return nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)


@pytest.mark.parametrize(("run", "saved"), RUNS.items())
def test_the_last_layer_s_input_is_not_kept(run, saved):
    layers = made_layers()
    weights = layers[0].weight, layers[3].weight
    x = gradcore.randn(8, 16)
    kept, found = [], []
    for again in (True, False):
        gradcore.manual_seed(1)
        with gradcore.recompute(again):
            loss = run(x, *layers).square().mean()
        kept.append(gradcore.graph(loss).nbytes)
        slopes = gradcore.autograd.grad(loss, weights, create_graph=True)
        second = gradcore.autograd.grad(sum((g * g).sum() for g in slopes), weights)
        found.append([g.tolist() for g in (*slopes, *second)])
    assert found[0] == found[1]
    assert kept[1] - kept[0] == saved


def log_of(run, device):
    gradcore.empty_cache(device)
    with gradcore.device(device):
        layers, x = made_layers(), gradcore.ones(8, 16)
        with gradcore.step(device=device) as step:
            run(x, *layers).square().mean().backward()
    return normalized(step.raw_log)


@pytest.mark.parametrize("run", [r for r in RUNS if r is not in_16_bits])
def test_what_is_recomputed_is_predicted(run):
    """Record by record. Autocast takes other ops on a GPU than on a CPU."""
    assert log_of(run, "cpu") == log_of(run, "meta")


def test_a_product_of_kept_factors_is_kept():
    """The factors are there anyway, but every product would be computed twice."""
    a, b = gradcore.ones(3, requires_grad=True) * 2, gradcore.ones(3, requires_grad=True) * 3
    assert (a * b).grad_fn.recipe is None
    assert (functional.gelu(a) * b).grad_fn.recipe is not None


@pytest.mark.parametrize(("rows", "columns", "recomputed"), [(256, 128, True), (256, 129, False), (128, 128, False)])
def test_only_a_wider_product_of_few_terms_with_a_constant_is_recomputed(rows, columns, recomputed):
    h = functional.gelu(gradcore.ones(4, columns, requires_grad=True))
    weight = gradcore.ones(rows, columns)
    assert (functional.linear(h, weight).grad_fn.recipe is not None) == recomputed
    assert functional.linear(h, weight.requires_grad_()).grad_fn.recipe is None


def test_what_only_another_branch_keeps_may_be_written_to():
    """As in PyTorch, unless the gradient that is asked for goes through what keeps it."""
    leaf = gradcore.ones(3, requires_grad=True)
    x = leaf * 2
    aside = functional.gelu(x)
    y = x * 3
    z = (y * y).sum()
    with gradcore.no_grad():
        x.add_(1)
    z.backward()
    assert leaf.grad.tolist() == [72.0] * 3
    del aside


def test_a_copy_of_what_attention_keeps_is_recomputed():
    x = gradcore.randn(2, 4, 3, 8, requires_grad=True)
    y = functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(2, 3, 32)
    z = nn.Linear(32, 2)(y)
    node = next(n for n in gradcore.graph(z).nodes if n.name == "LinearBackward0")
    assert [r.how for r in node.residuals if r.name == "x"] == ["recomputed"]


def test_a_view_of_what_was_written_to_keeps_nothing_more():
    """The recipe of what it shows makes what that was before."""
    leaf = gradcore.ones(2, 3, requires_grad=True)
    x = functional.gelu(leaf * 2)
    with gradcore.no_grad():
        x.add_(1)
    y = x.t().contiguous().t()
    z = (y * y).sum()
    x.mul_(2)
    with gradcore.recompute(False):
        expected = functional.gelu(copy := leaf.detach().requires_grad_() * 2)
    z.backward()
    slope, = gradcore.autograd.grad(expected.sum(), copy)
    assert leaf.grad.tolist() == (2 * (expected + 1) * slope * 2).tolist()


def test_nothing_is_recomputed_where_recompute_is_off():
    a, b = gradcore.ones(3, requires_grad=True) * 2, gradcore.ones(3, requires_grad=True) * 3
    gelu = functional.gelu(a)
    with gradcore.recompute(False):
        assert (gelu * b).grad_fn.recipe is None


@pytest.mark.parametrize("use", [lambda h, row: h - row, lambda h, row: row + h, lambda h, row: functional.gelu(h) + row])
@pytest.mark.parametrize("learned", [False, True])
def test_what_is_added_may_be_written_to_before_backward(use, learned):
    """No gradient of a sum reads its operands, and programs update running means in forward."""
    weight = gradcore.full((4, 4), 0.5, requires_grad=True)
    row = gradcore.zeros(4, requires_grad=learned)
    y = use((gradcore.ones(2, 4) @ weight).sigmoid(), row)
    loss = (y @ weight).sum()
    with gradcore.no_grad():
        row.mul_(0.9).add_(y.mean(0))
    loss.backward()


def test_the_factor_of_an_input_may_be_written_to_before_backward():
    scale, weight = gradcore.ones(4, requires_grad=True), gradcore.ones(4, 4, requires_grad=True)
    loss = ((gradcore.ones(2, 4) * scale) @ weight).sum()
    with gradcore.no_grad():
        scale.mul_(2)
    loss.backward()
    assert scale.grad.tolist() == [8] * 4 and weight.grad.tolist() == [[2] * 4] * 4


@pytest.mark.parametrize("use", [functional.relu, functional.gelu, lambda h: functional.dropout(h, 0.5)])
@pytest.mark.parametrize("make", [
    lambda x: x.amax(1), lambda x: x.logsumexp(1), lambda x: gradcore.linalg.vector_norm(x, 3, 1)])
def test_of_what_a_node_keeps_its_result_is_read_and_not_its_input(make, use):
    found = []
    for again in (True, False):
        gradcore.manual_seed(0)
        x, w = gradcore.randn(4, 8, requires_grad=True), gradcore.randn(4, requires_grad=True)
        with gradcore.recompute(again):
            (use(make(x * 1)) * w).sum().backward()
        found.append((x.grad.tolist(), w.grad.tolist()))
    assert found[0] == found[1]


def second_derivatives(make):
    found = []
    for again in (True, False):
        x = gradcore.tensor([0.5, 1.5], requires_grad=True)
        with gradcore.recompute(again):
            slope, = gradcore.autograd.grad(make(x).sum(), x, create_graph=True)
            found.append(gradcore.autograd.grad((slope * slope).sum(), x)[0].tolist())
    return found


def test_the_copy_of_what_is_overwritten_is_not_what_was_there_first():
    def make(x):
        y = functional.gelu(x)
        with gradcore.no_grad():
            y.mul_(3)
        return y.mul_(x * x) ** 2

    again, kept = second_derivatives(make)
    assert again == kept


def test_what_a_hook_returns_is_not_what_it_was_given():
    def make(x):
        y = functional.gelu(x)
        with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2):
            return y * y * y

    again, kept = second_derivatives(make)
    assert again == kept


@pytest.mark.parametrize("use", [
    lambda h: h[:1], lambda h: h.view(-1), lambda h: h[0, 0].clone(), lambda h: h.half(), lambda h: h * 2,
    lambda h: functional.dropout(h, 0.3)])
@pytest.mark.parametrize("make", [functional.gelu, lambda h: h.softmax(1)])
def test_what_is_held_beside_a_loss_keeps_nothing_that_backward_lets_go_of(make, use):
    """As a feature that a program notes: what it was made of was held with it, in case that something needs it again."""
    live = []
    for again in (True, False):
        with gradcore.recompute(again):
            weight = gradcore.full((64, 64), 0.01, requires_grad=True)
            before = gradcore.memory_allocated()
            h = make(gradcore.ones(32, 64) @ weight)
            noted = use(h)
            loss = (h @ weight).sum()
            del h
            loss.backward()
            live.append(gradcore.memory_allocated() - before)
            # What is made of it from now on keeps it.
            slope, = gradcore.autograd.grad((noted.float().exp() + 1).square().sum(), noted)
            assert slope.isfinite().all()
            del noted, loss, slope, weight
    assert live[0] == live[1]


@pytest.mark.parametrize("by", ["an op", "an array of another library"])
def test_a_product_that_is_recomputed_reads_no_bias_that_programs_write_to(by: str) -> None:
    """As in PyTorch, where the gradient of a product with constants reads no bias."""
    found = []
    for again in (True, False):
        numbers = np.ones(32, np.float32)
        bias = gradcore.from_numpy(numbers) if by != "an op" else gradcore.ones(32)
        x = gradcore.ones(4, 8, requires_grad=True)
        with gradcore.recompute(again):
            y = functional.linear(functional.gelu(x * 1.0), gradcore.ones(32, 8), bias)
            total = (y * y).sum()
        if by == "an op":
            bias.fill_(100.0)
        else:
            numbers[:] = 100.0
        found.append(gradcore.autograd.grad(total, x)[0].tolist())
    assert found[0] == found[1]


def test_a_product_that_is_recomputed_reads_no_leaf_that_programs_write_to() -> None:
    x = gradcore.ones(4, 8, requires_grad=True)
    y = functional.linear(x, gradcore.full((16, 8), 0.5))
    total = (y * y).sum()
    with gradcore.no_grad():
        x.mul_(100.0)
    assert gradcore.autograd.grad(total, x)[0].tolist() == [[16 * 2 * 4.0 * 0.5] * 8] * 4
