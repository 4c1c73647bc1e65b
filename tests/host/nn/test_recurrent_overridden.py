"""Recurrent layers with a ``forward`` or weights of the program's own, some of which use PyTorch's internal names.

Each case runs with either library, and what it returns must be equal.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


def _drawn(t: Any, model: Any) -> Any:
    rng = np.random.default_rng(3)
    with t.no_grad():
        for p in model.parameters():
            p.copy_(t.tensor(rng.normal(size=tuple(p.shape)).astype(np.float32) * 0.4))
    return model


def _input(t: Any, *shape: int) -> Any:
    return t.tensor(np.random.default_rng(7).normal(size=shape).astype(np.float32))


def _trained(t: Any, model: Any, call: Callable[[Any], Any]) -> list[Any]:
    """Losses of three steps, the first gradients, and the names of the state."""
    optimizer = t.optim.SGD(_drawn(t, model).parameters(), lr=0.1)
    losses: list[float] = []
    first: list[Any] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(model).pow(2).mean()
        loss.backward()
        first = first or [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return [losses, first, list(model.state_dict())]


def weights_that_are_computed(t: Any) -> Any:
    parametrize = importlib.import_module(f"{t.__name__}.nn.utils.parametrize")

    class Half(t.nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 0.5

    layer = t.nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    for name in layer._flat_weights_names:
        if name.startswith("weight_hh"):
            parametrize.register_parametrization(layer, name, Half())
    return _trained(t, layer, lambda m: m(_input(t, 5, 2, 3))[0])


def steps_by_hand(t: Any) -> Any:
    class Steps(t.nn.GRU):
        def forward(self, input: Any, hx: Any = None) -> Any:
            if hx is None:
                hx = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
            self.check_forward_args(input, hx, None)
            hx = self.permute_hidden(hx, None)
            weight_ih, weight_hh, bias_ih, bias_hh = self._flat_weights
            h, found = hx[0], []
            for x in input.unbind(1):
                r_x, z_x, n_x = t.nn.functional.linear(x, weight_ih, bias_ih).chunk(3, 1)
                r_h, z_h, n_h = t.nn.functional.linear(h, weight_hh, bias_hh).chunk(3, 1)
                r, z = t.sigmoid(r_x + r_h), t.sigmoid(z_x + z_h)
                n = t.tanh(n_x + r * n_h)
                h = n + z * (h - n)
                found.append(h)
            return t.stack(found, 1), h

    return _trained(t, Steps(3, 4, batch_first=True), lambda m: m(_input(t, 2, 5, 3))[0])


def a_layer_of_another_kind(t: Any) -> Any:
    class Mean(t.nn.RNNBase):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__("GRU", *args, **kwargs)

        def forward(self, input: Any) -> Any:
            return input @ self.weight_ih_l0.t() + self.bias_ih_l0

    with raises(ValueError, "Unrecognized RNN mode: gru"):
        t.nn.RNNBase("gru", 2, 3)
    return _trained(t, Mean(3, 4), lambda m: m(_input(t, 2, 3)))


def a_cell_with_norms(t: Any) -> Any:
    class Normed(t.nn.RNNCellBase):
        def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
            super().__init__(inputs, hidden, bias, num_chunks=4)
            self.norm = t.nn.LayerNorm(4 * hidden)

        def forward(self, x: Any, hx: Any) -> Any:
            h, c = hx
            gates = self.norm(x @ self.weight_ih.t() + h @ self.weight_hh.t() + self.bias_ih + self.bias_hh)
            i, f, o, g = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            return o.sigmoid() * c.tanh(), c

    state = (_input(t, 2, 4), _input(t, 2, 4))
    return _trained(t, Normed(3, 4), lambda m: m(_input(t, 2, 3), m(_input(t, 2, 3), state))[0])


def what_states_must_be(t: Any) -> Any:
    x, found = t.zeros(5, 2, 3), []
    for layer in (t.nn.GRU(3, 4, 2, bidirectional=True), t.nn.LSTM(3, 4, proj_size=2), t.nn.RNN(3, 4, bias=False)):
        found += [layer.get_expected_hidden_size(x, None), layer._flat_weights_names,
                  [tuple(w.shape) for w in layer._flat_weights], layer.mode]
    gru, lstm = t.nn.GRU(3, 4), t.nn.LSTM(3, 4, proj_size=2)
    found += [lstm.get_expected_cell_size(x, None), gru.permute_hidden(_input(t, 1, 2, 4), t.tensor([1, 0])).tolist()]
    found += [h.tolist() for h in lstm.permute_hidden((_input(t, 1, 2, 2), _input(t, 1, 2, 4)), t.tensor([1, 0]))]
    for call in (lambda: gru.check_forward_args(x, t.zeros(1, 2, 5), None), lambda: gru.check_input(t.zeros(2, 3, 7), None),
                 lambda: gru.check_input(t.zeros(2, 3), None), lambda: lstm.check_forward_args(x, (x, x), None)):
        try:
            call()
        except RuntimeError as error:
            found.append(str(error))
    return found


def whole_layers_as_functions(t: Any) -> Any:
    class Plain(t.nn.LSTM):
        def forward(self, input: Any, hx: Any = None) -> Any:
            zeros = input.new_zeros(self.num_layers * (1 + self.bidirectional), input.size(0), self.hidden_size)
            self.check_forward_args(input, (zeros, zeros), None)
            out, *states = t._VF.lstm(input, (zeros, zeros), self._flat_weights, self.bias, self.num_layers, self.dropout,
                                      self.training, self.bidirectional, self.batch_first)
            return out, tuple(states)

    class Packed(t.nn.RNN):
        def forward(self, input: Any, hx: Any = None) -> Any:
            data, batch_sizes, *_ = input
            hx = data.new_zeros(1, 2, 4)
            call = t._VF.rnn_tanh if self.mode == "RNN_TANH" else t._VF.rnn_relu
            return call(data, batch_sizes, hx, self._flat_weights, self.bias, self.num_layers, 0.0, self.training, False)

    lstm, gru = Plain(3, 4, 2, batch_first=True, bidirectional=True), t.nn.GRU(3, 4, bias=False)
    packed = t.nn.utils.rnn.pack_sequence([_input(t, 3, 3), _input(t, 2, 3)])
    _drawn(t, gru)
    outputs = t._VF.gru(_input(t, 5, 2, 3), t.zeros(1, 2, 4), gru._flat_weights, False, 1, 0.0, True, False, False)
    return [_trained(t, lstm, lambda m: m(_input(t, 2, 5, 3))[0]), [x.tolist() for x in outputs],
            *(_trained(t, Packed(3, 4, nonlinearity=kind), lambda m: m(packed)[0]) for kind in ("tanh", "relu"))]


def weights_that_are_set_by_name(t: Any) -> Any:
    layer, x = _drawn(t, t.nn.LSTM(3, 4)), _input(t, 5, 2, 3)
    passed = {name: w * 2 for name, w in layer.state_dict().items()}
    called = t.func.functional_call(layer, passed, (x,))[0]
    layer.weight_hh_l0 = t.nn.Parameter(t.ones(16, 4))
    return [called.tolist(), layer(x)[0].tolist(), [w.tolist() for w in layer._flat_weights], layer.all_weights[0][1].tolist()]


CASES: list[Callable[[Any], Any]] = [
    weights_that_are_computed, steps_by_hand, a_layer_of_another_kind, a_cell_with_norms, what_states_must_be,
    whole_layers_as_functions, weights_that_are_set_by_name]


def _near(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_near, ours, theirs))
    return ours == pytest.approx(theirs, rel=1e-4, abs=1e-6) if isinstance(theirs, float) else bool(ours == theirs)


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_an_overridden_layer_is_pytorchs(case: Callable[[Any], Any], torch: Any) -> None:
    ours, theirs = case(gradcore), case(torch)
    assert _near(ours, theirs), (ours, theirs)


def test_flat_weights_cannot_be_set() -> None:
    layer = gradcore.nn.GRU(3, 4, bias=False)
    with raises(AttributeError, "_flat_weights of a GRU cannot be set: to compute with other weights, register a "
                                "parametrization (nn.utils.parametrize), or set the parameters by their names, "
                                "such as weight_ih_l0"):
        layer._flat_weights = [w.detach() for w in layer._flat_weights]
