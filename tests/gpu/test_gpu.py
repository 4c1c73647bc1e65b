"""On a real GPU: the same log, the same numbers, memory that is released, and errors that name its owners."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.host.autograd.test_recompute_further import RUNS, in_16_bits, log_of
from tests.host.memory.test_one_log import SIZES, check_prediction
from tests.rows import ROWS, tensors_of


def test_an_allocation_that_no_op_declares_is_an_error_in_these_tests():
    bridge = gradcore.device("cuda").bridge
    with pytest.raises(gradcore.errors.UndeclaredAllocation, match="CuPy allocated 512 bytes in the kernel of op ''"):
        bridge.allocate(512)


def test_a_gpu_may_be_given_by_its_number_its_name_or_itself():
    x = gradcore.ones(2)
    for given in (0, "cuda", gradcore.device("cuda")):
        moved = [x.to(given), x.to(device=given), x.cuda(given), gradcore.ones(2, device=given),
                 nn.Linear(2, 2).to(given).weight, nn.Linear(2, 2).cuda(given).weight, x.new_zeros(2, device=given),
                 gradcore.zeros_like(x, device=given), gradcore.empty_like(x, device=given),
                 gradcore.rand_like(x, device=given), gradcore.as_tensor(x, device=given),
                 nn.Linear(2, 2, device="meta").to_empty(device=given).weight]
        assert {str(t.device) for t in moved} == {"cuda:0"}


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("batch", [1, 7, 64, 512])
@pytest.mark.parametrize("model", list(SIZES))
def test_the_gpu_writes_the_log_that_meta_predicts(model, batch, kind):
    check_prediction("cuda", SIZES[model], batch, kind)


@pytest.mark.parametrize("run", [r for r in RUNS if r is not in_16_bits])
def test_what_is_recomputed_is_predicted(run):
    assert log_of(run, "cuda") == log_of(run, "meta")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_kernels_agree_with_numpys(row):
    def results(name):
        device = gradcore.device(name)
        inputs = tensors_of(row, device)
        attrs = dict(row.attrs)
        if not inputs:
            attrs["device"] = device
        made = row.declared(*row.arguments(inputs), **attrs)
        return [np.asarray(t.tolist()) for t in (made if isinstance(made, tuple) else (made,)) if t is not None]

    if row.op == "empty":
        pytest.skip("empty: its values are whatever the memory held")
    # Vectors turn by rounding errors over the gaps between values.
    wider = 30 if row.op in ("eigh", "svd") else 1
    for ours, theirs in zip(results("cuda"), results("cpu"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=wider * 2e-5, atol=wider * 2e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name, width", [("float32", 160), ("float64", 80), ("bfloat16", 160)])
def test_attention_of_wide_heads_runs_over_cupy_in_every_call(name, width, dropout):
    """In the second call other kernels write their launches out, with addresses that are made up."""
    rng = np.random.default_rng(7)
    values = [rng.standard_normal((1, 2, 5, width)) for _ in range(4)]

    def found(device):
        *operands, g = (gradcore.tensor(x.astype(name), device=device).requires_grad_() for x in values)
        y = nn.functional.scaled_dot_product_attention(*operands, is_causal=True, dropout_p=dropout)
        return [y.detach().numpy(force=True), *(t.numpy(force=True) for t in gradcore.autograd.grad(y, operands, g.detach()))]

    calls, expected = [found("cuda") for _ in range(3)], found("cpu")
    bound = 8e-3 if name == "bfloat16" else 2e-5
    # The numbers of dropout are each device's own.
    for ours, theirs in [] if dropout else zip(chain(*calls), expected * 3, strict=True):
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=bound, atol=bound / 10)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int64", "int16"])
@pytest.mark.parametrize("how", ["amax", "amin"])
def test_extremes_at_positions_where_many_threads_meet(name, how):
    """They exchange elements at the same time, in 2, 4 or 8 bytes; of zeros of both signs -0 is the smaller."""
    rng = np.random.default_rng(4)
    places, values = rng.integers(0, 5, 30_000), rng.integers(-9999, 9999, 30_000).astype(np.float32)
    values[places == 1] = 0
    if "float" in name:
        values[np.flatnonzero(places == 1)[::3]] = -0.0
        values[np.flatnonzero(places == 2)[1000]] = np.nan

    def found(device):
        x = gradcore.zeros(5, dtype=getattr(gradcore, name), device=device)
        made = x.scatter_reduce(0, gradcore.tensor(places, device=device), gradcore.tensor(values, device=device).to(x.dtype),
                                how, include_self=False)
        return made.double().cpu().numpy()

    expected = found("cpu")
    for _ in range(5):
        ours = found("cuda")
        np.testing.assert_array_equal(ours, expected)
        assert np.signbit(ours[1]) == ("float" in name and how == "amin")


@pytest.mark.parametrize(("shape", "dim"), [((300, 16_384), 1), ((128, 9600), 0)], ids=["rows", "columns"])
def test_sums_over_more_blocks_than_run_at_once(shape, dim):
    from gradcore.devices.gpu.kernels.reductions import _BLOCKS, _plan

    _, kernel, blocks, _ = _plan(shape, (dim,), (shape[1], 1), tuple(0 if d == dim else 1 for d in range(2)))
    assert kernel in ("fold_split", "fold_columns") and blocks > _BLOCKS
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    x = gradcore.tensor(values, device="cuda")
    first = x.sum(dim).cpu().numpy()
    np.testing.assert_allclose(first, values.sum(dim, dtype=np.float64), rtol=1e-4, atol=1e-3)
    for _ in range(2):
        np.testing.assert_array_equal(x.sum(dim).cpu().numpy(), first)
        np.testing.assert_array_equal(x.argmax(dim).cpu().numpy(), values.argmax(dim))


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_bfloat16_trains_as_on_the_cpu(kind):
    from tests.host.cuda.test_cuda_bfloat16 import compare_training

    compare_training(kind)


@pytest.mark.parametrize("draw", [gradcore.rand, gradcore.randn])
def test_a_seed_gives_the_same_numbers(draw):
    values = []
    for device in ("cpu", "cuda"):
        gradcore.device(device)
        gradcore.manual_seed(7)
        values.append(draw(100_003, device=device).cpu().numpy())
    if draw is gradcore.rand:
        np.testing.assert_array_equal(*values)
    else:
        np.testing.assert_array_max_ulp(*values, maxulp=2)


def test_training_leaves_nothing_behind():
    device = gradcore.device("cuda")
    before = device.ledger.allocated
    model = nn.Sequential(nn.Linear(64, 128, device="cuda"), nn.ReLU(), nn.Linear(128, 10, device="cuda"))
    optimizer = gradcore.optim.Adam(model.parameters())
    x, y = gradcore.rand(64, 64, device="cuda"), gradcore.zeros(64, dtype=np.int64, device="cuda")
    live = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        live.append(device.ledger.allocated)
    assert len(set(live[1:])) == 1
    del model, optimizer, x, y, loss
    assert device.ledger.allocated == before


def test_out_of_memory_names_the_holders_and_a_smaller_batch_goes_on():
    gradcore.empty_cache("cuda")
    gradcore.set_memory_limit(gradcore.memory_reserved("cuda") + (64 << 20), "cuda")
    try:
        held = gradcore.zeros(4 << 20, device="cuda")
        with pytest.raises(gradcore.OutOfMemory, match=r"out of memory(.|\n)*output of full"):
            gradcore.zeros(32 << 20, device="cuda")
        assert held.sum().item() == 0
        gradcore.zeros(1 << 20, device="cuda")
    finally:
        gradcore.set_memory_limit(None, "cuda")


def test_the_driver_knows_of_our_segments():
    with gradcore.step(device="cuda") as s:
        gradcore.zeros(8 << 20, device="cuda")
    figures = s.report.driver
    assert figures is not None
    assert figures.used is not None
    assert figures.used >= figures.segments
