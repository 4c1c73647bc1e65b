"""Averaged models compared with PyTorch's: weights, buffers, states, rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.optim import swa_utils
from tests.conftest import raises

FUNCTIONS: dict[str, Any] = {
    "mean": lambda s: {}, "mean of lists": lambda s: {"multi_avg_fn": s.get_swa_multi_avg_fn()},
    "ema": lambda s: {"avg_fn": s.get_ema_avg_fn(0.9)}, "ema of lists": lambda s: {"multi_avg_fn": s.get_ema_multi_avg_fn(0.7)},
    "mean one by one": lambda s: {"avg_fn": s.get_swa_avg_fn()},
    "with buffers": lambda s: {"multi_avg_fn": s.get_ema_multi_avg_fn(0.3), "use_buffers": True},
    "one's own": lambda s: {"avg_fn": lambda averaged, current, count: averaged + current * count}}


def model(library: Any) -> Any:
    n = library.nn
    return n.Sequential(n.Linear(3, 4), n.BatchNorm1d(4), n.ReLU(), n.Linear(4, 2))


def batch(library: Any, seed: int) -> Any:
    return library.tensor(np.random.default_rng(seed).standard_normal((6, 3)).astype(np.float32))


def same(ours: Any, theirs: Any) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        assert str(ours[name].dtype) == str(value.dtype).removeprefix("torch.")


@pytest.mark.oracle
@pytest.mark.parametrize("name", FUNCTIONS)
def test_averages_are_pytorchs(torch: Any, name: str) -> None:
    import torch.optim.swa_utils as theirs

    models = {gradcore: model(gradcore), torch: model(torch)}
    models[gradcore].load_state_dict(models[torch].state_dict())
    averages = {library: utils.AveragedModel(models[library], **FUNCTIONS[name](utils))
                for library, utils in ((gradcore, swa_utils), (torch, theirs))}
    for step in range(4):
        for library, trained in models.items():
            sgd = library.optim.SGD(trained.parameters(), lr=0.5)
            trained(batch(library, step)).square().mean().backward()
            sgd.step()
            averages[library].update_parameters(trained)
        same(averages[gradcore].state_dict(), averages[torch].state_dict())
    for library, utils in ((gradcore, swa_utils), (torch, theirs)):
        averages[library].eval()
        utils.update_bn([(batch(library, 0), 0), [batch(library, 1)], batch(library, 2)], averages[library])
        assert not averages[library].training and averages[library].module[1].momentum == 0.1
    same(averages[gradcore].state_dict(), averages[torch].state_dict())
    shown = [averages[library](batch(library, 9)).detach().numpy() for library in models]
    np.testing.assert_allclose(*shown, rtol=1e-4, atol=1e-5)
    other = swa_utils.AveragedModel(model(gradcore))
    other.load_state_dict(averages[torch].state_dict())
    assert other.n_averaged.item() == 4


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("options", [{}, {"anneal_epochs": 3, "anneal_strategy": "linear"}, {"anneal_epochs": 0}], ids=str)
def test_rates_are_pytorchs(torch: Any, options: dict[str, Any]) -> None:
    import torch.optim.swa_utils as theirs

    found = []
    for library, utils in ((gradcore, swa_utils), (torch, theirs)):
        p, q = library.zeros(2, requires_grad=True), library.zeros(3, requires_grad=True)
        sgd = library.optim.SGD([{"params": [p]}, {"params": [q], "lr": 0.05}], lr=0.4)
        schedule = utils.SWALR(sgd, [0.1, 0.2], **options)
        rates = [schedule.get_last_lr()]
        for _ in range(14):
            sgd.step()
            schedule.step()
            rates.append(schedule.get_last_lr())
        again = utils.SWALR(sgd, 0.1)
        again.load_state_dict(schedule.state_dict())
        assert again.anneal_epochs == schedule.anneal_epochs
        found.append(np.array(rates))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_a_mean_has_the_digits_of_float64() -> None:
    layer = nn.Linear(1, 1, bias=False).double()
    average = swa_utils.AveragedModel(layer)
    for weight in (0.1, 0.7, 1.0):
        layer.load_state_dict({"weight": gradcore.tensor([[weight]], dtype=gradcore.float64)})
        average.update_parameters(layer)
    assert average.module.weight.item() == pytest.approx(0.6, rel=1e-15)
    update, mean = swa_utils.get_swa_multi_avg_fn(), gradcore.ones(2)
    update([mean], [gradcore.zeros(2)], 3)
    assert mean.tolist() == [0.75] * 2


def test_the_first_average_is_the_model_and_an_update_keeps_nothing() -> None:
    first = nn.Linear(4, 3)
    average = swa_utils.AveragedModel(first, multi_avg_fn=swa_utils.get_ema_multi_avg_fn())
    before = gradcore.memory_requested()
    for _ in range(3):
        average.update_parameters(first)
    assert gradcore.memory_requested() == before
    assert average.module.weight.tolist() == first.weight.tolist() and average.module.weight.requires_grad


def test_statistics_of_every_kind_of_batch_norm_are_recomputed() -> None:
    class Own(nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, input: Any) -> None:
            pass

    batches = [gradcore.arange(15.0).view(5, 3), gradcore.ones(2, 3)]
    kinds = nn.BatchNorm1d, nn.SyncBatchNorm, nn.LazyBatchNorm1d, Own
    for kind in kinds:
        norm = kind(3) if kind is not nn.LazyBatchNorm1d else kind()
        norm(batches[0] * 100)
        swa_utils.update_bn(batches, nn.Sequential(nn.Identity(), norm))
        assert norm.running_mean.tolist() == [3.5, 4.0, 4.5] and norm.num_batches_tracked.item() == 2, kind
        assert norm.momentum == 0.1


def test_an_average_is_measured_without_values() -> None:
    peaks = []
    for device in ("cpu", "meta"):
        with gradcore.device(device):
            model = nn.Linear(40, 50)
            average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn())
            average.update_parameters(model)
            with gradcore.step(device=device) as s:
                average.update_parameters(model)
        peaks.append((s.report.peak.requested, s.report.peak.allocated))
        del model, average
        gradcore.empty_cache(device)
    assert peaks[0] == peaks[1]


def test_a_decay_of_one_keeps_the_first_model() -> None:
    for decay in ({"avg_fn": swa_utils.get_ema_avg_fn(1.0)}, {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(1.0)}):
        average = swa_utils.AveragedModel(first := nn.Linear(2, 2), **decay)
        average.update_parameters(first)
        average.update_parameters(nn.Linear(2, 2))
        assert average.module.weight.tolist() == first.weight.tolist()


def test_errors_say_what_was_given() -> None:
    sgd = optim.SGD([gradcore.ones(2, requires_grad=True)])
    for make, text in (
            (lambda: swa_utils.AveragedModel(nn.ReLU(), avg_fn=max, multi_avg_fn=max), "Only one of avg_fn and multi_avg_fn"),
            (lambda: swa_utils.get_ema_multi_avg_fn(1.5), "Invalid decay value 1.5"),
            (lambda: swa_utils.get_ema_avg_fn(-1), "Invalid decay value -1"),
            (lambda: swa_utils.SWALR(sgd, 0.1, anneal_strategy="no"), "one of 'cos' or 'linear', instead got no"),
            (lambda: swa_utils.SWALR(sgd, 0.1, -1), "anneal_epochs must be equal or greater than 0, got -1"),
            (lambda: swa_utils.SWALR(sgd, [0.1, 0.2]), "expected 1 values for swa_lr, got 2")):
        with raises(ValueError, text):
            make()


def test_an_error_leaves_the_momenta_and_the_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.3)).eval()
    with raises(RuntimeError, "5"):
        swa_utils.update_bn([gradcore.ones(4, 2), gradcore.ones(4, 5)], model)
    assert model[1].momentum == 0.3 and not any(m.training for m in model.modules())
