"""Recurrent layers compared with PyTorch's, from its weights: outputs, states, gradients; learning; residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.events import Alloc, Launch
from tests.conftest import raises
from tests.host.nn.test_layers import values


def flat(x: Any) -> list[Any]:
    return [t for part in x for t in flat(part)] if isinstance(x, (tuple, list)) else [x]


def compare(torch: Any, name: str, options: dict[str, Any], shape: tuple[int, ...], *states: tuple[int, ...]) -> None:
    ours, theirs = getattr(nn, name)(**options), getattr(torch.nn, name)(**options)
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    results = []
    for library, module in ((gradcore, ours), (torch, theirs)):
        leaves = [library.tensor(values(*s, seed=k), requires_grad=True) for k, s in enumerate((shape, *states))]
        hx = () if not states else (leaves[1],) if len(states) == 1 else ((leaves[1], leaves[2]),)
        outputs = flat(module(leaves[0], *hx))
        sum((o * library.tensor(values(*o.shape, seed=9))).sum() for o in outputs).backward()
        results.append([*outputs, *(x.grad for x in leaves), *(p.grad for p in module.parameters())])
    for a, b in zip(*results, strict=True):
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=3e-5, atol=3e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 3, "bias": False}, {"bidirectional": True, "batch_first": True},
                                     {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_layers_are_pytorchs(torch: Any, name: str, options: dict[str, Any], given: bool) -> None:
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    shape = (3, 6, 4) if options.get("batch_first") else (6, 3, 4)
    states = [(count, 3, 5)] * (2 if name == "LSTM" else 1) if given else []
    compare(torch, name, {"input_size": 4, "hidden_size": 5, **options}, shape, *states)
    # A single sequence.
    compare(torch, name, {"input_size": 4, "hidden_size": 5, **options}, (6, 4), *[(count, 5)] * len(states))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"bidirectional": True, "batch_first": True},
                                     {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("steps", [1, 6])
def test_projected_outputs_are_pytorchs(torch: Any, options: dict[str, Any], steps: int) -> None:
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    shape = (3, steps, 4) if options.get("batch_first") else (steps, 3, 4)
    for states in ([], [(count, 3, 2), (count, 3, 5)]):
        compare(torch, "LSTM", {"input_size": 4, "hidden_size": 5, "proj_size": 2, **options}, shape, *states)
    compare(torch, "LSTM", {"input_size": 4, "hidden_size": 5, "proj_size": 2, **options}, (steps, 4), (count, 2), (count, 5))


def test_all_steps_but_the_first_of_a_projected_layer_are_one_launch() -> None:
    layer, x = nn.LSTM(4, 5, proj_size=2, device="meta"), gradcore.zeros(9, 3, 4, device="meta")
    with gradcore.step() as step:
        layer(x)
    assert [r.invocation.op for r in step.recording.records if isinstance(r, Launch)].count("lstm") == 2


@pytest.mark.oracle
def test_relu_and_cells_are_pytorchs(torch: Any) -> None:
    sizes = {"input_size": 4, "hidden_size": 5}
    compare(torch, "RNN", {**sizes, "nonlinearity": "relu"}, (6, 3, 4), (1, 3, 5))
    for name, states in (("RNNCell", 1), ("GRUCell", 1), ("LSTMCell", 2)):
        for options in ({}, {"bias": False}, *([{"nonlinearity": "relu"}] if name == "RNNCell" else [])):
            compare(torch, name, {**sizes, **options}, (3, 4), *[(3, 5)] * states)
            compare(torch, name, {**sizes, **options}, (4,), *[(5,)] * states)
            compare(torch, name, {**sizes, **options}, (3, 4))


@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "padding_value": -1.5}, {"padding_side": "left"},
                                     {"batch_first": True, "padding_side": "left"}], ids=str)
def test_sequences_of_different_lengths(torch: Any, options: dict[str, Any]) -> None:
    arrays = [values(n, 3, seed=n) for n in (4, 2, 5)]
    results = []
    for library in (gradcore, torch):
        leaves = [library.tensor(a, requires_grad=True) for a in arrays]
        padded = library.nn.utils.rnn.pad_sequence(leaves, **options)
        (padded * padded).sum().backward()
        # PyTorch transposes the packed data in place.
        results.append([padded.detach() + 0])
        back = library.nn.utils.rnn.unpad_sequence(padded, library.tensor([4, 2, 5]), options.get("batch_first", False))
        results[-1] += [*back, *(x.grad for x in leaves)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_a_batch_is_padded_by_one_copy() -> None:
    sequences = [gradcore.zeros(n, 3, device="meta") for n in (4, 2, 5)]
    with gradcore.step() as step:
        nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    assert [r.invocation.op for r in step.recording.records if isinstance(r, Launch)] == ["full", "cat"]


def test_dropout_stands_between_layers_alone() -> None:
    gradcore.manual_seed(0)
    x = gradcore.tensor(values(6, 3, 4))
    gru = nn.GRU(4, 5, num_layers=2, dropout=0.5)
    first, _ = gru(x)
    second, _ = gru(x)
    assert (first != second).any()
    gru.eval()
    np.testing.assert_array_equal(gru(x)[0].detach().numpy(), gru(x)[0].detach().numpy())
    with pytest.warns(UserWarning, match="got dropout=0.5 and num_layers=1"):
        one = nn.GRU(4, 5, dropout=0.5)
    np.testing.assert_array_equal(one(x)[0].detach().numpy(), one(x)[0].detach().numpy())


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_they_learn_to_remember(name: str) -> None:
    """The task is to output the first element of a noise sequence at its end."""
    gradcore.manual_seed(1)
    rng = np.random.default_rng(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, name)(1, 16, batch_first=True)
            self.head = nn.Linear(16, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.rnn(x)[0][:, -1])

    net = Net()
    adam = gradcore.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(200):
        x = rng.normal(size=(32, 5, 1)).astype(np.float32)
        adam.zero_grad()
        loss = nn.functional.mse_loss(net(gradcore.tensor(x)), gradcore.tensor(x[:, 0]))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.1 * np.mean(losses[:10])


def test_backward_gives_everything_back() -> None:
    lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    ledger = gradcore.device("cpu").ledger
    before = set(ledger.live)
    out, _ = lstm(gradcore.tensor(values(6, 3, 4)))
    loss = out.sum()
    loss.backward()
    lstm.zero_grad()
    del out, loss, _
    assert set(ledger.live) == before


def test_errors_say_what_was_expected() -> None:
    lstm = nn.LSTM(4, 5)
    x = gradcore.ones(6, 3, 4)
    for call, kind, text in (
            (lambda: nn.RNN(4, 5, nonlinearity="sin"), ValueError, "Unknown nonlinearity 'sin'"),
            (lambda: nn.GRU(4, 0), ValueError, "hidden_size must be greater than zero, but got 0"),
            (lambda: nn.GRU(4, 5, dropout=2), ValueError, "in range [0, 1] representing the probability"),
            (lambda: nn.LSTM(4, 5, proj_size=5), ValueError, "smaller than hidden_size, but got 5 and 5"),
            (lambda: nn.LSTM(4, 5, proj_size=-1), ValueError, "a positive integer or zero to disable projections, but got -1"),
            (lambda: nn.GRU(4, 5, proj_size=2), ValueError, "only supported for LSTM, not RNN or GRU"),
            (lambda: nn.LSTM(4, 5, proj_size=2)(x, (gradcore.ones(1, 3, 5),) * 2), RuntimeError,
             "Expected hidden size (1, 3, 2), got [1, 3, 5] for h"),
            (lambda: lstm(x[0, 0]), ValueError, "LSTM: Expected input to be 2D or 3D, got 1D instead"),
            (lambda: lstm(x[..., :3]), RuntimeError, "Expected 4, got 3"),
            (lambda: lstm(x[:0]), RuntimeError, "Expected sequence length to be larger than 0"),
            (lambda: lstm(x, (gradcore.ones(1, 2, 5),) * 2), RuntimeError, "Expected hidden size (1, 3, 5), got [1, 2, 5]"),
            (lambda: nn.utils.rnn.pad_sequence([]), RuntimeError, "received an empty list of sequences"),
            (lambda: nn.utils.rnn.pad_sequence([x], padding_side="up"), ValueError, "'right' or 'left', but got up"),
            (lambda: nn.utils.rnn.pad_sequence([x, x[0]]), RuntimeError, "but got [[6, 3, 4], [3, 4]]"),
            (lambda: nn.GRUCell(4, 5)(x), ValueError, "GRUCell: Expected input to be 1D or 2D, got 3D instead")):
        with raises(kind, text):
            call()


def weight_normed(library: Any, net: Any) -> Any:
    return library.nn.utils.weight_norm(net, "weight_hh_l0")


def doubled(library: Any, net: Any) -> Any:
    class Double(library.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 2

    for name in ("weight_ih_l0", "bias_hh_l1"):
        library.nn.utils.parametrize.register_parametrization(net, name, Double())
    return net


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("change", [weight_normed, doubled])
@pytest.mark.parametrize("packed", [False, True])
def test_weights_that_are_computed_are_torchs(change: Any, packed: bool, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        net = library.nn.LSTM(3, 4, 2)
        rng = np.random.default_rng(0)
        with library.no_grad():
            for p in net.parameters():
                p.copy_(library.tensor(rng.normal(size=tuple(p.shape)).astype(np.float32) / 3))
        change(library, net)
        x = library.tensor(rng.normal(size=(5, 2, 3)).astype(np.float32))
        y, (h, c) = net(library.nn.utils.rnn.pack_padded_sequence(x, [5, 3]) if packed else x)
        y = y.data if packed else y
        (y.sum() + c.sum()).backward()
        found.append([y.detach(), h.detach(), c.detach(), *(p.grad for _, p in sorted(net.named_parameters()))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_initial_states_that_do_not_fit_are_named_as_they_were_given() -> None:
    lstm, x, h = nn.LSTM(3, 4, 2), gradcore.ones(5, 2, 3), gradcore.ones(2, 2, 4)
    for call, kind, text in (
            (lambda: lstm(x, (h, h[:1])), RuntimeError, "LSTM: Expected hidden size (2, 2, 4), got [1, 2, 4] for c"),
            (lambda: lstm(x[:, 0], (h, h)), RuntimeError, "LSTM: Expected hidden size (2, 4), got [2, 2, 4] for h"),
            (lambda: lstm(x, h), TypeError, "LSTM: the initial state must be a pair of tensors (h, c), but got a Tensor"),
            (lambda: lstm(x, (h,)), TypeError,
             "LSTM: the initial state must be a pair of tensors (h, c), but got a tuple of 1"),
            # A batch of one would be broadcast.
            (lambda: nn.GRUCell(3, 4)(x[0], h[0, :1]), RuntimeError,
             "GRUCell: Expected hidden size (2, 4), got [1, 4] for h"),
            (lambda: nn.LSTMCell(3, 4)(x[0], (h[0], h[0, 0])), RuntimeError,
             "LSTMCell: Expected hidden size (2, 4), got [4] for c")):
        with raises(kind, text):
            call()


def test_the_gradient_of_a_gru_keeps_one_gate_of_all_steps_besides_its_results() -> None:
    length, batch, size = 200, 3, 16
    x = gradcore.ones(length, batch, size)
    with gradcore.step() as step:
        nn.GRU(size, size)(x)[0].sum().backward()
    records = step.recording.records
    asked = [r.requested for r in records if isinstance(r, Alloc) and (r.tag.op, r.tag.role) == ("gru_grad", "workspace")]
    assert len(asked) == 1 and 0 < asked[0] - 4 * length * batch * size < 4 * length * batch * size // 4


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_frozen_layers_keep_nothing(kind: Any) -> None:
    layer = kind(4, 3, 2, bidirectional=True).requires_grad_(False)
    with gradcore.step(device="cpu") as step:
        out, _ = layer(gradcore.ones(2, 1, 4))
        assert out.grad_fn is None
    assert step.report.kept == ()
