"""``FlopCounterMode``: operations by hand, by PyTorch's count, in replays and on meta, by module, and what it prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.devices.device import arrivals
from gradcore.utils.flop_counter import FlopCounterMode
from tests.conftest import raises
from tests.meta.test_interrupts import at_every_moment


def convolutions(library: Any) -> tuple[Any, Any]:
    layers = library.nn
    net = layers.Sequential(
        layers.Sequential(layers.Conv2d(3, 8, 3, padding=1, stride=2), layers.ReLU(), layers.ConvTranspose2d(8, 6, 2, 2)),
        layers.Conv2d(6, 4, (1, 3), dilation=2), layers.Flatten(), layers.Linear(4 * 16 * 12, 10, bias=False))
    return net, library.ones(4, 3, 15, 16, requires_grad=True)


def products(library: Any) -> tuple[Any, Any]:
    class Net(library.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = library.nn.Linear(6, 4)
            self.last = library.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            scores = library.einsum("bif,bjf->bij", y, y)
            return self.last(library.baddbmm(y, scores, y))

    return Net(), library.ones(2, 5, 6)


def an_encoder(library: Any) -> tuple[Any, Any]:
    return library.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), library.ones(2, 5, 16)


def counted(net: Any, x: Any, mode: Any) -> Any:
    with mode(display=False) as counter:
        net(x).sum().backward()
    return counter


@pytest.mark.parametrize("make", [convolutions, products])
def test_pytorch_counts_the_same(make: Callable[[Any], tuple[Any, Any]], torch: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode as Theirs

    ours, theirs = counted(*make(gradcore), FlopCounterMode), counted(*make(torch), Theirs)
    assert ours.get_total_flops() == theirs.get_total_flops() > 0
    totals = {path: sum(by_op.values()) for path, by_op in ours.get_flop_counts().items()}
    assert totals == {path: sum(by_op.values()) for path, by_op in theirs.get_flop_counts().items()}


def test_pytorch_counts_the_same_but_for_scores_computed_again(torch: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode as Theirs

    # The kernels that it counts are a GPU's; on a CPU, it counts the products that attention is made of.
    with sdpa_kernel(SDPBackend.MATH):
        theirs = counted(*an_encoder(torch), Theirs).get_total_flops()
    again = 2 * (2 * 4 * 5) * 5 * 4
    assert counted(*an_encoder(gradcore), FlopCounterMode).get_total_flops() == theirs + again


@pytest.mark.parametrize(("layer", "gates"), [(nn.RNN, 1), (nn.LSTM, 4), (nn.GRU, 3)])
def test_recurrent_layers(layer: Any, gates: int) -> None:
    steps, batch, width, size = 5, 2, 8, 16
    net, x = layer(width, size), gradcore.ones(steps, batch, width)
    with FlopCounterMode(display=False) as counter:
        net(x)[0].sum().backward()
    of_input, of_state = (2 * steps * batch * gates * size * n for n in (width, size))
    name = layer.__name__.lower()
    # The input wants no gradient, and the weight one.
    assert counter.get_flop_counts()["Global"] == {
        "linear": of_input, name: of_state, f"{name}_grad": 2 * of_state, "linear_grad": of_input}


def test_a_replay_counts_as_an_eager_step_in_a_step_and_around_one() -> None:
    net, x = an_encoder(gradcore)
    total = counted(net, x, FlopCounterMode).get_total_flops()
    replayed = gradcore.compile(lambda: net(x).sum().backward())
    for _ in range(3):
        with gradcore.step() as step, FlopCounterMode(display=False) as inside:
            replayed()
        with FlopCounterMode(display=False) as around, gradcore.step():
            replayed()
        assert inside.get_total_flops() == around.get_total_flops() == total
        assert step.report.peak.allocated


def test_a_model_that_is_too_large_to_compute_is_counted_on_meta() -> None:
    with gradcore.device("meta"):
        layer = nn.Linear(10**5, 10**6)
        x = gradcore.ones(64, 10**5)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 64 * 10**11


def test_it_can_be_asked_within_and_counts_again_from_nothing() -> None:
    x = gradcore.ones(4, 4)
    counter = FlopCounterMode(display=False)
    assert counter.get_total_flops() == 0 and counter.get_flop_counts() == {}
    with counter:
        assert x @ x is not None
        assert counter.get_total_flops() == 128
        with FlopCounterMode(display=False) as inner:
            assert x @ x is not None
        with raises(RuntimeError, "this FlopCounterMode is counting already"):
            counter.__enter__()
    assert (counter.get_total_flops(), inner.get_total_flops()) == (256, 128)
    assert x @ x is not None
    with pytest.raises(ZeroDivisionError), counter:
        assert x @ x is not None
        raise ZeroDivisionError
    assert counter.get_flop_counts() == {"Global": {"matmul": 128}}


def test_a_network_called_as_the_row_of_all_counts_once() -> None:
    net, x = type("Global", (nn.Sequential,), {})(nn.Linear(4, 4)), gradcore.ones(4, 4)
    with FlopCounterMode(display=False) as counter:
        net(x)
    assert counter.get_flop_counts() == {"Global": {"linear": 128}, "Global.0": {"linear": 128}}


def test_an_interrupt_as_a_log_begins_or_ends_leaves_no_log_open() -> None:
    def run() -> None:
        with FlopCounterMode(display=False):
            pass

    ledger = gradcore.ones(4).storage.device.ledger
    for _ in at_every_moment(run):
        assert ledger.log is None and not arrivals


FIRST = """
import gradcore
from gradcore.utils.flop_counter import FlopCounterMode
with FlopCounterMode():
    x = gradcore.ones(2, 3, device="meta")
    y = gradcore.ones(4, 2) @ gradcore.ones(2, 3)
    x @ x.T
"""


def test_devices_that_are_used_first_within() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (
        ["module     FLOPs  share", "Global        72  100.0%", " - matmul     72  100.0%"], "")


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(10, 30), nn.Linear(30, 10)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x @ x

    net, x = Net(), gradcore.ones(10, 10)
    with gradcore.no_grad():
        with FlopCounterMode(depth=3):
            net(x)
        with FlopCounterMode(depth=1) as counter:
            assert x @ net(x) is not None
        with FlopCounterMode():
            pass
    assert capsys.readouterr().out.splitlines() == [
        "module           FLOPs  share",
        "Net             14,000  100.0%",
        " - linear       12,000   85.7%",
        " - matmul        2,000   14.3%",
        " Net.layers     12,000   85.7%",
        "  - linear      12,000   85.7%",
        "  Net.layers.0   6,000   42.9%",
        "   - linear      6,000   42.9%",
        "  Net.layers.1   6,000   42.9%",
        "   - linear      6,000   42.9%",
        # What no module has makes all a row of its own.
        "module       FLOPs  share",
        "Global      16,000  100.0%",
        " - linear   12,000   75.0%",
        " - matmul    4,000   25.0%",
        " Net        14,000   87.5%",
        "  - linear  12,000   75.0%",
        "  - matmul   2,000   12.5%",
        "module  FLOPs  share",
        "Global      0    0.0%"]
    assert len(counter.get_table(depth=3).splitlines()) == 13
    assert counter.get_table(depth=0).splitlines()[1].split() == ["Global", "16,000", "100.0%"]
