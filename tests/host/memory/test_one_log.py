"""NumPy and meta write the same log, so a prediction equals the measurement."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.events import Alloc, Launch, Retag, View
from gradcore.models import chargpt
from tests.logs import normalized

SIZES = {"digits": (64, 128, 128, 10), "large": (784, 1024, 1024, 1024, 10)}
GOLDEN = Path(__file__).parents[2] / "golden"


class Net(nn.Module):
    def __init__(self, sizes, device=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, m, device=device) for n, m in pairwise(sizes))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = nn.functional.relu(layer(x))
        return self.layers[-1](x)


def optimizer_of(kind, parameters):
    if kind == "sgd":
        return gradcore.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return gradcore.optim.Adam(parameters, lr=1e-3)


class ConvNet(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        on = {"device": device}
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, **on), nn.BatchNorm2d(8, **on), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, stride=2, **on), nn.BatchNorm2d(12, **on), nn.ReLU(), nn.AvgPool2d(2, padding=1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10, **on))

    def forward(self, x):
        return self.layers(x)


def build(sizes, batch, device):
    """A module, and the arrays of a batch for it."""
    labels = np.zeros(batch, np.int64)
    if sizes == "cnn":
        return ConvNet(device), np.zeros((batch, 3, 16, 16), np.float32), labels
    if sizes == "gpt":
        module = chargpt.GPT(20, 24, 32, 2, 4, device)
        return module, np.zeros((batch, 24), np.int64), np.zeros((batch, 24), np.int64)
    return Net(sizes, device), np.zeros((batch, sizes[0]), np.float32), labels


def run(device, sizes, batch, kind, steps=3, dropout=False):
    """Train, and return each step's log and report, from an empty pool."""
    gradcore.empty_cache(device)
    gradcore.manual_seed(0)
    module, x, y = build(sizes, batch, device)
    optimizer = optimizer_of(kind, module.parameters())
    logs, reports = [], []
    for _ in range(steps):
        with gradcore.step(batch_size=batch, device=device) as s:
            inputs, labels = gradcore.tensor(x, device=device), gradcore.tensor(y, device=device)
            optimizer.zero_grad()
            scores = module(inputs)
            if dropout:
                scores = nn.functional.dropout(scores, 0.5)
            if y.ndim > 1:
                scores, labels = scores.view(-1, scores.shape[-1]), labels.view(-1)
            loss = nn.functional.cross_entropy(scores, labels)
            del scores
            loss.backward()
            optimizer.step()
        logs.append(s.raw_log)
        reports.append(s.report)
    return logs, reports


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("batch", [1, 7, 64, 512])
@pytest.mark.parametrize("model", list(SIZES))
def test_numpy_and_meta_write_the_same_log(model, batch, kind):
    check_prediction("cpu", SIZES[model], batch, kind)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_the_larger_models_write_the_same_log(model, batch, kind):
    check_prediction("cpu", model, batch, kind)


def check_prediction(device, sizes, batch, kind):
    """Meta's log equals the device's record by record, and the predicted peaks equal its peaks, to the byte."""
    logs, reports = run(device, sizes, batch, kind)
    predicted_logs, predicted = run("meta", sizes, batch, kind)
    for log, predicted_log in zip(logs, predicted_logs, strict=True):
        for ours, theirs in zip(normalized(log), normalized(predicted_log), strict=True):
            assert ours == theirs
    for ours, theirs in zip(reports, predicted, strict=True):
        peak, other = ours.peak, theirs.peak
        assert (peak.requested - other.requested, peak.allocated - other.allocated,
                peak.reserved - other.reserved) == (0, 0, 0)
        assert ours.by_role == theirs.by_role
        assert ours.pool == theirs.pool


def test_dropout_takes_the_same_memory_everywhere():
    logs, _ = run("cpu", SIZES["digits"], 7, "sgd", dropout=True)
    predicted, _ = run("meta", SIZES["digits"], 7, "sgd", dropout=True)
    assert normalized(logs[-1]) == normalized(predicted[-1])


