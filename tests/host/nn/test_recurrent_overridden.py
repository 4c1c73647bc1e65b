"""Recurrent layers with a ``forward`` or weights of the program's own, which use PyTorch's internal names.

Each case runs with either library, and what it returns must be equal.
"""

from __future__ import annotations

import copy
import gc
import importlib
import weakref
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
    class Scaled(t.nn.LSTM):
        def forward(self, input: Any, hx: Any = None) -> Any:
            own = self._flat_weights  # type: ignore[has-type]
            self._flat_weights = [w * 0.5 if name.startswith("weight_hh") else w
                                  for name, w in zip(self._flat_weights_names, own, strict=True)]
            try:
                return super().forward(input, hx)
            finally:
                self._flat_weights = own

    return _trained(t, Scaled(3, 4, num_layers=2, bidirectional=True), lambda m: m(_input(t, 5, 2, 3))[0])


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


def weights_that_are_set(t: Any) -> Any:
    importlib.import_module(f"{t.__name__}.nn.utils.parametrize")

    class Half(t.nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 0.5

    def layer() -> Any:
        return _drawn(t, t.nn.LSTM(3, 4))

    def zeroed() -> Any:
        made = layer()
        made._flat_weights = [w.detach() * 0 for w in made._flat_weights]
        return made

    item, kept, part, named, converted, loaded, reset, keeping = layer(), layer(), layer(), *(zeroed() for _ in range(5))
    item._flat_weights[1] = t.zeros(16, 4)
    weights = kept._flat_weights
    weights[2] = t.zeros(16)
    part._flat_weights[:2] = [t.zeros(16, 3), t.zeros(16, 4)]
    named.weight_hh_l0 = t.nn.Parameter(t.ones(16, 4))
    converted.to(t.float64).to(t.float32)
    loaded.load_state_dict(layer().state_dict())
    reset._init_flat_weights()
    keeping.kept = keeping._flat_weights
    copied = copy.deepcopy(keeping)
    copied.kept[0] = t.zeros(16, 3)
    halved = layer()
    t.nn.utils.parametrize.register_parametrization(halved, "weight_hh_l0", Half())
    halved._flat_weights = [w.detach() for w in halved._flat_weights]
    with t.no_grad():
        halved.parametrizations.weight_hh_l0.original.mul_(3)
    x = _input(t, 5, 2, 3)
    passed = {name: w * 2 for name, w in layer().state_dict().items()}
    called = t.func.functional_call(zeroed(), passed, (x,))[0].tolist()
    layers = (halved, item, kept, part, zeroed(), named, converted, loaded, reset, copied, keeping, copy.deepcopy(zeroed()))
    return [called, [[layer(x)[0].tolist(), sorted(layer.state_dict())] for layer in layers]]


CASES: list[Callable[[Any], Any]] = [
    weights_that_are_computed, steps_by_hand, a_layer_of_another_kind, a_cell_with_norms, what_states_must_be,
    whole_layers_as_functions, weights_that_are_set]


def _near(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_near, ours, theirs))
    return ours == pytest.approx(theirs, rel=1e-4, abs=1e-6) if isinstance(theirs, float) else bool(ours == theirs)


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_an_overridden_layer_is_pytorchs(case: Callable[[Any], Any], torch: Any) -> None:
    ours, theirs = case(gradcore), case(torch)
    assert _near(ours, theirs), (ours, theirs)


def test_weights_of_another_number_are_refused() -> None:
    with raises(ValueError, "_flat_weights of this GRU are 2 tensors, weight_ih_l0, weight_hh_l0, but got 1"):
        gradcore.nn.GRU(3, 4, bias=False)._flat_weights = [gradcore.zeros(12, 3)]


def test_a_layer_that_keeps_its_weights_in_a_row_goes_by_reference_counting() -> None:
    layer = gradcore.nn.GRU(3, 4)
    layer.kept = layer._flat_weights
    gone = weakref.ref(layer)
    gc.disable()
    try:
        del layer
        assert gone() is None
    finally:
        gc.enable()


def test_a_compiled_function_notices_weights_that_are_set() -> None:
    layer = _drawn(gradcore, gradcore.nn.LSTM(3, 4))
    x = _input(gradcore, 5, 2, 3)
    replayed = gradcore.compile(lambda x: layer(x)[0].sum())

    def same() -> bool:
        with gradcore.no_grad():
            eager = layer(x)[0].sum().item()
            return [replayed(x).item() for _ in range(3)] == [pytest.approx(eager, abs=1e-6)] * 3

    found, given = [same()], gradcore.zeros(16, 3)
    layer._flat_weights[0] = given
    found.append(same())
    given.fill_(2.0)
    found.append(same())
    layer._flat_weights = [w.detach() * 3 for w in layer._flat_weights]
    found.append(same())
    layer._init_flat_weights()
    assert [*found, same()] == [True] * 5
    assert "_flat_weights of LSTM were set" in replayed.explain()


def test_a_compiled_function_that_sets_a_weight_runs_eagerly() -> None:
    layer, given = _drawn(gradcore, gradcore.nn.LSTM(3, 4)), gradcore.ones(16, 3)

    def run(x: Any) -> Any:
        found = layer(x)[0].sum()
        layer._flat_weights[0] = given
        return found

    x, replayed = _input(gradcore, 5, 2, 3), gradcore.compile(run)
    with gradcore.no_grad():
        first, *later = (replayed(x).item() for _ in range(3))
        assert later == [pytest.approx(layer(x)[0].sum().item())] * 2 and later[0] != pytest.approx(first)
    assert "changes which parameters, buffers or children a LSTM has" in replayed.explain()
