"""Random numbers: a seed repeats them, and their distributions are right."""

from __future__ import annotations

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _random
from gradcore.errors import TraceError
from gradcore.events import Alloc, Launch
from gradcore.nn import functional as F
from gradcore.utils import data
from tests.conftest import raises


def test_a_seed_gives_the_same_numbers_again() -> None:
    _random.manual_seed(3)
    first = [_random.rand(5).numpy().copy(), _random.randn(7).numpy().copy(), _random.randperm(9).numpy().copy()]
    _random.manual_seed(3)
    again = [_random.rand(5).numpy(), _random.randn(7).numpy(), _random.randperm(9).numpy()]
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert _random.initial_seed() == 3


def test_draws_follow_one_another_without_repeating() -> None:
    _random.manual_seed(0)
    together = np.concatenate([_random.rand(n).numpy() for n in (1, 3, 4, 5, 17)])
    assert len(np.unique(together)) == len(together)


def test_numbers_are_numpys_philox() -> None:
    """Key = seed, counter = 0: values can be checked with NumPy only."""
    _random.manual_seed(11)
    expected = np.random.Generator(np.random.Philox(key=[11, 0], counter=[0, 0, 0, 0])).random(6, dtype=np.float32)
    np.testing.assert_array_equal(_random.rand(2, 3).numpy().ravel(), expected)


def test_negative_and_large_seeds_count_by_their_low_64_bits() -> None:
    a, b = _random.Generator().manual_seed(-1), _random.Generator().manual_seed(2**64 - 1)
    np.testing.assert_array_equal(_random.rand(4, generator=a).numpy(), _random.rand(4, generator=b).numpy())
    assert a.initial_seed() == -1
    with raises(TypeError, "manual_seed expected a long, but got float"):
        a.manual_seed(1.5)  # type: ignore[arg-type]


def test_moments() -> None:
    _random.manual_seed(0)
    u, n = _random.rand(40_000).numpy(), _random.randn(40_000).numpy()
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
    assert abs(n.mean()) < 0.02 and abs(n.std() - 1) < 0.02 and 0.67 < (np.abs(n) < 1).mean() < 0.695


def test_fills_reach_the_tensor_itself_and_leave_no_graph() -> None:
    x = gradcore.zeros(1000, requires_grad=True)
    storage = x.storage
    _random.uniform_(x, -2, -1)
    assert x.storage is storage and x.is_leaf
    values = x.detach().numpy()
    assert -2 <= values.min() < -1.9 and -1.1 < values.max() < -1
    _random.normal_(x, 5.0, 0.1)
    assert abs(values.mean() - 5) < 0.02
    with raises(RuntimeError, "from=1", "to=0"):
        _random.uniform_(x, 1, 0)
    with raises(RuntimeError, "std >= 0.0", "-1"):
        _random.normal_(x, 0, -1)


@pytest.mark.parametrize("fill, drawn", [(lambda x: _random.uniform_(x, -1, 2), lambda: _random.rand(3, 5) * 3 - 1),
                                         (_random.normal_, lambda: _random.randn(3, 5))])
@pytest.mark.parametrize("lies", ["contiguous", "transposed", "bfloat16"])
def test_a_fill_draws_what_a_new_tensor_would_and_where_it_may_makes_no_copy(fill: Any, drawn: Any, lies: str) -> None:
    x = (gradcore.empty(5, 3).T if lies == "transposed" else gradcore.empty(3, 5))
    x = x.to(gradcore.bfloat16) if lies == "bfloat16" else x
    results = []
    for draw in (lambda: fill(x), drawn):
        _random.manual_seed(5)
        results.append((draw().numpy().copy(), _random.get_rng_state().numpy().copy()))
    (filled, state), (expected, moved) = results
    if lies != "bfloat16":
        np.testing.assert_array_equal(filled, expected)
    np.testing.assert_array_equal(state, moved)
    with gradcore.step() as s:
        fill(x)
    if lies == "contiguous":
        assert [r.invocation.op for r in s.log if isinstance(r, Launch)] in (["uniform_"], ["normal_"])
        made = {r.tag.role for r in s.log if isinstance(r, Alloc) and r.tag.op in ("uniform_", "normal_")}
        assert made <= {"workspace"}, made