def test_the_pool_agrees_with_the_log():
    """The ledger's own counters, and the fold over the records, to the byte."""
    cpu = gradcore.device("cpu")
    module = Net((8, 16, 4))
    optimizer = optimizer_of("adam", module.parameters())
    for _ in range(3):
        cpu.ledger.reset_peaks()
        with gradcore.step() as s:
            loss = nn.functional.cross_entropy(module(gradcore.zeros(5, 8)), gradcore.zeros(5, dtype=np.int64))
            loss.backward()
            optimizer.step()
        peak = folds.peak(s.log)
        assert (peak.requested, peak.allocated, peak.reserved) == cpu.ledger.peaks
        *_, last = folds.timeline(s.log)
        assert (last.requested, last.allocated, last.reserved) == (
            cpu.ledger.requested, cpu.ledger.allocated, cpu.ledger.reserved)
        assert sum(s.report.by_role.values()) == s.report.peak.allocated
        assert sum(s.report.by_layer.values()) == s.report.peak.allocated
        assert sum(s.report.by_op.values()) == s.report.peak.allocated


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("model", ["digits", "cnn", "gpt"])
def test_every_byte_has_an_owner(model, device):
    sizes = SIZES.get(model, model)
    logs, reports = run(device, sizes, 7, "adam", dropout=True)
    module, _, _ = build(sizes, 7, "meta")
    paths = {name for name, _ in module.named_modules()}
    own = {name for name, part in module.named_modules() if [*part.parameters(recurse=False)]}
    lines: dict[str, list[str]] = {}
    found = 0
    for log in logs:
        for record in normalized(log):
            if not isinstance(record, (Alloc, Launch, Retag, View)):
                continue
            tag = record.tag
            found += 1
            assert tag.op
            assert tag.layer in paths, tag
            assert tag.phase in ("setup", "forward", "backward", "optimizer"), tag
            assert tag.role in ("parameter", "buffer", "gradient", "input", "output", "temporary", "workspace",
                                "optimizer state"), tag
            for site in (tag.site, tag.caller):
                if site is not None:
                    text = lines.setdefault(site.file, Path(site.file).read_text().splitlines())
                    assert 1 <= site.line <= len(text), site
                    assert text[site.line - 1].strip(), site
            assert Path(tag.site.file) in (Path(__file__), Path(chargpt.__file__)) or tag.op == "generator", tag
            assert tag.caller is not None or tag.phase != "backward", tag
            if isinstance(record, Alloc) and tag.role == "gradient":
                assert tag.layer in own, tag
    assert found > 100
    assert own < set(reports[-1].by_layer) <= paths


def test_backward_gives_each_residual_back_when_its_node_has_run():
    logs, reports = run("cpu", SIZES["digits"], 7, "sgd", steps=1)
    kept = [k for k in reports[0].kept if k.role == "output"]
    assert len(kept) == 5
    assert all(k.reason == "consumed" and k.dropped_at is not None for k in kept)
    dropped = [k.dropped_at for k in sorted(kept, key=lambda k: -k.node)]
    assert dropped == sorted(dropped), "the newest node releases first"
    assert reports[0].residual_bytes == reports[0].residual_bytes_returned > 0
    # What a backward node no longer needs is freed before the next node allocates.
    records = normalized(logs[0])
    for k in kept:
        if k.freed_at is not None:
            between = [r for r in records[k.dropped_at + 1:k.freed_at] if isinstance(r, Launch)]
            assert len(between) <= 2


def as_text(log):
    """A log as lines that do not depend on the checkout's location or on line numbers of ops."""
    return [re.sub(r", (callers=\(\)|export=None|network=None)", "", repr(record).replace("'", '"'))
            for record in normalized(log, lines=False)]


@pytest.mark.parametrize(("name", "kind", "dropout"), [("mlp-sgd", "sgd", False), ("mlp-adam-dropout", "adam", True)])
def test_golden_logs(name, kind, dropout, request):
    """A refactor changes no record of a small model. GRADCORE_WRITE_GOLDEN=1 rewrites them, for an intended change."""
    import os

    logs, _ = run("meta", (4, 8, 3), 5, kind, steps=2, dropout=dropout)
    text = as_text(logs[-1])
    path = GOLDEN / f"{name}.json"
    if os.environ.get("GRADCORE_WRITE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(text, indent=0) + "\n")
    expected = json.loads(path.read_text())
    for ours, theirs in zip(text, expected, strict=False):
        assert ours == theirs
    assert len(text) == len(expected)
