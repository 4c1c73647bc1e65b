"""Embeddings and bags of them with all their options, compared with PyTorch's: results, gradients, the table, repr."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.events import Launch
from gradcore.nn import functional as F
from tests.conftest import raises
from tests.logs import normalized

TABLE = np.random.default_rng(0).normal(size=(6, 3))
NAMED, FLAT = np.array([[1, 5, 1, 1], [0, 1, 3, 2], [2, 2, 2, 2]]), np.array([1, 1, 0, 3, 5, 2, 1, 1])
OFFSETS, ENDS = np.array([0, 0, 3, 7]), np.array([0, 2, 2, 8])


def compare(torch: Any, call: Any) -> None:
    results = []
    for library in (gradcore, torch):
        table = library.tensor(TABLE, requires_grad=True)
        out = call(library, table)
        slope = np.random.default_rng(1).normal(size=tuple(out.shape))
        out.backward(library.tensor(slope))
        results.append([x.detach().numpy() for x in (out, table, table.grad)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.oracle
@pytest.mark.parametrize("padding", [None, 2, -5])
@pytest.mark.parametrize("frequency", [False, True])
@pytest.mark.parametrize("norm", [None, (1.5, 2.0), (1, 1.0), (0.5, np.inf)], ids=str)
@pytest.mark.parametrize("named", [NAMED, NAMED[0, 0], NAMED[:0]], ids=["several", "one", "none"])
def test_tables_are_pytorchs(torch: Any, named: Any, norm: Any, frequency: bool, padding: int | None) -> None:
    most, kind = norm or (None, 2.0)
    compare(torch, lambda t, table: t.nn.functional.embedding(t.tensor(named), table, padding, most, kind, frequency))
    compare(torch, lambda t, table: t.embedding(table, t.tensor(named), -1 if padding is None else padding % 6, frequency))


@pytest.mark.oracle
@pytest.mark.parametrize("padding", [None, 1, 2])
@pytest.mark.parametrize("norm", [None, (1.0, 2.0)], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bags", [(NAMED,), (FLAT, OFFSETS), (FLAT, ENDS), (FLAT[:0], np.array([0, 0])),
                                  (FLAT[:0], OFFSETS[:0])], ids=["rows", "offsets", "ends", "empty", "none"])
def test_bags_are_pytorchs(torch: Any, bags: Any, mode: str, norm: Any, padding: int | None) -> None:
    most, kind = norm or (None, 2.0)
    compare(torch, lambda t, table: t.nn.functional.embedding_bag(
        t.tensor(bags[0]), table, *map(t.tensor, bags[1:]), max_norm=most, norm_type=kind, mode=mode, padding_idx=padding,
        include_last_offset=bags[-1] is ENDS))


@pytest.mark.oracle
def test_arguments_stand_in_pytorchs_order(torch: Any) -> None:
    weights = np.arange(8.0)
    compare(torch, lambda t, table: t.nn.functional.embedding_bag(
        t.tensor(FLAT), table, t.tensor(ENDS), 1.0, 2.0, False, "sum", False, t.tensor(weights), True, 3))


def test_the_gradient_of_a_bag_is_divided_by_how_often_a_row_is_named() -> None:
    table = gradcore.tensor(TABLE, requires_grad=True)
    F.embedding_bag(gradcore.tensor(NAMED), table, scale_grad_by_freq=True, mode="sum").sum().backward()
    assert table.grad[:, 0].tolist() == [1, 1, 1, 1, 0, 1]


@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"max_norm": 2.0, "norm_type": 1.0}, {"scale_grad_by_freq": True, "padding_idx": 1},
                                     {"padding_idx": 0, "max_norm": 0.5}], ids=str)
def test_layers_are_pytorchs(torch: Any, options: dict[str, Any]) -> None:
    for kind in ("Embedding", "EmbeddingBag"):
        ours, theirs = (getattr(library.nn, kind)(6, 3, **options) for library in (gradcore, torch))
        assert repr(ours) == repr(theirs)
        ours.load_state_dict(theirs.state_dict())
        np.testing.assert_allclose(ours(gradcore.tensor(NAMED)).detach().numpy(), theirs(torch.tensor(NAMED)).detach().numpy(),
                                   rtol=1e-5)
        np.testing.assert_allclose(ours.weight.detach().numpy(), theirs.weight.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_shapes_alone_decide_the_log(options: dict[str, Any]) -> None:
    logs = []
    for device in ("cpu", "meta"):
        gradcore.empty_cache(device)
        with gradcore.step(device=device) as s:
            layer = nn.Embedding(6, 3, device=device, **options)
            layer(gradcore.tensor(NAMED, device=device)).sum().backward()
            del layer
        logs.append(normalized(s.raw_log))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_a_compiled_step_does_what_an_eager_one_does(options: dict[str, Any]) -> None:
    found = []
    for compiled in (False, True):
        gradcore.manual_seed(0)
        layer = nn.Embedding(6, 3, **options)
        optimizer = gradcore.optim.SGD(layer.parameters(), lr=0.5)

        def step(named: Any, layer: Any = layer, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = layer(named).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        run = gradcore.compile(step) if compiled else step
        found.append([run(gradcore.tensor((NAMED + k) % 6)).item() for k in range(4)] + layer.weight.tolist())
    assert found[0] == found[1]


def test_what_does_not_go_together() -> None:
    table, named = gradcore.ones(6, 3), gradcore.tensor(NAMED)
    with raises(ValueError, "max mode does not support scaling the gradient by the frequency"):
        F.embedding_bag(named, table, mode="max", scale_grad_by_freq=True)
    with raises(NotImplementedError, "per_sample_weights is only supported for mode='sum'"):
        F.embedding_bag(named, table, per_sample_weights=gradcore.ones(3, 4))
    with raises(ValueError, "must have the same shape as the input"):
        F.embedding_bag(named, table, mode="sum", per_sample_weights=gradcore.ones(4))
    for call in (F.embedding, F.embedding_bag):
        with raises(NotImplementedError, "'sparse' is not implemented by gradcore: gradients are dense"):
            call(named, table, sparse=True)


def bags_step(layer: Any, optimizer: Any) -> Any:
    def step(named: Any, offsets: Any, factors: Any) -> Any:
        optimizer.zero_grad()
        loss = layer(named, offsets, factors if layer.mode == "sum" else None).square().sum()
        loss.backward()
        optimizer.step()
        return loss
    return step


@pytest.mark.parametrize("options", [{"mode": "mean"}, {"mode": "sum"}, {"mode": "mean", "padding_idx": 1},
                                     {"mode": "mean", "include_last_offset": True}], ids=str)
def test_one_program_takes_bags_of_all_lengths(options: dict[str, Any]) -> None:
    last, found = options.get("include_last_offset", False), []
    for compiled in (False, True):
        gradcore.manual_seed(0)
        layer = nn.EmbeddingBag(6, 3, **options)
        run = bags_step(layer, gradcore.optim.SGD(layer.parameters(), lr=0.1))
        run = gradcore.compile(run) if compiled else run
        losses = [run(*map(gradcore.tensor, ((FLAT + k) % 6, [0, *starts, 8][:3 + last], np.float32(FLAT)))).item()
                  for k, starts in enumerate(([0, 0], [3, 7], [2, 8], [8, 8], [1, 5]))]
        found.append(losses + layer.weight.tolist())
    # The first call finds no gradient, the second one does.
    assert found[0] == found[1] and len(run.traces) == 2
    # Not in a bag, and behind all positions.
    for wrong in ([1, 2, 3, 8], [0, 2, 9, 8]):
        with pytest.raises(IndexError):
            run(*map(gradcore.tensor, (FLAT, wrong[:3 + last], np.float32(FLAT))))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_the_log_of_bags_is_known_without_values(mode: str) -> None:
    logs = []
    for device in ("cpu", "meta"):
        layer = nn.EmbeddingBag(6, 3, mode=mode, device=device)
        run = bags_step(layer, gradcore.optim.SGD(layer.parameters(), lr=0.1))
        batch = [gradcore.tensor(x, device=device) for x in (FLAT, OFFSETS, np.float32(FLAT))]
        with gradcore.step(device=device) as step:
            run(*batch)
        logs.append(normalized(step.raw_log))
    assert logs[0] == logs[1]


def test_the_mean_of_a_long_bag_of_small_floats() -> None:
    table = gradcore.ones(1, 2, dtype=gradcore.float16) * 0.125
    for count in (2049, 4001):
        made = F.embedding_bag(gradcore.zeros(count, dtype=gradcore.int64), table, gradcore.tensor([0]), mode="mean")
        assert made.tolist() == [[0.125, 0.125]]


def test_a_sum_of_bags_counts_nothing_for_a_mean() -> None:
    table, named = gradcore.tensor(TABLE), gradcore.tensor(NAMED)
    with gradcore.step() as step:
        F.embedding_bag(named, table, mode="sum", padding_idx=1)
    assert [r.invocation.op for r in step.recording.records if isinstance(r, Launch)].count("sum") == 1