def test_a_state_can_be_kept_and_put_back() -> None:
    g = _random.Generator()
    state = g.get_state()
    a = _random.rand(4, generator=g)
    g.set_state(state)
    np.testing.assert_array_equal(a.numpy(), _random.rand(4, generator=g).numpy())
    assert g._state.storage.block.tag.role == "buffer"


def orders(generator: Any, loader: Any) -> list[Any]:
    return [_random.randperm(20, generator=generator).tolist(), [b.tolist() for b in loader],
            _random.rand(3, generator=generator).tolist()]


@pytest.mark.parametrize("before", [0, 2])
def test_a_state_says_which_orders_follow(before: int) -> None:
    """A run that is resumed in another process shuffles as the one that it continues."""
    g = _random.Generator().manual_seed(5)
    for _ in range(before):
        _random.randperm(3, generator=g)
    loader = data.DataLoader(range(20), 4, shuffle=True, generator=g)
    file = io.BytesIO()
    gradcore.save({"state": g.get_state()}, file)
    expected = orders(g, loader)
    assert orders(g, loader) != expected
    g.manual_seed(8)
    orders(g, loader)
    g.set_state(gradcore.load(file)["state"])
    assert g.initial_seed() == 5
    assert orders(g, loader) == expected


def test_a_state_of_the_default_generator_may_go_to_another() -> None:
    _random.manual_seed(-3)
    _random.randperm(3)
    g = _random.Generator()
    g.set_state(_random.get_rng_state())
    assert _random.randperm(9, generator=g).tolist() == _random.randperm(9).tolist()
    _random.set_rng_state(_random.get_rng_state())
    assert _random.initial_seed() == -3


def test_a_copy_of_a_generator_draws_the_same_numbers() -> None:
    g = _random.Generator().manual_seed(5)
    g.set_state(_random.Generator().manual_seed(6).get_state())
    _random.rand(2, generator=g)
    _random.randperm(3, generator=g)
    copies = [copy.deepcopy(g), g.clone_state()]
    drawn = [[_random.randperm(9, generator=h).tolist(), _random.rand(2, generator=h).tolist()] for h in (g, *copies)]
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_compiled_function_sets_no_state() -> None:
    state = _random.get_rng_state()

    @gradcore.compile
    def f(x: Any) -> Any:
        _random.set_rng_state(state)
        return x * 2

    with raises(TraceError, "sets the state of a generator"):
        f(gradcore.ones(2))


def test_randperm_is_a_permutation_and_needs_no_device_values() -> None:
    assert sorted(_random.randperm(50).tolist()) == list(range(50))
    assert _random.randperm(50).tolist() != _random.randperm(50).tolist()
    assert _random.randperm(6, device="meta").shape == (6,)
    with raises(ValueError, "n must be non-negative, got -1"):
        _random.randperm(-1)


def test_a_generator_of_another_device_is_an_error() -> None:
    with raises(RuntimeError, "Expected a 'meta' device type for generator but found 'cpu'"):
        _random.rand(2, device="meta", generator=_random.Generator("cpu"))


def test_meta_allocates_what_the_cpu_does() -> None:
    def run(device: str) -> int:
        before = _base(device)
        x = _random.rand(100, 10, device=device, requires_grad=True)
        y = F.dropout(x, 0.3)
        taken = _base(device) - before
        del x, y
        return taken

    assert [run("cpu"), run("meta")] == [8000 + 32, 8000 + 32]


def _base(device: str) -> int:
    return sum(b.requested for b in gradcore.device(device).ledger.live.values())


def test_dropout_keeps_a_snapshot_and_never_a_mask() -> None:
    _random.manual_seed(0)
    x = gradcore.ones(200, 50, requires_grad=True)
    before = _base("cpu")
    y = F.dropout(x, 0.25)
    assert _base("cpu") - before == y.nbytes + 32
    values = y.detach().numpy()
    assert set(np.unique(values)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), values)
    assert F.dropout(x, 0.5, training=False) is x and F.dropout(x, 0.0) is x
    with raises(ValueError, "dropout probability has to be between 0 and 1, but got 1.5"):
        F.dropout(x, 1.5)


def test_threads_that_fill_at_once_draw_different_numbers() -> None:
    gradcore.manual_seed(0)
    tensors = [gradcore.empty(300_000) for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_random.uniform_, tensors))
    assert len({t[0].item() for t in tensors}) == len(tensors)
